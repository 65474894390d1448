// The state of a run: a root directory, the job that saves there, and its checkpoints.
#ifndef CKPTD_DAEMON_ENGINE_RUN_RUN_H_
#define CKPTD_DAEMON_ENGINE_RUN_RUN_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ckptd/v1/messages.pb.h"
#include "ckptd/v1/types.pb.h"
#include "daemon/engine/run/catalog.h"
#include "daemon/engine/run/members.h"
#include "daemon/engine/run/save.h"
#include "daemon/engine/seams/authority.h"
#include "daemon/engine/seams/coordinator_io.h"
#include "daemon/engine/seams/engine_types.h"
#include "daemon/engine/seams/local_root_io.h"
#include "daemon/engine/seams/root_io.h"
#include "daemon/engine/seams/upload_io.h"
#include "daemon/memory/segment_pool.h"
#include "storage/base/clock.h"
#include "storage/commit/steps/types.h"
#include "storage/ledger/ledger.h"

namespace ckptd {

// What several classes of the engine share of a run: which root it is, how to reach it, and what is known of
// its checkpoints and ranks. Each class keeps the rest by itself (RunStates).
struct Run {
  std::string name;  // `runs/{16 hex digits}`.
  std::string path;
  std::string own_path;  // As in RootAttachment.
  uint64_t device = 0, inode = 0;
  uid_t uid = 0;  // The owner; before the run is open, the user who attached its root first.
  std::unique_ptr<RootIo> io;
  CoordinatorIo* coordinator_io = nullptr;  // As in RootAccess; so is the next one.
  LocalRootIo* local_io = nullptr;
  std::unique_ptr<Authority> authority;  // Uses `io`, so it goes first.
  std::unique_ptr<UploadIo> uploads;     // Null: the run's checkpoints are not uploaded.
  bool open = false;                     // The root is open and recovered.
  bool read_only = false;                // The root takes no changes before it has been scanned.
  bool scanning = false;
  bool degraded = false;  // The file system has not answered for too long.
  ProbeResult probe;
  Catalog catalog;
  Members members;
  std::unique_ptr<Ledger> own_ledger;  // Made from the run record.
  Ledger* ledger = nullptr;            // That one, or Authority::ledger(). Null until the run is open.
  int64_t active_attempt = 0;          // The newest attempt that has acted, as the ledger says; 0: none has.
  std::map<int64_t, std::unique_ptr<Save>> saves;  // In flight, by sequence.

  // Of the saves in flight; null: none has this name.
  Save* FindSave(const SaveId& id) const {
    for (const auto& [sequence, save] : saves) {
      if (save->key == id) return save.get();
    }
    return nullptr;
  }
  void SetLedger(std::unique_ptr<Ledger> own) {
    own_ledger = std::move(own);
    ledger = own_ledger.get();
  }
};

inline RootKey KeyOf(const Run& run) { return {run.uid, run.inode, run.path}; }

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RUN_RUN_H_
