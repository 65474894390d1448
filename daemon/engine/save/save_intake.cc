#include "daemon/engine/save/save_intake.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "daemon/engine/retention/retention_policy.h"
#include "daemon/engine/run/wire.h"
#include "daemon/engine/seams/validate.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

absl::Status Conflict(const Save& save, const std::string& message) {
  return MakeError(absl::StatusCode::kAlreadyExists, reason::kSaveConflict, message, {{"tag", save.key.tag}});
}

absl::Status SessionLost() {
  return MakeError(absl::StatusCode::kAborted, reason::kSessionLost,
                   "the session ended before Begin was answered");
}

absl::Status RankTaken(const Save& save, int rank) {
  return MakeError(
      absl::StatusCode::kAlreadyExists, reason::kRankTaken,
      absl::StrCat("rank ", rank, " of the save of ", save.key.tag, " was begun by another process"),
      {{"tag", save.key.tag}, {"ranks", absl::StrCat(rank)}});
}

constexpr int64_t kAsksForLayout = -1;

absl::Status UnknownLayout(const std::string& tag, int64_t layout) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kUnknownLayout,
                   absl::StrCat("layout ", layout,
                                " is not the one that this session has begun with last; "
                                "begin the save of ",
                                tag, " again with its files"),
                   {{"tag", tag}});
}

KeptLayouts::Owner OwnerOf(const Run& run, const Member& member) {
  return {member.session, run.name, member.rank};
}

// How a save ends that no daemon takes any more. A rank that hears DRAINING begins the same save again, with
// the next daemon; but this is the end of the save, also on other nodes.
absl::Status EndFor(const absl::Status& refused, const std::string& tag) {
  if (ReasonOf(refused) != reason::kDraining) return refused;
  return MakeError(
      absl::StatusCode::kAborted, reason::kStagedLost,
      absl::StrCat("the daemon was asked to end before the save of ", tag, " had memory; save again"),
      {{"tag", tag}});
}

SaveId KeyOf(const Member& member, const v1::BeginRequest& request) {
  return SaveId{member.attempt, request.key().tag(), request.key().ordinal()};
}

// The ranks that contribute nothing have empty parts, as if each had sealed no files. So have the ranks of
// other nodes, and their parts are nothing that this node writes.
void SealAbsentParts(Save* save) {
  for (int rank = 0; rank < save->world_size; ++rank) {
    if (save->Contributes(rank) && save->IsHere(rank)) continue;
    Part& part = save->PartOf(rank);
    part.begun = part.granted = part.sealed = true;
    part.durable = !save->IsHere(rank);
  }
}

// That have something to save, ascending; empty: all.
std::vector<int> RanksOf(const v1::BeginRequest& request, int world_size) {
  const std::set<int> ranks = {request.ranks().begin(), request.ranks().end()};
  if (static_cast<int>(ranks.size()) == world_size) return {};
  return {ranks.begin(), ranks.end()};
}

std::optional<int64_t> StepOf(const v1::BeginRequest& request) {
  return request.has_step() ? std::optional(request.step()) : std::nullopt;
}

std::string Words(const std::set<int>& ranks) {
  return ranks.empty() ? "all ranks" : absl::StrCat("ranks ", JoinRanks({ranks.begin(), ranks.end()}));
}

// num_kept_ckpts is short for a policy that keeps the last ones alone.
std::optional<RetentionPolicy> PolicyOf(const v1::BeginRequest& request) {
  if (request.has_retention()) return FromWire(request.retention());
  if (!request.has_num_kept_ckpts()) return std::nullopt;
  RetentionPolicy policy;
  policy.set_last(request.num_kept_ckpts());
  return policy;
}

std::string Words(std::optional<int64_t> step) { return step ? absl::StrCat("step ", *step) : "no step"; }

// A longer timeout is refused and not shortened: the caller would rely on it.
absl::StatusOr<Duration> CheckTimeout(bool set, const google::protobuf::Duration& value, const char* field,
                                      Duration otherwise, Duration most, const char* bound) {
  absl::StatusOr<Duration> checked =
      CheckDuration(set, value, field, std::min(otherwise, most), std::chrono::milliseconds(1), most);
  if (checked.ok()) return checked;
  return MakeError(checked.status().code(), ReasonOf(checked.status()),
                   absl::StrCat(std::string(checked.status().message()), "; the daemon's ", bound,
                                " sets the upper bound"));
}

}  // namespace

