#include "daemon/cluster/node/ledger_calls.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

// Whether another try may succeed, perhaps with the next registration.
bool IsTransient(const absl::Status& error) {
  const std::string reason = ReasonOf(error);
  return reason == ledger_reason::kUnavailable || reason == ledger_reason::kFull ||
         reason == ledger_reason::kNodeReplaced || reason == ledger_reason::kLeaseEnded ||
         reason == ledger_reason::kLaunchIdsDiffer;
}

// Whether an error that another try may mend is also one that the caller can mend.
bool IsAnswer(const absl::Status& error) { return ReasonOf(error) == ledger_reason::kLaunchIdsDiffer; }

}  // namespace

void LedgerCalls::Send(int64_t id) {
  const auto found = calls_.find(id);
  if (found == calls_.end() || !registered_ || found->second.asking) return;
  found->second.asking = true;
  const int64_t round = ++found->second.round;
  const auto send = found->second.send;  // The answer may end the call.
  send(id, round);
}

bool LedgerCalls::IsAnswered(int64_t id, int64_t round, const absl::Status& status) {
  const auto found = calls_.find(id);
  if (found == calls_.end() || found->second.round != round || !found->second.asking) return false;
  Call& call = found->second;
  if (!IsTransient(status)) {
    calls_.erase(found);
    return true;
  }
  call.asking = false;
  call.last_error = status;
  call.backoff.Failed(clock_->Now());
  return false;
}

void LedgerCalls::SetRegistered(bool registered) {
  registered_ = registered;
  for (auto& [id, call] : calls_) call.asking = false;
  OnTick();
}

void LedgerCalls::OnTick() {
  Expire();
  std::vector<int64_t> due;
  for (const auto& [id, call] : calls_) {
    if (!call.asking && call.backoff.IsOver(clock_->Now())) due.push_back(id);
  }
  for (const int64_t id : due) Send(id);
}

absl::Status LedgerCalls::NotInTime(const Call& call) const {
  if (registered_ && IsAnswer(call.last_error)) return call.last_error;
  const std::string what = absl::StrCat("no answer in time ", call.what, " ", run_);
  if (!registered_ && why_unregistered_) {
    if (const absl::Status why = why_unregistered_(); !why.ok()) return Annotate(why, what);
  }
  const std::string why = !call.last_error.ok() ? std::string(call.last_error.message())
                          : registered_         ? "etcd has not answered"
                                                : "this node is not registered in etcd";
  return MakeError(absl::StatusCode::kUnavailable, ledger_reason::kUnavailable,
                   absl::StrCat(what, ": ", why));
}

void LedgerCalls::Expire() {
  std::vector<std::pair<absl::AnyInvocable<void(const absl::Status&)>, absl::Status>> over;
  for (auto call = calls_.begin(); call != calls_.end();) {
    if (clock_->Now() < call->second.deadline) {
      ++call;
      continue;
    }
    over.emplace_back(std::move(call->second.give_up), NotInTime(call->second));
    call = calls_.erase(call);
  }
  for (auto& [give_up, why] : over) give_up(why);
}

}  // namespace ckptd
