#include "daemon/ledger/run/etcd_ledger.h"

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/etcd/etcd_requests.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

// In this time the node with rank 0 usually begins the launch.
constexpr Duration kLetOtherBegin = std::chrono::milliseconds(100);
constexpr int kMostWaits = 3;

using etcdserverpb::KeyValue;
using etcdserverpb::RequestOp;
using Operations = std::vector<RequestOp>;

absl::Status StatusOf(const absl::Status& status) { return status; }
template <typename T>
absl::Status StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// Withdraws the decisions for damaged checkpoints, except for a checkpoint that all ranks have already read:
// these ranks train on, and later answers about their resume stay the same.
void WithdrawDamaged(const RunState& state, LocalLedger* ledger) {
  for (const storage::v1::Launch& launch : state.record().launches()) {
    if (launch.resume_decided() && !launch.resume_agreed() && state.IsDamaged(launch.resume_sequence()))
      ledger->RejectResume(launch.attempt(), launch.resume_sequence(), [](const absl::Status&) {});
  }
}

absl::Status DamagedChoice(int64_t sequence) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kCheckpointDamaged,
                   absl::StrCat("the checkpoint of sequence ", sequence,
                                " is damaged, as a reader has found; resume again for the next older one"),
                   {{"sequence", absl::StrCat(sequence)}});
}

}  // namespace

EtcdLedger::EtcdLedger(Etcd* etcd, Clock* clock, Options options)
    : etcd_(etcd), clock_(clock), options_(std::move(options)), keys_(options_.prefix) {}

void EtcdLedger::Swap(CompareAndSwap swap, absl::AnyInvocable<void(absl::Status)> done) {
  swap.held = {options_.node.Held()};
  SwapIn(etcd_, std::move(swap), callbacks_.Guard(std::move(done)));
}

template <typename T>
void EtcdLedger::Decide(std::vector<CompareAndSwap::Range> ranges, const std::string& what,
                        std::function<void(LocalLedger&, Answer<T>)> ask, Answer<T> answer) {
  DecideOnWhole<T>(
      std::move(ranges), what,
      [ask = std::move(ask)](LocalLedger& ledger, const RunState&, Answer<T> decided) {
        ask(ledger, std::move(decided));
      },
      std::move(answer));
}

template <typename T>
void EtcdLedger::DecideOnWhole(std::vector<CompareAndSwap::Range> ranges, const std::string& what,
                               std::function<void(LocalLedger&, const RunState&, Answer<T>)> ask,
                               Answer<T> answer) {
  auto decided = std::make_shared<T>(absl::UnknownError("not decided"));
  Swap({std::move(ranges),
        {},
        [=, keys = keys_, node = options_.node.name](const CompareAndSwap::Found& found) -> Operations {
          const RunState state(keys, node, found);
          LocalLedger ledger = LedgerFrom(state);
          WithdrawDamaged(state, &ledger);
          ask(ledger, state, [&decided](T result) { *decided = std::move(result); });
          return StatusOf(*decided).ok() ? state.Changes(ledger.record()) : Operations();
        },
        While(what)},
       [decided, answer = std::move(answer)](const absl::Status& written) mutable {
         answer(written.ok() ? std::move(*decided) : T(written));
       });
}

// ---- joins

void EtcdLedger::Join(const Ledger::JoinSpec& spec, Answer<absl::StatusOr<int64_t>> answer) {
  joins_.push_back({spec, std::move(answer)});
  ended_.erase(spec.instance);
  BeginRound();
}

void EtcdLedger::ProcessEnded(const std::string& instance) {
  living_changed_ = living_.erase(instance) > 0 || living_changed_;
  if (round_under_way_ || !joins_.empty()) ended_.insert(instance);
  BeginRound();
}

// Runs one round at a time. The next round serves all processes that have come meanwhile.
void EtcdLedger::BeginRound() {
  if (round_under_way_ || (joins_.empty() && !living_changed_)) return;
  const Instant now = clock_->Now();
  if (!round_backoff_.IsOver(now) || now < begin_round_at_) return;
  round_under_way_ = true;
  living_changed_ = false;
  auto round = std::make_shared<JoinRound>(keys_, options_.node, living_, &joins_);
  round->Expect(joined_);
  if (living_unknown_) round->RewriteLiving();
  Ask(round);
}

