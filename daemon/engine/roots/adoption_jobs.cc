#include "daemon/engine/roots/adoption_jobs.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/run/catalog.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

// More checkpoints than any root has: NeuronX Distributed keeps one directory for each.
constexpr int64_t kReserved = 1'000'000;
constexpr int kMaxTags = 1000;
constexpr Duration kProgressEvery = std::chrono::milliseconds(500);

bool IsYounger(const storage::v1::ManifestSummary& ours, const ForeignTag& foreign) {
  return ForeignTag{ours.tag(), ours.commit_time_us()} > foreign;
}

// The sequences between which a foreign checkpoint belongs. A clock may have been set back, so every
// checkpoint that is younger by the clock comes after the foreign one, whatever its sequence. `below` 0: no
// checkpoint or save of the run is younger.
struct PlaceInOrder {
  int64_t above = 0, below = 0;
};

PlaceInOrder FindPlace(const Run& run, const std::vector<AdoptionJobs::SaveInFlight>& saves,
                       const ForeignTag& foreign) {
  PlaceInOrder place;
  const auto is_above = [&place](int64_t sequence) {
    place.below = place.below == 0 ? sequence : std::min(place.below, sequence);
  };
  for (const auto& [sequence, committed] : run.catalog.committed()) {
    if (IsYounger(committed.summary, foreign)) is_above(sequence);
  }
  for (const AdoptionJobs::SaveInFlight& save : saves) {
    if (save.begun_unix_us > foreign.done_us) is_above(save.sequence);
  }
  for (const auto& [sequence, committed] : run.catalog.committed()) {
    if (place.below == 0 || sequence < place.below) place.above = std::max(place.above, sequence);
  }
  return place;
}

}  // namespace

// ---- foreign checkpoints

void AdoptionJobs::ListForeign(Run* run, v1::ListCheckpointsResponse response,
                               Reply<v1::ListCheckpointsResponse> reply) {
  run->io->ListForeign([run, response = std::move(response), reply = std::move(reply)](
                           absl::StatusOr<std::vector<ForeignCheckpoint>> found) mutable {
    if (!found.ok()) return reply(Annotate(found.status(), "looking for checkpoints of other programs"));
    for (auto each = found->rbegin(); each != found->rend(); ++each)
      *response.add_foreign() = ToWire(*run, *each);
    reply(std::move(response));
  });
}

void AdoptionJobs::ReserveSequences(const Run& run, const RootSnapshot& snapshot, bool may_reserve,
                                    storage::v1::RunRecord& record) const {
  if (snapshot.foreign.empty()) return;
  observer_->OnInfo(absl::StrCat("the root ", run.path, " holds ", snapshot.foreign.size(),
                                 " finished checkpoints of another program, the newest of them ",
                                 snapshot.foreign.back().tag, ": ckptctl adopt makes them ours"));
  // The record is on disk before the first sequence is given.
  if (may_reserve) record.set_reserved_sequences(kReserved);
}

bool AdoptionJobs::IsActive(const Run& run) const { return states_.Of(&run).job != nullptr; }

bool AdoptionJobs::HasUnsynced(const Run& run) const { return !states_.Of(&run).unsynced.empty(); }

// ---- start, stop

absl::Status AdoptionJobs::CheckStart(const Run& run, const v1::AdoptCheckpointsRequest& request) const {
  if (request.tags_size() > kMaxTags) {
    return InvalidArgument(absl::StrCat("tags names ", request.tags_size(), " checkpoints; at most ",
                                        kMaxTags, ", or none for all of them"));
  }
  CKPTD_RETURN_IF_ERROR(hooks_.check_takes_work());
  if (IsActive(run)) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kAdopting,
                     absl::StrCat("checkpoints of ", run.path,
                                  " are being adopted already; ask again when that has ended"));
  }
  return absl::OkStatus();
}

int64_t AdoptionJobs::Start(Run* run, const v1::AdoptCheckpointsRequest& request, Event event, Ended ended) {
  if (absl::Status refused = CheckStart(*run, request); !refused.ok()) {
    ended(refused);
    return 0;
  }
  auto job = std::make_shared<Job>();
  job->id = next_id_++;
  job->request = request;
  job->event = std::move(event);
  job->ended = std::move(ended);
  states_.Of(run).job = job;
  run->io->ListForeign([this, run](absl::StatusOr<std::vector<ForeignCheckpoint>> list) {
    if (!list.ok()) return End(run, Annotate(list.status(), "looking for checkpoints of other programs"));
    Plan(run, *list);
  });
  return job->id;
}

void AdoptionJobs::Stop(int64_t id) {
  for (const auto& [run, state] : states_) {
    Job* job = state.job.get();
    if (job == nullptr || job->id != id) continue;
    job->stopped = true;
    if (job->progress != nullptr) job->progress->stop.store(true);
  }
}

// ---- planning

