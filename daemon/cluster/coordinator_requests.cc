#include "daemon/cluster/coordinator_requests.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/state/found_messages.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

using Reply = CoordinatorRequests::Reply;
using Operations = std::vector<etcdserverpb::RequestOp>;

Reply ReplyOf(const absl::Status& error) {
  Reply reply;
  reply.set_code(static_cast<int32_t>(error.code()));
  reply.set_reason(ReasonOf(error));
  reply.set_message(std::string(error.message()));
  for (const auto& [name, value] : DetailsOf(error)) (*reply.mutable_details())[name] = value;
  return reply;
}

absl::StatusOr<Reply> ResultOf(const Reply& reply) {
  const auto code = static_cast<absl::StatusCode>(reply.code());
  if (code == absl::StatusCode::kOk) return reply;
  const ErrorDetails details(reply.details().begin(), reply.details().end());
  if (reply.reason().empty()) return absl::Status(code, reply.message());
  return MakeError(code, reply.reason(), reply.message(), details);
}

bool IsSame(const CoordinatorRequests::Request& one, const CoordinatorRequests::Request& other) {
  return one.registration() == other.registration() && one.number() == other.number();
}

bool IsNotCoordinator(const absl::Status& error) { return ReasonOf(error) == ledger_reason::kNotCoordinator; }

}  // namespace

CoordinatorRequests::CoordinatorRequests(Etcd* etcd, Clock* clock, Options options, Hooks hooks)
    : etcd_(etcd),
      clock_(clock),
      options_(std::move(options)),
      hooks_(std::move(hooks)),
      keys_(options_.prefix),
      calls_(clock, absl::StrCat("run ", options_.run), options_.why_unregistered) {}

void CoordinatorRequests::SetNode(const NodeIdentity* node) {
  calls_.SetRegistered(false);
  node_.reset();
  own_ = nullptr;
  std::vector<Done> ended;  // Those that are not written yet are asked with the next registration.
  for (auto& [place, pending] : pending_) {
    if (pending.done != nullptr) ended.push_back(std::move(pending.done));
  }
  std::erase_if(pending_, [](const auto& entry) { return entry.second.patient_until != Instant(); });
  for (Done& done : ended) {
    done(MakeError(absl::StatusCode::kUnavailable, ledger_reason::kUnavailable,
                   absl::StrCat("this node has lost its registration in etcd before the coordinator of ",
                                options_.run, " had answered: look whether it was done")));
  }
  if (node == nullptr) return;
  node_ = *node;
  calls_.SetRegistered(true);
}

void CoordinatorRequests::OnTick() {
  calls_.OnTick();
  const Instant now = clock_->Now();
  std::vector<int> given_up;
  for (auto& [place, pending] : pending_) {
    if (pending.done == nullptr) continue;
    if (hooks_.has_coordinator()) pending.patient_until = now + options_.patience;
    if (!pending.withdrawn && now >= pending.patient_until) given_up.push_back(place);
  }
  for (const int place : given_up) {
    Withdraw(place,
             MakeError(absl::StatusCode::kUnavailable, ledger_reason::kUnavailable,
                       absl::StrCat("no node coordinates ", options_.run,
                                    ", so the request is withdrawn; look at ckptctl status on its nodes")));
  }
}

// ---- from this node

void CoordinatorRequests::Ask(Request request, Done done) {
  if (!leadership_) return Send(std::move(request), std::move(done));
  hooks_.serve(request, [this, request, done = std::move(done)](absl::StatusOr<Reply> answer) mutable {
    if (IsNotCoordinator(answer.status())) return Send(std::move(request), std::move(done));
    done(std::move(answer));
  });
}

// Without a registration it waits for one.
void CoordinatorRequests::Send(Request request, Done done) {
  int place = 1;
  while (pending_.contains(place)) ++place;
  request.set_number(++last_number_);
  pending_[place].number = request.number();
  calls_.Ask<absl::Status>(
      "to ask the coordinator of", clock_->Now() + options_.patience,
      [this, place, request](LedgerCalls::Answer<absl::Status> written) {
        Request named = request;
        named.set_registration(node_->value);
        CompareAndSwap swap;
        const std::string key = keys_.Request(node_->name, place);
        swap.ranges = {{key}};
        swap.held = {node_->Held()};
        swap.decide = [key, named, lease = node_->lease](const CompareAndSwap::Found& found) {
          const auto present = FirstOf<Request>(found[0]);
          // A later one: this transaction was asked for before this node was without its registration for a time, and
          // the request has been sent, and answered, since.
          const bool is_late =
              present.registration() == named.registration() && present.number() > named.number();
          if (is_late || IsSame(present, named)) return Operations();
          return Operations{Put(key, named.SerializeAsString(), lease)};
        };
        swap.purpose = absl::StrCat("asking the coordinator of run ", options_.run);
        SwapIn(etcd_, std::move(swap), std::move(written));
      },
      [this, place, done = std::move(done)](const absl::Status& written) mutable {
        if (!written.ok()) {
          pending_.erase(place);
          return done(written);
        }
        Pending& pending = pending_.at(place);
        pending.done = std::move(done);
        pending.patient_until = clock_->Now() + options_.patience;
        if (own_ != nullptr) return OnOwnKey(place, own_->Find(keys_.Request(node_->name, place)));
        own_ = std::make_unique<EtcdMirror>(
            etcd_, keys_.Requests(node_->name),
            absl::StrCat("waiting for the coordinator of run ", options_.run),
            [this](const std::vector<std::string>& keys) { OnOwnKeys(keys); },
            [this](const absl::Status& why) { hooks_.ended(why); });
        own_->Start();
      });
}

