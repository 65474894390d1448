// What is damaged is remembered and passed over, and all ranks of an attempt agree that what they resume from
// is not: FinishResume, ReportDamage, ClearDamage.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "daemon/engine/validate.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

absl::Status ResumeFailed(const std::string& tag, const std::vector<int>& ranks, const std::string& why) {
  return MakeError(absl::StatusCode::kAborted, "RESUME_FAILED",
                   absl::StrCat("not every rank can resume from ", tag, ": ", why, "; resume again"),
                   {{"tag", tag}, {"ranks", JoinRanks(ranks)}});
}

// "file model.pt: chunk 3 ...", or of the checkpoint as a whole.
template <typename Damage>
std::string Words(const Damage& damage) {
  const bool named = damage.path().empty() || damage.message().find(damage.path()) != std::string::npos;
  return named ? damage.message() : absl::StrCat("file ", damage.path(), ": ", damage.message());
}

ErrorDetails DetailsOf(const storage::v1::Damage& damage) {
  ErrorDetails details{{"tag", damage.tag()}, {"sequence", absl::StrCat(damage.sequence())}};
  if (!damage.path().empty()) details["path"] = damage.path();
  if (damage.has_chunk()) details["chunk"] = absl::StrCat(damage.chunk());
  if (!damage.expected().empty()) details["expected"] = damage.expected();
  if (!damage.found().empty()) details["found"] = damage.found();
  return details;
}

storage::v1::Damage FromWire(const v1::Damage& said) {
  storage::v1::Damage damage;
  damage.set_path(said.path());
  if (said.has_chunk()) damage.set_chunk(said.chunk());
  damage.set_expected(said.expected());
  damage.set_found(said.found());
  damage.set_message(said.message().empty() ? "it is not what was saved" : said.message());
  return damage;
}

}  // namespace

bool Engine::Impl::TellsOfDamage(const Run& run, const absl::Status& opened) {
  if (run.read_only || run.scanning) return false;  // What is where is not known.
  // An I/O error, or a device that is gone, is of the disk, perhaps of all of it.
  return ProvesDamage(opened) || (absl::IsNotFound(opened) && !CouldNotFindOut(opened));
}

storage::v1::Damage Engine::Impl::DamageOf(const absl::Status& opened) {
  const ErrorDetails details = ckptd::DetailsOf(opened);
  const auto detail = [&details](const char* name) {
    const auto found = details.find(name);
    return found == details.end() ? std::string() : found->second;
  };
  storage::v1::Damage damage;
  damage.set_path(detail("path"));
  damage.set_expected(detail("expected"));
  damage.set_found(detail("found"));
  damage.set_message(std::string(opened.message()));
  return damage;
}

void Engine::Impl::ToWire(const storage::v1::Damage& known, v1::Damage* damage) {
  damage->set_path(known.path());
  if (known.has_chunk()) damage->set_chunk(known.chunk());
  damage->set_expected(known.expected());
  damage->set_found(known.found());
  damage->set_message(known.message());
  damage->mutable_time()->set_seconds(known.time_us() / 1'000'000);
  damage->mutable_time()->set_nanos(static_cast<int32_t>(known.time_us() % 1'000'000 * 1000));
}

const CommittedCheckpoint* Engine::Impl::Newest(const Run& run) {
  for (auto entry = run.committed.rbegin(); entry != run.committed.rend(); ++entry) {
    if (!entry->second.damage && !run.evicting.contains(entry->first)) return &entry->second;
  }
  return nullptr;
}

bool Engine::Impl::IsDamaged(const Run& run, int64_t sequence) {
  const auto found = run.committed.find(sequence);
  return found != run.committed.end() && found->second.damage.has_value();
}

std::vector<v1::Checkpoint> Engine::Impl::PassedOver(const Run& run, int64_t sequence) const {
  std::vector<v1::Checkpoint> passed;
  for (auto entry = run.committed.rbegin(); entry != run.committed.rend() && entry->first > sequence;
       ++entry) {
    if (entry->second.damage) passed.push_back(Describe(run, entry->second));
  }
  for (const DamagedCheckpoint& unreadable : run.damaged) {  // Of any sequence.
    v1::Checkpoint& checkpoint = passed.emplace_back();
    checkpoint.set_name(absl::StrCat(run.name, "/checkpoints/", unreadable.tag));
    checkpoint.set_run(run.name);
    checkpoint.set_tag(unreadable.tag);
    checkpoint.set_directory(absl::StrCat(run.path, "/", unreadable.tag));
    checkpoint.mutable_damage()->set_message(std::string(unreadable.status.message()));
  }
  return passed;
}

