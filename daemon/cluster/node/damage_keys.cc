#include "daemon/cluster/node/damage_keys.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "ckptd/ledger/v1/ledger.pb.h"

namespace ckptd {

DamageKeys::DamageKeys(Etcd* etcd, Clock* clock, Options options, Changed changed)
    : etcd_(etcd),
      clock_(clock),
      options_(std::move(options)),
      changed_(std::move(changed)),
      calls_(clock, absl::StrCat("run ", options_.run), options_.why_unregistered) {}

void DamageKeys::SetNode(const NodeIdentity* node) {
  calls_.SetRegistered(false);
  ledger_ = nullptr;
  if (node == nullptr) return;
  ledger_ = std::make_unique<CheckpointDamage>(
      etcd_, CheckpointDamage::Options{options_.prefix, *node, options_.run, options_.ended_removals});
  calls_.SetRegistered(true);
}

void DamageKeys::OnMark(int64_t sequence, const std::string* value) {
  ledger::v1::DamageMark mark;
  if (value == nullptr || !mark.ParseFromString(*value)) return;
  Set(sequence, mark.has_damage() ? Damage(mark.damage()) : std::nullopt);
}

void DamageKeys::Set(int64_t sequence, const Damage& damage) {
  const auto [known, is_new] = known_.try_emplace(sequence, damage);
  const bool same = !is_new && known->second.has_value() == damage.has_value() &&
                    (!damage || known->second->SerializeAsString() == damage->SerializeAsString());
  if (same) return;
  known->second = damage;
  changed_(sequence, damage);
}

void DamageKeys::Mark(const storage::v1::Damage& damage, Done marked) {
  const int64_t sequence = damage.sequence();
  calls_.Ask<absl::Status>(
      absl::StrCat("to mark the checkpoint of sequence ", sequence, " as damaged in"),
      clock_->Now() + options_.patience,
      [this, damage](LedgerCalls::Answer<absl::Status> done) { ledger_->Mark(damage, std::move(done)); },
      [this, sequence, damage, marked = std::move(marked)](const absl::Status& answer) mutable {
        // If another node has marked it first, that node's description comes with the key.
        if (const auto known = known_.find(sequence);
            answer.ok() && (known == known_.end() || !known->second))
          Set(sequence, damage);
        marked(answer);
      });
}

void DamageKeys::Clear(int64_t sequence, Done cleared) {
  calls_.Ask<absl::Status>(
      absl::StrCat("to clear the damage mark of sequence ", sequence, " in"),
      clock_->Now() + options_.patience,
      [this, sequence](LedgerCalls::Answer<absl::Status> done) { ledger_->Clear(sequence, std::move(done)); },
      [this, sequence, cleared = std::move(cleared)](const absl::Status& answer) mutable {
        if (answer.ok()) Set(sequence, std::nullopt);
        cleared(answer);
      });
}

void DamageKeys::Apply(CommittedCheckpoint* checkpoint) {
  const int64_t sequence = checkpoint->summary.sequence();
  if (const auto known = known_.find(sequence); known != known_.end()) {
    checkpoint->damage = known->second;
  } else if (checkpoint->damage) {
    Remember(*checkpoint->damage);
  }
}

void DamageKeys::Remember(const storage::v1::Damage& damage) {
  const int64_t sequence = damage.sequence();
  if (!remembering_.insert(sequence).second) return;
  calls_.Ask<absl::Status>(
      absl::StrCat("to say that the checkpoint of sequence ", sequence, " was damaged before in"),
      Instant::max(),
      [this, damage](LedgerCalls::Answer<absl::Status> done) { ledger_->Remember(damage, std::move(done)); },
      [this, sequence](const absl::Status&) { remembering_.erase(sequence); });
}

std::set<int64_t> DamageKeys::damaged() const {
  std::set<int64_t> damaged;
  for (const auto& [sequence, damage] : known_) {
    if (damage) damaged.insert(sequence);
  }
  return damaged;
}

}  // namespace ckptd
