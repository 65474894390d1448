#include "storage/fs/file_system.h"

#include <cerrno>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {

absl::StatusOr<ScopedHandle> OpenScoped(FileSystem& fs, Handle dir, std::string_view path, OpenMode mode) {
  CKPTD_ASSIGN_OR_RETURN(const Handle handle, fs.Open(dir, path, mode));
  return ScopedHandle(&fs, handle);
}

absl::Status ReadFully(FileSystem& fs, Handle file, int64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    CKPTD_ASSIGN_OR_RETURN(const size_t n, fs.ReadAt(file, offset, into));
    if (n == 0) {
      return MakeError(
          absl::StatusCode::kDataLoss, "SHORT_FILE",
          absl::StrCat("the file ends at byte ", offset, ", but ", into.size(), " more bytes were expected"));
    }
    offset += static_cast<int64_t>(n);
    into = into.subspan(n);
  }
  return absl::OkStatus();
}

absl::Status WriteFully(FileSystem& fs, Handle file, int64_t offset, std::span<const std::byte> from) {
  while (!from.empty()) {
    CKPTD_ASSIGN_OR_RETURN(const size_t n, fs.WriteAt(file, offset, from));
    if (n == 0)
      return ErrnoError(EIO, absl::StrCat("writing at byte ", offset, ": the kernel wrote nothing"));
    offset += static_cast<int64_t>(n);
    from = from.subspan(n);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadSmallFile(FileSystem& fs, Handle dir, std::string_view path, int64_t limit) {
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file, OpenScoped(fs, dir, path, OpenMode::kRead));
  CKPTD_ASSIGN_OR_RETURN(const FileStat stat, fs.Stat(file.get(), ""));
  if (stat.size > limit) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "FILE_TOO_LARGE",
        absl::StrCat(std::string(path), " has ", stat.size, " bytes; at most ", limit, " are read"));
  }
  std::string content(static_cast<size_t>(stat.size), '\0');
  CKPTD_RETURN_IF_ERROR(ReadFully(fs, file.get(), 0, std::as_writable_bytes(std::span(content))));
  return content;
}

absl::Status WriteNewFile(FileSystem& fs, Handle dir, std::string_view path, std::string_view content) {
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file, OpenScoped(fs, dir, path, OpenMode::kCreate));
  CKPTD_RETURN_IF_ERROR(WriteFully(fs, file.get(), 0, std::as_bytes(std::span(content))));
  return fs.Sync(file.get(), SyncMode::kData);
}

absl::Status ReplaceFileDurably(FileSystem& fs, Handle dir, std::string_view path, std::string_view content) {
  const std::string temp = absl::StrCat(".", std::string(path), ".tmp");
  // Removes what a killed process left. The name may be used again: a plain write has ended when its call
  // returns.
  const absl::Status removed = fs.Remove(dir, temp, FileType::kRegular);
  if (!removed.ok() && ErrnoOf(removed) != ENOENT) return removed;
  absl::Status status = WriteNewFile(fs, dir, temp, content);
  if (status.ok()) status = fs.Rename(dir, temp, dir, path, RenameMode::kReplace);
  if (!status.ok()) {
    fs.Remove(dir, temp, FileType::kRegular).IgnoreError();
    return Annotate(status, absl::StrCat("replacing ", std::string(path)));
  }
  return fs.Sync(dir, SyncMode::kAll);
}

// When two clients of a GlusterFS volume make a directory at once, both may hear that the name exists, while
// neither has made it: the server withdraws the one when it serves the other.
absl::StatusOr<std::optional<FileStat>> MakeDirOrStat(FileSystem& fs, Handle dir, std::string_view path) {
  constexpr int kTries = 10;
  for (int i = 1;; ++i) {
    absl::Status made = fs.MakeDir(dir, path);
    if (made.ok()) return std::nullopt;
    if (ErrnoOf(made) != EEXIST) return made;
    absl::StatusOr<FileStat> found = fs.Stat(dir, path);
    if (found.ok()) return *found;
    if (ErrnoOf(found.status()) != ENOENT) return found.status();
    if (i == kTries) return made;
  }
}