SaveIntake::SaveIntake(const EngineOptions& options, Clock* clock, EngineObserver* observer, SaveTable* saves,
                       FilePlacer* placer, KeptLayouts* layouts, AdmissionQueue* queue, PartGrants* grants,
                       DiskRoom* disk, Hooks hooks)
    : options_(options),
      clock_(clock),
      observer_(observer),
      saves_(saves),
      placer_(placer),
      layouts_(layouts),
      queue_(queue),
      grants_(grants),
      disk_(disk),
      hooks_(std::move(hooks)) {}

v1::BeginResponse SkippedResponse(const Save& save) {
  return SkippedResponse(save.sequence, std::string(save.error.message()));
}

v1::BeginResponse SkippedResponse(int64_t sequence, const std::string& why) {
  v1::BeginResponse response;
  response.set_sequence(sequence);
  response.set_level(v1::SKIPPED);
  v1::SaveError& error = *response.mutable_error();
  error.set_reason(reason::kSkipped);
  error.set_code(static_cast<int>(absl::StatusCode::kAborted));
  error.set_message(why);
  return response;
}

// ---- from Begin to a save

void SaveIntake::Begin(Run* run, const Member& member, v1::BeginRequest request,
                       Reply<v1::BeginResponse> reply) {
  std::shared_ptr<FilePlaces> layout;
  if (request.layout() > 0) {  // Looked up now: another Begin may replace it before this one has its turn.
    layout = layouts_->Find(OwnerOf(*run, member), request.layout());
    if (layout == nullptr) return reply(UnknownLayout(request.key().tag(), request.layout()));
  }
  const int64_t number = ++last_activating_;
  const Instant deadline = ActivationDeadline(request);
  activating_.emplace(
      number, Activating{Pending{member.session, std::move(request), std::move(layout), std::move(reply)},
                         run->authority->name(), deadline});
  run->ledger->Activate(
      member.attempt, [this, number, name = run->name, attempt = member.attempt](const absl::Status& active) {
        auto activating = activating_.extract(number);
        if (active.ok()) {
          if (Run* acting = hooks_.find_run(name)) hooks_.fence_off(acting, attempt);
        }
        if (activating.empty()) return;  // It has waited for too long.
        Pending& begin = activating.mapped().begin;
        if (!active.ok()) return begin.reply(active);
        OnActivated(std::move(begin));
      });
}

Instant SaveIntake::ActivationDeadline(const v1::BeginRequest& request) const {
  const absl::StatusOr<Timeouts> timeouts = CheckTimeouts(request);
  if (!timeouts.ok()) return Instant::max();  // OnActivated refuses it.
  Duration wait = std::min(timeouts->admission, timeouts->commit);
  if (request.busy() == v1::SKIP) wait = std::min(wait, kLongestSilenceForSkip);
  return clock_->Now() + wait;
}

void SaveIntake::OnTick(Instant now) {
  std::vector<Activating> late;
  for (auto activating = activating_.begin(); activating != activating_.end();) {
    const auto next = std::next(activating);
    if (now >= activating->second.deadline) {
      late.push_back(std::move(activating->second));
      activating_.erase(activating);
    }
    activating = next;
  }
  for (Activating& each : late) {
    const std::string& tag = each.begin.request.key().tag();
    const std::string why =
        absl::StrCat(each.waits_for, " has not answered in time whether the attempt of rank ",
                     each.begin.request.key().rank(), " may save ", tag);
    if (each.begin.request.busy() == v1::SKIP) {
      each.begin.reply(SkippedResponse(/*sequence=*/0, why));
    } else {
      each.begin.reply(
          MakeError(absl::StatusCode::kDeadlineExceeded, reason::kAdmissionTimeout, why, {{"tag", tag}}));
    }
  }
}

Instant SaveIntake::NextDeadline() const {
  Instant next = Instant::max();
  for (const auto& [number, activating] : activating_) next = std::min(next, activating.deadline);
  return next;
}

void SaveIntake::OnActivated(Pending begin) {
  Run* run = hooks_.find_run(begin.request.key().run());
  const Member* member =
      run == nullptr ? nullptr : hooks_.find_member(run, begin.session, begin.request.key().rank());
  if (member == nullptr) return begin.reply(SessionLost());
  if (JoinExisting(run, *member, begin)) return;
  // The ranks of other nodes have to hear it, too: AskTarget ends the save for all of them.
  const bool is_shared = run->authority->may_span_nodes();
  if (absl::Status refused = hooks_.check_takes_saves(); !refused.ok() && !is_shared)
    return begin.reply(refused);
  AskSequence(run, *member, std::move(begin));
}

bool SaveIntake::JoinExisting(Run* run, const Member& member, Pending& begin) {
  const SaveId key = KeyOf(member, begin.request);
  if (Save* save = run->FindSave(key)) {
    BeginPart(save, member, std::move(begin));
    return true;
  }
  if (auto answer = hooks_.answer_if_ended(run, key)) {
    begin.reply(*std::move(answer));
    return true;
  }
  return false;
}