absl::Status Engine::Impl::DamagedError(const Run& run, const std::vector<v1::Checkpoint>& passed,
                                        const std::string& what_to_do) {
  std::string words;
  for (const v1::Checkpoint& checkpoint : passed) {
    absl::StrAppend(&words, words.empty() ? "" : "; ", checkpoint.tag(), ": ", Words(checkpoint.damage()));
  }
  return MakeError(absl::StatusCode::kDataLoss, "CHECKPOINT_DAMAGED",
                   absl::StrCat("in ", run.path, " ", passed.size(),
                                passed.size() == 1 ? " checkpoint is" : " checkpoints are", " damaged (",
                                words, "): ", what_to_do),
                   {{"tag", passed.front().tag()}});
}

absl::Status Engine::Impl::DamageError(const storage::v1::Damage& damage) {
  return MakeError(absl::StatusCode::kDataLoss, "CHECKPOINT_DAMAGED",
                   absl::StrCat("checkpoint ", damage.tag(), " is damaged: ", Words(damage),
                                "; resume again for the next older one"),
                   DetailsOf(damage));
}

// ---- marks

void Engine::Impl::MarkDamaged(Run* run, int64_t sequence, storage::v1::Damage damage,
                               absl::AnyInvocable<void()> done) {
  const auto found = run->committed.find(sequence);
  if (found == run->committed.end()) return done();  // Removed, or replaced, meanwhile.
  CommittedCheckpoint& checkpoint = found->second;
  if (!checkpoint.damage) {
    damage.set_tag(checkpoint.summary.tag());
    damage.set_sequence(sequence);
    damage.set_time_us(clock_->UnixMicros());
    checkpoint.damage = std::move(damage);
    const CommittedCheckpoint* newest = Newest(*run);
    observer_->OnWarning(absl::StrCat(
        "checkpoint ", run->path, "/", checkpoint.summary.tag(), " is damaged: ", Words(*checkpoint.damage),
        "; it is not offered any more, ",
        newest == nullptr ? "and there is no other" : absl::StrCat(newest->summary.tag(), " is the latest")));
    DropResident(run, sequence);
  }
  // Whoever finds it again waits until it is on disk, too.
  run->io->SetDamage(checkpoint.summary.tag(), sequence, checkpoint.damage,
                     [this, run, sequence, tag = checkpoint.summary.tag(),
                      done = std::move(done)](absl::StatusOr<PointerFiles> set) mutable {
                       if (set.ok()) {
                         retention_.SetPointers(run, *std::move(set));
                       } else if (IsDamaged(*run, sequence)) {
                         observer_->OnWarning(absl::StrCat(
                             "that checkpoint ", run->path, "/", tag,
                             " is damaged could not be written down, and is forgotten with this daemon: ",
                             std::string(set.status().message())));
                       }
                       FailAgreements(run, sequence);
                       done();
                     });
}

void Engine::Impl::ReportDamage(const Caller& caller, const v1::ReportDamageRequest& request,
                                Reply<v1::ReportDamageResponse> reply) {
  std::string tag;
  absl::StatusOr<Run*> run = RunOfCheckpointName(caller, request.name(), &tag);
  if (!run.ok()) return reply(run.status());
  if (absl::Status wrong = CheckDamage(request.damage()); !wrong.ok()) return reply(wrong);
  const auto found = (*run)->committed.find(request.sequence());
  if (found == (*run)->committed.end() || found->second.summary.tag() != tag) {
    return reply(
        MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                  absl::StrCat(tag, " with sequence ", request.sequence(), " is not in ", (*run)->path),
                  {{"tag", tag}}));
  }
  MarkDamaged(*run, request.sequence(), FromWire(request.damage()),
              [reply = std::move(reply)]() mutable { reply(v1::ReportDamageResponse()); });
}

