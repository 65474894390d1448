// Sends a committed checkpoint from disk to a bucket. The upload of one checkpoint:
//
// 1. Claim: a conditional put of manifest.new. If there is one, it must be of the same checkpoint: this
//    upload goes on where that one has ended. The server must refuse the second of two conditional puts. A
//    damaged claim with nothing beside it is removed: no upload goes on with it.
// 2. If there is a manifest, the checkpoint is there already (or another one: an error). Only now, because
//    an upload that has ended in between has removed its claim after it had stored its manifest.
// 3. Send what has not arrived, files of several parts as multipart uploads. Each chunk's CRC32C is compared
//    with the manifest on its way, and each part is sent with its CRC32C.
// 4. If the server does not compare checksums, get everything back and compare. Remove what has been damaged.
// 5. Remove names from the index that other checkpoints of the tag have left there (index.h).
// 6. Commit: a conditional put of the manifest. If the server does not compare checksums, compare that, too.
//    Then put the checkpoint's name into the index, and remove the claim.
//
// A process that dies in between leaves a claim, and files beside it that no reader takes for a checkpoint; or a
// checkpoint that has no name, which readers find by its tag.
// Two uploads of the same checkpoint at once send the same bytes; one may fail when the other one has ended.
#ifndef CKPTD_STORAGE_BUCKET_UPLOAD_H_
#define CKPTD_STORAGE_BUCKET_UPLOAD_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "storage/bucket/transfer.h"
#include "storage/fs/file_system.h"
#include "storage/object/object_store.h"

namespace ckptd {

struct UploadResult {
  int64_t sent_bytes = 0;
  int64_t arrived_bytes = 0;  // Those that an earlier upload had sent.
};

// Of root/`tag` to PREFIX/TAG. NOT_FOUND, reason NO_CHECKPOINT, also if `sequence` is not 0 and the
// checkpoint there has another one. With a `sequence` the upload is a daemon's, and is marked as such: a run
// that has lost its record of what it has uploaded knows it again by that. ALREADY_EXISTS, reason
// OBJECT_EXISTS, if another checkpoint is there, or its unfinished upload. UNIMPLEMENTED, reason
// STORE_UNSUITABLE, if the server ignores the condition of a put. DATA_LOSS, reason CORRUPT_FILE, if a file
// is not as in the manifest; reason CORRUPT_TRANSFER, if bytes were damaged on their way: upload again.
absl::StatusOr<UploadResult> UploadCheckpoint(FileSystem& fs, Handle root, const std::string& tag,
                                              ObjectStore& store, const std::string& prefix,
                                              const TransferOptions& options, int64_t sequence = 0);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BUCKET_UPLOAD_H_