// The tags that were asked for, or all that were found; oldest first.
std::vector<AdoptionJobs::Planned> AdoptionJobs::Wanted(const v1::AdoptCheckpointsRequest& request,
                                                        const std::vector<ForeignCheckpoint>& found) {
  std::vector<Planned> plan;
  if (request.tags().empty()) {
    for (const ForeignCheckpoint& each : found) plan.push_back({each.tag, true, absl::OkStatus()});
    return plan;
  }
  for (const std::string& tag : std::set<std::string>(request.tags().begin(), request.tags().end())) {
    const auto place = std::find_if(found.begin(), found.end(),
                                    [&tag](const ForeignCheckpoint& each) { return each.tag.tag == tag; });
    const bool known = place != found.end();
    plan.push_back({known ? place->tag : ForeignTag{tag, 0}, known, absl::OkStatus()});
  }
  std::sort(plan.begin(), plan.end(), [](const auto& a, const auto& b) { return a.tag < b.tag; });
  return plan;
}

// Refuses checkpoints that retention would evict at once, unless the request allows that: an operator who
// adopts a checkpoint does not expect it to be removed.
void AdoptionJobs::Plan(Run* run, const std::vector<ForeignCheckpoint>& found) {
  Job& job = *states_.Of(run).job;
  job.plan = Wanted(job.request, found);
  const std::optional<int> kept = hooks_.kept_last(*run);
  int64_t younger_here = 0;
  for (auto each = job.plan.rbegin(); each != job.plan.rend(); ++each) {
    if (run->catalog.FindTag(each->tag.tag) != nullptr || !each->found) continue;
    const auto& committed = run->catalog.committed();
    const auto younger_ours = std::count_if(committed.begin(), committed.end(), [&](const auto& entry) {
      return IsGood(entry.second) && IsYounger(entry.second.summary, each->tag);
    });
    if (kept && !job.request.allow_removal() && younger_ours + younger_here >= *kept) {
      each->refused =
          MakeError(absl::StatusCode::kFailedPrecondition, reason::kAdoptRemoved,
                    absl::StrCat("the run keeps its last ", *kept, ", and ", younger_ours + younger_here,
                                 " are younger than ", each->tag.tag,
                                 ": retention would remove it at once; allow that, or leave it foreign"),
                    {{"tag", each->tag.tag}});
    } else {
      ++younger_here;
    }
  }
  Next(run);
}

// ---- one checkpoint after the other

void AdoptionJobs::Next(Run* run) {
  const std::shared_ptr<Job> job = states_.Of(run).job;
  while (!job->stopped && job->at < job->plan.size()) {
    const Planned& planned = job->plan[job->at];
    if (const CommittedCheckpoint* ours = run->catalog.FindTag(planned.tag.tag)) {
      ReportOurs(run, *ours);
    } else if (absl::Status may = CheckMayAdopt(*run, planned); !may.ok()) {
      Refuse(run, may);
    } else {
      return Survey(run, planned.tag.tag);
    }
  }
  End(run, job->stopped ? absl::CancelledError("adopting was called off") : absl::OkStatus());
}

void AdoptionJobs::ReportOurs(Run* run, const CommittedCheckpoint& ours) {
  v1::AdoptCheckpointsResponse event;
  event.set_outcome(v1::ALREADY_OURS);
  *event.mutable_checkpoint() = hooks_.describe(*run, ours);
  Report(run, std::move(event));
}

absl::Status AdoptionJobs::CheckMayAdopt(const Run& run, const Planned& planned) const {
  if (!planned.refused.ok()) return planned.refused;
  const std::string& tag = planned.tag.tag;
  if (absl::Status wrong = CheckTag(tag); !wrong.ok()) return wrong;
  const std::vector<SaveInFlight> saves = hooks_.saves_in_flight(run);
  const bool is_saved =
      std::any_of(saves.begin(), saves.end(), [&tag](const SaveInFlight& save) { return save.tag == tag; });
  if (is_saved) {
    return MakeError(absl::StatusCode::kAlreadyExists, reason::kSaveConflict,
                     absl::StrCat(tag, " is being saved; adopt it when that has ended"), {{"tag", tag}});
  }
  if (states_.Of(&run).unsynced.contains(tag)) {
    return MakeError(absl::StatusCode::kDataLoss, reason::kForeignUnsynced,
                     absl::StrCat(tag,
                                  " could not be synced before: its bytes may be lost; copy it under "
                                  "another name, and adopt the copy"),
                     {{"tag", tag}});
  }
  return absl::OkStatus();
}

void AdoptionJobs::Survey(Run* run, const std::string& tag) {
  Job& job = *states_.Of(run).job;
  job.progress = std::make_shared<SurveyProgress>();
  job.next_progress = clock_->Now() + kProgressEvery;
  run->io->SurveyForeign(
      tag, run->uid, chunk_bytes_, job.progress,
      [this, run, tag](absl::StatusOr<ForeignSurvey> survey) { Surveyed(run, tag, std::move(survey)); });
}

