#include "daemon/etcd/grpc/etcd_connection.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_errors.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

constexpr Duration kFirstBackOff = std::chrono::milliseconds(50);
constexpr Duration kLongestBackOff = std::chrono::seconds(1);
constexpr int kMostRefusedTokens = 2;
// etcd computes for a quarter of a second to check a password.
constexpr Duration kBetweenAuthentications = std::chrono::seconds(1);

}  // namespace

EtcdConnection::EtcdConnection(EtcdOptions options, EtcdCredentials credentials, Clock* clock, Post post)
    : options_(std::move(options)),
      credentials_(std::move(credentials)),
      members_(EtcdMembers::Make(options_, credentials_)),
      clock_(clock),
      post_(std::move(post)) {
  members_.Keep();
}

void EtcdConnection::Start(const std::shared_ptr<EtcdCall>& call) {
  call->started = call->next_try = Now();
  call->deadline = call->started + options_.call_timeout;
  calls_.insert(call);
  Try(call);
}

void EtcdConnection::OnTick() {
  TryAllThatAreDue();
  ProbeFailedMembers();
}

// While another member answers, no call asks a member that has failed. Only a probe finds out that the failed
// member answers again.
void EtcdConnection::ProbeFailedMembers() {
  for (const auto& member : members_.all()) {
    const bool is_asked = member == members_.current();
    if (member->answers.value_or(true) || is_asked || Now() < member->failed_at + options_.probe_after)
      continue;
    member->failed_at = Now() + options_.try_timeout;  // No second probe before this one has ended.
    etcdserverpb::RangeRequest request;                // Any key: a refusal is an answer, too.
    request.set_key("ckptd");
    request.set_serializable(true);
    request.set_count_only(true);
    auto probe = std::make_shared<EtcdCallOf<etcdserverpb::RangeRequest, etcdserverpb::RangeResponse>>(
        std::move(request),
        [](EtcdMember& asked, auto... arguments) { asked.kv->async()->Range(arguments...); }, nullptr);
    probe->context = NewContext(/*token=*/"");
    probe->context->set_deadline(std::chrono::system_clock::now() + options_.try_timeout);
    probe->Start(*member,
                 [weak = weak_from_this(), post = post_, probe, asked = member](const grpc::Status& status) {
                   post([weak, probe, asked, status] {
                     if (auto self = weak.lock()) self->Probed(*asked, status);
                   });
                 });
  }
}

void EtcdConnection::Probed(EtcdMember& member, const grpc::Status& status) {
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  if (status.ok() || ExplainFailure(code, status.error_message()).next != NextTry::kAnotherMember)
    return members_.Answered(member);
  members_.Failed(member, MemberError(status.error_message()), Now());
}

void EtcdConnection::Close() {
  for (const auto& call : std::exchange(calls_, {})) {
    call->Drop();
    if (call->context != nullptr) call->context->TryCancel();
  }
}

std::unique_ptr<grpc::ClientContext> EtcdConnection::NewContext(const std::string& token) const {
  auto context = std::make_unique<grpc::ClientContext>();
  // Without a leader, a member fails the request at once instead of waiting for a leader.
  context->AddMetadata("hasleader", "true");
  if (!token.empty()) context->AddMetadata("token", token);
  return context;
}

void EtcdConnection::TryAllThatAreDue() {
  const Instant now = Now();
  for (const auto& call : std::set<std::shared_ptr<EtcdCall>>(calls_)) {
    if (!calls_.contains(call) || call->under_way) continue;
    if (now >= call->deadline) {
      Answer(call, NoAnswerFromEtcd(members_.Names(), call->purpose, call->last_error));
    } else if (now >= call->next_try) {
      Try(call);
    }
  }
}

void EtcdConnection::Try(const std::shared_ptr<EtcdCall>& call) {
  if (!history_.lost().ok()) {
    call->under_way = true;
    return post_([weak = weak_from_this(), call] {
      if (auto self = weak.lock()) self->Answer(call, self->history_.lost());
    });
  }
  const std::optional<std::string> token = call->with_token ? Token() : "";
  if (!token) return;  // Authenticated() tries the call once there is a token.
  call->under_way = true;
  call->token = *token;
  call->revision_before = history_.highest();
  call->context = NewContext(*token);
  call->context->set_deadline(std::chrono::system_clock::now() +
                              std::min(options_.try_timeout, call->deadline - Now()));
  const std::shared_ptr<EtcdMember> member = members_.current();
  // gRPC's thread keeps the call alive, but not this object.
  call->Start(*member, [weak = weak_from_this(), post = post_, call, member](const grpc::Status& status) {
    post([weak, call, member, status] {
      if (auto self = weak.lock()) self->Tried(call, *member, status);
    });
  });
}