// The first rank that begins the save asks the ledger for its sequence; the others wait with it.
void SaveIntake::AskSequence(Run* run, const Member& member, Pending begin) {
  const PendingKey key{run->name, KeyOf(member, begin.request)};
  if (auto waiting = awaiting_sequence_.find(key); waiting != awaiting_sequence_.end())
    return waiting->second.begins.push_back(std::move(begin));
  const absl::StatusOr<Timeouts> timeouts = CheckTimeouts(begin.request);
  if (!timeouts.ok()) return begin.reply(timeouts.status());
  if (absl::Status limit = CheckSavesInFlight(*run); !limit.ok()) return begin.reply(limit);
  Awaiting& awaiting = awaiting_sequence_[key];
  awaiting.timeouts = *timeouts;
  const std::vector<int> ranks = RanksOf(begin.request, member.world_size);
  const bool may_skip = begin.request.busy() == v1::SKIP;
  awaiting.begins.push_back(std::move(begin));
  // SaveDriver calls OnSequence, perhaps within Begin.
  run->authority->Begin(key.second, clock_->Now() + timeouts->admission, ranks);
  if (may_skip) run->authority->SkipAfter(key.second, kLongestSilenceForSkip);
}

void SaveIntake::OnSequence(const std::string& run_name, const SaveId& id,
                            const absl::StatusOr<int64_t>& sequence) {
  auto waiting = awaiting_sequence_.extract(PendingKey(run_name, id));
  if (waiting.empty()) return;
  const Timeouts timeouts = waiting.mapped().timeouts;
  for (Pending& begin : waiting.mapped().begins) {
    if (sequence.ok()) {
      BeginNew(run_name, timeouts, *sequence, std::move(begin));
    } else if (ReasonOf(sequence.status()) == reason::kSkipped) {
      begin.reply(SkippedResponse(/*sequence=*/0, std::string(sequence.status().message())));
    } else {
      begin.reply(sequence.status());
    }
  }
}

void SaveIntake::BeginNew(const std::string& run_name, const Timeouts& timeouts, int64_t sequence,
                          Pending begin) {
  Run* run = hooks_.find_run(run_name);
  const Member* member =
      run == nullptr ? nullptr : hooks_.find_member(run, begin.session, begin.request.key().rank());
  if (member == nullptr) return begin.reply(SessionLost());
  if (JoinExisting(run, *member, begin)) return;
  Save* save = NewSave(run, *member, timeouts, sequence, begin.request);
  BeginPart(save, *member, std::move(begin));
  if (save->phase() == SavePhase::kTarget) AskTarget(save);
}

absl::StatusOr<SaveIntake::Timeouts> SaveIntake::CheckTimeouts(const v1::BeginRequest& request) const {
  Timeouts timeouts;
  CKPTD_ASSIGN_OR_RETURN(
      timeouts.admission,
      CheckTimeout(request.has_timeout(), request.timeout(), "timeout", std::chrono::seconds(30),
                   options_.max_admission_timeout, "limits.max_admission_timeout_seconds"));
  CKPTD_ASSIGN_OR_RETURN(
      timeouts.commit, CheckTimeout(request.has_commit_timeout(), request.commit_timeout(), "commit_timeout",
                                    std::chrono::seconds(600), options_.max_commit_timeout,
                                    "limits.max_commit_timeout_seconds"));
  return timeouts;
}

absl::Status SaveIntake::CheckSavesInFlight(const Run& run) const {
  const auto in_flight = std::count_if(saves_->all().begin(), saves_->all().end(), [&run](const auto& entry) {
    return entry.second->run->uid == run.uid;
  });
  if (in_flight < options_.limits.saves_per_uid) return absl::OkStatus();
  return UidLimitExceeded(run.uid, "saves in flight", options_.limits.saves_per_uid, "saves_per_uid");
}

// The clock may have been put back since.
int64_t SaveIntake::LatestBegin(const Run& run) const {
  int64_t latest_us = run.catalog.latest_begin_us();
  for (const auto& [id, save] : saves_->all()) {
    if (save->run == &run) latest_us = std::max(latest_us, save->begun_unix_us);
  }
  return latest_us;
}

