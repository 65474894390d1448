// Above 500 lines: the operations of one class, which share one lock and the unsynced state.
#include "tests/testing/crash_disk.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr uint64_t kDirectAlignment = 4096;
constexpr int64_t kDiskBytes = int64_t{1} << 40;

absl::Status Error(int error, std::string_view what) { return ErrnoError(error, what); }

// Returns the components of a path that stays below its directory, with the rules of PosixFileSystem.
absl::StatusOr<std::vector<std::string>> Components(std::string_view path) {
  if (path.empty() || path.find('\0') != std::string_view::npos) return Error(EINVAL, "an unusable path");
  if (path.front() == '/') return Error(EXDEV, path);
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    names.emplace_back(path.substr(begin, end - begin));
    if (names.back().empty()) return Error(EINVAL, path);
    if (names.back() == "..") return Error(EXDEV, path);
    begin = end + 1;
  }
  return names;
}

bool IsAligned(const void* memory, size_t size, int64_t offset) {
  return (reinterpret_cast<uintptr_t>(memory) | size | static_cast<uint64_t>(offset)) % kDirectAlignment == 0;
}

std::span<const std::byte> BytesOf(const std::string& bytes) { return std::as_bytes(std::span(bytes)); }

}  // namespace

CrashDisk::CrashDisk(CrashDiskOptions options) : options_(options) {
  MutexLock lock(mutex_);
  nodes_[kRootInode].type = FileType::kDirectory;
  nodes_[kRootInode].parent = kRootInode;
}

// ---- After the crash

std::unique_ptr<CrashDisk> CrashDisk::CutPower(Loss loss, uint64_t seed) const {
  auto left = std::make_unique<CrashDisk>(options_);
  MutexLock lock(mutex_);
  MutexLock its_lock(left->mutex_);
  left->next_inode_ = next_inode_;
  PowerCut cut(loss, seed);
  const Names names = names_.After(cut);
  std::vector<Transfer> unfinished = late_;
  for (const auto& [id, transfer] : under_way_) unfinished.push_back(transfer);
  std::map<Inode, UnsyncedBytes> torn;  // Files with writes in flight.
  for (const Transfer& transfer : unfinished) {
    UnsyncedBytes& bytes = torn.try_emplace(transfer.inode, nodes_.at(transfer.inode).bytes).first->second;
    bytes.Write(static_cast<size_t>(transfer.offset),
                transfer.from.empty() ? BytesOf(transfer.own) : transfer.from);
  }
  // Breadth first from the root: what no name leads to is gone.
  Names reached;
  std::vector<Inode> directories = {kRootInode};
  for (size_t at = 0; at < directories.size(); ++at) {
    const Inode directory = directories[at];
    for (auto it = names.lower_bound({directory, ""}); it != names.end() && it->first.directory == directory;
         ++it) {
      const auto& [slot, inode] = *it;
      const Node& node = nodes_.at(inode);
      Node& copy = left->nodes_[inode];
      copy.type = node.type;
      copy.parent = directory;
      copy.name = slot.name;
      left->nodes_[directory].entries[slot.name] = inode;
      reached.insert(*it);
      if (node.type == FileType::kDirectory) directories.push_back(inode);
      if (node.type != FileType::kRegular) continue;
      const auto its = torn.find(inode);
      copy.bytes = UnsyncedBytes((its != torn.end() ? its->second : node.bytes).After(cut));
    }
  }
  left->names_ = UnsyncedNames(std::move(reached));
  return left;
}

std::unique_ptr<CrashDisk> CrashDisk::Kill() const {
  auto left = std::make_unique<CrashDisk>(options_);
  MutexLock lock(mutex_);
  MutexLock its_lock(left->mutex_);
  left->nodes_ = nodes_;
  left->names_ = names_;
  left->next_inode_ = next_inode_;
  left->late_ = late_;
  for (const auto& [id, transfer] : under_way_) {
    const auto* bytes = reinterpret_cast<const char*>(transfer.from.data());
    left->late_.push_back({transfer.inode, transfer.offset, {}, std::string(bytes, transfer.from.size())});
  }
  return left;
}