void EtcdLedger::Ask(const std::shared_ptr<JoinRound>& round) {
  Swap({round->Ranges(),
        {},
        [round](const CompareAndSwap::Found& found) { return round->Decide(found); },
        While("joining processes to an attempt")},
       [this, round](const absl::Status& written) {
         if (!written.ok() || !round->incomplete()) return EndRound(*round, written);
         if (waits_ == kMostWaits || !round->OtherBegins()) return Ask(round);
         ++waits_;
         PutOff(*round);
       });
}

// Nothing of the round was written.
void EtcdLedger::PutOff(JoinRound& round) {
  std::move(round.joins().begin(), round.joins().end(), std::inserter(joins_, joins_.begin()));
  living_changed_ = true;
  round_under_way_ = false;
  begin_round_at_ = clock_->Now() + kLetOtherBegin;
}

void EtcdLedger::EndRound(JoinRound& round, const absl::Status& written) {
  round_under_way_ = false;
  waits_ = 0;
  if (!round.joins().empty()) joined_ = round.attempts();
  const std::set<std::string> ended = ended_;
  if (joins_.empty()) ended_.clear();
  const std::string reason(ReasonOf(written));
  living_unknown_ = reason == ledger_reason::kUnavailable || reason == ledger_reason::kFull;
  if (living_unknown_) {
    living_changed_ = true;
    round_backoff_.Failed(clock_->Now());
  } else {
    round_backoff_.Succeeded();
  }
  const CallbackScope::Observer here(callbacks_);
  for (size_t i = 0; i < round.joins().size(); ++i) {
    const Ledger::JoinSpec& spec = round.joins()[i].spec;
    absl::StatusOr<int64_t> result = written.ok() ? round.results()[i] : absl::StatusOr<int64_t>(written);
    if (result.ok() && ended.contains(spec.instance)) {
      living_changed_ = true;  // This round has written it as living.
    } else if (result.ok()) {
      living_[spec.instance] = ProcessOf(spec, *result);
    }
    round.joins()[i].answer(std::move(result));
    if (here.ended()) return;
  }
  BeginRound();
}

// ---- the active attempt

void EtcdLedger::Activate(int64_t attempt, Answer<absl::Status> answer) {
  auto& waiting = activating_[attempt];
  waiting.push_back(std::move(answer));
  if (waiting.size() > 1) return;
  Decide<absl::Status>(
      {{keys_.Active()}, {keys_.Head(attempt)}}, "activating an attempt",
      [attempt](LocalLedger& ledger, Answer<absl::Status> decided) {
        ledger.Activate(attempt, std::move(decided));
      },
      [this, attempt](const absl::Status& result) { Activated(attempt, result); });
}

void EtcdLedger::Activated(int64_t attempt, const absl::Status& result) {
  const CallbackScope::Observer here(callbacks_);
  if (result.ok()) SawActive(attempt);
  auto waiting = activating_.extract(attempt);
  for (auto& answer : waiting.mapped()) {
    answer(result);
    if (here.ended()) return;
  }
}

void EtcdLedger::WatchActiveAttempt(std::function<void(int64_t attempt)> changed) {
  active_changed_ = std::move(changed);
  if (active_ >= 0) active_changed_(active_);
  if (watch_ == nullptr) ReadActive();
}

// While etcd is away each call takes until its deadline to fail, so repeating it at once is no tight loop.
void EtcdLedger::ReadActive() {
  etcdserverpb::RangeRequest request;
  request.set_key(keys_.Active());
  etcd_->Range(
      request, While("reading the active attempt"),
      callbacks_.Guard([this](const absl::StatusOr<etcdserverpb::RangeResponse>& found) {
        if (ReasonOf(found.status()) == ledger_reason::kUnavailable) return ReadActive();
        if (!found.ok()) return;  // Every decision fails with the same error.
        SawActive(RunState(keys_, options_.node.name, {{found->kvs().begin(), found->kvs().end()}}).active());
        WatchActive(found->header().revision() + 1);
      }));
}

void EtcdLedger::WatchActive(int64_t from_revision) {
  watch_ = etcd_->Watch({keys_.Active(), "", from_revision, While("watching the active attempt"),
                         [this](const std::vector<etcdserverpb::Event>& events) {
                           SawActive(RunState(keys_, options_.node.name, {{events.back().kv()}}).active());
                         },
                         [this](const absl::Status& why) {
                           if (ReasonOf(why) == ledger_reason::kCompacted) ReadActive();
                         }});
}

void EtcdLedger::SawActive(int64_t attempt) {
  if (attempt <= active_) return;  // An event may be older than an answer.
  active_ = attempt;
  if (active_changed_ != nullptr) active_changed_(attempt);
}

