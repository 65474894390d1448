// Seam: what the coordinator of a run asks of the root that its nodes share, as asynchronous requests. The
// steps on disk are those of storage/commit/shared/save/shared_publish.h and shared_removal.h. Fake:
// tests/testing.
//
// Called on the engine's thread; every callback runs there, once, never inside the call. A hung file system
// never calls back. A daemon may be paused within any request for longer than its lease, and carry it out
// when another coordinator has gone on: each is harmless then.
#ifndef CKPTD_DAEMON_ENGINE_SEAMS_SHARED_ROOT_IO_H_
#define CKPTD_DAEMON_ENGINE_SEAMS_SHARED_ROOT_IO_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/commit/shared/save/shared_publish.h"
#include "storage/commit/steps/types.h"

namespace ckptd {

class SharedRootIo {
 public:
  template <typename T>
  using Callback = absl::AnyInvocable<void(T)>;

  // All that the manifest is made from, beside the part records: equal for every coordinator.
  struct Publication {
    SharedInflight save;
    int64_t attempt = 0, ordinal = 0;
    std::vector<int> ranks;  // That had something to save, ascending; empty: all.
    CommitTimes times;
    std::map<std::string, std::string> digests;  // Of the part record of each node.
    int64_t replaces = 0;  // The checkpoint with this tag that goes, as FindReplaced has found it; 0: none.
    std::map<std::string, std::string> inherited_pointers = {};  // Of that one.
  };
  struct Replaced {
    int64_t sequence = 0;
    std::map<std::string, std::string> pointers = {};  // That the save takes over.
  };

  struct Published {
    // 0: it is at its tag, durably. Else the sequence of an earlier checkpoint of ckptd's that has its place.
    int64_t in_the_way = 0;
    // Not OK: why it never is. It is in the trash, durably, so that no coordinator can publish it any more.
    absl::Status given_up;
    // If it is at its tag: the highest sequence of the checkpoints that have appeared in the root and that
    // this node did not know; 0: none has.
    int64_t moved_in = 0;
  };

  virtual ~SharedRootIo() = default;

  // First, by each coordinator: nothing that one of an earlier term does late replaces what this one writes.
  virtual void BeginTerm(int64_t term, Callback<absl::Status> done) = 0;

  // This node coordinates no longer: it writes no pointers and no records of the run until the next
  // BeginTerm.
  virtual void EndTerm() = 0;

  // Makes, durably, a directory for the files of a save, and answers with its name beneath inflight/. No
  // other call ever gets the same name.
  virtual void MakeInflight(const std::string& tag, int64_t sequence,
                            Callback<absl::StatusOr<std::string>> done) = 0;
  // The sequence of ckptd's checkpoint whose tag the save takes, also of one that is removed in part. 0:
  // there is none, or the parts of the save make no checkpoint that may replace it, so that Publish will give
  // it up: then the one that is there stays. Time and pointers of `publication` do not count.
  virtual void FindReplaced(const Publication& publication, Callback<absl::StatusOr<Replaced>> done) = 0;
  // As FindShared.
  virtual void Find(const SharedInflight& save, Callback<absl::StatusOr<SharedPlace>> done) = 0;
  // Reads the part records with these digests, makes the manifest of them, and publishes as PublishShared
  // does. After an error it is not known how far it came: look with Find.
  virtual void Publish(const Publication& publication, Callback<absl::StatusOr<Published>> done) = 0;
  // Whether nothing in the root keeps this checkpoint, and the inode of its directory, which the decision to
  // remove it names. POINTED or PINNED if something does; NO_CHECKPOINT if it is not there. Reads the pointer
  // files first if this node has not in its term.
  virtual void CheckRemovable(const std::string& tag, int64_t sequence,
                              Callback<absl::StatusOr<uint64_t>> done) = 0;
  // As RemoveShared; the budget is the implementation's.
  virtual void Remove(const std::string& tag, int64_t sequence, uint64_t inode,
                      Callback<absl::StatusOr<bool>> done) = 0;
  // Moves to the trash all in-flight directories of saves with sequences up to `last`, except those of
  // `unfinished`: all others have ended, for good.
  virtual void Sweep(int64_t last, const std::set<int64_t>& unfinished, Callback<absl::Status> done) = 0;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SEAMS_SHARED_ROOT_IO_H_
