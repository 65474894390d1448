// Sends the files of one part from memory to a bucket.
#ifndef CKPTD_STORAGE_COMMIT_BUCKET_SEND_IMAGES_H_
#define CKPTD_STORAGE_COMMIT_BUCKET_SEND_IMAGES_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/bucket/transfer.h"
#include "storage/io/part_writer.h"
#include "storage/object/object_store.h"

namespace ckptd {

struct SendOptions {
  TransferOptions transfer;
  int32_t chunk_bytes = 0;
  bool store_compares_checksums = false;  // False: everything is read back and compared.
};

// Each image becomes the object `base` + its path, files of several parts by multipart uploads, several parts
// at a time. Adds to `sent_bytes` as parts arrive. After an error objects and multipart uploads may be left.
// DATA_LOSS, reason CORRUPT_TRANSFER, if a file came back other than it was sent.
absl::StatusOr<std::vector<WrittenFile>> SendImages(ObjectStore& store, const std::string& base,
                                                    const std::vector<FileImage>& images,
                                                    const SendOptions& options,
                                                    std::atomic<int64_t>* sent_bytes);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_BUCKET_SEND_IMAGES_H_
