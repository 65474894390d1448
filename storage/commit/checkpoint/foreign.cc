#include "storage/commit/checkpoint/foreign.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

constexpr int64_t kBytesPerStep = int64_t{64} << 20;
constexpr int kFilesPerStep = 64;
constexpr int kCountedNames = 100'000;  // A list does not count more names,
constexpr int kDeepest = 16;            // nor deeper levels: each one is an open descriptor.

absl::Status Unsuitable(const std::string& tag, const std::string& path, const std::string& why) {
  return MakeError(
      absl::StatusCode::kFailedPrecondition, "FOREIGN_UNSUITABLE",
      absl::StrCat(tag, path.empty() ? "" : "/", path, " ", why, "; ckptd leaves ", tag, " unchanged"),
      {{"tag", tag}, {"path", path}});
}

absl::Status Changed(const std::string& tag, const std::string& path, const std::string& how) {
  return MakeError(absl::StatusCode::kAborted, "FOREIGN_CHANGED",
                   absl::StrCat(tag, path.empty() ? "" : "/", path, " ", how,
                                " while it was read; adopt it when no program writes to it any more"),
                   {{"tag", tag}, {"path", path}});
}

bool SameStamp(const FileStat& a, const FileStat& b) {
  return a.type == b.type && a.size == b.size && a.uid == b.uid && a.device == b.device &&
         a.inode == b.inode && a.modified_ns == b.modified_ns && a.changed_ns == b.changed_ns;
}

class Walker {
 public:
  Walker(FileSystem& fs, uid_t owner, ForeignTree& tree) : fs_(fs), owner_(owner), tree_(tree) {}

  // `path` is that of `dir` relative to the tag: empty, or with a `/` at its end.
  absl::Status Walk(Handle dir, const std::string& path) {
    CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs_.List(dir));
    for (const DirEntry& entry : entries) CKPTD_RETURN_IF_ERROR(Visit(dir, entry.name, path + entry.name));
    return absl::OkStatus();
  }

 private:
  absl::Status Visit(Handle dir, const std::string& name, const std::string& path) {
    const std::string& tag = tree_.tag.tag;
    if (path == kOurDirectory)
      return Unsuitable(tag, path, "is there: ckptd has used this directory for something else");
    if (absl::Status good = CheckFilePath(path); !good.ok()) return Annotate(good, tag);
    const absl::StatusOr<FileStat> stat = fs_.Stat(dir, name);
    if (IsMissing(stat.status())) return Changed(tag, path, "was removed");
    if (!stat.ok()) return Annotate(stat.status(), tag);
    if (stat->device != tree_.directory.device) return Unsuitable(tag, path, "lies on another file system");
    switch (stat->type) {
      case FileType::kSymlink:
        return Unsuitable(tag, path, "is a symbolic link: what it leads to is not part of this checkpoint");
      case FileType::kOther:
        return Unsuitable(tag, path, "is neither a file nor a directory");
      case FileType::kDirectory:
      case FileType::kRegular:
        break;
    }
    if (stat->uid != owner_) {
      return MakeError(absl::StatusCode::kPermissionDenied, "WRONG_UID",
                       absl::StrCat(tag, "/", path, " belongs to uid ", stat->uid, ", and the run to uid ",
                                    owner_, ": give it to that user"),
                       {{"tag", tag}, {"path", path}});
    }
    if (stat->type == FileType::kDirectory) {
      if (std::count(path.begin(), path.end(), '/') >= kDeepest)
        return Unsuitable(tag, path, absl::StrCat("is below ", kDeepest, " other directories"));
      tree_.directories.insert(path);
      CKPTD_ASSIGN_OR_RETURN(const ScopedHandle child, OpenScoped(fs_, dir, name, OpenMode::kDirectory));
      return Walk(child.get(), path + "/");
    }
    tree_.size_bytes += stat->size;
    tree_.files.emplace(path, *stat);
    return absl::OkStatus();
  }

  FileSystem& fs_;
  const uid_t owner_;
  ForeignTree& tree_;
};

// Counts a tree for a list, up to `names` names and `levels` levels. False if there are more.
absl::StatusOr<bool> Count(FileSystem& fs, Handle dir, int levels, int& names, int64_t& bytes,
                           int32_t& files) {
  if (levels == 0) return false;
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(dir));
  for (const DirEntry& entry : entries) {
    if (--names < 0) return false;
    if (entry.type == FileType::kDirectory) {
      CKPTD_ASSIGN_OR_RETURN(const ScopedHandle child, OpenScoped(fs, dir, entry.name, OpenMode::kDirectory));
      CKPTD_ASSIGN_OR_RETURN(const bool whole, Count(fs, child.get(), levels - 1, names, bytes, files));
      if (!whole) return false;
    } else if (entry.type == FileType::kRegular) {
      CKPTD_ASSIGN_OR_RETURN(const FileStat stat, fs.Stat(dir, entry.name));
      bytes += stat.size;
      ++files;
    }
  }
  return true;
}

}  // namespace

