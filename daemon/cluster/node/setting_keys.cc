#include "daemon/cluster/node/setting_keys.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/ledger/state/found_messages.h"

namespace ckptd {

using ledger::v1::CheckpointPin;
using ledger::v1::RetentionOverride;

SettingKeys::SettingKeys(Etcd* etcd, Clock* clock, Options options, Hooks hooks)
    : etcd_(etcd),
      clock_(clock),
      options_(std::move(options)),
      hooks_(std::move(hooks)),
      keys_(options_.prefix),
      calls_(clock, absl::StrCat("run ", options_.run), options_.why_unregistered) {}

void SettingKeys::SetNode(const NodeIdentity* node) {
  calls_.SetRegistered(false);
  ledger_ = nullptr;
  mirror_ = nullptr;
  if (node == nullptr) return;
  ledger_ = std::make_unique<RunSettings>(
      etcd_, RunSettings::Options{options_.prefix, *node, options_.run, options_.ended_removals});
  mirror_ = std::make_unique<EtcdMirror>(
      etcd_, keys_.Settings(), absl::StrCat("following the settings of run ", options_.run),
      [this](const std::vector<std::string>& changed) { OnKeys(changed); },
      [this](const absl::Status& why) { hooks_.ended(why); });
  mirror_->Start();
  calls_.SetRegistered(true);
}

void SettingKeys::OnKeys(const std::vector<std::string>& changed) {
  const bool is_first = !std::exchange(known_, true);
  for (const std::string& key : changed) {
    const std::string* const value = mirror_->Find(key);
    if (value == nullptr) continue;
    int64_t sequence = 0;
    CheckpointPin pin;
    RetentionOverride retention;
    if (key == keys_.RetentionOverride() && retention.ParseFromString(*value)) {
      OnRetention(retention);
    } else if (absl::StartsWith(key, keys_.Pins()) && absl::SimpleAtoi(LastPartOf(key), &sequence) &&
               pin.ParseFromString(*value)) {
      OnPin(sequence, pin);
    }
  }
  if (is_first) hooks_.known();
}

// An answer and the watch may show two changes in either order: the later one has the higher number. A backup
// of etcd has lower ones, which count only for a daemon that has started since.
void SettingKeys::OnPin(int64_t sequence, const CheckpointPin& pin) {
  CheckpointPin& known = pins_[sequence];
  if (pin.number() <= known.number()) return;
  known = pin;
  hooks_.pin_changed(pin.tag(), sequence, pin.pinned());
}

void SettingKeys::OnRetention(const RetentionOverride& setting) {
  if (setting.number() <= retention_.number()) return;
  retention_ = setting;
  hooks_.retention_changed(setting.has_policy() ? Policy(setting.policy()) : std::nullopt);
}

void SettingKeys::SetPinned(const std::string& tag, int64_t sequence, bool pinned, Done set) {
  using Result = absl::StatusOr<CheckpointPin>;
  calls_.Ask<Result>(
      absl::StrCat(pinned ? "to pin " : "to unpin ", tag, " in"), clock_->Now() + options_.patience,
      [this, tag, sequence, pinned](LedgerCalls::Answer<Result> done) {
        ledger_->SetPinned(tag, sequence, pinned, std::move(done));
      },
      [this, sequence, set = std::move(set)](const Result& present) mutable {
        if (present.ok()) OnPin(sequence, *present);
        set(present.status());
      });
}

void SettingKeys::SetRetention(const Policy& policy, Done set) {
  using Result = absl::StatusOr<RetentionOverride>;
  calls_.Ask<Result>(
      "to set the retention policy of", clock_->Now() + options_.patience,
      [this, policy](LedgerCalls::Answer<Result> done) { ledger_->SetRetention(policy, std::move(done)); },
      [this, set = std::move(set)](const Result& present) mutable {
        if (present.ok()) OnRetention(*present);
        set(present.status());
      });
}

void SettingKeys::Apply(CommittedCheckpoint* checkpoint) {
  const int64_t sequence = checkpoint->summary.sequence();
  if (const auto known = pins_.find(sequence); known != pins_.end()) {
    checkpoint->pinned = known->second.pinned();
  } else if (checkpoint->pinned) {
    Remember(checkpoint->summary.tag(), sequence);
  }
}

void SettingKeys::Remember(const std::string& tag, int64_t sequence) {
  using Result = absl::StatusOr<CheckpointPin>;
  if (!remembering_.insert(sequence).second) return;
  calls_.Ask<Result>(
      absl::StrCat("to say that ", tag, " was pinned before in"), Instant::max(),
      [this, tag, sequence](LedgerCalls::Answer<Result> done) {
        ledger_->RememberPin(tag, sequence, std::move(done));
      },
      [this, sequence](const Result& present) {
        remembering_.erase(sequence);
        if (present.ok()) OnPin(sequence, *present);
      });
}

}  // namespace ckptd
