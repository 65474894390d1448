// A copy of all keys with a prefix, or in a range, which follows what happens to them.
#ifndef CKPTD_DAEMON_ETCD_ETCD_MIRROR_H_
#define CKPTD_DAEMON_ETCD_ETCD_MIRROR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/etcd/etcd.h"
#include "daemon/etcd/etcd_listing.h"
#include "storage/base/callback_scope.h"

namespace ckptd {

// It lists the keys once and then watches them; it lists them again when etcd has forgotten what the watch
// would have reported. What it shows was so at one revision, and may be so no longer: decide by a
// transaction. Used on one thread, that of its etcd.
class EtcdMirror {
 public:
  using Keys = std::map<std::string, etcdserverpb::KeyValue>;
  // The keys that have changed or are gone since the call before, each once. The first call, when the keys
  // are known, may have none.
  using Changed = std::function<void(const std::vector<std::string>& keys)>;
  // It follows no longer: errors of etcd_errors.h, but for LEDGER_UNAVAILABLE and LEDGER_COMPACTED.
  using Ended = std::function<void(const absl::Status& why)>;

  // `prefix` is not empty. `purpose` as in "no answer from etcd while PURPOSE". Either callback may destroy
  // the object; none runs before Start returns. `etcd` must outlive it.
  EtcdMirror(Etcd* etcd, std::string prefix, std::string purpose, Changed changed, Ended ended);
  // All keys from `first` on, and before `end`.
  EtcdMirror(Etcd* etcd, std::string first, std::string end, std::string purpose, Changed changed,
             Ended ended);

  void Start() { List(); }
  // Shows no key before this one any more, and follows none. Also before Start.
  void Forget(const std::string& below);
  const Keys& keys() const { return keys_; }
  // The value, or null.
  const std::string* Find(const std::string& key) const;

 private:
  void List();
  void Listed(EtcdListing listing);
  void Watch(int64_t from_revision);
  void OnEvents(const std::vector<etcdserverpb::Event>& events);
  void Report(const std::vector<std::string>& changed);
  void End(const absl::Status& why);

  Etcd* const etcd_;
  std::string first_;  // The first key that is followed.
  const std::string end_, purpose_;
  const Changed changed_;
  const Ended ended_;
  bool listed_ = false;
  Keys keys_;
  std::unique_ptr<EtcdWatch> watch_;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ETCD_ETCD_MIRROR_H_
