#include "daemon/engine/save/ended_saves.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

constexpr size_t kMaxSaves = 256;    // Of one run.
constexpr size_t kMaxFailures = 64;  // Of one run.

v1::Checkpoint FromHistory(const Run& run, const storage::v1::Outcome& outcome) {
  v1::Checkpoint checkpoint;
  checkpoint.set_name(absl::StrCat(run.name, "/checkpoints/", outcome.tag()));
  checkpoint.set_run(run.name);
  checkpoint.set_tag(outcome.tag());
  checkpoint.set_sequence(outcome.sequence());
  checkpoint.set_attempt(outcome.attempt());
  checkpoint.set_ordinal(outcome.ordinal());
  checkpoint.set_level(static_cast<v1::Level>(outcome.level()));
  if (outcome.level() < v1::FAILED) return checkpoint;
  v1::SaveError& error = *checkpoint.mutable_error();
  error.set_reason(outcome.reason());
  error.set_message(outcome.message());
  error.set_code(outcome.code());
  *error.mutable_ranks() = outcome.ranks();
  return checkpoint;
}

template <typename Message>  // A ManifestSummary or an Outcome.
bool IsOf(const Message& message, const SaveId& key) {
  return message.tag() == key.tag && message.attempt() == key.attempt && message.ordinal() == key.ordinal;
}

}  // namespace

void EndedSaves::Add(std::unique_ptr<Save> save) {
  std::deque<std::unique_ptr<Save>>& saves = states_.Of(save->run).saves;
  whole_.push_back(save.get());
  saves.push_back(std::move(save));
  while (saves.size() > kMaxSaves) {
    std::erase(whole_, saves.front().get());
    saves.pop_front();
  }
}

const Save* EndedSaves::Find(const Run* run, const SaveId& key) const {
  const std::deque<std::unique_ptr<Save>>& saves = states_.Of(run).saves;
  for (auto save = saves.rbegin(); save != saves.rend(); ++save) {
    if ((*save)->key == key) return save->get();
  }
  return nullptr;
}

const Save* EndedSaves::FindNewest(const Run* run, const std::string& tag) const {
  const std::deque<std::unique_ptr<Save>>& saves = states_.Of(run).saves;
  for (auto save = saves.rbegin(); save != saves.rend(); ++save) {
    if ((*save)->key.tag == tag) return save->get();
  }
  return nullptr;
}

std::optional<v1::Checkpoint> EndedSaves::Past(const Run& run, const SaveId& key) const {
  if (const Save* ended = Find(&run, key)) return hooks_.describe_save(*ended);
  for (const int64_t sequence : run.catalog.SequencesOf(key.tag)) {
    // An earlier life of the run has saved it, whose attempts had the same numbers.
    if (sequence == run.ledger->record().uploads().fetched_sequence()) continue;
    const CommittedCheckpoint& committed = *run.catalog.Find(sequence);
    if (IsOf(committed.summary, key)) return hooks_.describe_committed(run, committed);
  }
  const auto& outcomes = run.ledger->record().outcomes();
  for (auto outcome = outcomes.rbegin(); outcome != outcomes.rend(); ++outcome) {
    if (IsOf(*outcome, key)) return FromHistory(run, *outcome);
  }
  return std::nullopt;
}

void EndedSaves::AddFailure(const Run* run, v1::Checkpoint failure) {
  std::deque<v1::Checkpoint>& failures = states_.Of(run).failures;
  failures.push_back(std::move(failure));
  while (failures.size() > kMaxFailures) failures.pop_front();
}

int64_t EndedSaves::ForgetLost(const Run* run, int64_t attempt, const std::string& tag) {
  int64_t sequence = 0;
  std::erase_if(states_.Of(run).failures, [&](const v1::Checkpoint& failure) {
    const bool is_it = failure.ordinal() == 0 && failure.attempt() == attempt && failure.tag() == tag;
    if (is_it) sequence = failure.sequence();
    return is_it;
  });
  return sequence;
}

void EndedSaves::OnTick() {
  for (Save* save : std::exchange(whole_, {})) {
    save->summary = std::make_unique<v1::Checkpoint>(hooks_.describe_save(*save));
    save->claims.Clear();  // They refer to the parts.
    save->parts.clear();
    save->base.reset();
    save->pointers.clear();
    save->metrics.clear();
  }
}

void EndedSaves::Forget(const Run* run) {
  std::erase_if(whole_, [run](const Save* save) { return save->run == run; });
  states_.Forget(run);
}

v1::Level LevelOfEnd(const absl::Status& end) {
  if (ReasonOf(end) == reason::kSkipped) return v1::SKIPPED;
  return ReasonOf(end) == reason::kSuperseded ? v1::SUPERSEDED : v1::FAILED;
}

absl::Status CommittedAlready(const SaveId& id) {
  return MakeError(absl::StatusCode::kAlreadyExists, reason::kSaveConflict,
                   absl::StrCat("this save of ", id.tag, " is committed already"), {{"tag", id.tag}});
}

}  // namespace ckptd