absl::Status MakeDirsDurably(FileSystem& fs, Handle dir, std::string_view path) {
  ScopedHandle parent;  // The parent of what is made next. Unset: `dir`.
  while (!path.empty()) {
    const size_t slash = path.find('/');
    const std::string_view name = path.substr(0, slash);
    const Handle above = parent ? parent.get() : dir;
    CKPTD_ASSIGN_OR_RETURN(const std::optional<FileStat> found, MakeDirOrStat(fs, above, name));
    if (!found.has_value()) CKPTD_RETURN_IF_ERROR(fs.Sync(above, SyncMode::kAll));
    CKPTD_ASSIGN_OR_RETURN(parent, OpenScoped(fs, above, name, OpenMode::kDirectory));
    path = slash == std::string_view::npos ? std::string_view() : path.substr(slash + 1);
  }
  return absl::OkStatus();
}

namespace {

// A directory that RemoveTreeWithin is emptying.
struct OpenLevel {
  std::string name;
  ScopedHandle dir;
  std::vector<DirEntry> entries;
  size_t next = 0;  // The first entry that is not removed yet.
};

absl::StatusOr<OpenLevel> OpenLevelAt(FileSystem& fs, Handle parent, const std::string& name) {
  OpenLevel level;
  level.name = name;
  CKPTD_ASSIGN_OR_RETURN(level.dir, OpenScoped(fs, parent, name, OpenMode::kDirectory));
  CKPTD_ASSIGN_OR_RETURN(level.entries, fs.List(level.dir.get()));
  return level;
}

absl::Status RemoveFileWithin(FileSystem& fs, Handle dir, const DirEntry& entry, RemovalBudget& budget) {
  int64_t size = 0;
  if (entry.type == FileType::kRegular && budget.bytes != RemovalBudget::kUnlimited) {
    CKPTD_ASSIGN_OR_RETURN(const FileStat stat, fs.Stat(dir, entry.name));
    size = stat.size;
    budget.bytes -= size;
  }
  CKPTD_RETURN_IF_ERROR(fs.Remove(dir, entry.name, entry.type));
  budget.names -= 1;
  budget.removed_bytes += size;
  return absl::OkStatus();
}

// Renames `from`/`name` to a new name in `top`, which the tree's owner cannot have taken before.
absl::Status MoveUp(FileSystem& fs, Handle from, const std::string& name, Handle top) {
  std::random_device random;
  const uint64_t unique = uint64_t{random()} << 32 | random();
  const std::string unused = absl::StrCat(".deep.", absl::Hex(unique));
  const absl::Status moved = fs.Rename(from, name, top, unused, RenameMode::kNoReplace);
  // Not every shared file system has that mode. Nothing else has the name, so there is nothing to replace.
  if (ErrnoOf(moved) != EINVAL) return moved;
  return fs.Rename(from, name, top, unused, RenameMode::kReplace);
}

}  // namespace

absl::StatusOr<bool> RemoveTreeWithin(FileSystem& fs, Handle dir, const std::string& name,
                                      RemovalBudget& budget) {
  std::vector<OpenLevel> levels;  // From the top of the tree downwards.
  CKPTD_ASSIGN_OR_RETURN(OpenLevel first, OpenLevelAt(fs, dir, name));
  levels.push_back(std::move(first));
  bool moved_up = false;  // The top directory has names that are not in its list.
  while (!budget.spent()) {
    OpenLevel& level = levels.back();
    if (level.next < level.entries.size()) {
      const DirEntry& entry = level.entries[level.next++];
      if (entry.type != FileType::kDirectory) {
        CKPTD_RETURN_IF_ERROR(RemoveFileWithin(fs, level.dir.get(), entry, budget));
      } else if (levels.size() < kMaxOpenLevels) {
        CKPTD_ASSIGN_OR_RETURN(OpenLevel below, OpenLevelAt(fs, level.dir.get(), entry.name));
        levels.push_back(std::move(below));
      } else {
        CKPTD_RETURN_IF_ERROR(MoveUp(fs, level.dir.get(), entry.name, levels.front().dir.get()));
        budget.names -= 1;
        moved_up = true;
      }
      continue;
    }
    if (levels.size() == 1 && moved_up) {
      CKPTD_ASSIGN_OR_RETURN(level.entries, fs.List(level.dir.get()));
      level.next = 0;
      moved_up = false;
      continue;
    }
    const std::string emptied = std::move(level.name);
    levels.pop_back();
    const Handle parent = levels.empty() ? dir : levels.back().dir.get();
    CKPTD_RETURN_IF_ERROR(fs.Remove(parent, emptied, FileType::kDirectory));
    budget.names -= 1;
    if (levels.empty()) return true;
  }
  return false;
}

absl::Status RemoveTree(FileSystem& fs, Handle dir, const std::string& name) {
  RemovalBudget unlimited;
  return RemoveTreeWithin(fs, dir, name, unlimited).status();
}

}  // namespace ckptd
