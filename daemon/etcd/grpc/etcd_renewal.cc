// New certificates, and another user or password, while calls are under way.
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/etcd/grpc/etcd_connection.h"
#include "storage/base/errors.h"

namespace ckptd {

// Whether etcd accepts credentials, before they replace those that it does accept.
struct EtcdConnection::Trial {
  EtcdCredentials credentials;
  EtcdMembers members;
  Renewed done;
  int unanswered = 0;      // Members.
  std::string token;       // Of the user, if there is one.
  std::string last_error;  // Of a member.
};

void EtcdConnection::Renew(EtcdCredentials credentials, Renewed done) {
  if (credentials == credentials_) return done(false);
  const auto trial = std::make_shared<Trial>();
  trial->members = EtcdMembers::Make(options_, credentials);
  trial->credentials = std::move(credentials);
  trial->done = std::move(done);
  trial->unanswered = trial->members.size();
  for (const auto& member : trial->members.all()) Try(trial, *member);
}

void EtcdConnection::Try(const std::shared_ptr<Trial>& trial, EtcdMember& member) {
  const auto start = [&](const std::shared_ptr<EtcdCall>& call) {
    call->context = NewContext(/*token=*/"");
    call->context->set_deadline(std::chrono::system_clock::now() + options_.try_timeout);
    call->Start(member, [weak = weak_from_this(), post = post_, call, trial,
                         endpoint = member.endpoint](const grpc::Status& status) {
      post([weak, call, trial, endpoint, status] {
        if (status.ok()) call->Answer(absl::OkStatus());
        trial->last_error = absl::StrCat(endpoint, ": ", MemberError(status.error_message()));
        if (auto self = weak.lock()) self->Tried(trial, status);
      });
    });
  };
  if (trial->credentials.user.empty()) {
    etcdserverpb::RangeRequest request;  // Any key: a refusal is an answer, too.
    request.set_key("ckptd");
    request.set_serializable(true);
    request.set_count_only(true);
    return start(std::make_shared<EtcdCallOf<etcdserverpb::RangeRequest, etcdserverpb::RangeResponse>>(
        std::move(request),
        [](EtcdMember& asked, auto... arguments) { asked.kv->async()->Range(arguments...); },
        [](const absl::StatusOr<etcdserverpb::RangeResponse>&) {}));
  }
  etcdserverpb::AuthenticateRequest request;
  request.set_name(trial->credentials.user);
  request.set_password(trial->credentials.password);
  start(std::make_shared<EtcdCallOf<etcdserverpb::AuthenticateRequest, etcdserverpb::AuthenticateResponse>>(
      std::move(request),
      [](EtcdMember& asked, auto... arguments) { asked.auth->async()->Authenticate(arguments...); },
      [trial](const absl::StatusOr<etcdserverpb::AuthenticateResponse>& answer) {
        if (answer.ok()) trial->token = answer->token();
      }));
}

// The first member that answers decides.
void EtcdConnection::Tried(const std::shared_ptr<Trial>& trial, const grpc::Status& status) {
  if (trial->done == nullptr) return;
  --trial->unanswered;
  const EtcdFailure failure =
      ExplainFailure(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  const bool answered = status.ok() || failure.next != NextTry::kAnotherMember;
  if (!answered && trial->unanswered > 0) return;
  const Renewed done = std::exchange(trial->done, nullptr);
  if (answered && !status.ok() && !trial->credentials.user.empty()) return done(failure.error);
  const bool present_ones_work =
      std::any_of(members_.all().begin(), members_.all().end(),
                  [](const auto& member) { return member->answers.value_or(false); });
  if (!answered && present_ones_work) {
    return done(
        MakeError(absl::StatusCode::kUnavailable, ledger_reason::kUnavailable,
                  absl::StrCat("no member of etcd answers with them, and some do with the present ones (",
                               trial->last_error, ")")));
  }
  // Where no member answers with those of before, there is nothing to lose.
  Adopt(*trial);
  done(true);
}

void EtcdConnection::Adopt(Trial& trial) {
  trial.members.Keep();
  members_.LetGo();  // What is under way shares them.
  members_ = std::move(trial.members);
  credentials_ = std::move(trial.credentials);
  token_ = std::move(trial.token);
  authenticating_ = false;
  ++renewals_;
  authentication_error_ = absl::OkStatus();
  TryAllThatAreDue();
}

}  // namespace ckptd
