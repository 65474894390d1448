#include "daemon/engine/reading/damage_marks.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "daemon/engine/run/catalog.h"
#include "daemon/engine/seams/authority.h"
#include "daemon/engine/seams/validate.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

// "file model.pt: chunk 3 ...", or the message alone where it names the file or concerns the whole
// checkpoint.
template <typename Damage>
std::string Words(const Damage& damage) {
  const bool named = damage.path().empty() || damage.message().find(damage.path()) != std::string::npos;
  return named ? damage.message() : absl::StrCat("file ", damage.path(), ": ", damage.message());
}

ErrorDetails DetailsOfDamage(const storage::v1::Damage& damage) {
  ErrorDetails details{{"tag", damage.tag()}, {"sequence", absl::StrCat(damage.sequence())}};
  if (!damage.path().empty()) details["path"] = damage.path();
  if (damage.has_chunk()) details["chunk"] = absl::StrCat(damage.chunk());
  if (!damage.expected().empty()) details["expected"] = damage.expected();
  if (!damage.found().empty()) details["found"] = damage.found();
  return details;
}

}  // namespace

bool IndicatesDamage(const Run& run, const absl::Status& error) {
  if (run.read_only || run.scanning) return false;
  // An I/O error or a missing device concerns the disk, perhaps all of it, and no single checkpoint.
  return ProvesDamage(error) || (absl::IsNotFound(error) && !CouldNotFindOut(error));
}

storage::v1::Damage DamageFromError(const absl::Status& error) {
  const ErrorDetails details = DetailsOf(error);
  const auto detail = [&details](const char* name) {
    const auto found = details.find(name);
    return found == details.end() ? std::string() : found->second;
  };
  storage::v1::Damage damage;
  damage.set_path(detail("path"));
  damage.set_expected(detail("expected"));
  damage.set_found(detail("found"));
  damage.set_message(std::string(error.message()));
  return damage;
}

absl::Status DamageError(const storage::v1::Damage& damage) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kCheckpointDamaged,
                   absl::StrCat("checkpoint ", damage.tag(), " is damaged: ", Words(damage),
                                "; resume again for the next older one"),
                   DetailsOfDamage(damage));
}

absl::Status DamagedError(const Run& run, const std::vector<v1::Checkpoint>& damaged,
                          const std::string& advice) {
  std::string words;
  for (const v1::Checkpoint& checkpoint : damaged) {
    absl::StrAppend(&words, words.empty() ? "" : "; ", checkpoint.tag(), ": ", Words(checkpoint.damage()));
  }
  return MakeError(absl::StatusCode::kDataLoss, reason::kCheckpointDamaged,
                   absl::StrCat("in ", run.path, " ", damaged.size(),
                                damaged.size() == 1 ? " checkpoint is" : " checkpoints are", " damaged (",
                                words, "): ", advice),
                   {{"tag", damaged.front().tag()}});
}

std::vector<v1::Checkpoint> PassedOver(const Run& run, int64_t sequence, const DescribeCheckpoint& describe) {
  std::vector<v1::Checkpoint> passed;
  const auto& committed = run.catalog.committed();
  for (auto entry = committed.rbegin(); entry != committed.rend() && entry->first > sequence; ++entry) {
    if (!IsGood(entry->second)) passed.push_back(describe(run, entry->second));
  }
  for (const DamagedCheckpoint& unreadable : run.catalog.unreadable())
    passed.push_back(ToWire(run, unreadable));
  return passed;
}

std::vector<v1::Checkpoint> DamagedAfter(const Run& run, int64_t sequence,
                                         const DescribeCheckpoint& describe) {
  std::vector<v1::Checkpoint> damaged = PassedOver(run, sequence, describe);
  std::erase_if(damaged, [](const v1::Checkpoint& checkpoint) { return !checkpoint.has_damage(); });
  return damaged;
}

absl::Status SuspectError(const CommittedCheckpoint& suspect, const std::string& advice) {
  const std::string& tag = suspect.summary.tag();
  return MakeError(
      absl::StatusCode::kFailedPrecondition, reason::kSuspect,
      absl::StrCat("checkpoint ", tag, " is suspect (", suspect.summary.suspect(), "): ", advice),
      {{"tag", tag}, {"sequence", absl::StrCat(suspect.summary.sequence())}});
}

// ---- DamageMarks

