// An Etcd for a daemon that can be paused: what etcd answers meanwhile reaches it when it goes on. It can
// also refuse transactions, which the simulated one does only when it is full.
#ifndef CKPTD_TESTS_TESTING_PAUSABLE_ETCD_H_
#define CKPTD_TESTS_TESTING_PAUSABLE_ETCD_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "daemon/etcd/etcd.h"

namespace ckptd {

// Runs what a daemon is to hear: at once, or, while it is paused, when it goes on. Ends with the daemon.
class Pause {
 public:
  void Begin() { paused_ = true; }
  void End() {
    paused_ = false;
    while (!paused_ && !held_.empty()) {
      auto first = std::move(held_.front());
      held_.erase(held_.begin());
      first();
    }
  }
  // The daemon has ended.
  void Drop() {
    paused_ = false;
    held_.clear();
  }
  bool paused() const { return paused_; }
  void Deliver(absl::AnyInvocable<void()> what) {
    if (paused_) return held_.push_back(std::move(what));
    what();
  }

 private:
  bool paused_ = false;
  std::vector<absl::AnyInvocable<void()>> held_;
};

// Both must outlive it, and it must outlive whoever uses it.
class PausableEtcd : public Etcd {
 public:
  PausableEtcd(Etcd* etcd, Pause* pause) : etcd_(etcd), pause_(pause) {}

  void Range(const etcdserverpb::RangeRequest& request, const std::string& purpose,
             Answer<etcdserverpb::RangeResponse> answer) override {
    etcd_->Range(request, purpose, Held(std::move(answer)));
  }
  void Txn(const etcdserverpb::TxnRequest& request, const std::string& purpose,
           Answer<etcdserverpb::TxnResponse> answer) override {
    if (!refused_.ok()) return Refuse(purpose, std::move(answer));
    etcd_->Txn(request, purpose, Held(std::move(answer)));
  }
  // From now on transactions are not applied, and answered with this; OK: no more.
  void RefuseTransactions(const absl::Status& why) { refused_ = why; }
  void GrantLease(const etcdserverpb::LeaseGrantRequest& request, const std::string& purpose,
                  Answer<etcdserverpb::LeaseGrantResponse> answer) override {
    etcd_->GrantLease(request, purpose, Held(std::move(answer)));
  }
  void KeepLeaseAlive(const etcdserverpb::LeaseKeepAliveRequest& request, const std::string& purpose,
                      Answer<etcdserverpb::LeaseKeepAliveResponse> answer) override {
    etcd_->KeepLeaseAlive(request, purpose, Held(std::move(answer)));
  }
  void RevokeLease(const etcdserverpb::LeaseRevokeRequest& request, const std::string& purpose,
                   Answer<etcdserverpb::LeaseRevokeResponse> answer) override {
    etcd_->RevokeLease(request, purpose, Held(std::move(answer)));
  }
  // Until ReleaseEvents, the daemon hears nothing of keys with this prefix, but of all others.
  void HoldEvents(const std::string& prefix) {
    late_ = prefix;
    late_events_.Begin();
  }
  void ReleaseEvents() { late_events_.End(); }
  std::unique_ptr<EtcdWatch> Watch(EtcdWatchSpec spec) override {
    auto watch = std::make_unique<HeldWatch>();
    spec.changed = HeardLate(watch->alive, spec.key, std::move(spec.changed));
    spec.changed = HeldWhile(watch->alive, std::move(spec.changed));
    spec.ended = HeldWhile(watch->alive, std::move(spec.ended));
    watch->watch = etcd_->Watch(std::move(spec));
    return watch;
  }

 private:
  struct HeldWatch : EtcdWatch {
    std::shared_ptr<bool> alive = std::make_shared<bool>(true);
    std::unique_ptr<EtcdWatch> watch;
  };

  // When a request has gone to etcd and back.
  void Refuse(const std::string& purpose, Answer<etcdserverpb::TxnResponse> answer) {
    etcdserverpb::RangeRequest way;
    way.set_key("nothing");
    Range(way, purpose,
          [why = refused_, answer = std::move(answer)](
              const absl::StatusOr<etcdserverpb::RangeResponse>&) mutable { answer(why); });
  }
  template <typename T>
  Answer<T> Held(Answer<T> answer) {
    return [this, alive = std::weak_ptr<bool>(alive_),
            answer = std::move(answer)](absl::StatusOr<T> response) mutable {
      if (alive.expired()) return;
      pause_->Deliver([alive, answer = std::move(answer), response = std::move(response)]() mutable {
        if (!alive.expired()) answer(std::move(response));
      });
    };
  }
  template <typename T>
  std::function<void(const T&)> HeldWhile(const std::shared_ptr<bool>& watch,
                                          std::function<void(const T&)> heard) {
    return [pause = pause_, watch = std::weak_ptr<bool>(watch), heard = std::move(heard)](const T& what) {
      pause->Deliver([watch, heard, what] {
        if (!watch.expired()) heard(what);
      });
    };
  }

  using Events = std::vector<etcdserverpb::Event>;
  std::function<void(const Events&)> HeardLate(const std::shared_ptr<bool>& watch, const std::string& key,
                                               std::function<void(const Events&)> heard) {
    return [this, watch = std::weak_ptr<bool>(watch), key, heard = std::move(heard)](const Events& events) {
      if (!late_events_.paused() || !absl::StartsWith(key, late_)) return heard(events);
      late_events_.Deliver([watch, heard, events] {
        if (!watch.expired()) heard(events);
      });
    };
  }

  Etcd* const etcd_;
  Pause* const pause_;
  absl::Status refused_;
  std::string late_;
  Pause late_events_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_PAUSABLE_ETCD_H_
