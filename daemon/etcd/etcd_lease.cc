#include "daemon/etcd/etcd_lease.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_errors.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

constexpr int kKeepAlivesInALife = 3;

}  // namespace

EtcdLease::EtcdLease(Etcd* etcd, Clock* clock, int64_t ttl_seconds, std::string purpose,
                     std::function<void(const absl::Status& why)> lost)
    : etcd_(etcd),
      clock_(clock),
      ttl_seconds_(ttl_seconds),
      purpose_(std::move(purpose)),
      lost_(std::move(lost)),
      end_(std::make_shared<LeaseEnd>(clock)),
      self_(std::make_shared<EtcdLease*>(this)) {}

EtcdLease::~EtcdLease() {
  end_->Set(Instant::min());
  *self_ = nullptr;
}

void EtcdLease::Acquire(Etcd::Answer<int64_t> answer) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(ttl_seconds_);
  etcd_->GrantLease(request, purpose_,
                    [self = self_, sent = clock_->Now(), answer = std::move(answer)](
                        absl::StatusOr<etcdserverpb::LeaseGrantResponse> granted) mutable {
                      if (*self != nullptr) (*self)->Granted(sent, std::move(granted), std::move(answer));
                    });
}

void EtcdLease::Granted(Instant sent, absl::StatusOr<etcdserverpb::LeaseGrantResponse> granted,
                        Etcd::Answer<int64_t> answer) {
  if (!granted.ok()) return answer(granted.status());
  ends_ = sent + std::chrono::seconds(granted->ttl());
  if (clock_->Now() >= ends_) {
    return answer(MakeError(absl::StatusCode::kUnavailable, ledger_reason::kUnavailable,
                            absl::StrCat("etcd has answered only after the ", granted->ttl(),
                                         " s of the lease that it gave, while ", purpose_)));
  }
  id_ = granted->id();
  end_->Set(ends_);
  next_keep_alive_ = sent + (ends_ - sent) / kKeepAlivesInALife;
  answer(id_);
}

bool EtcdLease::held() const { return id_ != 0 && lost_ != nullptr && clock_->Now() < ends_; }

void EtcdLease::OnTick() {
  if (id_ == 0 || lost_ == nullptr) return;
  if (!held()) {
    return OnLost(MakeError(
        absl::StatusCode::kFailedPrecondition, ledger_reason::kLeaseEnded,
        absl::StrCat("this daemon's lease has ended: etcd has not confirmed it in time",
                     last_error_.ok() ? "" : "; the last error: ", std::string(last_error_.message()))));
  }
  if (!asking_ && clock_->Now() >= next_keep_alive_) KeepAlive();
}

void EtcdLease::KeepAlive() {
  asking_ = true;
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(id_);
  etcd_->KeepLeaseAlive(
      request, purpose_,
      [self = self_, sent = clock_->Now()](absl::StatusOr<etcdserverpb::LeaseKeepAliveResponse> kept) {
        if (*self != nullptr) (*self)->KeptAlive(sent, kept);
      });
}

void EtcdLease::KeptAlive(Instant sent, const absl::StatusOr<etcdserverpb::LeaseKeepAliveResponse>& kept) {
  asking_ = false;
  if (lost_ == nullptr) return;
  if (!kept.ok()) {
    last_error_ = kept.status();
    return;  // The next tick tries again, or finds that the lease has ended.
  }
  if (kept->ttl() <= 0) {
    return OnLost(MakeError(absl::StatusCode::kFailedPrecondition, ledger_reason::kLeaseEnded,
                            "etcd has ended this daemon's lease, because it was not kept alive in time"));
  }
  last_error_ = absl::OkStatus();
  // Callers may have seen that held() was false, so a late answer does not bring the lease back.
  if (!held()) return;
  const Instant ends = sent + std::chrono::seconds(kept->ttl());
  ends_ = std::max(ends_, ends);
  end_->Set(ends_);
  next_keep_alive_ = sent + (ends - sent) / kKeepAlivesInALife;
}

void EtcdLease::OnLost(const absl::Status& why) {
  end_->Set(Instant::min());
  const auto lost = std::exchange(lost_, nullptr);
  lost(why);  // It may destroy the lease.
}

void EtcdLease::Release(absl::AnyInvocable<void(absl::Status)> released) {
  lost_ = nullptr;
  end_->Set(Instant::min());
  if (id_ == 0) return released(absl::OkStatus());
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(id_);
  etcd_->RevokeLease(request, purpose_,
                     [released = std::move(released)](
                         const absl::StatusOr<etcdserverpb::LeaseRevokeResponse>& revoked) mutable {
                       const bool gone = ReasonOf(revoked.status()) == ledger_reason::kLeaseEnded;
                       released(gone ? absl::OkStatus() : revoked.status());
                     });
}

}  // namespace ckptd
