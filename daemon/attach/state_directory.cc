#include "daemon/attach/state_directory.h"

#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd {
namespace {

constexpr char kRootsFile[] = "known_roots.txtpb";
constexpr char kDamagedFile[] = "known_roots.damaged";
constexpr char kNodeFile[] = "node.txtpb";
constexpr int64_t kMaxFileBytes = int64_t{64} << 20;
constexpr int64_t kMaxNodeFileBytes = int64_t{64} << 10;
constexpr Duration kLockRetry = std::chrono::milliseconds(20);

using storage::v1::KnownRoot;
using storage::v1::KnownRoots;

bool SameEntry(const KnownRoot& a, const KnownRoot& b) {
  return a.uid() == b.uid() && a.inode() == b.inode() && a.path() == b.path();
}

std::string TextOf(const KnownRoot& root) {
  KnownRoots one;
  *one.add_roots() = root;
  std::string text;
  google::protobuf::TextFormat::PrintToString(one, &text);
  return text;
}

class NoLog final : public google::protobuf::io::ErrorCollector {
  void AddError(int, google::protobuf::io::ColumnNumber, const std::string&) override {}
};

bool Parse(const std::string& text, google::protobuf::Message& message) {
  google::protobuf::TextFormat::Parser parser;
  NoLog no_log;
  parser.RecordErrorsTo(&no_log);
  parser.AllowUnknownField(true);  // A newer daemon may have added fields.
  return parser.ParseFromString(text, &message);
}

// Reads a file that cannot be parsed as a whole, entry by entry. An entry is a block as the printer writes
// it: "roots {" to "}", both at the beginning of a line.
KnownRoots ParseEntries(const std::string& text, std::vector<std::string>& problems) {
  KnownRoots all;
  std::string block;
  int first_line = 0, number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (line == "roots {") {
      if (!block.empty()) problems.push_back(absl::StrCat("the entry in line ", first_line, " is cut off"));
      block.clear();
      first_line = number;
    }
    if (first_line == 0) continue;
    absl::StrAppend(&block, line, "\n");
    if (line != "}") continue;
    KnownRoots one;
    if (Parse(block, one)) {
      all.MergeFrom(one);
    } else {
      problems.push_back(absl::StrCat("the entry in line ", first_line, " cannot be read"));
    }
    block.clear();
    first_line = 0;
  }
  if (first_line != 0) problems.push_back(absl::StrCat("the entry in line ", first_line, " is cut off"));
  return all;
}

absl::Status LockWithin(FileSystem& fs, Handle file, Duration timeout) {
  const Instant deadline = SystemClock().Now() + timeout;
  while (true) {
    absl::Status locked = fs.Lock(file);
    if (ReasonOf(locked) != "LOCKED" || SystemClock().Now() >= deadline) return locked;
    std::this_thread::sleep_for(kLockRetry);  // flock has no timeout.
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateDirectory>> StateDirectory::Open(const std::string& path,
                                                                     Duration timeout,
                                                                     KnownRootLimits limits) {
  std::unique_ptr<StateDirectory> state(new StateDirectory);
  state->path_ = path;
  state->SetLimits(limits);
  CKPTD_ASSIGN_OR_RETURN(state->fs_, MakePosixFileSystem());
  if (::mkdir(path.c_str(), 0700) == 0) {
    // Sync the parent, so that a crash does not lose the new directory and the list in it.
    const std::string above = std::filesystem::path(path).parent_path();
    CKPTD_ASSIGN_OR_RETURN(const Handle parent, OpenRootDirectory(above, std::nullopt));
    CKPTD_RETURN_IF_ERROR(state->fs_->Sync(ScopedHandle(state->fs_.get(), parent).get(), SyncMode::kAll));
  } else if (errno != EEXIST) {
    return ErrnoError(errno, absl::StrCat("make the state directory ", path));
  }
  CKPTD_ASSIGN_OR_RETURN(const Handle directory, OpenRootDirectory(path, std::nullopt));
  state->directory_ = ScopedHandle(state->fs_.get(), directory);
  CKPTD_ASSIGN_OR_RETURN(state->lock_, OpenScoped(*state->fs_, directory, "lock", OpenMode::kLock));
  if (absl::Status locked = LockWithin(*state->fs_, state->lock_.get(), timeout); !locked.ok()) {
    if (ReasonOf(locked) != "LOCKED") return Annotate(locked, absl::StrCat("lock ", path, "/lock"));
    return MakeError(absl::StatusCode::kFailedPrecondition, "STATE_LOCKED",
                     absl::StrCat("another ckptd uses the state directory ", path,
                                  "; stop it or choose another state_directory"));
  }
  CKPTD_RETURN_IF_ERROR(state->Load());
  return state;
}

absl::Status StateDirectory::Load() {
  absl::StatusOr<std::string> text = ReadSmallFile(*fs_, directory_.get(), kRootsFile, kMaxFileBytes);
  if (!text.ok() && ErrnoOf(text.status()) == ENOENT) return absl::OkStatus();
  std::string problem;
  KnownRoots known;
  if (!text.ok()) {
    problem = std::string(text.status().message());
  } else if (!Parse(*text, known)) {
    known = ParseEntries(*text, problems_);
    if (known.roots().empty()) {
      problem = "it is not a text proto of ckptd.storage.v1.KnownRoots";
    } else {
      CKPTD_RETURN_IF_ERROR(ReplaceFileDurably(*fs_, directory_.get(), kDamagedFile, *text));
    }
  }
  if (!problem.empty()) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "STATE_UNREADABLE",
        absl::StrCat(
            path_, "/", kRootsFile, ": ", problem,
            "; repair or remove it (without it, a root is recovered when its next job attaches it)"));
  }
  for (std::string& left_out : problems_) {
    left_out = absl::StrCat(path_, "/", kRootsFile, ": ", left_out,
                            "; this root is recovered when its next job attaches it; a copy of the file is ",
                            path_, "/", kDamagedFile);
  }
  MutexLock lock(mutex_);
  for (KnownRoot& root : *known.mutable_roots()) entries_.push_back({std::move(root), {}});
  return absl::OkStatus();
}