void DamageMarks::Mark(Run* run, int64_t sequence, storage::v1::Damage damage, DamageMarked done) {
  const CommittedCheckpoint* checkpoint = run->catalog.Find(sequence);
  if (checkpoint == nullptr) return done(absl::OkStatus());  // Evicted or replaced in the meantime.
  const std::string tag = checkpoint->summary.tag();
  damage.set_tag(tag);
  damage.set_sequence(sequence);
  damage.set_time_us(clock_->UnixMicros());
  // A reader that finds the same damage again, too, waits until the mark is on disk.
  if (checkpoint->damage) {
    return Record(run, sequence, tag, checkpoint->damage,
                  [done = std::move(done)]() mutable { done(absl::OkStatus()); });
  }
  ++asking_.Of(run);
  run->authority->MarkDamaged(
      damage, [this, run, damage, done = std::move(done)](const absl::Status& marked) mutable {
        --asking_.Of(run);
        if (!marked.ok()) {
          observer_->OnWarning(absl::StrCat("checkpoint ", run->path, "/", damage.tag(),
                                            " is offered although a reader has found damage (", Words(damage),
                                            "): ", std::string(marked.message())));
        }
        done(marked);
      });
}

void DamageMarks::MarkHere(Run* run, const storage::v1::Damage& damage) {
  run->catalog.SetDamage(damage.sequence(), damage);
  const CommittedCheckpoint* newest = run->catalog.Newest();
  observer_->OnWarning(absl::StrCat(
      "checkpoint ", run->path, "/", damage.tag(), " is damaged: ", Words(damage),
      "; it is not offered any more, ",
      newest == nullptr ? "and there is no other" : absl::StrCat(newest->summary.tag(), " is the latest")));
  listeners_.marked(run, damage.sequence());
}

void DamageMarks::OnChanged(Run* run, int64_t sequence, const std::optional<storage::v1::Damage>& damage,
                            absl::AnyInvocable<void()> recorded) {
  const CommittedCheckpoint* checkpoint = run->catalog.Find(sequence);
  const std::string tag = checkpoint != nullptr ? checkpoint->summary.tag() : damage ? damage->tag() : "";
  if (damage && checkpoint != nullptr && !checkpoint->damage) {
    MarkHere(run, *damage);
  } else {
    run->catalog.SetDamage(sequence, damage);
  }
  // Also of a checkpoint that is not listed here yet: a later look at the root must not offer it.
  Record(run, sequence, tag, damage, std::move(recorded));
  if (!damage) listeners_.cleared(run);
}

void DamageMarks::Record(Run* run, int64_t sequence, const std::string& tag,
                         const std::optional<storage::v1::Damage>& damage,
                         absl::AnyInvocable<void()> recorded) {
  run->io->SetDamage(
      tag, sequence, damage,
      [this, run, sequence, tag, recorded = std::move(recorded)](absl::StatusOr<PointerFiles> set) mutable {
        if (set.ok()) {
          listeners_.pointers_changed(run, *std::move(set));
        } else if (run->catalog.IsDamaged(sequence)) {
          observer_->OnWarning(absl::StrCat("the root could not record that checkpoint ", run->path, "/", tag,
                                            " is damaged, so that the next daemon may offer it again: ",
                                            std::string(set.status().message())));
        }
        listeners_.recorded(run, sequence);
        if (recorded != nullptr) recorded();
      });
}

void DamageMarks::Report(Run* run, const std::string& tag, const v1::ReportDamageRequest& request,
                         Reply<v1::ReportDamageResponse> reply) {
  if (absl::Status wrong = CheckDamage(request.damage()); !wrong.ok()) return reply(wrong);
  const CommittedCheckpoint* found = run->catalog.Find(request.sequence());
  if (found == nullptr || found->summary.tag() != tag) {
    return reply(MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint,
                           absl::StrCat(tag, " with sequence ", request.sequence(), " is not in ", run->path),
                           {{"tag", tag}}));
  }
  Mark(run, request.sequence(), FromWire(request.damage()),
       [reply = std::move(reply)](const absl::Status& marked) mutable {
         if (!marked.ok()) return reply(marked);
         reply(v1::ReportDamageResponse());
       });
}

void DamageMarks::Clear(Run* run, const std::string& tag, Reply<v1::Checkpoint> reply) {
  const CommittedCheckpoint* marked = run->catalog.FindTag(tag);
  if (marked == nullptr) {
    return reply(MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint,
                           absl::StrCat("no checkpoint ", tag, " is committed in ", run->path),
                           {{"tag", tag}}));
  }
  const int64_t sequence = marked->summary.sequence();
  ++asking_.Of(run);
  run->authority->ClearDamage(
      sequence, [this, run, sequence, reply = std::move(reply)](const absl::Status& cleared) mutable {
        --asking_.Of(run);
        if (!cleared.ok()) return reply(cleared);
        AnswerCleared(run, sequence, std::move(reply));
      });
}

void DamageMarks::AnswerCleared(Run* run, int64_t sequence, Reply<v1::Checkpoint> reply) {
  const CommittedCheckpoint* checkpoint = run->catalog.Find(sequence);
  if (checkpoint == nullptr) {
    return reply(
        MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint, "it was replaced in the meantime"));
  }
  reply(describe_(*run, *checkpoint));
}

}  // namespace ckptd
