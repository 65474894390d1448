#include "daemon/etcd/etcd_mirror.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/etcd/etcd_requests.h"
#include "storage/base/errors.h"

namespace ckptd {

using etcdserverpb::Event;
using etcdserverpb::KeyValue;

EtcdMirror::EtcdMirror(Etcd* etcd, std::string prefix, std::string purpose, Changed changed, Ended ended)
    : EtcdMirror(etcd, prefix, PrefixEnd(prefix), std::move(purpose), std::move(changed), std::move(ended)) {}

EtcdMirror::EtcdMirror(Etcd* etcd, std::string first, std::string end, std::string purpose, Changed changed,
                       Ended ended)
    : etcd_(etcd),
      first_(std::move(first)),
      end_(std::move(end)),
      purpose_(std::move(purpose)),
      changed_(std::move(changed)),
      ended_(std::move(ended)) {}

void EtcdMirror::Forget(const std::string& below) {
  first_ = std::max(first_, below);
  keys_.erase(keys_.begin(), keys_.lower_bound(first_));
}

const std::string* EtcdMirror::Find(const std::string& key) const {
  const auto found = keys_.find(key);
  return found == keys_.end() ? nullptr : &found->second.value();
}

// While etcd is away each call takes until its deadline to fail, so repeating it at once is no tight loop.
void EtcdMirror::List() {
  watch_ = nullptr;
  ListRange(etcd_, first_, end_, purpose_, callbacks_.Guard([this](absl::StatusOr<EtcdListing> listing) {
    if (listing.ok()) return Listed(*std::move(listing));
    const std::string reason(ReasonOf(listing.status()));
    if (reason == ledger_reason::kUnavailable || reason == ledger_reason::kCompacted) return List();
    End(listing.status());
  }));
}

void EtcdMirror::Listed(EtcdListing listing) {
  Keys now;
  for (KeyValue& key : listing.keys) {
    if (key.key() >= first_) now[key.key()] = std::move(key);
  }
  std::vector<std::string> changed;
  for (const auto& [name, key] : keys_) {
    if (!now.contains(name)) changed.push_back(name);
  }
  for (const auto& [name, key] : now) {
    const auto before = keys_.find(name);
    if (before == keys_.end() || before->second.mod_revision() != key.mod_revision()) changed.push_back(name);
  }
  keys_ = std::move(now);
  revision_ = listing.revision;
  Watch(listing.revision + 1);
  if (std::exchange(listed_, true) && changed.empty()) return;
  Report(changed);
}

void EtcdMirror::Watch(int64_t from_revision) {
  watch_ = etcd_->Watch({first_, end_, from_revision, purpose_,
                         [this](const std::vector<Event>& events) { OnEvents(events); },
                         [this](const absl::Status& why) {
                           if (ReasonOf(why) == ledger_reason::kCompacted) return List();
                           End(why);
                         }});
}

void EtcdMirror::OnEvents(const std::vector<Event>& events) {
  std::set<std::string> changed;
  for (const Event& event : events) {
    revision_ = std::max(revision_, event.kv().mod_revision());
    if (event.kv().key() < first_) continue;
    changed.insert(event.kv().key());
    if (event.type() == Event::DELETE) {
      keys_.erase(event.kv().key());
    } else {
      keys_[event.kv().key()] = event.kv();
    }
  }
  if (!changed.empty()) Report({changed.begin(), changed.end()});
}

void EtcdMirror::Report(const std::vector<std::string>& changed) {
  const Changed report = changed_;  // The call may destroy this object.
  report(changed);
}

void EtcdMirror::End(const absl::Status& why) {
  watch_ = nullptr;
  const Ended report = ended_;
  report(why);
}

}  // namespace ckptd
