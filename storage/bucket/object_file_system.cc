#include "storage/bucket/object_file_system.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

bool IsNoObject(const absl::Status& status) { return ReasonOf(status) == "NO_OBJECT"; }

class ObjectFileSystem : public FileSystem {
 public:
  ObjectFileSystem(ObjectStore* store, std::string prefix, std::set<std::string> hidden)
      : store_(store), hidden_(std::move(hidden)) {
    nodes_[kObjectRoot] = {std::move(prefix), FileType::kDirectory, 0};
  }

  absl::StatusOr<Handle> Open(Handle dir, std::string_view path, OpenMode mode) override {
    if (mode != OpenMode::kRead && mode != OpenMode::kReadDirect && mode != OpenMode::kDirectory)
      return ReadOnly(path);
    Node node{KeyOf(dir, path), mode == OpenMode::kDirectory ? FileType::kDirectory : FileType::kRegular, 0};
    if (mode == OpenMode::kDirectory) {
      CKPTD_ASSIGN_OR_RETURN(const ObjectPage page, store_->List(node.key + "/", "/", ""));
      if (page.objects.empty() && page.folders.empty()) return ErrnoError(ENOENT, node.key);
    } else {
      CKPTD_ASSIGN_OR_RETURN(node.size, SizeOf(node.key));
      if (node.size == 0 && absl::EndsWith(node.key, OurPath("", std::string(kManifestName))))
        return ErrnoError(ENOENT, node.key);  // It is none (transfer.h).
    }
    MutexLock lock(mutex_);
    nodes_[++last_] = std::move(node);
    return last_;
  }

  absl::Status Close(Handle handle) override {
    MutexLock lock(mutex_);
    nodes_.erase(handle);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<DirEntry>> List(Handle dir) override {
    const std::string key = NodeOf(dir).key;
    const std::string base = key.empty() ? "" : key + "/";
    std::vector<DirEntry> entries;
    std::string next;
    do {
      CKPTD_ASSIGN_OR_RETURN(const ObjectPage page, store_->List(base, "/", next));
      for (const ObjectInfo& object : page.objects)
        Add(object.key.substr(base.size()), FileType::kRegular, entries);
      for (const std::string& folder : page.folders)
        Add(folder.substr(base.size(), folder.size() - base.size() - 1), FileType::kDirectory, entries);
      next = page.next;
    } while (!next.empty());
    if (dir == kObjectRoot)
      std::erase_if(entries, [this](const DirEntry& entry) { return hidden_.contains(entry.name); });
    std::sort(entries.begin(), entries.end(),
              [](const DirEntry& a, const DirEntry& b) { return a.name < b.name; });
    return entries;
  }

  absl::StatusOr<FileStat> Stat(Handle dir, std::string_view path) override {
    Node node = NodeOf(dir);
    if (!path.empty()) {
      node = {KeyOf(dir, path), FileType::kRegular, 0};
      const absl::StatusOr<int64_t> size = SizeOf(node.key);
      if (size.ok()) {
        node.size = *size;
      } else if (ErrnoOf(size.status()) == ENOENT) {
        CKPTD_ASSIGN_OR_RETURN(const Handle handle, Open(dir, path, OpenMode::kDirectory));
        CKPTD_RETURN_IF_ERROR(Close(handle));
        node.type = FileType::kDirectory;
      } else {
        return size.status();
      }
    }
    FileStat stat{node.type};
    stat.size = node.size;
    stat.uid = geteuid();
    return stat;
  }

  absl::StatusOr<size_t> ReadAt(Handle file, int64_t offset, std::span<std::byte> into) override {
    const Node node = NodeOf(file);
    const auto size =
        static_cast<size_t>(std::clamp<int64_t>(node.size - offset, 0, static_cast<int64_t>(into.size())));
    const absl::Status got = store_->Get(node.key, offset, into.first(size));
    if (IsNoObject(got)) return ErrnoError(ENOENT, node.key);
    if (!got.ok()) return got;
    return size;
  }

  absl::Status MakeDir(Handle, std::string_view path) override { return ReadOnly(path); }
  absl::Status Remove(Handle, std::string_view path, FileType) override { return ReadOnly(path); }
  absl::Status Rename(Handle, std::string_view path, Handle, std::string_view, RenameMode) override {
    return ReadOnly(path);
  }
  absl::Status Share(Handle, Handle, std::string_view path) override { return ReadOnly(path); }
  absl::Status Allocate(Handle, int64_t) override { return ReadOnly(""); }
  absl::Status Truncate(Handle, int64_t) override { return ReadOnly(""); }
  absl::Status Sync(Handle, SyncMode) override { return absl::OkStatus(); }
  absl::StatusOr<size_t> WriteAt(Handle, int64_t, std::span<const std::byte>) override {
    return ReadOnly("");
  }
  absl::Status Lock(Handle) override { return ReadOnly(""); }
  absl::StatusOr<SpaceInfo> Space(Handle) override { return SpaceInfo{0, 0, "s3"}; }

 private:
  struct Node {
    std::string key;  // Of a directory: without the slash at its end.
    FileType type = FileType::kRegular;
    int64_t size = 0;
  };

  static absl::Status ReadOnly(std::string_view path) {
    return ErrnoError(EROFS, absl::StrCat(std::string(path), ": a bucket is only read here"));
  }
  // A key that ends with a slash stands for an empty directory, which some tools make. It is no file.
  static void Add(std::string name, FileType type, std::vector<DirEntry>& entries) {
    if (!name.empty()) entries.push_back({std::move(name), type});
  }

  Node NodeOf(Handle handle) {
    MutexLock lock(mutex_);
    return nodes_.at(handle);
  }
  std::string KeyOf(Handle dir, std::string_view path) {
    const std::string base = NodeOf(dir).key;
    return base.empty() ? std::string(path) : absl::StrCat(base, "/", std::string(path));
  }
  absl::StatusOr<int64_t> SizeOf(const std::string& key) {
    const absl::StatusOr<ObjectInfo> info = store_->Head(key);
    if (IsNoObject(info.status())) return ErrnoError(ENOENT, key);
    if (!info.ok()) return info.status();
    return info->size;
  }

  ObjectStore* const store_;
  const std::set<std::string> hidden_;
  Mutex mutex_;
  std::map<Handle, Node> nodes_ ABSL_GUARDED_BY(mutex_);
  Handle last_ ABSL_GUARDED_BY(mutex_) = kObjectRoot;
};

}  // namespace

std::unique_ptr<FileSystem> MakeObjectFileSystem(ObjectStore* store, std::string prefix,
                                                 std::set<std::string> hidden) {
  return std::make_unique<ObjectFileSystem>(store, std::move(prefix), std::move(hidden));
}

}  // namespace ckptd