Save* SaveIntake::NewSave(Run* run, const Member& member, const Timeouts& timeouts, int64_t sequence,
                          const v1::BeginRequest& request) {
  auto save = std::make_unique<Save>();
  save->run = run;
  save->key = KeyOf(member, request);
  save->sequence = sequence;
  save->step = StepOf(request);
  save->world_size = member.world_size;
  save->busy = request.busy() == v1::BUSY_POLICY_UNSPECIFIED ? v1::WAIT : request.busy();
  save->begun_at = clock_->Now();
  save->begun_unix_us = std::max(clock_->UnixMicros(), LatestBegin(*run) + 1);
  save->admission_deadline = save->begun_at + timeouts.admission;
  save->commit_deadline = save->begun_at + timeouts.commit;
  save->contributors = {request.ranks().begin(), request.ranks().end()};
  save->node.ranks = member.local_ranks;
  SealAbsentParts(save.get());
  LogStepBack(*save);
  return saves_->Add(std::move(save));
}

void SaveIntake::LogStepBack(const Save& save) {
  const Run& run = *save.run;
  const auto& committed = run.catalog.committed();
  if (committed.empty() || !save.step) return;
  const auto& newest = committed.rbegin()->second.summary;
  if (!newest.has_step() || *save.step >= newest.step()) return;
  observer_->OnInfo(absl::StrCat("run ", run.path, " goes back: step ", *save.step, " (", save.key.tag,
                                 ") is saved after step ", newest.step(), " (", newest.tag(), ")"));
}

// ---- one rank

void SaveIntake::BeginPart(Save* save, const Member& member, Pending begin) {
  const v1::BeginRequest& request = begin.request;
  Reply<v1::BeginResponse>& reply = begin.reply;
  const bool names_layout = begin.layout != nullptr;
  if (save->phase() == SavePhase::kFailing && save->remembered) {
    if (save->life.end_level() == v1::SKIPPED) return reply(SkippedResponse(*save));
    return reply(save->error);
  }
  if (absl::Status differs = CheckAgrees(*save, member, request); !differs.ok()) return reply(differs);
  Part& part = save->PartOf(member.rank);
  if (part.begun) {
    // The rank may know the same files by the number of a later layout; then it is told their places again.
    const bool is_same = names_layout && part.layout == request.layout();
    return BeginAgain(save, part, member, {std::move(reply), is_same});
  }
  if (absl::Status named = NamePointers(save, member, request); !named.ok()) return reply(named);
  part.begun = true;
  part.session = member.session;
  part.instance = member.instance;
  part.growing = request.growing();
  part.share_unchanged = request.share_unchanged();
  part.begin_replies.push_back({std::move(reply), names_layout});
  if (save->metrics.empty() || (member.rank == 0 && !request.metrics().empty())) {
    save->metrics = {request.metrics().begin(), request.metrics().end()};
  }
  // A rank that names no policy follows the others.
  if (std::optional<RetentionPolicy> policy = PolicyOf(request)) save->retention = std::move(policy);
  if (absl::Status placed = PlaceFiles(save, part, begin); !placed.ok()) return hooks_.fail(save, placed);
  if (save->phase() == SavePhase::kGathering) return queue_->Gather(save);
  if (save->phase() == SavePhase::kAdmitted) grants_->OnBegun(save, part);
}

absl::Status SaveIntake::PlaceFiles(Save* save, Part& part, Pending& begin) {
  if (begin.layout != nullptr) {
    part.layout = begin.request.layout();
    return placer_->PlaceAs(save, part, std::move(begin.layout));
  }
  CKPTD_RETURN_IF_ERROR(placer_->Place(save, part, begin.request.files()));
  part.asked = FindAsked(part, begin.request.files());
  // A growing part gets more files, and a client that does not ask does not know the field of the answer.
  if (!part.growing && begin.request.layout() == kAsksForLayout)
    part.layout = layouts_->Keep(save->run->uid, {part.session, save->run->name, part.rank}, part.placed);
  return absl::OkStatus();
}

// A retry, perhaps from a new session after the daemon was restarted.
void SaveIntake::BeginAgain(Save* save, Part& part, const Member& member, BeginReply reply) {
  if (part.sealed && part.session == 0 && part.instance == member.instance) {
    // The rank sealed the part with an earlier daemon and never got the answer. It is told how the save ends.
    part.begin_replies.push_back(std::move(reply));
    return;
  }
  if (part.session != member.session) return reply.reply(RankTaken(*save, member.rank));
  part.begin_replies.push_back(std::move(reply));
  grants_->AnswerBegins(save, part);
}

