// Counts the keys and bytes that one run has in etcd, for the bounds on its owner.
#ifndef CKPTD_DAEMON_CLUSTER_NODE_USE_COUNTER_H_
#define CKPTD_DAEMON_CLUSTER_NODE_USE_COUNTER_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// One for each term of the run's coordinator. It reads all keys of the run, page by page, and writes their
// number and size if these have changed: every 30 s, or less often if counting would take more than a
// hundredth of the time. Best effort: after a failure the next count is at its usual time. Used on one
// thread.
class UseCounter {
 public:
  struct Options {
    std::string prefix;  // Of the run's keys, with the slash at its end.
    std::string key;     // For the count; see user_use.h.
    std::string path;    // Of the root; for messages.
    CompareAndSwap::Held leadership;
  };
  // `etcd` and `clock` must outlive it.
  UseCounter(Etcd* etcd, Clock* clock, Options options);

  void OnTick();  // Call it several times a second.

 private:
  void ReadPage(const std::string& from);
  void OnPage(const absl::StatusOr<etcdserverpb::RangeResponse>& page);
  void Write();
  void Ended();

  Etcd* const etcd_;
  Clock* const clock_;
  const Options options_;
  bool counting_ = false;
  Instant begun_{}, next_{};
  ledger::v1::RunUse counted_;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_NODE_USE_COUNTER_H_
