#include "daemon/ledger/state/checkpoint_damage.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/state/found_messages.h"
#include "storage/base/errors.h"

namespace ckptd {

using ledger::v1::DamageMark;
using Operations = std::vector<etcdserverpb::RequestOp>;

CheckpointDamage::CheckpointDamage(Etcd* etcd, Options options)
    : etcd_(etcd), options_(std::move(options)), keys_(options_.prefix) {}

void CheckpointDamage::Mark(const storage::v1::Damage& damage, Done marked) {
  Set(damage.sequence(), &damage, /*only_if_unknown=*/false, std::move(marked));
}

void CheckpointDamage::Remember(const storage::v1::Damage& damage, Done marked) {
  Set(damage.sequence(), &damage, /*only_if_unknown=*/true, std::move(marked));
}

void CheckpointDamage::Clear(int64_t sequence, Done cleared) {
  Set(sequence, nullptr, /*only_if_unknown=*/false, std::move(cleared));
}

// A reader may have seen a removal: while it read, this node may have lost its registration, and with it the
// reader key that kept the checkpoint. So the mark is written only if no removal has been decided, also not
// under an earlier registration.
void CheckpointDamage::Set(int64_t sequence, const storage::v1::Damage* damage, bool only_if_unknown,
                           Done done) {
  DamageMark mark;
  if (damage != nullptr) *mark.mutable_damage() = *damage;
  auto refused = std::make_shared<absl::Status>();
  CompareAndSwap swap;
  const std::string key = keys_.Damaged(sequence);
  swap.ranges = {{key}, {keys_.Evicting(sequence)}};
  swap.held = {options_.node.Held()};
  swap.decide = [=, ended = options_.ended_removals](const CompareAndSwap::Found& found) {
    *refused = absl::OkStatus();
    const DamageMark known = FirstOf<DamageMark>(found[0]);
    const bool is_known = !found[0].empty();
    if (is_known && (only_if_unknown || known.has_damage() == mark.has_damage())) return Operations();
    if (IsBeingRemoved(ended.get(), sequence, found[1])) {
      *refused = MakeError(absl::StatusCode::kUnavailable, ledger_reason::kBeingRemoved,
                           absl::StrCat("the checkpoint of sequence ", sequence,
                                        " is being removed, or has been; that is no damage"));
      return Operations();
    }
    return Operations{Put(key, mark.SerializeAsString())};
  };
  swap.purpose =
      absl::StrCat(damage != nullptr ? "marking a checkpoint as damaged" : "clearing a damage mark",
                   " of run ", options_.run);
  SwapIn(etcd_, std::move(swap),
         callbacks_.Guard([refused, done = std::move(done)](const absl::Status& written) mutable {
           done(written.ok() ? *refused : written);
         }));
}

std::set<int64_t> DamagedOf(const std::vector<etcdserverpb::KeyValue>& found) {
  std::set<int64_t> damaged;
  for (const etcdserverpb::KeyValue& pair : found) {
    DamageMark mark;
    int64_t sequence = 0;
    if (mark.ParseFromString(pair.value()) && mark.has_damage() &&
        absl::SimpleAtoi(LastPartOf(pair.key()), &sequence))
      damaged.insert(sequence);
  }
  return damaged;
}

}  // namespace ckptd