int CrashDisk::late_writes() const {
  MutexLock lock(mutex_);
  return static_cast<int>(late_.size());
}

void CrashDisk::LandLateWrites() {
  MutexLock lock(mutex_);
  for (const Transfer& transfer : late_)
    nodes_.at(transfer.inode).bytes.Write(static_cast<size_t>(transfer.offset), BytesOf(transfer.own));
  late_.clear();
}

// ---- For the test

void CrashDisk::OnChange(std::function<void(const std::string&)> hook) {
  MutexLock lock(mutex_);
  hook_ = std::move(hook);
}

void CrashDisk::FailNextSync(std::string path) {
  MutexLock lock(mutex_);
  failing_sync_ = std::move(path);
}

bool CrashDisk::anything_unsynced() const {
  MutexLock lock(mutex_);
  return names_.unsynced() || std::any_of(nodes_.begin(), nodes_.end(), [](const auto& entry) {
           return entry.second.parent != 0 && entry.second.bytes.unsynced();
         });
}

void CrashDisk::Tell(const std::string& what) {
  std::function<void(const std::string&)> hook;
  {
    MutexLock lock(mutex_);
    hook = hook_;
  }
  if (hook) hook(what);
}

std::string CrashDisk::PathOf(Inode inode) const {
  std::string path;
  while (inode != kRootInode) {
    const Node& node = nodes_.at(inode);
    if (node.parent == 0) return "(removed) " + path;
    path = path.empty() ? node.name : node.name + "/" + path;
    inode = node.parent;
  }
  return path;
}

Inode CrashDisk::Walk(const std::string& path) const {
  if (path.empty()) return kRootInode;
  const absl::StatusOr<Parent> at = FindParent(kRootHandle, path);
  return at.ok() ? Child(*at) : 0;
}

std::optional<std::string> CrashDisk::Content(const std::string& path) const {
  MutexLock lock(mutex_);
  const Inode inode = Walk(path);
  if (inode == 0 || nodes_.at(inode).type != FileType::kRegular) return std::nullopt;
  return nodes_.at(inode).bytes.now();
}

std::vector<std::string> CrashDisk::NamesIn(const std::string& path) const {
  MutexLock lock(mutex_);
  std::vector<std::string> names;
  const Inode inode = Walk(path);
  if (inode == 0) return names;
  for (const auto& [name, child] : nodes_.at(inode).entries) names.push_back(name);
  return names;
}

bool CrashDisk::Exists(const std::string& path) const {
  MutexLock lock(mutex_);
  return Walk(path) != 0;
}

void CrashDisk::Plant(const std::string& path, const std::string& content) {
  Plant(path, FileType::kRegular);
  MutexLock lock(mutex_);
  nodes_[Walk(path)].bytes = UnsyncedBytes(content);
}

void CrashDisk::Plant(const std::string& path, FileType type) {
  MutexLock lock(mutex_);
  const absl::StatusOr<Parent> at = FindParent(kRootHandle, path);
  if (!at.ok() || Child(*at) != 0 || !Add(*at, type).ok()) return;
  names_.Sync(at->directory);
}

void CrashDisk::Print(Inode inode, std::string& print) const {
  const Node& node = nodes_.at(inode);
  absl::StrAppend(&print, static_cast<int>(node.type), " ", std::hash<std::string>()(node.bytes.now()), "{");
  for (const auto& [name, child] : node.entries) {
    absl::StrAppend(&print, name, "\n");
    Print(child, print);
  }
  absl::StrAppend(&print, "}");
}

uint64_t CrashDisk::Fingerprint(const std::string& path) const {
  MutexLock lock(mutex_);
  const Inode inode = Walk(path);
  std::string print;
  if (inode != 0) Print(inode, print);
  return std::hash<std::string>()(print);
}

// ---- Handles and paths

