// Detects that etcd has gone back in time: it was restored from a backup, or is another etcd.
#ifndef CKPTD_DAEMON_ETCD_GRPC_ETCD_HISTORY_H_
#define CKPTD_DAEMON_ETCD_GRPC_ETCD_HISTORY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "etcd/messages.pb.h"

namespace ckptd {

class EtcdHistory {
 public:
  // The highest revision that etcd has answered with.
  int64_t highest() const { return highest_; }
  void Observe(int64_t revision);
  // `at_least`: for a linearizable request, highest() at the moment when it was sent; else 0. LEDGER_RESTORED
  // if the answer comes from another cluster id, or has a lower revision.
  absl::Status Check(const etcdserverpb::ResponseHeader& header, int64_t at_least);
  // Not OK from the first error of Check or SetLost on, for good: etcd may have lost earlier decisions.
  const absl::Status& lost() const { return lost_; }
  void SetLost(const absl::Status& error) { lost_.Update(error); }

 private:
  int64_t highest_ = 0;
  uint64_t cluster_id_ = 0;  // 0: not known yet.
  absl::Status lost_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ETCD_GRPC_ETCD_HISTORY_H_
