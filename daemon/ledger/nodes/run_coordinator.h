// The election of a run's coordinator, in which this daemon is a candidate.
#ifndef CKPTD_DAEMON_LEDGER_NODES_RUN_COORDINATOR_H_
#define CKPTD_DAEMON_LEDGER_NODES_RUN_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/etcd/backoff.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// A daemon that finds a run without a coordinator takes the leadership, until its lease ends, or it resigns
// or steps down.
// Several daemons may believe for a while that they lead. A decision counts only if its daemon leads when
// etcd applies it, so each decision is a CompareAndSwap with Leadership::held.
class RunCoordinator {
 public:
  struct Leadership {
    int64_t term = 0;  // Rises with each coordinator of the run; no two have the same.
    std::string node;  // The coordinator's.
    bool mine = false;
    CompareAndSwap::Held held;  // If it is mine; its `lost` is NOT_COORDINATOR.
  };
  struct Options {
    std::string prefix;  // Of the run's keys, with the slash at its end.
    NodeIdentity node;
    std::string run;  // For messages.
  };

  // `changed` runs with the first coordinator that this daemon sees, and with each later one. `ended` runs
  // once, if this daemon can neither become coordinator nor follow one any longer: NODE_REPLACED, and errors
  // of etcd_errors.h except LEDGER_UNAVAILABLE and LEDGER_FULL, after which it tries again. Either callback
  // may destroy this object. `etcd` and `clock` must outlive it.
  RunCoordinator(Etcd* etcd, Clock* clock, Options options, std::function<void(const Leadership&)> changed,
                 std::function<void(const absl::Status&)> ended);

  void Start();
  void OnTick();  // Call it several times a second.
  // False: steps down if this daemon leads, so that another one takes over, and is no candidate until this is
  // called with true. `changed` runs with the next coordinator.
  void SetWilling(bool willing);
  // Whether a daemon leads the run, as far as this one knows.
  bool has_leader() const { return has_leader_; }
  // False while this daemon leads, or may lead.
  bool follows_another() const { return watch_ != nullptr && !leadership_.mine; }
  // Steps down if this daemon leads, so that another one takes over at once, and is no candidate any more.
  void Resign(absl::AnyInvocable<void(absl::Status)> resigned);

 private:
  std::string While(const std::string& what) const { return what + " of run " + options_.run; }
  void Read();
  void WasRead(const etcdserverpb::RangeResponse& found);
  void TakeLeadership();
  void Watch(int64_t from_revision);
  void OnEvents(const std::vector<etcdserverpb::Event>& events);
  void Observe(const etcdserverpb::KeyValue& key);
  void GiveUp();
  void OnGivenUp(int64_t term, const absl::Status& given_up);
  void DeleteLeadership(const std::string& purpose, absl::AnyInvocable<void(absl::Status)> done);
  void End(const absl::Status& why);

  Etcd* const etcd_;
  Clock* const clock_;
  const Options options_;
  const LedgerKeys keys_;
  std::function<void(const Leadership&)> changed_;
  std::function<void(const absl::Status&)> ended_;
  Leadership leadership_;  // The latest that was seen.
  bool has_leader_ = false;
  bool stopped_ = false;
  bool willing_ = true;
  bool leaving_ = false;      // Stepping down; it still leads until etcd has answered.
  bool leave_again_ = false;  // Retry to step down: etcd has not answered, or is full.
  bool etcd_full_ = false;    // At the last try to take the leadership.
  Backoff backoff_;
  std::unique_ptr<EtcdWatch> watch_;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_NODES_RUN_COORDINATOR_H_