std::vector<KnownRoot> StateDirectory::roots() const {
  MutexLock lock(mutex_);
  std::vector<KnownRoot> roots;
  for (const Entry& entry : entries_) roots.push_back(entry.root);
  return roots;
}

absl::Status StateDirectory::Write(const std::vector<Entry>& entries) {
  std::string text;
  for (const Entry& entry : entries) text += TextOf(entry.root);
  if (static_cast<int64_t>(text.size()) > kMaxFileBytes) {
    return MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_EXCEEDED",
                     absl::StrCat("the list of known roots would have ", text.size(), " bytes; at most ",
                                  kMaxFileBytes, " can be read at the next start"));
  }
  return ReplaceFileDurably(*fs_, directory_.get(), kRootsFile, text);
}

void StateDirectory::SetLimits(KnownRootLimits limits) {
  MutexLock lock(mutex_);
  limits_ = limits;
}

// Removes entries of the root's user until one more fits the limits.
absl::Status StateDirectory::MakeRoom(std::vector<Entry>& entries, const KnownRoot& root) const {
  const auto full = [&, limits = limits_] {
    int roots = 1;
    int64_t bytes = static_cast<int64_t>(TextOf(root).size());
    for (const Entry& entry : entries) {
      if (entry.root.uid() != root.uid()) continue;
      roots += 1;
      bytes += static_cast<int64_t>(TextOf(entry.root).size());
    }
    return roots > limits.roots_per_uid || bytes > limits.bytes_per_uid;
  };
  while (full()) {
    auto victim = entries.end();
    for (auto entry = entries.begin(); entry != entries.end(); ++entry) {
      if (entry->root.uid() != root.uid() || !entry->in_use.expired()) continue;
      if (victim == entries.end() || (entry->missing && !victim->missing)) victim = entry;
    }
    if (victim == entries.end()) {
      return MakeError(
          absl::StatusCode::kResourceExhausted, "LIMIT_EXCEEDED",
          absl::StrCat("uid ", root.uid(), " has ", limits_.roots_per_uid, " known roots, or paths of ",
                       limits_.bytes_per_uid, " bytes, all of them in use; end the jobs of some, or raise ",
                       "limits.known_roots_per_uid"));
    }
    entries.erase(victim);
  }
  return absl::OkStatus();
}

absl::StatusOr<StateDirectory::InUse> StateDirectory::Remember(const KnownRoot& root) {
  // Held during the write: a second call must not write an older list after this one.
  MutexLock lock(mutex_);
  for (Entry& entry : entries_) {
    if (!SameEntry(entry.root, root)) continue;
    InUse in_use = entry.in_use.lock();
    if (in_use == nullptr) entry.in_use = in_use = std::make_shared<char>();
    entry.missing = false;
    return in_use;
  }
  std::vector<Entry> next = entries_;
  CKPTD_RETURN_IF_ERROR(MakeRoom(next, root));
  InUse in_use = std::make_shared<char>();
  next.push_back({root, in_use});
  if (absl::Status written = Write(next); !written.ok()) {
    return Annotate(written, absl::StrCat("remember root ", root.path(), " in ", path_, "/", kRootsFile));
  }
  entries_ = std::move(next);
  return in_use;
}

void StateDirectory::SetMissing(const KnownRoot& root, bool missing) {
  MutexLock lock(mutex_);
  for (Entry& entry : entries_) {
    if (SameEntry(entry.root, root)) entry.missing = missing;
  }
}

absl::StatusOr<std::vector<std::string>> StateDirectory::ReadIncarnations() const {
  const absl::StatusOr<std::string> text =
      ReadSmallFile(*fs_, directory_.get(), kNodeFile, kMaxNodeFileBytes);
  if (!text.ok() && ErrnoOf(text.status()) == ENOENT) return std::vector<std::string>();
  if (!text.ok()) return Annotate(text.status(), absl::StrCat("read ", path_, "/", kNodeFile));
  storage::v1::NodeIncarnations node;
  if (!Parse(*text, node)) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "STATE_UNREADABLE",
        absl::StrCat(path_, "/", kNodeFile, " is not a text proto of ckptd.storage.v1.NodeIncarnations"));
  }
  return std::vector<std::string>(node.incarnations().begin(), node.incarnations().end());
}

absl::Status StateDirectory::RememberIncarnations(const std::vector<std::string>& incarnations) {
  storage::v1::NodeIncarnations node;
  for (const std::string& incarnation : incarnations) node.add_incarnations(incarnation);
  std::string text;
  google::protobuf::TextFormat::PrintToString(node, &text);
  MutexLock lock(mutex_);  // A second call must not be overtaken by this one.
  return Annotate(ReplaceFileDurably(*fs_, directory_.get(), kNodeFile, text),
                  absl::StrCat("write ", path_, "/", kNodeFile));
}

}  // namespace ckptd