absl::StatusOr<CrashDisk::OpenFile> CrashDisk::Get(Handle handle) const {
  if (handle == kRootHandle) return OpenFile{kRootInode, false, false};
  const auto found = open_.find(handle);
  if (found == open_.end()) return Error(EBADF, "a handle that is not open");
  return found->second;
}

absl::StatusOr<CrashDisk::OpenFile> CrashDisk::GetDirectory(Handle handle) const {
  CKPTD_ASSIGN_OR_RETURN(const OpenFile file, Get(handle));
  if (nodes_.at(file.inode).type != FileType::kDirectory) return Error(ENOTDIR, "a handle of a file");
  return file;
}

absl::StatusOr<CrashDisk::Parent> CrashDisk::FindParent(Handle dir, std::string_view path) const {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<std::string> names, Components(path));
  CKPTD_ASSIGN_OR_RETURN(const OpenFile from, GetDirectory(dir));
  Parent at{from.inode, ""};
  for (const std::string& name : names) {
    if (!at.name.empty()) {
      const Inode below = Child(at);
      if (below == 0) return Error(ENOENT, path);
      const FileType type = nodes_.at(below).type;
      if (type == FileType::kSymlink) return Error(ELOOP, path);
      if (type != FileType::kDirectory) return Error(ENOTDIR, path);
      at.directory = below;
    }
    at.name = name == "." ? "" : name;
  }
  return at;
}

Inode CrashDisk::Child(const Parent& at) const {
  if (at.name.empty()) return at.directory;
  const Node& directory = nodes_.at(at.directory);
  const auto found = directory.entries.find(at.name);
  return found == directory.entries.end() ? 0 : found->second;
}

void CrashDisk::Link(const Parent& at, Inode inode) {
  nodes_[at.directory].entries[at.name] = inode;
  nodes_[inode].parent = at.directory;
  nodes_[inode].name = at.name;
}

void CrashDisk::Unlink(const Parent& at) {
  nodes_[Child(at)].parent = 0;
  nodes_[at.directory].entries.erase(at.name);
}

absl::StatusOr<Inode> CrashDisk::Add(const Parent& at, FileType type) {
  if (at.directory != kRootInode && nodes_.at(at.directory).parent == 0)
    return Error(ENOENT, "a directory that was removed");
  const Inode inode = next_inode_++;
  nodes_[inode].type = type;
  Link(at, inode);
  names_.Change({{{at.directory, at.name}, inode}});
  return inode;
}

// ---- FileSystem

absl::StatusOr<Handle> CrashDisk::Open(Handle dir, std::string_view path, OpenMode mode) {
  const bool create = mode == OpenMode::kCreate || mode == OpenMode::kCreateDirect;
  const bool update = mode == OpenMode::kUpdate || mode == OpenMode::kLock;
  std::string created;
  Handle handle;
  {
    MutexLock lock(mutex_);
    CKPTD_ASSIGN_OR_RETURN(const Parent at, FindParent(dir, path));
    Inode inode = Child(at);
    if (create && inode != 0) return Error(EEXIST, path);
    if (inode == 0 && !create && !update) return Error(ENOENT, path);
    if (inode == 0) {
      CKPTD_ASSIGN_OR_RETURN(inode, Add(at, FileType::kRegular));
      created = absl::StrCat("Create ", PathOf(inode));
    }
    const FileType type = nodes_.at(inode).type;
    if (type == FileType::kSymlink) return Error(ELOOP, path);
    if (mode == OpenMode::kDirectory) {
      if (type != FileType::kDirectory) return Error(ENOTDIR, path);
    } else if (type == FileType::kDirectory) {
      return Error(EISDIR, path);
    } else if (type != FileType::kRegular) {
      return MakeError(absl::StatusCode::kFailedPrecondition, "NOT_A_FILE", path);
    }
    handle = next_handle_++;
    open_[handle] = {inode, create || update,
                     mode == OpenMode::kCreateDirect || mode == OpenMode::kReadDirect};
  }
  if (!created.empty()) Tell(created);
  return handle;
}