void CoordinatorRequests::OnOwnKeys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    int place = 0;
    if (own_ == nullptr || !absl::SimpleAtoi(LastPartOf(key), &place)) continue;
    OnOwnKey(place, own_->Find(key));
  }
}

void CoordinatorRequests::OnOwnKey(int place, const std::string* value) {
  const auto pending = pending_.find(place);
  Request request;
  if (pending == pending_.end() || pending->second.done == nullptr || value == nullptr ||
      !request.ParseFromString(*value))
    return;
  const bool is_mine = request.registration() == node_->value && request.number() == pending->second.number;
  if (is_mine && request.has_answer()) End(place, ResultOf(request.answer()));
}

void CoordinatorRequests::End(int place, absl::StatusOr<Reply> answer) {
  Pending ended = std::move(pending_.at(place));
  pending_.erase(place);
  ended.done(std::move(answer));
}

// A coordinator that comes later does not carry it out. The answer comes with the key: it may be that of a
// coordinator which was faster.
void CoordinatorRequests::Withdraw(int place, const absl::Status& why) {
  Pending& pending = pending_.at(place);
  pending.withdrawn = true;
  Request request;
  request.set_registration(node_->value);
  request.set_number(pending.number);
  WriteAnswer(keys_.Request(node_->name, place), request, ReplyOf(why), node_->Held(),
              clock_->Now() + options_.patience,
              [this, place, number = pending.number](const absl::Status& written) {
                const auto left = pending_.find(place);
                if (!written.ok() && left != pending_.end() && left->second.number == number)
                  End(place, written);
              });
}

// ---- on the coordinator

void CoordinatorRequests::SetLeadership(const CompareAndSwap::Held* leadership) {
  leading_.reset();
  leadership_.reset();
  all_ = nullptr;
  serving_.clear();
  if (leadership == nullptr) return;
  leading_.emplace();
  leadership_ = *leadership;
  all_ = std::make_unique<EtcdMirror>(
      etcd_, keys_.Requests(), absl::StrCat("following the requests of operators to run ", options_.run),
      [this](const std::vector<std::string>& keys) { OnAllKeys(keys); },
      [this](const absl::Status& why) { hooks_.ended(why); });
  all_->Start();
}

void CoordinatorRequests::OnAllKeys(const std::vector<std::string>& keys) {
  const CallbackScope::Observer here(*leading_);
  for (const std::string& key : keys) {
    const std::string* const value = all_->Find(key);
    Request request;
    if (value == nullptr || !request.ParseFromString(*value) || request.has_answer()) {
      serving_.erase(key);
    } else if (const auto [served, is_new] = serving_.try_emplace(key, request);
               is_new || !IsSame(served->second, request)) {
      served->second = request;
      Serve(key, request);
      if (here.ended()) return;
    }
  }
}

void CoordinatorRequests::Serve(const std::string& key, const Request& request) {
  hooks_.serve(request, leading_->Guard([this, key, request](const absl::StatusOr<Reply>& answer) {
    // The next coordinator, if it is another one, finds the request.
    if (IsNotCoordinator(answer.status())) return;
    WriteAnswer(key, request, answer.ok() ? *answer : ReplyOf(answer.status()), *leadership_, Instant::max(),
                [](const absl::Status&) {});  // NOT_COORDINATOR: the next one carries it out.
  }));
}

// The first answer stays. The key is never deleted: a late copy of the transaction that wrote it would bring
// the request back.
void CoordinatorRequests::WriteAnswer(const std::string& key, const Request& request, const Reply& reply,
                                      const CompareAndSwap::Held& held, Instant deadline,
                                      LedgerCalls::Answer<absl::Status> done) {
  calls_.Ask<absl::Status>(
      "to answer a request to", deadline,
      [this, key, request, reply, held](LedgerCalls::Answer<absl::Status> written) {
        CompareAndSwap swap;
        swap.ranges = {{key}};
        swap.held = {held};
        swap.decide = [key, request, reply](const CompareAndSwap::Found& found) {
          auto present = FirstOf<Request>(found[0]);
          if (!IsSame(present, request) || present.has_answer()) return Operations();
          *present.mutable_answer() = reply;
          return Operations{Put(key, present.SerializeAsString(), found[0][0].lease())};
        };
        swap.purpose = absl::StrCat("answering a request to the coordinator of run ", options_.run);
        SwapIn(etcd_, std::move(swap), std::move(written));
      },
      std::move(done));
}

}  // namespace ckptd
