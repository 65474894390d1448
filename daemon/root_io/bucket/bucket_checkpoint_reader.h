// Reads one committed checkpoint of a root in a bucket. Nothing there is held for it: if the checkpoint is
// removed, the next read fails with NO_CHECKPOINT, and bytes of two checkpoints are never mixed.
#ifndef CKPTD_DAEMON_ROOT_IO_BUCKET_BUCKET_CHECKPOINT_READER_H_
#define CKPTD_DAEMON_ROOT_IO_BUCKET_BUCKET_CHECKPOINT_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/engine/seams/root_io.h"
#include "daemon/root_io/common/disk_checkpoint_reader.h"
#include "storage/bucket/transfer.h"
#include "storage/commit/bucket/bucket_keys.h"
#include "storage/format/manifest.h"
#include "storage/object/object_store.h"

namespace ckptd {

class BucketCheckpointReader : public CheckpointReader {
 public:
  BucketCheckpointReader(std::shared_ptr<ObjectStore> store, BucketKeys keys, TransferOptions transfer,
                         std::shared_ptr<const Manifest> manifest, std::shared_ptr<OpenReaders> readers);
  ~BucketCheckpointReader() override;

  const Manifest& manifest() const override { return *manifest_; }
  absl::Status Read(const std::string& path, int64_t offset, std::span<std::byte> into) override;
  // Whole files, by several requests at a time. The first error ends it.
  absl::Status ReadWhole(const std::vector<FileTarget>& files);

 private:
  absl::StatusOr<const storage::v1::FileRecord*> Find(const std::string& path) const;
  // Reads whole chunks, and checks them.
  absl::Status ReadChunks(const storage::v1::FileRecord& file, int64_t offset, std::span<std::byte> into);
  // The error for bytes that are not what the manifest says, or that are missing.
  absl::Status Explain(const absl::Status& found, const storage::v1::FileRecord& file) const;

  const std::shared_ptr<ObjectStore> store_;
  const BucketKeys keys_;
  const TransferOptions transfer_;
  const std::shared_ptr<const Manifest> manifest_;
  const std::shared_ptr<OpenReaders> readers_;
  PartBuffers buffers_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ROOT_IO_BUCKET_BUCKET_CHECKPOINT_READER_H_