void Engine::Impl::ClearDamage(const Caller& caller, const std::string& name, Reply<v1::Checkpoint> reply) {
  std::string tag;
  absl::StatusOr<Run*> found = RunOfCheckpointName(caller, name, &tag);
  if (!found.ok()) return reply(found.status());
  Run* run = *found;
  const auto committed =
      std::find_if(run->committed.begin(), run->committed.end(),
                   [&tag](const auto& entry) { return entry.second.summary.tag() == tag; });
  if (committed == run->committed.end()) {
    return reply(MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                           absl::StrCat("no checkpoint ", tag, " is committed in ", run->path),
                           {{"tag", tag}}));
  }
  const int64_t sequence = committed->first;
  run->io->SetDamage(
      tag, sequence, std::nullopt,
      [this, run, sequence, reply = std::move(reply)](absl::StatusOr<PointerFiles> set) mutable {
        if (!set.ok()) return reply(set.status());
        retention_.SetPointers(run, *std::move(set));
        auto known = run->committed.find(sequence);
        if (known == run->committed.end()) {
          return reply(
              MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT", "it was replaced in the meantime"));
        }
        known->second.damage.reset();
        reply(Describe(*run, known->second));
        retention_.Apply(run);  // It counts again.
      });
}

// ---- the agreement

void Engine::Impl::FinishResume(const Caller& caller, const v1::FinishResumeRequest& request,
                                Reply<v1::FinishResumeResponse> reply) {
  absl::StatusOr<Run*> run = FindRun(caller, request.run());
  if (!run.ok()) return reply(run.status());
  Member* member = FindMember(*run, caller.session, request.rank());
  if (member == nullptr) return reply(NotJoined(request.run(), request.rank()));
  absl::StatusOr<Duration> timeout =
      CheckDuration(request.has_timeout(), request.timeout(), "timeout", std::chrono::seconds(600),
                    std::chrono::milliseconds(1), std::chrono::seconds(86400));
  if (!timeout.ok()) return reply(timeout.status());
  if (absl::Status wrong = CheckDamage(request.damage()); !wrong.ok()) return reply(wrong);
  (*run)->ledger->Activate(
      member->attempt,
      [this, name = (*run)->name, request,
       finish = PendingFinish{caller.session, member->rank, member->attempt, member->world_size,
                              clock_->Now() + *timeout, std::move(reply)}](absl::Status active) mutable {
        if (!active.ok()) return finish.reply(active);
        if (!sessions_.contains(finish.session)) {
          return finish.reply(MakeError(absl::StatusCode::kAborted, "SESSION_LOST",
                                        "the session ended before FinishResume was answered"));
        }
        Finish(runs_.at(name).get(), request, std::move(finish));
      });
}

void Engine::Impl::Finish(Run* run, const v1::FinishResumeRequest& request, PendingFinish finish) {
  const int64_t sequence = request.sequence(), attempt = finish.attempt;
  if (request.has_damage()) {
    storage::v1::Damage damage = FromWire(request.damage());
    damage.set_message(absl::StrCat(damage.message(), " (found by rank ", finish.rank, ")"));
    return MarkDamaged(run, sequence, std::move(damage),
                       [reply = std::move(finish.reply)]() mutable { reply(v1::FinishResumeResponse()); });
  }
  const std::optional<Ledger::ResumeChoice> decided = run->ledger->DecidedResume(attempt);
  const bool stands = decided && decided->sequence == sequence;
  if (stands && decided->agreed) return finish.reply(v1::FinishResumeResponse());
  if (IsDamaged(*run, sequence)) return finish.reply(DamageError(*run->committed.at(sequence).damage));
  if (!stands || sequence == 0) {
    return finish.reply(
        MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                  absl::StrCat("attempt ", attempt, " does not resume from sequence ", sequence)));
  }
  Agreement& agreement = run->agreements[attempt];
  if (agreement.sequence != sequence) {
    agreement.sequence = sequence;
    agreement.tag = decided->tag;
    agreement.finished.clear();
    agreement.failed.clear();
  }
  if (!request.failure().empty()) {
    agreement.finished.erase(finish.rank);
    agreement.failed[finish.rank] = request.failure();
    finish.reply(v1::FinishResumeResponse());
    return ExpectAllRanks(run, attempt);
  }
  agreement.failed.erase(finish.rank);
  agreement.finished.insert(finish.rank);
  const bool all = static_cast<int>(agreement.finished.size()) == finish.world_size;
  agreement.waiting.push_back(std::move(finish));
  if (!all) return ExpectAllRanks(run, attempt);
  if (std::exchange(agreement.writing, true)) return;  // A retry: the same write answers it.
  run->ledger->AgreeResume(attempt, sequence, [this, run, attempt, sequence](absl::Status agreed) {
    const auto over = run->agreements.find(attempt);
    if (over == run->agreements.end() || over->second.sequence != sequence) return;
    over->second.writing = false;
    AnswerFinishes(run, attempt, agreed);
    if (agreed.ok()) MakeWayForSaves(run, sequence);
    retention_.Apply(run);  // It may have been all that kept a victim.
  });
}

