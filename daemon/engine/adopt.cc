// Checkpoints of another program: listed, and made ours where somebody asks for it.
//
// An adoption goes through its tags one after the other, oldest first: the tag is read (SurveyForeign), gets
// its place in the order, and becomes ours (RootIo::Adopt). What goes wrong with one tag leaves it foreign,
// and the next one comes.
//
// Its place: time is all that the two programs have in common, so a foreign checkpoint is older than one of
// ours when its marker was written before ours was committed, or, of a save in flight, before that was begun.
// It gets a sequence below all that are younger (docs/decisions/0008).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "storage/base/errors.h"
#include "storage/commit/foreign.h"
#include "storage/commit/scan.h"
#include "storage/format/names.h"

namespace ckptd {

// One AdoptCheckpoints call.
struct Adoption {
  struct Planned {
    ForeignTag tag;
    bool found = true;  // Else its time is not known, and reading it says what is wrong.
    absl::Status refused;
  };
  int64_t id = 0;
  v1::AdoptCheckpointsRequest request;
  std::function<bool(const v1::AdoptCheckpointsResponse&)> event;
  std::function<void(const absl::Status&)> ended;
  std::vector<Planned> plan;  // Oldest first.
  size_t at = 0;
  std::shared_ptr<SurveyProgress> progress;  // Of plan[at], while it is read.
  Instant next_progress;
  bool stopped = false;
};

namespace {

// More than any root has: NeuronX Distributed keeps one directory for each.
constexpr int64_t kReserved = 1'000'000;
constexpr int kMostTags = 1000;
constexpr Duration kProgressEvery = std::chrono::milliseconds(500);

bool IsYounger(const storage::v1::ManifestSummary& ours, const ForeignTag& foreign) {
  return ForeignTag{ours.tag(), ours.commit_time_us()} > foreign;
}

const CommittedCheckpoint* FindTag(const Run& run, const std::string& tag) {
  for (const auto& entry : run.committed) {
    if (entry.second.summary.tag() == tag) return &entry.second;
  }
  return nullptr;
}

// The tags that were asked for, or all of them; oldest first.
std::vector<Adoption::Planned> Wanted(const v1::AdoptCheckpointsRequest& request,
                                      const std::vector<ForeignCheckpoint>& found) {
  std::vector<Adoption::Planned> plan;
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

}  // namespace

// ---- looking

void Engine::Impl::ListForeign(Run* run, v1::ListCheckpointsResponse response,
                               Reply<v1::ListCheckpointsResponse> reply) {
  run->io->ListForeign([run, response = std::move(response), reply = std::move(reply)](
                           absl::StatusOr<std::vector<ForeignCheckpoint>> found) mutable {
    if (!found.ok()) return reply(Annotate(found.status(), "looking for checkpoints of other programs"));
    for (auto each = found->rbegin(); each != found->rend(); ++each) {
      v1::ForeignCheckpoint& foreign = *response.add_foreign();
      foreign.set_tag(each->tag.tag);
      foreign.set_run(run->name);
      foreign.set_directory(absl::StrCat(run->path, "/", each->tag.tag));
      foreign.set_format(kForeignFormat);
      SetTime(each->tag.done_us, foreign.mutable_done_time());
      if (each->size_bytes) foreign.set_size_bytes(*each->size_bytes);
      if (each->file_count) foreign.set_file_count(*each->file_count);
    }
    reply(std::move(response));
  });
}

// ---- adopting

void Engine::Impl::ReserveForAdoption(const Run& run, const RootSnapshot& snapshot,
                                      storage::v1::RunRecord& record) {
  if (snapshot.foreign.empty()) return;
  observer_->OnInfo(absl::StrCat("the root ", run.path, " holds ", snapshot.foreign.size(),
                                 " finished checkpoints of another program, the newest of them ",
                                 snapshot.foreign.back().tag, ": ckptctl adopt makes them ours"));
  // What is in no order yet: the record is on disk before the first sequence is given.
  if (record.last_sequence() == 0 && snapshot.highest_sequence == 0 && recovery_.HighestSequence(run) == 0)
    record.set_reserved_sequences(kReserved);
}

int64_t Engine::Impl::StartAdoption(const Caller& caller, const v1::AdoptCheckpointsRequest& request,
                                    std::function<bool(const v1::AdoptCheckpointsResponse&)> event,
                                    std::function<void(const absl::Status&)> ended) {
  const absl::StatusOr<Run*> found = FindRun(caller, request.parent());
  absl::Status refused = found.status();
  if (refused.ok() && request.tags_size() > kMostTags) {
    refused = MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
                        absl::StrCat("tags names ", request.tags_size(), " checkpoints; at most ", kMostTags,
                                     ", or none for all of them"));
  }
  if (refused.ok() && draining_)
    refused = MakeError(absl::StatusCode::kUnavailable, "DRAINING", "the daemon is ending; ask the next one");
  if (refused.ok() && (*found)->adoption != nullptr) {
    refused = MakeError(absl::StatusCode::kFailedPrecondition, "ADOPTING",
                        absl::StrCat("checkpoints of ", (*found)->path,
                                     " are being adopted already; ask again when that has ended"));
  }
  if (!refused.ok()) {
    ended(refused);
    return 0;
  }
  Run* run = *found;
  run->adoption = std::make_shared<Adoption>();
  run->adoption->id = next_id_++;
  run->adoption->request = request;
  run->adoption->event = std::move(event);
  run->adoption->ended = std::move(ended);
  run->io->ListForeign([this, run](absl::StatusOr<std::vector<ForeignCheckpoint>> list) {
    if (!list.ok())
      return EndAdoption(run, Annotate(list.status(), "looking for checkpoints of other programs"));
    PlanAdoption(run, *std::move(list));
  });
  return run->adoption->id;
}

void Engine::Impl::StopAdoption(int64_t id) {
  for (const auto& entry : runs_) {
    Adoption* adoption = entry.second->adoption.get();
    if (adoption == nullptr || adoption->id != id) continue;
    adoption->stopped = true;
    if (adoption->progress != nullptr) adoption->progress->stop.store(true);
  }
}

// Nobody who asks to have a checkpoint kept by us means to have it removed at once.
void Engine::Impl::PlanAdoption(Run* run, std::vector<ForeignCheckpoint> found) {
  Adoption& adoption = *run->adoption;
  adoption.plan = Wanted(adoption.request, found);
  int64_t younger_here = 0;
  const std::optional<int> kept = retention_.num_kept_ckpts(*run);
  for (auto each = adoption.plan.rbegin(); each != adoption.plan.rend(); ++each) {
    if (FindTag(*run, each->tag.tag) != nullptr || !each->found) continue;
    const auto younger_ours =
        std::count_if(run->committed.begin(), run->committed.end(), [&](const auto& entry) {
          return !entry.second.damage && IsYounger(entry.second.summary, each->tag);
        });
    if (kept && !adoption.request.allow_removal() && younger_ours + younger_here >= *kept) {
      each->refused =
          MakeError(absl::StatusCode::kFailedPrecondition, "ADOPT_REMOVED",
                    absl::StrCat("the run keeps its last ", *kept, ", and ", younger_ours + younger_here,
                                 " are younger than ", each->tag.tag,
                                 ": retention would remove it at once; allow that, or leave it foreign"),
                    {{"tag", each->tag.tag}});
    } else {
      ++younger_here;
    }
  }
  AdoptNext(run);
}

void Engine::Impl::AdoptNext(Run* run) {
  const std::shared_ptr<Adoption> adoption = run->adoption;
  while (!adoption->stopped && adoption->at < adoption->plan.size()) {
    const Adoption::Planned& planned = adoption->plan[adoption->at];
    const std::string& tag = planned.tag.tag;
    if (const CommittedCheckpoint* ours = FindTag(*run, tag)) {
      v1::AdoptCheckpointsResponse event;
      event.set_outcome(v1::ALREADY_OURS);
      *event.mutable_checkpoint() = Describe(*run, *ours);
      TellAdoption(run, std::move(event));
      continue;
    }
    const bool is_saved = std::any_of(run->saves.begin(), run->saves.end(),
                                      [&tag](const auto& entry) { return entry.second->key.tag == tag; });
    absl::Status refused = planned.refused;
    if (refused.ok()) refused = CheckTag(tag);
    if (refused.ok() && is_saved) {
      refused = MakeError(absl::StatusCode::kAlreadyExists, "SAVE_CONFLICT",
                          absl::StrCat(tag, " is being saved; adopt it when that has ended"), {{"tag", tag}});
    }
    if (refused.ok() && run->unsynced.contains(tag)) {
      refused = MakeError(absl::StatusCode::kDataLoss, "FOREIGN_UNSYNCED",
                          absl::StrCat(tag,
                                       " could not be synced before: its bytes may be lost; copy it under "
                                       "another name, and adopt the copy"),
                          {{"tag", tag}});
    }
    if (!refused.ok()) {
      RefuseAdoption(run, refused);
      continue;
    }
    adoption->progress = std::make_shared<SurveyProgress>();
    adoption->next_progress = clock_->Now() + kProgressEvery;
    return run->io->SurveyForeign(tag, run->uid, options_.chunk_bytes, adoption->progress,
                                  [this, run, tag](absl::StatusOr<ForeignSurvey> survey) {
                                    if (survey.ok()) return PlaceAdopted(run, *std::move(survey));
                                    if (ReasonOf(survey.status()) == "FOREIGN_UNSYNCED")
                                      run->unsynced.insert(tag);
                                    if (!run->adoption->stopped) RefuseAdoption(run, survey.status());
                                    AdoptNext(run);
                                  });
  }
  EndAdoption(run, adoption->stopped ? absl::CancelledError("adopting was called off") : absl::OkStatus());
}

void Engine::Impl::PlaceAdopted(Run* run, ForeignSurvey survey) {
  Adoption& adoption = *run->adoption;
  if (adoption.stopped) return AdoptNext(run);
  const bool has_own = std::any_of(run->committed.begin(), run->committed.end(), [](const auto& entry) {
    return entry.second.summary.adopted_from().empty();
  });
  if (has_own && survey.tree.tag.done_us > clock_->UnixMicros()) {
    RefuseAdoption(run, MakeError(absl::StatusCode::kFailedPrecondition, "ADOPT_ORDER",
                                  absl::StrCat("the marker of ", survey.tree.tag.tag,
                                               " is from the future, so nobody can say what of this run is "
                                               "younger; give the file `done` the time when it was written"),
                                  {{"tag", survey.tree.tag.tag}}));
    return AdoptNext(run);
  }
  // A clock may have been set back: whoever is younger by the clock counts, whatever its sequence.
  int64_t below = 0, above = 0;
  const auto is_above = [&below](int64_t sequence) {
    below = below == 0 ? sequence : std::min(below, sequence);
  };
  for (const auto& [sequence, committed] : run->committed) {
    if (IsYounger(committed.summary, survey.tree.tag)) is_above(sequence);
  }
  for (const auto& [sequence, save] : run->saves) {
    if (save->begun_unix_us > survey.tree.tag.done_us) is_above(sequence);
  }
  for (const auto& entry : run->committed) {
    if (below == 0 || entry.first < below) above = std::max(above, entry.first);
  }
  const auto more = static_cast<int64_t>(adoption.plan.size() - adoption.at - 1);
  run->ledger->AdmitAdopted(
      above, below, more, [this, run, survey = std::move(survey)](absl::StatusOr<int64_t> sequence) mutable {
        if (sequence.ok()) return AdoptAs(run, std::move(survey), *sequence);
        RefuseAdoption(run, sequence.status());
        AdoptNext(run);
      });
}

void Engine::Impl::AdoptAs(Run* run, ForeignSurvey survey, int64_t sequence) {
  storage::v1::ManifestSummary summary = SummaryOfForeign(survey);
  summary.set_sequence(sequence);
  summary.set_run_id(run->ledger->record().run_id());
  run->io->Adopt(std::move(survey), summary,
                 [this, run, summary](PublishResult result) { Adopted(run, summary, std::move(result)); });
}

void Engine::Impl::Adopted(Run* run, const storage::v1::ManifestSummary& summary, PublishResult result) {
  if (result.outcome == PublishOutcome::kFailed) {
    RefuseAdoption(run, result.status);
    return AdoptNext(run);
  }
  if (result.outcome == PublishOutcome::kIndeterminate) {
    RefuseAdoption(run, result.status);
    run->read_only = true;
    scanner_.Scan(run);
    return EndAdoption(run, result.status);
  }
  const bool newest = run->committed.empty() || run->committed.rbegin()->first < summary.sequence();
  CommittedCheckpoint& committed = run->committed[summary.sequence()];
  committed.summary = summary;
  retention_.SetPointers(run, std::move(result.pointers));
  observer_->OnInfo(absl::StrCat("adopted ", run->path, "/", summary.tag(),
                                 " of another program as sequence ", summary.sequence(),
                                 newest ? ": it is the newest" : ""));
  v1::AdoptCheckpointsResponse event;
  event.set_outcome(v1::ADOPTED);
  *event.mutable_checkpoint() = Describe(*run, committed);
  TellAdoption(run, std::move(event));
  AdoptNext(run);
}

void Engine::Impl::RefuseAdoption(Run* run, const absl::Status& why) {
  v1::AdoptCheckpointsResponse event;
  event.set_outcome(v1::REFUSED);
  event.mutable_error()->set_reason(ReasonOf(why));
  event.mutable_error()->set_message(std::string(why.message()));
  event.mutable_error()->set_code(static_cast<int>(why.code()));
  TellAdoption(run, std::move(event));
}

// What became of plan[at], which is over, or (without an outcome) how far it is.
void Engine::Impl::TellAdoption(Run* run, v1::AdoptCheckpointsResponse event) {
  Adoption& adoption = *run->adoption;
  event.set_tag(adoption.plan[adoption.at].tag.tag);
  event.set_index(static_cast<int>(adoption.at) + 1);
  event.set_count(static_cast<int>(adoption.plan.size()));
  if (adoption.progress != nullptr) {
    event.set_read_bytes(adoption.progress->read_bytes.load());
    event.set_size_bytes(adoption.progress->size_bytes.load());
  }
  if (event.outcome() != v1::ADOPT_OUTCOME_UNSPECIFIED) {
    adoption.progress = nullptr;
    ++adoption.at;
  }
  if (!adoption.event(event)) StopAdoption(adoption.id);
}

void Engine::Impl::EndAdoption(Run* run, const absl::Status& status) {
  const std::shared_ptr<Adoption> ended = std::move(run->adoption);
  ended->ended(status);
  retention_.Apply(run);  // They count from now on.
}

void Engine::Impl::ShowAdoption(Run* run, Instant now) {
  Adoption* adoption = run->adoption.get();
  if (adoption == nullptr || adoption->progress == nullptr || now < adoption->next_progress) return;
  adoption->next_progress = now + kProgressEvery;
  TellAdoption(run, {});
}

}  // namespace ckptd
