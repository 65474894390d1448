// What uploads and fetches share: checkpoints go in parts of whole chunks, several at once.
//
// In the bucket a checkpoint has the names that it has on disk, beneath PREFIX/TAG/.
// PREFIX/TAG/.ckptd/manifest is stored last, and is the commit. PREFIX/TAG/.ckptd/manifest.new is there
// during an upload, and says of which checkpoint: whatever else is beneath PREFIX/TAG/ belongs to the
// checkpoint with that manifest. PREFIX/TAG/.ckptd/by-daemon, which is empty, is there if a daemon has
// uploaded it. A manifest without a byte is none: it keeps a save that was given up from its commit
// (storage/commit/bucket/unended.h). PREFIX/.ckptd/index/ has a name for each checkpoint (storage/bucket/index.h).
#ifndef CKPTD_STORAGE_BUCKET_TRANSFER_H_
#define CKPTD_STORAGE_BUCKET_TRANSFER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/base/mutex.h"
#include "storage/object/object_store.h"

namespace ckptd {

inline constexpr std::string_view kByDaemonName = "by-daemon";
inline constexpr std::string_view kClaimName = "manifest.new";

struct TransferOptions {
  int threads = 8;  // As many parts are in flight and in memory.
  // Rounded up to whole chunks, and to what makes at most kMaxParts of a file. At least kMinPartBytes.
  int64_t part_bytes = int64_t{16} << 20;
  std::function<void(int64_t bytes)> progress;  // May be null. Called with what has been moved so far.
  // May be null. Called before each part is sent: it may wait, for its turn; its error ends the transfer.
  std::function<absl::Status(int64_t bytes)> admit = nullptr;
};

// "<prefix>/<tag>/", and "<tag>/" if the prefix is empty.
std::string CheckpointKey(const std::string& prefix, const std::string& tag);

struct FilePart {
  size_t file = 0;  // Its place in the caller's list.
  int number = 0;   // From 1 on.
  int64_t offset = 0;
  int64_t size = 0;
};
// Of a file: parts of whole chunks, at most kMaxParts. One part of size 0 of an empty file.
std::vector<FilePart> PartsOf(size_t file, int64_t file_size, int32_t chunk_bytes,
                              const TransferOptions& options);

// DATA_LOSS, reason CORRUPT_FILE, if a chunk of these bytes is not the manifest's. `offset` is that of a
// chunk.
absl::Status CheckChunks(const storage::v1::FileRecord& record, int32_t chunk_bytes, int64_t offset,
                         std::span<const std::byte> bytes);
// Gets a part and checks its chunks. Bytes that arrive damaged are fetched three times.
absl::Status GetChecked(ObjectStore& store, const std::string& key, const storage::v1::FileRecord& record,
                        int32_t chunk_bytes, int64_t offset, std::span<std::byte> into);

// Memory of the parts in flight, used again for later ones: fresh memory would cost a page fault for each page.
// Thread-safe.
class PartBuffers {
 public:
  // Calls `use` with `size` bytes of any content, and returns what it returned.
  absl::Status With(int64_t size, const std::function<absl::Status(std::span<std::byte>)>& use);

 private:
  struct Buffer {
    std::unique_ptr<std::byte[]> bytes;
    size_t size = 0;
  };
  Mutex mutex_;
  std::vector<Buffer> idle_ ABSL_GUARDED_BY(mutex_);
};

// Calls job(i) for each i in [0, count), several at a time. Starts no more of them after an error; the result
// is the first error.
absl::Status RunParallel(int threads, size_t count, const std::function<absl::Status(size_t)>& job);

// Calls `get` up to three times while its result proves damage: the bytes may have been damaged on their way.
absl::Status GetUndamaged(const std::function<absl::Status()>& get);

// All keys that begin with `folder`.
absl::StatusOr<std::set<std::string>> KeysBeneath(ObjectStore& store, const std::string& folder);

// Whether the server compares the checksums that it is sent. Finds out by an object `key` with a wrong one, which it
// removes again.
absl::StatusOr<bool> ComparesChecksums(ObjectStore& store, const std::string& key);

// A small object as a whole.
absl::StatusOr<std::string> GetText(ObjectStore& store, const std::string& key);
// The text of a manifest, as GetUndamaged gets it. If it stays damaged, it is the damaged text.
absl::StatusOr<std::string> GetManifestText(ObjectStore& store, const std::string& key);
absl::Status PutText(ObjectStore& store, const std::string& key, const std::string& text, PutMode mode);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BUCKET_TRANSFER_H_