void AdoptionJobs::Surveyed(Run* run, const std::string& tag, absl::StatusOr<ForeignSurvey> survey) {
  if (survey.ok()) return Place(run, *std::move(survey));
  State& state = states_.Of(run);
  if (ReasonOf(survey.status()) == reason::kForeignUnsynced) state.unsynced.insert(tag);
  if (!state.job->stopped) Refuse(run, survey.status());
  Next(run);
}

void AdoptionJobs::Place(Run* run, ForeignSurvey survey) {
  Job& job = *states_.Of(run).job;
  if (job.stopped) return Next(run);
  const ForeignTag& foreign = survey.tree.tag;
  const auto& committed = run->catalog.committed();
  const bool has_own = std::any_of(committed.begin(), committed.end(), [](const auto& entry) {
    return entry.second.summary.adopted_from().empty();
  });
  if (has_own && foreign.done_us > clock_->UnixMicros()) {
    Refuse(run, MakeError(absl::StatusCode::kFailedPrecondition, reason::kAdoptOrder,
                          absl::StrCat("the marker of ", foreign.tag,
                                       " is from the future, so nobody can say what of this run is "
                                       "younger; give the file `done` the time when it was written"),
                          {{"tag", foreign.tag}}));
    return Next(run);
  }
  const PlaceInOrder place = FindPlace(*run, hooks_.saves_in_flight(*run), foreign);
  const auto more = static_cast<int64_t>(job.plan.size() - job.at - 1);
  run->ledger->AdmitAdopted(
      place.above, place.below, more,
      [this, run, survey = std::move(survey)](absl::StatusOr<int64_t> sequence) mutable {
        if (sequence.ok()) return AdoptAs(run, std::move(survey), *sequence);
        Refuse(run, sequence.status());
        Next(run);
      });
}

void AdoptionJobs::AdoptAs(Run* run, ForeignSurvey survey, int64_t sequence) {
  storage::v1::ManifestSummary summary = SummaryOfForeign(survey);
  summary.set_sequence(sequence);
  summary.set_run_id(run->ledger->record().run_id());
  run->coordinator_io->Adopt(std::move(survey), summary, [this, run, summary](PublishResult result) {
    Adopted(run, summary, std::move(result));
  });
}

void AdoptionJobs::Adopted(Run* run, const storage::v1::ManifestSummary& summary, PublishResult result) {
  if (result.outcome == PublishOutcome::kFailed) {
    Refuse(run, result.status);
    return Next(run);
  }
  if (result.outcome == PublishOutcome::kIndeterminate) {
    Refuse(run, result.status);
    hooks_.rescan(run);
    return End(run, result.status);
  }
  const auto& committed = run->catalog.committed();
  const bool newest = committed.empty() || committed.rbegin()->first < summary.sequence();
  CommittedCheckpoint adopted;
  adopted.summary = summary;
  const CommittedCheckpoint& ours = run->catalog.Add(std::move(adopted));
  hooks_.pointers_changed(run, std::move(result.pointers));
  observer_->OnInfo(absl::StrCat("adopted ", run->path, "/", summary.tag(),
                                 " of another program as sequence ", summary.sequence(),
                                 newest ? ": it is the newest" : ""));
  v1::AdoptCheckpointsResponse event;
  event.set_outcome(v1::ADOPTED);
  *event.mutable_checkpoint() = hooks_.describe(*run, ours);
  Report(run, std::move(event));
  Next(run);
}

// ---- reporting

void AdoptionJobs::Refuse(Run* run, const absl::Status& why) {
  v1::AdoptCheckpointsResponse event;
  event.set_outcome(v1::REFUSED);
  *event.mutable_error() = ErrorToWire(why);
  Report(run, std::move(event));
}

// Reports the outcome of plan[at], which ends it, or (without an outcome) its progress.
void AdoptionJobs::Report(Run* run, v1::AdoptCheckpointsResponse event) {
  Job& job = *states_.Of(run).job;
  event.set_tag(job.plan[job.at].tag.tag);
  event.set_index(static_cast<int>(job.at) + 1);
  event.set_count(static_cast<int>(job.plan.size()));
  if (job.progress != nullptr) {
    event.set_read_bytes(job.progress->read_bytes.load());
    event.set_size_bytes(job.progress->size_bytes.load());
  }
  if (event.outcome() != v1::ADOPT_OUTCOME_UNSPECIFIED) {
    job.progress = nullptr;
    ++job.at;
  }
  if (!job.event(event)) Stop(job.id);
}

void AdoptionJobs::End(Run* run, const absl::Status& status) {
  const std::shared_ptr<Job> job = std::exchange(states_.Of(run).job, nullptr);
  job->ended(status);
  hooks_.ended(run);
}

void AdoptionJobs::OnTick(Instant now) {
  std::vector<Run*> due;
  for (const auto& [run, state] : states_) {
    const Job* job = state.job.get();
    if (job != nullptr && job->progress != nullptr && now >= job->next_progress) due.push_back(run);
  }
  for (Run* run : due) {
    states_.Of(run).job->next_progress = now + kProgressEvery;
    Report(run, {});
  }
}

}  // namespace ckptd
