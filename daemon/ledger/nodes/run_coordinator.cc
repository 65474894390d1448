#include "daemon/ledger/nodes/run_coordinator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "storage/base/errors.h"

namespace ckptd {

using etcdserverpb::Event;
using etcdserverpb::KeyValue;
using etcdserverpb::RangeResponse;
using etcdserverpb::RequestOp;

RunCoordinator::RunCoordinator(Etcd* etcd, Clock* clock, Options options,
                               std::function<void(const Leadership&)> changed,
                               std::function<void(const absl::Status&)> ended)
    : etcd_(etcd),
      clock_(clock),
      options_(std::move(options)),
      keys_(options_.prefix),
      changed_(std::move(changed)),
      ended_(std::move(ended)) {}

void RunCoordinator::Start() { Read(); }

// Retries wait for the backoff, because a full etcd refuses at once. The retry to take the leadership reads
// first, because another node may have taken it meanwhile.
void RunCoordinator::OnTick() {
  if (stopped_ || !backoff_.IsOver(clock_->Now())) return;
  if (std::exchange(leave_again_, false)) GiveUp();
  if (std::exchange(etcd_full_, false)) Read();
}

void RunCoordinator::SetWilling(bool willing) {
  if (std::exchange(willing_, willing) == willing || stopped_) return;
  if (!willing && leadership_.mine && !leaving_) GiveUp();
  if (willing && watch_ != nullptr) Read();  // Without a watch it reads already, or will.
}

// While etcd is away each call takes until its deadline to fail, so repeating it at once is no tight loop.
void RunCoordinator::Read() {
  watch_ = nullptr;
  etcdserverpb::RangeRequest request;
  request.set_key(keys_.Coordinator());
  etcd_->Range(request, While("looking for the coordinator"),
               callbacks_.Guard([this](const absl::StatusOr<RangeResponse>& found) {
                 if (stopped_) return;
                 if (found.ok()) return WasRead(*found);
                 if (ReasonOf(found.status()) == ledger_reason::kUnavailable) return Read();
                 End(found.status());
               }));
}

void RunCoordinator::WasRead(const RangeResponse& found) {
  has_leader_ = found.kvs_size() > 0;
  if (!has_leader_ && willing_) return TakeLeadership();
  Watch(found.header().revision() + 1);
  if (has_leader_) Observe(found.kvs(0));
}

// The term has a key of its own, which is never removed: the coordinator's key is removed with its lease, and
// the next term must be above those of all earlier coordinators.
void RunCoordinator::TakeLeadership() {
  CompareAndSwap swap;
  swap.ranges = {{keys_.Coordinator()}, {keys_.Term()}};
  swap.held = {options_.node.Held()};
  swap.decide = [keys = keys_, node = options_.node](const CompareAndSwap::Found& found) {
    if (!found[0].empty()) return std::vector<RequestOp>();
    ledger::v1::LastTerm last;
    if (!found[1].empty()) last.ParseFromString(found[1][0].value());
    last.set_term(last.term() + 1);
    ledger::v1::Coordinator coordinator;
    coordinator.set_term(last.term());
    coordinator.set_node(node.name);
    coordinator.set_registration(node.value);
    return std::vector<RequestOp>{
        Put(keys.Coordinator(), coordinator.SerializeAsString(), node.lease),
        Put(keys.Term(), last.SerializeAsString()),
    };
  };
  swap.purpose = While("becoming the coordinator");
  SwapIn(etcd_, std::move(swap), callbacks_.Guard([this](const absl::Status& taken) {
    if (stopped_) return;
    if (ReasonOf(taken) == ledger_reason::kFull) {
      etcd_full_ = true;
      return backoff_.Failed(clock_->Now());
    }
    backoff_.Succeeded();
    if (taken.ok() || ReasonOf(taken) == ledger_reason::kUnavailable) return Read();
    End(taken);
  }));
}

void RunCoordinator::Watch(int64_t from_revision) {
  watch_ = etcd_->Watch({keys_.Coordinator(), "", from_revision, While("watching the coordinator"),
                         [this](const std::vector<Event>& events) { OnEvents(events); },
                         [this](const absl::Status& why) {
                           if (ReasonOf(why) == ledger_reason::kCompacted) return Read();
                           End(why);
                         }});
}

void RunCoordinator::OnEvents(const std::vector<Event>& events) {
  has_leader_ = events.back().type() != Event::DELETE;
  if (!has_leader_) return Read();
  Observe(events.back().kv());
}

void RunCoordinator::Observe(const KeyValue& key) {
  ledger::v1::Coordinator coordinator;
  coordinator.ParseFromString(key.value());
  if (coordinator.term() <= leadership_.term) return;  // Already seen.
  leaving_ = leave_again_ = false;                     // The leadership that it was giving up is over.
  leadership_.term = coordinator.term();
  leadership_.node = coordinator.node();
  leadership_.mine = coordinator.registration() == options_.node.value;
  leadership_.held = {};
  if (leadership_.mine) {
    leadership_.held = {key.key(), key.value(),
                        MakeError(absl::StatusCode::kFailedPrecondition, ledger_reason::kNotCoordinator,
                                  absl::StrCat("node \"", options_.node.name,
                                               "\" is no longer the coordinator of run ", options_.run)),
                        key.create_revision()};
  }
  if (leadership_.mine && !willing_) return GiveUp();
  changed_(Leadership(leadership_));
}

// Until etcd has answered, this daemon still leads but decides nothing. So it retries, even if it is willing
// again by then.
void RunCoordinator::GiveUp() {
  leaving_ = true;
  DeleteLeadership("giving up the coordination",
                   callbacks_.Guard([this, term = leadership_.term](const absl::Status& given_up) {
                     if (!stopped_) OnGivenUp(term, given_up);
                   }));
}

void RunCoordinator::OnGivenUp(int64_t term, const absl::Status& given_up) {
  if (!leaving_ || term != leadership_.term) return;
  const std::string reason = ReasonOf(given_up);
  if (reason == ledger_reason::kUnavailable || reason == ledger_reason::kFull) {
    leave_again_ = true;
    return backoff_.Failed(clock_->Now());
  }
  if (!given_up.ok()) return End(given_up);
  leaving_ = leadership_.mine = false;
  backoff_.Succeeded();
}

// Answers OK if this daemon does not lead any more.
void RunCoordinator::DeleteLeadership(const std::string& purpose,
                                      absl::AnyInvocable<void(absl::Status)> done) {
  CompareAndSwap swap;
  swap.held = {leadership_.held};
  swap.decide = [keys = keys_](const CompareAndSwap::Found&) {
    return std::vector<RequestOp>{Delete(keys.Coordinator())};
  };
  swap.purpose = While(purpose);
  SwapIn(etcd_, std::move(swap), [done = std::move(done)](const absl::Status& written) mutable {
    done(ReasonOf(written) == ledger_reason::kNotCoordinator ? absl::OkStatus() : written);
  });
}

void RunCoordinator::End(const absl::Status& why) {
  stopped_ = true;
  watch_ = nullptr;
  std::exchange(ended_, nullptr)(why);
}

void RunCoordinator::Resign(absl::AnyInvocable<void(absl::Status)> resigned) {
  stopped_ = true;
  watch_ = nullptr;
  if (!leadership_.mine) return resigned(absl::OkStatus());
  DeleteLeadership("resigning as the coordinator", std::move(resigned));
}

}  // namespace ckptd
