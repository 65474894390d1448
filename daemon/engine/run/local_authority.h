// The authority of a run of one node: its ledger, kept in the root, gives the sequences, and what this node
// asks for is decided.
#ifndef CKPTD_DAEMON_ENGINE_RUN_LOCAL_AUTHORITY_H_
#define CKPTD_DAEMON_ENGINE_RUN_LOCAL_AUTHORITY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/seams/authority.h"
#include "daemon/engine/seams/root_io.h"
#include "storage/ledger/ledger.h"

namespace ckptd {

// The hooks run within the call that asks, but for those that report a publication or a pin. Hooks that report what
// other nodes do never run: checkpoints that they remove or find damaged, their coordinator, a
// registration.
class LocalAuthority : public Authority {
 public:
  // Publishes a save that is durable, and says what is decided: kPublishing, kSealed if nothing was published
  // and it is tried again, and at last kCommitted with the checkpoint, kEnded or kUnknown. Before kPublishing
  // the save may end without this.
  using Decided = std::function<void(const Decision&, LoadedCheckpoint)>;
  using Publish = std::function<void(const SaveId&, Decided)>;

  // Owned by `run`.
  LocalAuthority(Run* run, Publish publish) : run_(run), publish_(std::move(publish)) {}

  void Start(Hooks hooks) override { hooks_ = std::move(hooks); }
  void OnTick() override {}
  std::string name() const override;
  bool may_span_nodes() const override { return false; }
  bool coordinates() const override { return true; }
  Ledger* ledger() override { return run_->own_ledger.get(); }
  SharedUploads* uploads() override { return nullptr; }
  void SetIdle(bool) override {}
  bool may_close() const override { return true; }
  void Begin(const SaveId& save, Instant admission_deadline, const std::vector<int>& ranks) override;
  // The ledger gives a sequence without waiting for anything.
  void SkipAfter(const SaveId&, Duration) override {}
  void Accept(const SaveId& save, const std::optional<storage::v1::RetentionPolicy>& retention) override;
  void Sealed(const SaveId& save) override;
  void Fail(const SaveId& save, const absl::Status& why) override;
  // The save was in the memory of that daemon alone.
  void WhenEnded(const SaveId&, Callback<std::optional<Decision>> ended) override { ended(std::nullopt); }
  void OpenPart(InflightId64 id, const std::string& tag, int64_t sequence, const std::string& inflight,
                int64_t manifest_bytes, Callback<absl::Status> done) override;
  // The record of each rank is durable already.
  void FinishPart(InflightId64, std::vector<storage::v1::PartRecord>,
                  Callback<absl::StatusOr<std::string>> done) override {
    done("");
  }
  void Durable(const SaveId& save, const std::string& digest) override;
  void LoadCheckpoint(const std::string& tag, int64_t sequence,
                      Callback<absl::StatusOr<LoadedCheckpoint>> done) override;
  bool next_daemon_continues() const override { return true; }
  // The daemon finds out by itself, with a scan: OUTCOME_PENDING.
  void SettleSave(const std::string& tag, bool is_checkpoint,
                  Callback<absl::StatusOr<Settled>> done) override;
  // The mark counts within the call, and is answered when the root has recorded it, or could not.
  void MarkDamaged(const storage::v1::Damage& damage, Callback<absl::Status> marked) override;
  void ClearDamage(int64_t sequence, Callback<absl::Status> cleared) override;
  void Delete(const std::string& tag, int64_t sequence, bool force, Callback<absl::Status> deleted) override {
    hooks_.delete_requested(tag, sequence, force, std::move(deleted));
  }
  void SetPinned(const std::string& tag, int64_t sequence, bool pinned, Callback<absl::Status> set) override;
  // No other node has begun any.
  void WhenSettled(int64_t, Callback<absl::StatusOr<bool>> settled) override { settled(false); }
  void FinishResume(int64_t attempt, int64_t sequence, const absl::Status& mine, Instant deadline,
                    Callback<absl::Status> finished) override;

 private:
  Run* const run_;
  const Publish publish_;
  Hooks hooks_;
  LoadedCheckpoint published_;  // Of the kCommitted that is being reported.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RUN_LOCAL_AUTHORITY_H_