absl::Status CrashDisk::Close(Handle handle) {
  MutexLock lock(mutex_);
  if (open_.erase(handle) == 0) return Error(EBADF, "closing");
  std::erase_if(locks_, [handle](const auto& held) { return held.second == handle; });
  return absl::OkStatus();
}

absl::Status CrashDisk::MakeDir(Handle dir, std::string_view path) {
  std::string made;
  {
    MutexLock lock(mutex_);
    CKPTD_ASSIGN_OR_RETURN(const Parent at, FindParent(dir, path));
    if (at.name.empty()) return Error(EINVAL, path);
    if (Child(at) != 0) return Error(EEXIST, path);
    CKPTD_ASSIGN_OR_RETURN(const Inode inode, Add(at, FileType::kDirectory));
    made = absl::StrCat("MakeDir ", PathOf(inode));
  }
  Tell(made);
  return absl::OkStatus();
}

absl::Status CrashDisk::Remove(Handle dir, std::string_view path, FileType type) {
  std::string removed;
  {
    MutexLock lock(mutex_);
    CKPTD_ASSIGN_OR_RETURN(const Parent at, FindParent(dir, path));
    if (at.name.empty()) return Error(EINVAL, path);
    const Inode inode = Child(at);
    if (inode == 0) return Error(ENOENT, path);
    const Node& node = nodes_.at(inode);
    const bool is_directory = node.type == FileType::kDirectory;
    if (is_directory != (type == FileType::kDirectory)) return Error(is_directory ? EISDIR : ENOTDIR, path);
    if (!node.entries.empty()) return Error(ENOTEMPTY, path);
    removed = absl::StrCat("Remove ", PathOf(inode));
    Unlink(at);
    names_.Change({{{at.directory, at.name}, 0}});
  }
  Tell(removed);
  return absl::OkStatus();
}

absl::Status CrashDisk::CheckReplace(Inode from, Inode to) const {
  const bool from_directory = nodes_.at(from).type == FileType::kDirectory;
  const Node& target = nodes_.at(to);
  const bool to_directory = target.type == FileType::kDirectory;
  if (from_directory && !to_directory) return Error(ENOTDIR, "renaming");
  if (!from_directory && to_directory) return Error(EISDIR, "renaming");
  return target.entries.empty() ? absl::OkStatus() : Error(ENOTEMPTY, "renaming");
}

absl::Status CrashDisk::Rename(Handle old_dir, std::string_view old_path, Handle new_dir,
                               std::string_view new_path, RenameMode mode) {
  std::string renamed;
  {
    MutexLock lock(mutex_);
    CKPTD_ASSIGN_OR_RETURN(const Parent from, FindParent(old_dir, old_path));
    CKPTD_ASSIGN_OR_RETURN(const Parent to, FindParent(new_dir, new_path));
    if (from.name.empty() || to.name.empty()) return Error(EINVAL, old_path);
    const Inode moving = Child(from);
    const Inode there = Child(to);
    if (moving == 0) return Error(ENOENT, old_path);
    for (Inode above = to.directory; above != kRootInode && above != 0; above = nodes_.at(above).parent) {
      if (above == moving) return Error(EINVAL, new_path);
    }
    const bool exchange = mode == RenameMode::kExchange;
    if (exchange && !options_.can_exchange) return Error(EINVAL, "rename with exchange");
    if (exchange && there == 0) return Error(ENOENT, new_path);
    if (mode == RenameMode::kNoReplace && there != 0) return Error(EEXIST, new_path);
    if (there == moving) return absl::OkStatus();
    if (mode == RenameMode::kReplace && there != 0) CKPTD_RETURN_IF_ERROR(CheckReplace(moving, there));
    renamed = absl::StrCat(exchange ? "Exchange " : "Rename ", PathOf(moving), " ");
    Unlink(from);
    if (there != 0) Unlink(to);
    Link(to, moving);
    if (exchange) Link(from, there);
    absl::StrAppend(&renamed, PathOf(moving));
    names_.Change({{{from.directory, from.name}, exchange ? there : 0}, {{to.directory, to.name}, moving}},
                  exchange ? std::vector<Inode>{moving, there} : std::vector<Inode>{moving});
  }
  Tell(renamed);
  return absl::OkStatus();
}