absl::StatusOr<std::vector<ForeignCheckpoint>> ListForeign(FileSystem& fs, Handle root) {
  CKPTD_ASSIGN_OR_RETURN(RootScan scan, ScanRoot(fs, root));
  std::vector<ForeignCheckpoint> list;
  int names = kCountedNames;
  for (ForeignTag& tag : scan.foreign) {
    ForeignCheckpoint& checkpoint = list.emplace_back();
    int64_t bytes = 0;
    int32_t files = 0;
    const absl::StatusOr<ScopedHandle> dir = OpenScoped(fs, root, tag.tag, OpenMode::kDirectory);
    // A tag that vanishes meanwhile, or that may not be read, is listed without counts.
    if (dir.ok() && Count(fs, dir->get(), kDeepest, names, bytes, files).value_or(false)) {
      checkpoint.size_bytes = bytes;
      checkpoint.file_count = files;
    }
    checkpoint.tag = std::move(tag);
  }
  return list;
}

absl::StatusOr<ForeignTree> WalkForeign(FileSystem& fs, Handle root, const std::string& tag, uid_t owner) {
  CKPTD_RETURN_IF_ERROR(CheckTag(tag));
  ForeignTree tree;
  tree.tag.tag = tag;
  const absl::StatusOr<FileStat> named = fs.Stat(root, tag);
  if (IsMissing(named.status())) {
    return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                     absl::StrCat("there is no ", tag, " in this root"), {{"tag", tag}});
  }
  if (!named.ok()) return named.status();
  if (named->type == FileType::kSymlink)
    return Unsuitable(tag, "", "is a symbolic link: put the directory itself there");
  if (named->type != FileType::kDirectory) return Unsuitable(tag, "", "is no directory");
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle dir, OpenScoped(fs, root, tag, OpenMode::kDirectory));
  CKPTD_ASSIGN_OR_RETURN(tree.directory, fs.Stat(dir.get(), ""));
  CKPTD_ASSIGN_OR_RETURN(const FileStat around, fs.Stat(root, ""));
  if (tree.directory.device != around.device) return Unsuitable(tag, "", "lies on another file system");
  if (tree.directory.uid != owner) {
    return MakeError(absl::StatusCode::kPermissionDenied, "WRONG_UID",
                     absl::StrCat(tag, " belongs to uid ", tree.directory.uid, ", and the run to uid ", owner,
                                  ": give it to that user"),
                     {{"tag", tag}});
  }
  CKPTD_RETURN_IF_ERROR(Walker(fs, owner, tree).Walk(dir.get(), ""));
  const auto marker = tree.files.find(kForeignMarker);
  if (marker == tree.files.end()) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "FOREIGN_UNFINISHED",
                     absl::StrCat(tag, " has no file called ", kForeignMarker,
                                  ": it is not finished, is being removed, or is not a checkpoint"),
                     {{"tag", tag}});
  }
  tree.tag.done_us = MarkerTime(marker->second);
  return tree;
}

absl::Status CheckUnchanged(const ForeignTree& before, const ForeignTree& now) {
  const std::string& tag = before.tag.tag;
  // The directory's times change with its names, which are compared one by one. ckptd's syncs change neither.
  if (before.directory.inode != now.directory.inode || before.directory.device != now.directory.device)
    return Changed(tag, "", "was replaced");
  for (const auto& [path, stat] : before.files) {
    const auto found = now.files.find(path);
    if (found == now.files.end()) return Changed(tag, path, "was removed");
    if (!SameStamp(stat, found->second)) return Changed(tag, path, "was changed");
  }
  for (const auto& [path, stat] : now.files) {
    if (!before.files.contains(path)) return Changed(tag, path, "was added");
  }
  if (before.directories != now.directories) return Changed(tag, "", "had directories added or removed");
  return absl::OkStatus();
}

storage::v1::ManifestSummary SummaryOfForeign(const ForeignSurvey& survey) {
  storage::v1::ManifestSummary summary;
  summary.set_format_version(1);
  const std::string& tag = survey.tree.tag.tag;
  summary.set_tag(tag);
  // A label, derived from how users of NeuronX Distributed name their tags: "step_1000", "epoch_2_step_500".
  const size_t letters = tag.find_last_not_of("0123456789");
  int64_t step = 0;
  if (absl::SimpleAtoi(tag.substr(letters == std::string::npos ? 0 : letters + 1), &step))
    summary.set_step(step);
  summary.set_world_size(1);  // The names do not say how many ranks wrote it.
  summary.set_size_bytes(survey.tree.size_bytes);
  summary.set_file_count(static_cast<int32_t>(survey.files.size()));
  summary.set_create_time_us(survey.tree.tag.done_us);
  summary.set_commit_time_us(survey.tree.tag.done_us);
  summary.set_chunk_bytes(survey.chunk_bytes);
  summary.set_adopted_from(kForeignFormat);
  return summary;
}

