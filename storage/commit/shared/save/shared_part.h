// How one node writes its part of a save in a root that several nodes share: the files of all of its ranks,
// and one record of them. The argument is at the top of shared_part.cc.
//
//   BeginNodePart               the worker thread
//   MakeRoomFor, for each rank  the worker thread
//   PartWriter::Write           storage/io/part_writer.h, with NodePart::target()
//   FinishNodePart              the worker thread, when the files of all ranks are written; its digest goes
//   to
//                               the ledger
//
// After an error the part has failed. It may be begun again, with EarlierDaemon::kMayHaveWritten.
#ifndef CKPTD_STORAGE_COMMIT_SHARED_SAVE_SHARED_PART_H_
#define CKPTD_STORAGE_COMMIT_SHARED_SAVE_SHARED_PART_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/commit/shared/run/shared_layout.h"
#include "storage/commit/shared/save/shared_publish.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// Whether an earlier daemon may have written files of this node's part.
enum class EarlierDaemon {
  kNone,
  // The node's part was sealed with an earlier daemon, which may be writing still, or this daemon tries
  // again. Not for a part of which the ledger knows a record: that one is durable, and nothing is written
  // again.
  kMayHaveWritten,
};

// A part that is being written.
struct NodePart {
  SharedInflight save;
  std::string node;
  ScopedHandle dir;       // The save's directory, wherever it is moved.
  std::string new_files;  // With kMayHaveWritten: the path of `new_dir` in it. Otherwise empty.
  ScopedHandle new_dir;   // Where the files are written before they get their names.
  Handle target() const { return new_dir ? new_dir.get() : dir.get(); }  // For PartWriter::Write.
};

// LOOK_AGAIN if this node does not see the save's directory (shared_inflight.h).
absl::StatusOr<NodePart> BeginNodePart(const SharedLayout& layout, const SharedInflight& save,
                                       const std::string& node, EarlierDaemon earlier);

// Makes the directories of these files. INVALID_PATH; FILE_CONFLICT if another node's file has the place of
// one.
absl::Status MakeRoomFor(FileSystem& fs, const NodePart& part, const std::vector<std::string>& paths);

// Gives the files their names, syncs their directories, and writes the record; all of that is durable on
// return. Precondition: the files of the record are written and synced. Returns the record's digest.
absl::StatusOr<std::string> FinishNodePart(FileSystem& fs, const NodePart& part,
                                           const storage::v1::NodePartRecord& record);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_SHARED_SAVE_SHARED_PART_H_