absl::Status CrashDisk::Share(Handle file, Handle dir, std::string_view path) {
  std::string content;
  {
    MutexLock lock(mutex_);
    CKPTD_ASSIGN_OR_RETURN(const OpenFile opened, Get(file));
    content = nodes_.at(opened.inode).bytes.now();
  }
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle made, OpenScoped(*this, dir, path, OpenMode::kCreate));
  return WriteFully(*this, made.get(), 0, std::as_bytes(std::span(content)));
}

absl::StatusOr<std::vector<DirEntry>> CrashDisk::List(Handle dir) {
  MutexLock lock(mutex_);
  CKPTD_ASSIGN_OR_RETURN(const OpenFile directory, GetDirectory(dir));
  std::vector<DirEntry> entries;
  for (const auto& [name, inode] : nodes_.at(directory.inode).entries)
    entries.push_back({name, nodes_.at(inode).type});
  return entries;
}

absl::StatusOr<FileStat> CrashDisk::Stat(Handle dir, std::string_view path) {
  MutexLock lock(mutex_);
  Inode inode = 0;
  if (path.empty()) {
    CKPTD_ASSIGN_OR_RETURN(const OpenFile file, Get(dir));
    inode = file.inode;
  } else {
    CKPTD_ASSIGN_OR_RETURN(const Parent at, FindParent(dir, path));
    inode = Child(at);
    if (inode == 0) return Error(ENOENT, path);
  }
  const Node& node = nodes_.at(inode);
  return FileStat{.type = node.type,
                  .size = static_cast<int64_t>(node.bytes.now().size()),
                  .uid = ::geteuid(),
                  .device = 1,
                  .inode = inode};
}

absl::Status CrashDisk::Allocate(Handle file, int64_t size) {
  std::string allocated;
  {
    MutexLock lock(mutex_);
    CKPTD_ASSIGN_OR_RETURN(const OpenFile opened, Get(file));
    if (!opened.writable) return Error(EBADF, "allocating");
    if (size <= 0) return Error(EINVAL, "allocating");
    if (size > kDiskBytes) return Error(ENOSPC, "allocating");
    UnsyncedBytes& bytes = nodes_[opened.inode].bytes;
    bytes.Resize(std::max(bytes.now().size(), static_cast<size_t>(size)));
    allocated = absl::StrCat("Allocate ", PathOf(opened.inode));
  }
  Tell(allocated);
  return absl::OkStatus();
}

absl::Status CrashDisk::Truncate(Handle file, int64_t size) {
  std::string cut;
  {
    MutexLock lock(mutex_);
    CKPTD_ASSIGN_OR_RETURN(const OpenFile opened, Get(file));
    if (!opened.writable || size < 0) return Error(EINVAL, "cutting");
    nodes_[opened.inode].bytes.Resize(static_cast<size_t>(size));
    cut = absl::StrCat("Truncate ", PathOf(opened.inode));
  }
  Tell(cut);
  return absl::OkStatus();
}

absl::Status CrashDisk::SyncInode(Inode inode) {
  Node& node = nodes_[inode];
  const std::string path = PathOf(inode);
  if (failing_sync_.has_value() && (path == *failing_sync_ || path.ends_with("/" + *failing_sync_))) {
    failing_sync_.reset();
    if (node.type == FileType::kRegular) node.bytes.FailSync();
    return Error(EIO, "syncing");
  }
  if (node.type == FileType::kDirectory) {
    names_.Sync(inode);
  } else {
    node.bytes.Sync();
  }
  return absl::OkStatus();
}

