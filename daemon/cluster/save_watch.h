// What etcd shows of a save that has not ended: how far its nodes are, and which ranks its attempt has.
#ifndef CKPTD_DAEMON_CLUSTER_SAVE_WATCH_H_
#define CKPTD_DAEMON_CLUSTER_SAVE_WATCH_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/etcd/etcd.h"
#include "daemon/etcd/etcd_mirror.h"
#include "daemon/ledger/keys.h"
#include "daemon/ledger/save_view.h"

namespace ckptd {

class SaveWatch {
 public:
  // `changed` and `ended` as those of EtcdMirror. `etcd` must outlive it.
  SaveWatch(Etcd* etcd, const LedgerKeys& keys, int64_t sequence, int64_t attempt, const std::string& run,
            std::function<void()> changed, const std::function<void(const absl::Status&)>& ended);

  void Start();
  bool is_known() const { return votes_known_ && attempt_known_; }
  // Once it is known. `nodes`: the keys of all nodes; `active`: that of the attempt that acts, or nothing.
  SaveView View(const ledger::v1::SaveState& save, const EtcdMirror::Keys& nodes,
                const EtcdMirror::Keys& active) const;

 private:
  const std::string head_;
  const std::function<void()> changed_;
  bool votes_known_ = false, attempt_known_ = false;
  EtcdMirror votes_, attempt_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_SAVE_WATCH_H_
