#include "daemon/runtime/state_directory.h"

#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd {
namespace {

constexpr char kRootsFile[] = "known_roots.txtpb";
constexpr int64_t kMaxFileBytes = 16 << 20;
constexpr Duration kLockRetry = std::chrono::milliseconds(20);

bool SameDirectory(const storage::v1::KnownRoot& a, const storage::v1::KnownRoot& b) {
  return a.device() == b.device() && a.inode() == b.inode();
}

absl::Status LockWithin(FileSystem& fs, Handle file, Duration patience) {
  const Instant deadline = SystemClock().Now() + patience;
  while (true) {
    absl::Status locked = fs.Lock(file);
    if (ReasonOf(locked) != "LOCKED" || SystemClock().Now() >= deadline) return locked;
    std::this_thread::sleep_for(kLockRetry);  // flock has no deadline of its own.
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateDirectory>> StateDirectory::Open(const std::string& path,
                                                                     Duration patience) {
  std::unique_ptr<StateDirectory> state(new StateDirectory);
  state->path_ = path;
  CKPTD_ASSIGN_OR_RETURN(state->fs_, MakePosixFileSystem());
  if (::mkdir(path.c_str(), 0700) == 0) {
    // What is remembered in it must not go with it.
    const std::string above = std::filesystem::path(path).parent_path();
    CKPTD_ASSIGN_OR_RETURN(const Handle parent, OpenRootDirectory(above, std::nullopt));
    CKPTD_RETURN_IF_ERROR(state->fs_->Sync(ScopedHandle(state->fs_.get(), parent).get(), SyncMode::kAll));
  } else if (errno != EEXIST) {
    return ErrnoError(errno, absl::StrCat("make the state directory ", path));
  }
  CKPTD_ASSIGN_OR_RETURN(const Handle directory, OpenRootDirectory(path, std::nullopt));
  state->directory_ = ScopedHandle(state->fs_.get(), directory);
  CKPTD_ASSIGN_OR_RETURN(state->lock_, OpenScoped(*state->fs_, directory, "lock", OpenMode::kLock));
  if (absl::Status locked = LockWithin(*state->fs_, state->lock_.get(), patience); !locked.ok()) {
    if (ReasonOf(locked) != "LOCKED") return Annotate(locked, absl::StrCat("lock ", path, "/lock"));
    return MakeError(absl::StatusCode::kFailedPrecondition, "STATE_LOCKED",
                     absl::StrCat("another ckptd works with the state directory ", path,
                                  "; stop it or choose another state_directory"));
  }
  CKPTD_RETURN_IF_ERROR(state->Load());
  return state;
}

absl::Status StateDirectory::Load() {
  absl::StatusOr<std::string> text = ReadSmallFile(*fs_, directory_.get(), kRootsFile, kMaxFileBytes);
  if (!text.ok() && ErrnoOf(text.status()) == ENOENT) return absl::OkStatus();
  std::string problem;
  if (!text.ok()) {
    problem = std::string(text.status().message());
  } else {
    google::protobuf::TextFormat::Parser parser;
    parser.AllowUnknownField(true);  // A newer daemon may have written it.
    MutexLock lock(mutex_);
    if (parser.ParseFromString(*text, &known_)) return absl::OkStatus();
    problem = "it is not a text proto of ckptd.storage.v1.KnownRoots";
  }
  return MakeError(
      absl::StatusCode::kFailedPrecondition, "STATE_UNREADABLE",
      absl::StrCat(path_, "/", kRootsFile, ": ", problem,
                   "; repair it, or remove it: then roots are recovered when their next trainer comes"));
}

std::vector<storage::v1::KnownRoot> StateDirectory::roots() const {
  MutexLock lock(mutex_);
  return {known_.roots().begin(), known_.roots().end()};
}

absl::Status StateDirectory::Remember(const storage::v1::KnownRoot& root) {
  MutexLock lock(mutex_);
  storage::v1::KnownRoots next;
  for (const storage::v1::KnownRoot& known : known_.roots()) {
    if (SameDirectory(known, root) && known.path() == root.path() && known.uid() == root.uid())
      return absl::OkStatus();
    if (!SameDirectory(known, root) && known.path() != root.path()) *next.add_roots() = known;
  }
  *next.add_roots() = root;
  std::string text;
  google::protobuf::TextFormat::PrintToString(next, &text);
  // Under the lock: two of them must not overtake one another on the way to disk.
  if (absl::Status written = ReplaceFileDurably(*fs_, directory_.get(), kRootsFile, text); !written.ok()) {
    return Annotate(written, absl::StrCat("remember root ", root.path(), " in ", path_, "/", kRootsFile));
  }
  known_ = std::move(next);
  return absl::OkStatus();
}

}  // namespace ckptd
