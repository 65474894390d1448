// Requests to etcd in this node's name, which are repeated until they are answered.
#ifndef CKPTD_DAEMON_CLUSTER_NODE_LEDGER_CALLS_H_
#define CKPTD_DAEMON_CLUSTER_NODE_LEDGER_CALLS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/etcd/backoff.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// A call is sent while this node is registered, and repeated, with a backoff, while etcd is away or after the
// registration with which it was sent has ended, so calls must be idempotent. At its deadline a call fails
// with LEDGER_UNAVAILABLE, which names what the call waits for, or with the reason why this node is not
// registered; it is then not known whether etcd has applied the call. A call that gets LAUNCH_IDS_DIFFER is
// repeated, too, and fails with that error only at the deadline, because a launch that looks like a part of
// another one may turn out to follow it. Used on one thread.
class LedgerCalls {
 public:
  template <typename T>
  using Answer = absl::AnyInvocable<void(T)>;

  // Why this node is not registered; OK: not known.
  using WhyUnregistered = std::function<absl::Status()>;

  // `clock` must outlive it. `run`: for messages. `why` may be null.
  LedgerCalls(Clock* clock, std::string run, WhyUnregistered why = nullptr)
      : clock_(clock), run_(std::move(run)), why_unregistered_(std::move(why)) {}

  // `what`: for messages, as in "to join the run". `send` sends the call, and may run within Ask. Calls under
  // way are dropped with this object. T is absl::Status or absl::StatusOr.
  template <typename T>
  void Ask(const std::string& what, Instant deadline, std::function<void(Answer<T>)> send, Answer<T> answer);

  // After false, calls under way are repeated with the next registration.
  void SetRegistered(bool registered);
  void OnTick();

 private:
  struct Call {
    std::string what;
    Instant deadline;
    std::function<void(int64_t id, int64_t round)> send;
    absl::AnyInvocable<void(const absl::Status&)> give_up;
    bool asking = false;
    int64_t round = 0;  // Counts the tries; an answer to an earlier one is dropped.
    Backoff backoff{std::chrono::milliseconds(100), std::chrono::seconds(1)};
    absl::Status last_error;  // OK: there was no answer.
  };

  void Send(int64_t id);
  // Whether the answer is final. If so, removes the call.
  bool IsAnswered(int64_t id, int64_t round, const absl::Status& status);
  void Expire();
  absl::Status NotInTime(const Call& call) const;

  Clock* const clock_;
  const std::string run_;
  const WhyUnregistered why_unregistered_;
  bool registered_ = false;
  int64_t next_ = 1;
  std::map<int64_t, Call> calls_;
  CallbackScope callbacks_;
};

inline const absl::Status& StatusOfAnswer(const absl::Status& answer) { return answer; }
template <typename T>
const absl::Status& StatusOfAnswer(const absl::StatusOr<T>& answer) {
  return answer.status();
}

template <typename T>
void LedgerCalls::Ask(const std::string& what, Instant deadline, std::function<void(Answer<T>)> send,
                      Answer<T> answer) {
  const auto shared = std::make_shared<Answer<T>>(std::move(answer));
  const int64_t id = next_++;
  Call& call = calls_[id];
  call.what = what;
  call.deadline = deadline;
  call.give_up = [shared](const absl::Status& why) { (*shared)(why); };
  call.send = [this, shared, send = std::move(send)](int64_t sent, int64_t round) {
    send(callbacks_.Guard([this, shared, sent, round](T result) {
      if (IsAnswered(sent, round, StatusOfAnswer(result))) (*shared)(std::move(result));
    }));
  };
  Send(id);
}

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_NODE_LEDGER_CALLS_H_