// Those that wait need not wait for their deadline when a rank cannot go on, or its process has ended.
void Engine::Impl::ExpectAllRanks(Run* run, int64_t attempt) {
  const auto found = run->agreements.find(attempt);
  if (found == run->agreements.end() || found->second.waiting.empty()) return;
  const Agreement& agreement = found->second;
  if (agreement.writing) return;
  if (!agreement.failed.empty()) {
    const auto& [rank, why] = *agreement.failed.begin();
    return FailAgreement(
        run, attempt, ResumeFailed(agreement.tag, {rank}, absl::StrCat("rank ", rank, " could not: ", why)));
  }
  if (agreement.lost.empty()) return;
  const std::vector<int> lost(agreement.lost.begin(), agreement.lost.end());
  FailAgreement(run, attempt,
                ResumeFailed(agreement.tag, lost,
                             absl::StrCat("the trainers of ranks ", JoinRanks(lost), " have ended")));
}

void Engine::Impl::FailAgreement(Run* run, int64_t attempt, const absl::Status& error) {
  if (const auto found = run->agreements.find(attempt); found != run->agreements.end()) {
    found->second.finished.clear();
    found->second.writing = false;
  }
  AnswerFinishes(run, attempt, error);
}

void Engine::Impl::AnswerFinishes(Run* run, int64_t attempt, const absl::Status& status) {
  const auto found = run->agreements.find(attempt);
  if (found == run->agreements.end()) return;
  for (PendingFinish& finish : std::exchange(found->second.waiting, {})) {
    if (status.ok()) {
      finish.reply(v1::FinishResumeResponse());
    } else {
      finish.reply(status);
    }
  }
}

// Those on a checkpoint that turned out to be damaged.
void Engine::Impl::FailAgreements(Run* run, int64_t sequence) {
  if (!IsDamaged(*run, sequence)) return;
  const absl::Status error = DamageError(*run->committed.at(sequence).damage);
  std::vector<int64_t> attempts;
  for (const auto& [attempt, agreement] : run->agreements) {
    if (agreement.sequence == sequence) attempts.push_back(attempt);
  }
  for (int64_t attempt : attempts) {
    const auto decided = run->ledger->DecidedResume(attempt);
    if (decided && !decided->agreed) run->ledger->RejectResume(attempt, sequence);
    FailAgreement(run, attempt, error);
  }
}

// A rank whose wait has expired is told to resume again, so it does not count any more: else the others could
// agree without it, and retention could remove what it is about to read. Once all ranks have finished, only
// the write decides: an agreement that is on disk cannot be taken back.
void Engine::Impl::ExpireFinishes(Run* run, Instant now) {
  for (auto& [attempt, agreement] : run->agreements) {
    if (agreement.writing) continue;
    std::vector<PendingFinish> over;
    for (auto finish = agreement.waiting.begin(); finish != agreement.waiting.end();) {
      if (now < finish->deadline) {
        ++finish;
        continue;
      }
      over.push_back(std::move(*finish));
      finish = agreement.waiting.erase(finish);
    }
    for (PendingFinish& finish : over) {
      std::vector<int> missing;
      for (int rank = 0; rank < finish.world_size; ++rank) {
        if (!agreement.finished.contains(rank)) missing.push_back(rank);
      }
      finish.reply(MakeError(absl::StatusCode::kDeadlineExceeded, "RESUME_INCOMPLETE",
                             absl::StrCat("ranks ", JoinRanks(missing), " have not finished reading ",
                                          agreement.tag, " in time"),
                             {{"tag", agreement.tag}, {"ranks", JoinRanks(missing)}}));
    }
    for (const PendingFinish& finish : over) {
      const bool retried =
          std::any_of(agreement.waiting.begin(), agreement.waiting.end(),
                      [&finish](const PendingFinish& other) { return other.rank == finish.rank; });
      if (!retried) agreement.finished.erase(finish.rank);
    }
  }
}

}  // namespace ckptd