// ---- sequences

void EtcdLedger::Admit(int64_t attempt, Answer<absl::StatusOr<int64_t>> answer) {
  Decide<absl::StatusOr<int64_t>>(
      {{keys_.Active()}, {keys_.Sequence()}}, "giving a save its sequence",
      [attempt](LocalLedger& ledger, Answer<absl::StatusOr<int64_t>> decided) {
        ledger.Admit(attempt, std::move(decided));
      },
      std::move(answer));
}

// ---- what to resume from
//
// The key of a withdrawn decision stays, and is marked as withdrawn: a late copy of the request that created
// the key could create it again if it were deleted.

void EtcdLedger::DecideResume(int64_t attempt, const ResumeChoice& newest,
                              Answer<absl::StatusOr<ResumeChoice>> answer) {
  using Choice = absl::StatusOr<ResumeChoice>;
  DecideOnWhole<Choice>(
      {{keys_.Active()}, {keys_.Head(attempt)}, {keys_.Resume(attempt)}, {keys_.Damages(), true}},
      "deciding what an attempt resumes from",
      [attempt, newest](LocalLedger& ledger, const RunState& state, Answer<Choice> decided) {
        ledger.DecideResume(attempt, newest, [&](Choice choice) {
          const bool damaged = choice.ok() && !choice->agreed && state.IsDamaged(choice->sequence);
          decided(damaged ? Choice(DamagedChoice(choice->sequence)) : std::move(choice));
        });
      },
      std::move(answer));
}

void EtcdLedger::DecidedResume(int64_t attempt, Answer<absl::StatusOr<std::optional<ResumeChoice>>> answer) {
  using Decision = absl::StatusOr<std::optional<ResumeChoice>>;
  Decide<Decision>(
      {{keys_.Resume(attempt)}, {keys_.Damages(), true}}, "reading what an attempt resumes from",
      [attempt](LocalLedger& ledger, Answer<Decision> decided) {
        ledger.DecidedResume(attempt, std::move(decided));
      },
      std::move(answer));
}

void EtcdLedger::RejectResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) {
  Decide<absl::Status>(
      {{keys_.Resume(attempt)}}, "withdrawing what an attempt resumes from",
      [attempt, sequence](LocalLedger& ledger, Answer<absl::Status> decided) {
        ledger.RejectResume(attempt, sequence, std::move(decided));
      },
      std::move(answer));
}

void EtcdLedger::AgreeResume(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) {
  DecideOnWhole<absl::Status>(
      {{keys_.Active()}, {keys_.Resume(attempt)}, {keys_.Damages(), true}},
      "writing down that all ranks have read their part",
      [attempt, sequence](LocalLedger& ledger, const RunState& state, Answer<absl::Status> decided) {
        ledger.AgreeResume(attempt, sequence, [&](const absl::Status& agreed) {
          const bool withdrawn = ReasonOf(agreed) == reason::kNoCheckpoint && state.IsDamaged(sequence);
          decided(withdrawn ? DamagedChoice(sequence) : agreed);
        });
      },
      std::move(answer));
}

void EtcdLedger::ResumeFailed(int64_t attempt, int64_t sequence, Answer<absl::Status> answer) {
  Decide<absl::Status>(
      {{keys_.Resume(attempt)}}, "writing down that a rank could not resume",
      [attempt, sequence](LocalLedger& ledger, Answer<absl::Status> decided) {
        ledger.ResumeFailed(attempt, sequence);
        decided(absl::OkStatus());
      },
      std::move(answer));
}

void EtcdLedger::Committed(const std::set<int64_t>& attempts,
                           Answer<absl::StatusOr<int64_t>> retained_through) {
  // The heads of later attempts show which of them have taken over the root.
  std::vector<CompareAndSwap::Range> ranges = {{keys_.Retained()}};
  if (!attempts.empty()) ranges.push_back({keys_.Head(*attempts.begin()), false, PrefixEnd(keys_.Heads())});
  for (const int64_t attempt : attempts) ranges.push_back({keys_.Resume(attempt)});
  Decide<absl::StatusOr<int64_t>>(
      std::move(ranges), "reading which checkpoints retention leaves alone",
      [attempts](LocalLedger& ledger, Answer<absl::StatusOr<int64_t>> decided) {
        for (const int64_t attempt : attempts) ledger.Committed(attempt);
        decided(ledger.record().retained_through());
      },
      std::move(retained_through));
}

}  // namespace ckptd
