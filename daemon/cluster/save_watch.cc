#include "daemon/cluster/save_watch.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ckptd {
namespace {

std::vector<etcdserverpb::KeyValue> ValuesOf(const EtcdMirror::Keys& keys) {
  std::vector<etcdserverpb::KeyValue> values;
  for (const auto& [name, key] : keys) values.push_back(key);
  return values;
}

}  // namespace

SaveWatch::SaveWatch(Etcd* etcd, const LedgerKeys& keys, int64_t sequence, int64_t attempt,
                     const std::string& run, std::function<void()> changed,
                     const std::function<void(const absl::Status&)>& ended)
    : head_(keys.Head(attempt)),
      changed_(std::move(changed)),
      votes_(
          etcd, keys.Votes(sequence), absl::StrCat("following a save of run ", run),
          [this](const std::vector<std::string>&) {
            votes_known_ = true;
            changed_();
          },
          ended),
      attempt_(
          etcd, keys.OfAttempt(attempt), absl::StrCat("following an attempt of run ", run),
          [this](const std::vector<std::string>&) {
            attempt_known_ = true;
            changed_();
          },
          ended) {}

void SaveWatch::Start() {
  votes_.Start();
  attempt_.Start();
}

SaveView SaveWatch::View(const ledger::v1::SaveState& save, const EtcdMirror::Keys& nodes,
                         const EtcdMirror::Keys& active) const {
  EtcdMirror::Keys head, ranks;
  for (const auto& [name, key] : attempt_.keys()) (name == head_ ? head : ranks)[name] = key;
  return SaveViewOf(
      {ValuesOf(votes_.keys()), ValuesOf(ranks), ValuesOf(head), ValuesOf(nodes), ValuesOf(active)}, save);
}

}  // namespace ckptd
