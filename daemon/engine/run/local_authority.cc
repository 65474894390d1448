#include "daemon/engine/run/local_authority.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
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
  run_->io->CreateInflight(id, tag, sequence, manifest_bytes, std::move(done));
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

}  // namespace ckptd
