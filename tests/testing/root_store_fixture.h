// A root in a temporary directory, and saves into it through a RootStore, for tests.
#ifndef CKPTD_TESTS_TESTING_ROOT_STORE_FIXTURE_H_
#define CKPTD_TESTS_TESTING_ROOT_STORE_FIXTURE_H_

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/commit/local/root_store.h"
#include "storage/fs/file_system.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {

// A root on the real file system, removed at the end.
class TemporaryRoot {
 public:
  // On disk, or in memory (where a sync costs nothing; a process that dies cannot tell the difference).
  enum class On { kDisk, kMemory };
  explicit TemporaryRoot(On on = On::kDisk);

  FileSystem& fs() { return *fs_; }
  Handle handle() const { return dir_.fd(); }
  std::filesystem::path path(const std::string& below = "") const {
    return below.empty() ? std::filesystem::path(dir_.path()) : std::filesystem::path(dir_.path()) / below;
  }
  // A path in our node's directory.
  std::filesystem::path node(const std::string& below = "") const {
    return path(".ckptd/nodes/local") / below;
  }

  // Opens a store, and fails the test on error.
  std::unique_ptr<RootStore> Open() { return OpenWith(*fs_); }
  std::unique_ptr<RootStore> OpenWith(FileSystem& fs);
  absl::StatusOr<std::unique_ptr<RootStore>> TryOpen(FileSystem& fs);

  std::vector<std::string> Names(const std::string& below) const;  // Sorted.
  void Write(const std::string& below, const std::string& content) const;
  std::string Read(const std::string& below) const;
  void FlipByte(const std::string& below, int64_t offset) const;

 private:
  TempDir dir_;
  std::unique_ptr<FileSystem> fs_;
};

// A save whose bytes depend on its sequence: every rank has "model_<rank>.pt" (more than one chunk, with an
// odd tail), "deep/er/<rank>" and "empty_<rank>".
struct SaveSpec {
  std::string tag;
  int64_t sequence = 1;
  int world_size = 2;
  std::map<std::string, std::string> pointers = {};
  std::string suspect = {};
};
inline constexpr int32_t kTestChunkBytes = 4096;

storage::v1::ManifestSummary SummaryOf(const SaveSpec& spec);
std::vector<std::string> PathsOf(int rank);
std::string ContentOf(const SaveSpec& spec, const std::string& path);

// Writes one rank's files through `fs`, durably, and then its record (unless `files_only`).
absl::StatusOr<storage::v1::PartRecord> WritePart(FileSystem& fs, RootStore& store, const Inflight& inflight,
                                                  const SaveSpec& spec, int rank, bool files_only = false);

struct Staged {
  Inflight inflight;
  std::vector<storage::v1::PartRecord> parts;
};
// Does steps 1 to 3 for the first `ranks` ranks (all if negative). If a part fails, the in-flight directory
// is discarded.
absl::StatusOr<Staged> Stage(FileSystem& fs, RootStore& store, const SaveSpec& spec, int ranks = -1);

// The outcome that a caller may report.
enum class SaveVerdict { kCommitted, kFailed, kUnknown };
// Stages and publishes. A failed save is discarded, and reported as failed only if that succeeded.
SaveVerdict Save(FileSystem& fs, RootStore& store, const SaveSpec& spec);

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_ROOT_STORE_FIXTURE_H_
