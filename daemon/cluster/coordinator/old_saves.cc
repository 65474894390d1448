#include "daemon/cluster/coordinator/old_saves.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/cluster/node/node_save.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/state/found_messages.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {

using ledger::v1::SaveState;

namespace {

// A transaction of etcd has 128 operations at most, and each save needs three.
constexpr size_t kMostAtOnce = 32;

// Whether nothing about the save is to be found out any more.
bool IsOver(const SaveState& state) {
  const bool unknown =
      state.end().reason() == reason::kIndeterminate && state.found() == SaveState::NOT_KNOWN;
  return HasEnded(state) && !unknown;
}

}  // namespace

OldSaves::OldSaves(Etcd* etcd, Clock* clock, Options options, CompareAndSwap::Held leadership,
                   std::function<void(const absl::Status&)> lost)
    : clock_(clock),
      etcd_(etcd),
      options_(std::move(options)),
      keys_(options_.prefix),
      leadership_(std::move(leadership)),
      lost_(std::move(lost)) {}

void OldSaves::OnEnded(const SharedSave& save) {
  if (IsCheckpoint(save.state)) newest_checkpoint_ = std::max(newest_checkpoint_, save.sequence);
  if (!IsOver(save.state)) return;
  ended_.try_emplace(save.sequence, Ended{save, clock_->Now()});
}

std::vector<SharedSave> OldSaves::Due() const {
  std::vector<SharedSave> due;
  const auto newest = ended_.lower_bound(newest_checkpoint_);
  for (auto each = ended_.begin(); each != newest && due.size() < kMostAtOnce; ++each) {
    if (clock_->Now() - each->second.seen_at >= options_.kept_for) due.push_back(each->second.save);
  }
  return due;
}

void OldSaves::OnTick() {
  if (asking_ || !backoff_.IsOver(clock_->Now())) return;
  std::vector<SharedSave> due = Due();
  if (due.empty()) return;
  CompareAndSwap swap;
  for (const SharedSave& save : due) swap.ranges.push_back({keys_.SaveState(save.sequence)});
  swap.held = {leadership_};
  swap.decide = [due, keys = keys_](const CompareAndSwap::Found& found) {
    std::vector<etcdserverpb::RequestOp> operations;
    for (size_t i = 0; i < due.size(); ++i) {
      // Etcd may have been taken back to a time when the save had not ended.
      const auto state = FirstOf<SaveState>(found[i]);
      if (found[i].empty() || !IsOver(state)) continue;
      operations.push_back(Delete(keys.SaveState(due[i].sequence)));
      operations.push_back(DeleteBelow(keys.Votes(due[i].sequence)));
      if (!state.tag().empty())
        operations.push_back(Delete(keys.SaveIndex(state.attempt(), state.tag(), state.ordinal())));
    }
    return operations;
  };
  swap.purpose = absl::StrCat("removing old saves of run ", options_.run);
  asking_ = true;
  SwapIn(etcd_, std::move(swap), callbacks_.Guard([this, due = std::move(due)](const absl::Status& removed) {
    Removed(due, removed);
  }));
}

void OldSaves::Removed(const std::vector<SharedSave>& saves, const absl::Status& removed) {
  asking_ = false;
  if (!removed.ok()) {
    const std::string reason = ReasonOf(removed);
    if (reason != ledger_reason::kUnavailable && reason != ledger_reason::kFull) return lost_(removed);
    return backoff_.Failed(clock_->Now());
  }
  backoff_.Succeeded();
  for (const SharedSave& save : saves) ended_.erase(save.sequence);
}

}  // namespace ckptd
