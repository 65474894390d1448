#include "daemon/ledger/state/run_settings.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/state/found_messages.h"
#include "storage/base/errors.h"

namespace ckptd {

using ledger::v1::CheckpointPin;
using ledger::v1::RetentionOverride;
using Operations = std::vector<etcdserverpb::RequestOp>;

RunSettings::RunSettings(Etcd* etcd, Options options)
    : etcd_(etcd), options_(std::move(options)), keys_(options_.prefix) {}

void RunSettings::SetPinned(const std::string& tag, int64_t sequence, bool pinned,
                            Answer<CheckpointPin> set) {
  CheckpointPin pin;
  pin.set_tag(tag);
  pin.set_pinned(pinned);
  Pin(pin, sequence, /*only_if_unknown=*/false, std::move(set));
}

void RunSettings::RememberPin(const std::string& tag, int64_t sequence, Answer<CheckpointPin> set) {
  CheckpointPin pin;
  pin.set_tag(tag);
  pin.set_pinned(true);
  Pin(pin, sequence, /*only_if_unknown=*/true, std::move(set));
}

void RunSettings::Pin(const CheckpointPin& pin, int64_t sequence, bool only_if_unknown,
                      Answer<CheckpointPin> set) {
  auto refused = std::make_shared<absl::Status>();
  auto present = std::make_shared<CheckpointPin>();
  CompareAndSwap swap;
  const std::string key = keys_.Pinned(sequence);
  swap.ranges = {{key}, {keys_.Evicting(sequence)}};
  swap.held = {options_.node.Held()};
  swap.decide = [=, ended = options_.ended_removals](const CompareAndSwap::Found& found) {
    *refused = absl::OkStatus();
    *present = FirstOf<CheckpointPin>(found[0]);
    const bool is_known = !found[0].empty();
    if (present->pinned() == pin.pinned() || (is_known && only_if_unknown)) return Operations();
    if (pin.pinned() && IsBeingRemoved(ended.get(), sequence, found[1])) {
      *refused = MakeError(absl::StatusCode::kUnavailable, ledger_reason::kBeingRemoved,
                           absl::StrCat("the checkpoint ", pin.tag(), " of sequence ", sequence,
                                        " is being removed, or has been; it cannot be pinned"),
                           {{"tag", pin.tag()}});
      return Operations();
    }
    const int64_t number = present->number() + 1;
    *present = pin;
    present->set_number(number);
    return Operations{Put(key, present->SerializeAsString())};
  };
  swap.purpose = absl::StrCat(pin.pinned() ? "pinning" : "unpinning", " a checkpoint of run ", options_.run);
  SwapIn(etcd_, std::move(swap),
         callbacks_.Guard([refused, present, set = std::move(set)](const absl::Status& written) mutable {
           if (!written.ok() || !refused->ok()) return set(written.ok() ? *refused : written);
           set(*present);
         }));
}

void RunSettings::SetRetention(const std::optional<storage::v1::RetentionPolicy>& policy,
                               Answer<RetentionOverride> set) {
  RetentionOverride wanted;
  if (policy) *wanted.mutable_policy() = *policy;
  auto present = std::make_shared<RetentionOverride>();
  CompareAndSwap swap;
  const std::string key = keys_.RetentionOverride();
  swap.ranges = {{key}};
  swap.held = {options_.node.Held()};
  swap.decide = [=](const CompareAndSwap::Found& found) {
    *present = FirstOf<RetentionOverride>(found[0]);
    if (present->has_policy() == wanted.has_policy() &&
        present->policy().SerializeAsString() == wanted.policy().SerializeAsString())
      return Operations();
    const int64_t number = present->number() + 1;
    *present = wanted;
    present->set_number(number);
    return Operations{Put(key, present->SerializeAsString())};
  };
  swap.purpose = absl::StrCat("setting the retention policy of run ", options_.run);
  SwapIn(etcd_, std::move(swap),
         callbacks_.Guard([present, set = std::move(set)](const absl::Status& written) mutable {
           if (!written.ok()) return set(written);
           set(*present);
         }));
}

}  // namespace ckptd