void EtcdConnection::Tried(const std::shared_ptr<EtcdCall>& call, EtcdMember& member,
                           const grpc::Status& status) {
  if (!calls_.contains(call)) return;
  call->under_way = false;
  call->context.reset();
  if (status.ok()) {
    members_.Answered(member);
    return Answer(call, history_.Check(call->header(), call->linearizable ? call->revision_before : 0));
  }

  const EtcdFailure failure =
      ExplainFailure(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  call->last_error = absl::StrCat(member.endpoint, ": ", MemberError(status.error_message()));
  if (failure.next != NextTry::kAnotherMember) members_.Answered(member);
  if (ReasonOf(failure.error) == ledger_reason::kRestored) history_.SetLost(failure.error);
  if (failure.next == NextTry::kAfterAuthentication && call->refused_tokens++ < kMostRefusedTokens) {
    DropToken(call->token);
    return TryAgain(call, Duration::zero());
  }
  if (failure.next != NextTry::kAnotherMember) return Answer(call, Annotate(failure.error, call->purpose));
  members_.Failed(member, MemberError(status.error_message()), Now());
  ++call->tries;
  const bool all_have_failed = call->tries % members_.size() == 0;
  TryAgain(call, all_have_failed ? BackOff(call->tries / members_.size()) : Duration::zero());
}

void EtcdConnection::TryAgain(const std::shared_ptr<EtcdCall>& call, Duration wait) {
  call->next_try = Now() + wait;
  if (wait == Duration::zero() && Now() < call->deadline) Try(call);
}

void EtcdConnection::Answer(const std::shared_ptr<EtcdCall>& call, const absl::Status& status) {
  if (calls_.erase(call) == 0) return;
  if (ReasonOf(status) == ledger_reason::kFull) full_ = status;
  if (status.ok() && call->writes) full_ = absl::OkStatus();
  if (call_ended_) call_ended_(Now() - call->started, status);
  call->Answer(status);
}

Duration EtcdConnection::BackOff(int rounds) {
  const Duration longest = std::min(kFirstBackOff * (1 << std::min(rounds - 1, 10)), kLongestBackOff);
  // Jitter, so that the daemons do not all retry at the same moment.
  return longest / 2 + longest / 2 * static_cast<int64_t>(random_() % 1000) / 1000;
}

// ---- the token of a user

std::optional<std::string> EtcdConnection::Token() {
  if (credentials_.user.empty()) return "";
  if (!token_.empty()) return token_;
  if (authenticating_ || Now() < next_authentication_) return std::nullopt;
  authenticating_ = true;
  next_authentication_ = Now() + kBetweenAuthentications;
  etcdserverpb::AuthenticateRequest request;
  request.set_name(credentials_.user);
  request.set_password(credentials_.password);
  auto call =
      std::make_shared<EtcdCallOf<etcdserverpb::AuthenticateRequest, etcdserverpb::AuthenticateResponse>>(
          std::move(request),
          [](EtcdMember& member, auto... arguments) { member.auth->async()->Authenticate(arguments...); },
          [weak = weak_from_this(),
           renewals = renewals_](const absl::StatusOr<etcdserverpb::AuthenticateResponse>& answer) {
            auto self = weak.lock();
            // Not as the user of before.
            if (self != nullptr && self->renewals_ == renewals) self->Authenticated(answer);
          });
  call->purpose = absl::StrCat("authenticating as user ", credentials_.user);
  call->with_token = false;
  Start(call);
  return std::nullopt;
}

void EtcdConnection::DropToken(const std::string& token) {
  if (token_ == token) token_.clear();
}

void EtcdConnection::Authenticated(const absl::StatusOr<etcdserverpb::AuthenticateResponse>& answer) {
  authenticating_ = false;
  if (answer.ok()) token_ = answer->token();
  const bool refused = !answer.ok() && ReasonOf(answer.status()) != ledger_reason::kUnavailable;
  authentication_error_ = refused ? answer.status() : absl::OkStatus();
  for (const auto& call : std::set<std::shared_ptr<EtcdCall>>(calls_)) {
    if (answer.ok() || call->under_way || !calls_.contains(call)) continue;
    call->last_error = std::string(answer.status().message());
    // If etcd has not answered, the call is tried again until its own deadline.
    if (refused) Answer(call, answer.status());
  }
  TryAllThatAreDue();
}

}  // namespace ckptd
