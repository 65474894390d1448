// Limits the calls of each user: their number, and the memory of their requests, answers and buffers. So one
// user cannot fill the daemon's memory with calls, or with answers that nobody reads.
#ifndef CKPTD_DAEMON_GRPC_BASE_CALL_LIMITS_H_
#define CKPTD_DAEMON_GRPC_BASE_CALL_LIMITS_H_

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/mutex.h"

namespace ckptd {

class CallLimits;

// One call. Its destructor gives back what was charged. Thread-safe. Its CallLimits must outlive it.
class CallTicket {
 public:
  ~CallTicket();
  CallTicket(const CallTicket&) = delete;
  CallTicket& operator=(const CallTicket&) = delete;

  // Charges memory. RESOURCE_EXHAUSTED, reason LIMIT_EXCEEDED, and nothing is charged, when the user's calls
  // would exceed their limit.
  absl::Status Charge(int64_t bytes);
  // Charges the memory when there is room, after earlier waiting calls of this user. `ready` runs once: with
  // true when it is charged, on this thread or on the one that gives memory back; with false if StopWaiting
  // was called first. More than the limit is charged as the limit. At most one wait at a time.
  void ChargeWhenAvailable(int64_t bytes, absl::AnyInvocable<void(bool charged)> ready);
  void StopWaiting();
  void Refund(int64_t bytes);

 private:
  friend class CallLimits;
  CallTicket(CallLimits* limits, uid_t uid) : limits_(limits), uid_(uid) {}
  CallLimits* const limits_;
  const uid_t uid_;
  int64_t charged_ = 0;  // Guarded by limits_->mutex_.
};

// Thread-safe.
class CallLimits {
 public:
  CallLimits(int calls_per_uid, int64_t memory_per_uid)
      : calls_per_uid_(calls_per_uid), memory_per_uid_(memory_per_uid) {}

  // Counts one more call. RESOURCE_EXHAUSTED, reason LIMIT_EXCEEDED, when the user has too many.
  absl::StatusOr<std::shared_ptr<CallTicket>> Start(uid_t uid);

  // Calls that have begun keep what they have charged. Calls that wait for memory are tried again at once.
  void SetLimits(int calls_per_uid, int64_t memory_per_uid);

  int calls(uid_t uid) const;
  int64_t memory(uid_t uid) const;

 private:
  friend class CallTicket;
  struct Waiting {
    CallTicket* ticket;
    int64_t bytes;
    absl::AnyInvocable<void(bool)> ready;
  };
  struct User {
    int calls = 0;
    int64_t memory = 0;
    std::deque<Waiting> waiting;
  };

  bool Fits(const User& user, int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return user.memory + bytes <= memory_per_uid_;
  }
  // Charges and returns the waiting calls that fit now, oldest first. The caller runs their callbacks without
  // the lock.
  std::deque<Waiting> TakeReady(User& user) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  int calls_per_uid_ ABSL_GUARDED_BY(mutex_);
  int64_t memory_per_uid_ ABSL_GUARDED_BY(mutex_);
  std::map<uid_t, User> users_ ABSL_GUARDED_BY(mutex_);  // Users with calls in flight.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_GRPC_BASE_CALL_LIMITS_H_
