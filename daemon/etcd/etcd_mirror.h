// A copy of all keys with a prefix, or in a range, which a watch keeps up to date.
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

// Lists the keys once and then watches them; lists them again when etcd has compacted changes that the watch
// has not reported. It shows the keys as they were at one revision, and they may have changed since: decide
// by a transaction. Used on the thread of its etcd.
class EtcdMirror {
 public:
  using Keys = std::map<std::string, etcdserverpb::KeyValue>;
  // The keys that have changed or are gone since the previous call, each once. The first call, after the
  // first listing, may have none.
  using Changed = std::function<void(const std::vector<std::string>& keys)>;
  // The mirror has stopped: any error of etcd_errors.h except LEDGER_UNAVAILABLE and LEDGER_COMPACTED.
  using Ended = std::function<void(const absl::Status& why)>;

  // `prefix` is not empty. `purpose` as in "no answer from etcd while PURPOSE". Either callback may destroy
  // the object; none runs before Start returns. `etcd` must outlive it.
  EtcdMirror(Etcd* etcd, std::string prefix, std::string purpose, Changed changed, Ended ended);
  // All keys from `first` up to but without `end`.
  EtcdMirror(Etcd* etcd, std::string first, std::string end, std::string purpose, Changed changed,
             Ended ended);

  void Start() { List(); }
  // Drops all keys before `below`, and ignores them from now on. May be called before Start.
  void Forget(const std::string& below);
  const Keys& keys() const { return keys_; }
  // The value, or null.
  const std::string* Find(const std::string& key) const;
  // The keys are shown as they were at this revision or a later one; 0: they have not been listed yet.
  int64_t revision() const { return revision_; }

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
  int64_t revision_ = 0;
  Keys keys_;
  std::unique_ptr<EtcdWatch> watch_;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ETCD_ETCD_MIRROR_H_