// All ranks give a save the same step and the same retention policy.
absl::Status SaveIntake::CheckAgrees(const Save& save, const Member& member,
                                     const v1::BeginRequest& request) const {
  if (StepOf(request) != save.step) {
    return Conflict(save, absl::StrCat("rank ", member.rank, " saves ", save.key.tag, " as ",
                                       Words(StepOf(request)), ", but it was begun as ", Words(save.step)));
  }
  if (const std::set<int> ranks(request.ranks().begin(), request.ranks().end()); ranks != save.contributors) {
    return Conflict(save, absl::StrCat("rank ", member.rank, " saves ", save.key.tag, " with ", Words(ranks),
                                       ", but it was begun with ", Words(save.contributors)));
  }
  const Part* part = save.FindPart(member.rank);
  const bool begins = part == nullptr || !part->begun;
  const std::optional<RetentionPolicy> policy = PolicyOf(request);
  if (begins && policy && !IsSamePolicy(save.retention.value_or(*policy), *policy)) {
    return Conflict(save, absl::StrCat("rank ", member.rank, " saves ", save.key.tag, " and keeps ",
                                       DescribePolicy(*policy), ", but it was begun by a rank that keeps ",
                                       DescribePolicy(*save.retention)));
  }
  return absl::OkStatus();
}

// The limits hold for the pointers of all ranks together. AskTarget checks them while the save is new. Later,
// a rank that names a pointer whose place is taken fails the save.
absl::Status SaveIntake::NamePointers(Save* save, const Member& member, const v1::BeginRequest& request) {
  std::map<std::string, std::string> all = save->pointers;
  std::vector<std::string> added;
  for (const auto& [name, content] : request.pointers()) {
    const auto [place, fresh] = all.emplace(name, content);
    if (fresh) {
      added.push_back(name);
    } else if (place->second != content) {
      return Conflict(*save, absl::StrCat("rank ", member.rank, " saves ", save->key.tag,
                                          " with the pointer ", name, " = \"", content,
                                          "\", but it was begun with ", name, " = \"", place->second, "\""));
    }
  }
  CKPTD_RETURN_IF_ERROR(CheckPointers(save->key.tag, all));
  save->pointers = std::move(all);
  if (added.empty() || !save->target_asked) return absl::OkStatus();
  save->run->io->CheckTarget(save->key.tag, std::move(added), [this, id = save->id](absl::Status target) {
    Save* asked = saves_->Find(id);
    if (asked != nullptr && !asked->sealed() && !target.ok()) hooks_.fail(asked, target);
  });
  return absl::OkStatus();
}

// ---- the tag, and the disk

void SaveIntake::AskTarget(Save* save) {
  save->target_asked = true;
  if (absl::Status refused = hooks_.check_takes_saves(); !refused.ok())
    return hooks_.fail(save, EndFor(refused, save->key.tag));
  if (hooks_.is_undeleting(*save->run, save->key.tag)) {
    return hooks_.fail(save, MakeError(absl::StatusCode::kFailedPrecondition, reason::kPinned,
                                       absl::StrCat("checkpoint ", save->key.tag,
                                                    " is being brought back from the trash, pinned; use "
                                                    "another tag"),
                                       {{"tag", save->key.tag}}));
  }
  const std::set<int64_t>& replaced = save->run->catalog.SequencesOf(save->key.tag);
  for (const int64_t sequence : replaced) {
    if (!hooks_.is_pinned(*save->run, sequence)) break;
    return hooks_.fail(save, MakeError(absl::StatusCode::kFailedPrecondition, reason::kPinned,
                                       absl::StrCat("checkpoint ", save->key.tag,
                                                    " is pinned and is not replaced; unpin it or use "
                                                    "another tag"),
                                       {{"tag", save->key.tag}}));
  }
  const bool is_resave = !replaced.empty();
  if (is_resave && save->pointers.empty()) return MeasureDisk(save);  // The tag is the run's already.
  std::vector<std::string> pointers;
  for (const auto& [name, content] : save->pointers) pointers.push_back(name);
  save->run->io->CheckTarget(save->key.tag, std::move(pointers), [this, id = save->id](absl::Status target) {
    Save* asked = saves_->Find(id);
    if (asked == nullptr || asked->phase() != SavePhase::kTarget) return;
    if (!target.ok()) return hooks_.fail(asked, target);
    MeasureDisk(asked);
  });
}

void SaveIntake::MeasureDisk(Save* save) {
  disk_->Measure(save->run, [this, id = save->id](absl::StatusOr<DiskRoom::Measurement> measured) {
    Save* waiting = saves_->Find(id);
    if (waiting == nullptr || waiting->phase() != SavePhase::kTarget) return;
    if (!measured.ok()) return hooks_.fail(waiting, measured.status());
    disk_->Remember(waiting->run, *measured);
    waiting->life.Measured();
    queue_->Gather(waiting);
  });
}

}  // namespace ckptd
