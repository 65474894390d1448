// The first daemon of a node that writes a part makes its files at their names, and never over another file.
// What becomes of its writes is known only when they have ended, and it may be killed, or paused for any
// time, before. Its successor knows from the ledger that the part is sealed and not durable. Then:
//
//   1. The successor writes all files anew, in a directory `.ckptd/new.<node>.<random>` of its own.
//   2. When they are durable it renames each to its name, over what is there.
//   3. It syncs the directories, writes the record, and tells the ledger the record's digest.
//
// Why a daemon that is late does no harm:
//
//   - What it writes goes to files that it has open or that it makes: files that lose their names in step 2,
//     or files of its own directory. A file that it would make after step 2 exists already.
//   - If it is a successor itself, it may rename its files in step 2 when a later one has ended. They are
//     durable and have the same bytes, for both were written from what the ranks had sealed.
//   - Its record does not take the place of another one: the record's name has its digest, and the record has
//     the daemon's incarnation. The ledger believes the report of one of them, and that one is read.
//   - After a removal has renamed `.ckptd` (shared_removal.cc) it can rename nothing.
//
// A successor removes the directories that earlier ones have left in step 1.
#include "storage/commit/shared/save/shared_part.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/checkpoint/checkpoint_tree.h"
#include "storage/commit/shared/save/shared_inflight.h"
#include "storage/format/frame.h"
#include "storage/format/manifest.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::FileRecord;
using storage::v1::NodePartRecord;

// What earlier successors of this node have left.
absl::Status RemoveNewFiles(FileSystem& fs, const NodePart& part) {
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle ours,
                         OpenScoped(fs, part.dir.get(), kOurDirectory, OpenMode::kDirectory));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs.List(ours.get()));
  for (const DirEntry& entry : entries) {
    if (entry.type != FileType::kDirectory || !IsNewFilesName(entry.name, part.node)) continue;
    const absl::Status removed = RemoveTree(fs, ours.get(), entry.name);
    if (!removed.ok() && !IsMissing(removed)) return removed;
  }
  return absl::OkStatus();
}

absl::Status MakeNewFiles(FileSystem& fs, NodePart& part) {
  std::random_device random;
  const uint64_t high = random();
  part.new_files = OurPath("", NewFilesName(part.node, high << 32 | random()));
  CKPTD_RETURN_IF_ERROR(fs.MakeDir(part.dir.get(), part.new_files));
  CKPTD_ASSIGN_OR_RETURN(part.new_dir, OpenScoped(fs, part.dir.get(), part.new_files, OpenMode::kDirectory));
  return absl::OkStatus();
}

// Step 2. Both sides of a rename are synced before it counts.
absl::Status NameNewFiles(FileSystem& fs, const NodePart& part, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    CKPTD_RETURN_IF_ERROR(fs.Rename(part.new_dir.get(), path, part.dir.get(), path, RenameMode::kReplace));
  }
  CKPTD_RETURN_IF_ERROR(SyncDirectories(fs, part.new_dir.get(), paths));
  // Only directories are left in it. Best effort: they do no harm.
  RemoveTree(fs, part.dir.get(), part.new_files).IgnoreError();
  return absl::OkStatus();
}

absl::Status CheckRecord(const NodePart& part, const NodePartRecord& record, const std::string& bytes) {
  // Never write a record that its reader would reject.
  CKPTD_RETURN_IF_ERROR(DecodeNodePartRecord(bytes).status());
  if (record.node() == part.node && record.checkpoint().tag() == part.save.tag &&
      record.checkpoint().sequence() == part.save.sequence) {
    return absl::OkStatus();
  }
  return InvalidArgument(absl::StrCat("the record is of node ", record.node(), " and ",
                                      record.checkpoint().tag(), ", sequence ",
                                      record.checkpoint().sequence(), "; node ", part.node, " writes ",
                                      part.save.tag, ", sequence ", part.save.sequence));
}

}  // namespace

absl::StatusOr<NodePart> BeginNodePart(const SharedLayout& layout, const SharedInflight& save,
                                       const std::string& node, EarlierDaemon earlier) {
  CKPTD_RETURN_IF_ERROR(CheckTag(node));
  NodePart part{save, node, {}, {}, {}};
  CKPTD_ASSIGN_OR_RETURN(part.dir, OpenSharedInflight(layout, save));
  if (earlier == EarlierDaemon::kNone) return part;
  CKPTD_RETURN_IF_ERROR(RemoveNewFiles(*layout.fs, part));
  CKPTD_RETURN_IF_ERROR(MakeNewFiles(*layout.fs, part));
  return part;
}

absl::Status MakeRoomFor(FileSystem& fs, const NodePart& part, const std::vector<std::string>& paths) {
  CKPTD_RETURN_IF_ERROR(MakeParents(fs, part.dir.get(), paths));
  return part.new_dir ? MakeParents(fs, part.new_dir.get(), paths) : absl::OkStatus();
}

absl::StatusOr<std::string> FinishNodePart(FileSystem& fs, const NodePart& part,
                                           const NodePartRecord& record) {
  const std::string bytes = EncodeNodePartRecord(record);
  CKPTD_RETURN_IF_ERROR(CheckRecord(part, record, bytes));
  std::vector<std::string> paths;
  for (const FileRecord& file : record.files()) paths.push_back(file.path());
  if (part.new_dir) CKPTD_RETURN_IF_ERROR(NameNewFiles(fs, part, paths));
  CKPTD_RETURN_IF_ERROR(SyncDirectories(fs, part.dir.get(), paths));
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle ours,
                         OpenScoped(fs, part.dir.get(), kOurDirectory, OpenMode::kDirectory));
  const std::string digest = DigestOf(bytes);
  CKPTD_RETURN_IF_ERROR(ReplaceFileDurably(fs, ours.get(), NodePartRecordName(part.node, digest), bytes));
  return digest;
}

}  // namespace ckptd