ForeignReader::ForeignReader(FileSystem* fs, Handle root, std::string tag, uid_t owner, int32_t chunk_bytes,
                             std::shared_ptr<SurveyProgress> progress)
    : fs_(fs), root_(root), progress_(std::move(progress)), buffer_(static_cast<size_t>(chunk_bytes)) {
  survey_.tree.tag.tag = std::move(tag);
  survey_.owner = owner;
  survey_.chunk_bytes = chunk_bytes;
}

absl::StatusOr<bool> ForeignReader::Step() {
  if (progress_->stop.load()) return absl::CancelledError("adopting was cancelled");
  if (!dir_) {
    CKPTD_RETURN_IF_ERROR(Begin());
    return true;
  }
  const int64_t enough = progress_->read_bytes.load() + kBytesPerStep;
  for (int opened = 0; next_ != survey_.tree.files.end();) {
    if (progress_->read_bytes.load() >= enough || opened >= kFilesPerStep) return true;
    if (!file_) {
      CKPTD_RETURN_IF_ERROR(OpenNext());
      ++opened;
    }
    CKPTD_RETURN_IF_ERROR(ReadOn());
  }
  CKPTD_RETURN_IF_ERROR(SyncDirectories());
  return false;
}

absl::Status ForeignReader::Begin() {
  const std::string tag = survey_.tree.tag.tag;
  CKPTD_ASSIGN_OR_RETURN(survey_.tree, WalkForeign(*fs_, root_, tag, survey_.owner));
  CKPTD_ASSIGN_OR_RETURN(dir_, OpenScoped(*fs_, root_, tag, OpenMode::kDirectory));
  next_ = survey_.tree.files.begin();
  progress_->size_bytes.store(survey_.tree.size_bytes);
  return absl::OkStatus();
}

// Opens and syncs the next file: the other program did not sync it.
absl::Status ForeignReader::OpenNext() {
  absl::StatusOr<ScopedHandle> opened = OpenScoped(*fs_, dir_.get(), next_->first, OpenMode::kRead);
  if (IsMissing(opened.status())) return Changed(survey_.tree.tag.tag, next_->first, "was removed");
  if (!opened.ok()) return Annotate(opened.status(), survey_.tree.tag.tag);
  file_ = *std::move(opened);
  offset_ = 0;
  storage::v1::FileRecord& record = survey_.files.emplace_back();
  record.set_path(next_->first);
  record.set_size_bytes(next_->second.size);
  return Sync(file_.get(), next_->first);
}

// Reads one chunk, and closes the file at its end.
absl::Status ForeignReader::ReadOn() {
  const auto& [path, stat] = *next_;
  const int64_t size = std::min<int64_t>(survey_.chunk_bytes, stat.size - offset_);
  if (size > 0) {
    const auto chunk = std::span(buffer_).first(static_cast<size_t>(size));
    const absl::Status read = ReadFully(*fs_, file_.get(), offset_, chunk);
    if (ReasonOf(read) == "SHORT_FILE") return Changed(survey_.tree.tag.tag, path, "was cut");
    if (!read.ok()) return Annotate(read, absl::StrCat("reading ", survey_.tree.tag.tag, "/", path));
    survey_.files.back().add_chunk_crc32c(Crc32c(chunk));
    offset_ += size;
    progress_->read_bytes.fetch_add(size);
  }
  if (offset_ < stat.size) return absl::OkStatus();
  file_.reset();
  ++next_;
  return absl::OkStatus();
}

// Innermost directories first; at last the root, which holds the tag's name.
absl::Status ForeignReader::SyncDirectories() {
  const std::set<std::string>& below = survey_.tree.directories;
  for (auto path = below.rbegin(); path != below.rend(); ++path) {
    CKPTD_ASSIGN_OR_RETURN(const ScopedHandle dir, OpenScoped(*fs_, dir_.get(), *path, OpenMode::kDirectory));
    CKPTD_RETURN_IF_ERROR(Sync(dir.get(), *path));
  }
  CKPTD_RETURN_IF_ERROR(Sync(dir_.get(), "."));
  return Sync(root_, "..");
}

absl::Status ForeignReader::Sync(Handle handle, const std::string& what) {
  const absl::Status synced = fs_->Sync(handle, SyncMode::kAll);
  if (synced.ok()) return synced;
  return MakeError(
      absl::StatusCode::kDataLoss, "FOREIGN_UNSYNCED",
      absl::StrCat(survey_.tree.tag.tag, "/", what, " could not be synced (", std::string(synced.message()),
                   "): its bytes may be lost; copy it under another name, and adopt the copy"),
      {{"tag", survey_.tree.tag.tag}, {"path", what}});
}

}  // namespace ckptd