absl::Status CrashDisk::Sync(Handle handle, SyncMode mode) {
  std::string synced;
  {
    MutexLock lock(mutex_);
    CKPTD_ASSIGN_OR_RETURN(const OpenFile file, Get(handle));
    if (mode == SyncMode::kBegin) return absl::OkStatus();
    CKPTD_RETURN_IF_ERROR(SyncInode(file.inode));
    synced = absl::StrCat("Sync ", PathOf(file.inode));
  }
  Tell(synced);
  return absl::OkStatus();
}

absl::StatusOr<size_t> CrashDisk::ReadAt(Handle file, int64_t offset, std::span<std::byte> into) {
  MutexLock lock(mutex_);
  CKPTD_ASSIGN_OR_RETURN(const OpenFile opened, Get(file));
  const Node& node = nodes_.at(opened.inode);
  if (node.type == FileType::kDirectory) return Error(EISDIR, "reading");
  if (offset < 0 || (opened.direct && !IsAligned(into.data(), into.size(), offset)))
    return Error(EINVAL, absl::StrCat("reading ", into.size(), " bytes at byte ", offset));
  const std::string& bytes = node.bytes.now();
  const auto begin = static_cast<size_t>(offset);
  if (begin >= bytes.size()) return 0;
  const size_t size = std::min(into.size(), bytes.size() - begin);
  if (size > 0) std::memcpy(into.data(), bytes.data() + begin, size);
  return size;
}

absl::StatusOr<size_t> CrashDisk::WriteAt(Handle file, int64_t offset, std::span<const std::byte> from) {
  CKPTD_ASSIGN_OR_RETURN(const uint64_t transfer, SubmitWrite(file, from, offset));
  return static_cast<size_t>(EndWrite(transfer));
}

absl::Status CrashDisk::Lock(Handle file) {
  MutexLock lock(mutex_);
  CKPTD_ASSIGN_OR_RETURN(const OpenFile opened, Get(file));
  const Handle holder = locks_.try_emplace(opened.inode, file).first->second;
  if (holder == file) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, "LOCKED", "another handle holds the lock");
}

absl::StatusOr<SpaceInfo> CrashDisk::Space(Handle dir) {
  MutexLock lock(mutex_);
  CKPTD_RETURN_IF_ERROR(Get(dir).status());
  return SpaceInfo{.free_bytes = kDiskBytes / 2, .total_bytes = kDiskBytes, .type = "crash"};
}

// ---- For the queue

absl::StatusOr<uint64_t> CrashDisk::SubmitWrite(Handle file, std::span<const std::byte> from,
                                                int64_t offset) {
  MutexLock lock(mutex_);
  CKPTD_ASSIGN_OR_RETURN(const OpenFile opened, Get(file));
  if (!opened.writable) return Error(EBADF, "writing");
  if (offset < 0 || (opened.direct && !IsAligned(from.data(), from.size(), offset)))
    return Error(EINVAL, absl::StrCat("writing ", from.size(), " bytes at byte ", offset));
  under_way_[next_transfer_] = {opened.inode, offset, from, ""};
  return next_transfer_++;
}

int64_t CrashDisk::EndWrite(uint64_t transfer) {
  std::string written;
  int64_t size = 0;
  {
    MutexLock lock(mutex_);
    const auto ending = under_way_.extract(transfer);
    const Transfer& write = ending.mapped();
    nodes_[write.inode].bytes.Write(static_cast<size_t>(write.offset), write.from);
    size = static_cast<int64_t>(write.from.size());
    written = absl::StrCat("Write ", PathOf(write.inode));
  }
  Tell(written);
  return size;
}

absl::StatusOr<Inode> CrashDisk::Find(Handle file) const {
  MutexLock lock(mutex_);
  CKPTD_ASSIGN_OR_RETURN(const OpenFile opened, Get(file));
  return opened.inode;
}

int64_t CrashDisk::SyncFile(Inode inode) {
  std::string synced;
  {
    MutexLock lock(mutex_);
    const absl::Status status = SyncInode(inode);
    if (!status.ok()) return -ErrnoOf(status);
    synced = absl::StrCat("Sync ", PathOf(inode));
  }
  Tell(synced);
  return 0;
}

}  // namespace ckptd
