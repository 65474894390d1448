#include "daemon/grpc/base/call_limits.h"

#include <algorithm>
#include <utility>

#include "daemon/engine/seams/limits.h"

namespace ckptd {

absl::StatusOr<std::shared_ptr<CallTicket>> CallLimits::Start(uid_t uid) {
  MutexLock lock(mutex_);
  const auto found = users_.find(uid);
  if (found != users_.end() && found->second.calls >= calls_per_uid_)
    return UidLimitExceeded(uid, "calls at once", calls_per_uid_, "calls_per_uid");
  ++users_[uid].calls;
  return std::shared_ptr<CallTicket>(new CallTicket(this, uid));
}

std::deque<CallLimits::Waiting> CallLimits::TakeReady(User& user) {
  std::deque<Waiting> ready;
  while (!user.waiting.empty() && Fits(user, user.waiting.front().bytes)) {
    Waiting& next = user.waiting.front();
    user.memory += next.bytes;
    next.ticket->charged_ += next.bytes;
    ready.push_back(std::move(next));
    user.waiting.pop_front();
  }
  return ready;
}

void CallLimits::SetLimits(int calls_per_uid, int64_t memory_per_uid) {
  std::deque<Waiting> ready;
  {
    MutexLock lock(mutex_);
    calls_per_uid_ = calls_per_uid;
    memory_per_uid_ = memory_per_uid;
    for (auto& [uid, user] : users_) {
      // As ChargeWhenAvailable: nobody waits for more than there can ever be.
      for (Waiting& waiting : user.waiting) {
        const int64_t most = std::max<int64_t>(memory_per_uid_ - waiting.ticket->charged_, 0);
        waiting.bytes = std::min(waiting.bytes, most);
      }
      for (Waiting& each : TakeReady(user)) ready.push_back(std::move(each));
    }
  }
  for (Waiting& waiting : ready) waiting.ready(true);
}

int CallLimits::calls(uid_t uid) const {
  MutexLock lock(mutex_);
  const auto found = users_.find(uid);
  return found == users_.end() ? 0 : found->second.calls;
}

int64_t CallLimits::memory(uid_t uid) const {
  MutexLock lock(mutex_);
  const auto found = users_.find(uid);
  return found == users_.end() ? 0 : found->second.memory;
}

CallTicket::~CallTicket() {
  StopWaiting();
  std::deque<CallLimits::Waiting> ready;
  {
    MutexLock lock(limits_->mutex_);
    const auto found = limits_->users_.find(uid_);
    CallLimits::User& user = found->second;
    user.memory -= charged_;
    ready = limits_->TakeReady(user);
    if (--user.calls == 0) limits_->users_.erase(found);
  }
  for (CallLimits::Waiting& waiting : ready) waiting.ready(true);
}

absl::Status CallTicket::Charge(int64_t bytes) {
  MutexLock lock(limits_->mutex_);
  CallLimits::User& user = limits_->users_.at(uid_);
  if (!limits_->Fits(user, bytes)) {
    return UidLimitExceeded(uid_, "bytes of memory for its calls", limits_->memory_per_uid_,
                            "call_memory_bytes_per_uid");
  }
  user.memory += bytes;
  charged_ += bytes;
  return absl::OkStatus();
}

void CallTicket::ChargeWhenAvailable(int64_t bytes, absl::AnyInvocable<void(bool)> ready) {
  {
    MutexLock lock(limits_->mutex_);
    CallLimits::User& user = limits_->users_.at(uid_);
    // The limit may have been lowered below what this call has charged.
    bytes = std::min(bytes, std::max<int64_t>(limits_->memory_per_uid_ - charged_, 0));
    if (!user.waiting.empty() || !limits_->Fits(user, bytes)) {
      user.waiting.push_back({this, bytes, std::move(ready)});
      return;
    }
    user.memory += bytes;
    charged_ += bytes;
  }
  ready(true);
}

void CallTicket::StopWaiting() {
  absl::AnyInvocable<void(bool)> stopped;
  std::deque<CallLimits::Waiting> ready;
  {
    MutexLock lock(limits_->mutex_);
    CallLimits::User& user = limits_->users_.at(uid_);
    for (auto waiting = user.waiting.begin(); waiting != user.waiting.end(); ++waiting) {
      if (waiting->ticket != this) continue;
      stopped = std::move(waiting->ready);
      user.waiting.erase(waiting);
      break;
    }
    if (stopped) ready = limits_->TakeReady(user);  // Smaller requests may have waited behind this one.
  }
  if (stopped) stopped(false);
  for (CallLimits::Waiting& waiting : ready) waiting.ready(true);
}

void CallTicket::Refund(int64_t bytes) {
  std::deque<CallLimits::Waiting> ready;
  {
    MutexLock lock(limits_->mutex_);
    CallLimits::User& user = limits_->users_.at(uid_);
    bytes = std::min(bytes, charged_);
    user.memory -= bytes;
    charged_ -= bytes;
    ready = limits_->TakeReady(user);
  }
  for (CallLimits::Waiting& waiting : ready) waiting.ready(true);
}

}  // namespace ckptd
