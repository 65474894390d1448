#include "daemon/engine/run/local_authority.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/ledger/ledger.h"

namespace ckptd {

std::string LocalAuthority::name() const { return absl::StrCat("the file system of ", run_->path); }

void LocalAuthority::Begin(const SaveId& save, Instant, const std::vector<int>&) {
  run_->ledger->Admit(save.attempt, [this, save](const absl::StatusOr<int64_t>& sequence) {
    if (!sequence.ok()) return hooks_.failed(save, sequence.status());
    hooks_.changed(save, {.phase = Decision::kProposed, .sequence = *sequence});
  });
}

void LocalAuthority::Accept(const SaveId& save, const std::optional<storage::v1::RetentionPolicy>&) {
  hooks_.changed(save, {.phase = Decision::kAdmitted});
}

void LocalAuthority::Sealed(const SaveId& save) { hooks_.changed(save, {.phase = Decision::kSealed}); }

void LocalAuthority::Fail(const SaveId& save, const absl::Status& why) {
  hooks_.released(save);
  hooks_.changed(save, {.phase = Decision::kEnded, .end = why});
}

void LocalAuthority::OpenPart(InflightId64 id, const std::string& tag, int64_t sequence, const std::string&,
                              int64_t manifest_bytes, Callback<absl::Status> done) {
  run_->local_io->CreateInflight(id, tag, sequence, manifest_bytes, std::move(done));
}

void LocalAuthority::Durable(const SaveId& save, const std::string&) {
  publish_(save, [this, save](const Decision& decision, LoadedCheckpoint published) {
    if (decision.phase == Decision::kEnded) return Fail(save, decision.end);
    published_ = std::move(published);
    hooks_.changed(save, decision);
  });
}

void LocalAuthority::LoadCheckpoint(const std::string&, int64_t,
                                    Callback<absl::StatusOr<LoadedCheckpoint>> done) {
  done(std::move(published_));
}

void LocalAuthority::SettleSave(const std::string& tag, bool, Callback<absl::StatusOr<Settled>> done) {
  done(MakeError(absl::StatusCode::kFailedPrecondition, reason::kOutcomePending,
                 absl::StrCat("the root ", run_->path,
                              " is of one node, whose daemon finds out by itself what has become of a save, "
                              "when it has scanned the root"),
                 {{"tag", tag}}));
}

void LocalAuthority::MarkDamaged(const storage::v1::Damage& damage, Callback<absl::Status> marked) {
  hooks_.damage_changed(damage.sequence(), damage,
                        [marked = std::move(marked)]() mutable { marked(absl::OkStatus()); });
}

// On disk first: a mark that could come back with the next daemon is not taken away.
void LocalAuthority::ClearDamage(int64_t sequence, Callback<absl::Status> cleared) {
  const CommittedCheckpoint* marked = run_->catalog.Find(sequence);
  const std::string tag = marked == nullptr ? "" : marked->summary.tag();
  run_->io->SetDamage(
      tag, sequence, std::nullopt,
      [this, sequence, cleared = std::move(cleared)](const absl::StatusOr<PointerFiles>& set) mutable {
        if (!set.ok()) return cleared(set.status());
        hooks_.damage_changed(sequence, std::nullopt,
                              [cleared = std::move(cleared)]() mutable { cleared(absl::OkStatus()); });
      });
}

void LocalAuthority::SetPinned(const std::string& tag, int64_t sequence, bool pinned,
                               Callback<absl::Status> set) {
  run_->io->SetPinned(
      tag, sequence, pinned,
      [this, tag, sequence, pinned, set = std::move(set)](const absl::Status& recorded) mutable {
        if (recorded.ok()) hooks_.pin_changed(tag, sequence, pinned);
        set(recorded);
      });
}

// The ranks of this node are all that there are. When they have all read it, only the disk decides.
void LocalAuthority::FinishResume(int64_t attempt, int64_t sequence, const absl::Status& mine, Instant,
                                  Callback<absl::Status> finished) {
  if (!mine.ok()) return finished(mine);
  run_->ledger->AgreeResume(attempt, sequence, std::move(finished));
}

}  // namespace ckptd
