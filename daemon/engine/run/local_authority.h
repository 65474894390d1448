// The authority of a run of one node: its ledger, kept in the root, gives the sequences, and what this node
// asks for is decided.
#ifndef CKPTD_DAEMON_ENGINE_RUN_LOCAL_AUTHORITY_H_
#define CKPTD_DAEMON_ENGINE_RUN_LOCAL_AUTHORITY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/seams/authority.h"

namespace ckptd {

// The hooks run within the call that asks. Hooks that report what other nodes do never run: checkpoints that
// they remove or find damaged, their coordinator, a registration.
class LocalAuthority : public Authority {
 public:
  explicit LocalAuthority(Run* run) : run_(run) {}  // Owned by `run`.

  void Start(Hooks hooks) override { hooks_ = std::move(hooks); }
  void OnTick() override {}
  std::string name() const override;
  bool may_close() const override { return true; }
  void Begin(const SaveId& save, Instant admission_deadline, const std::vector<int>& ranks) override;
  // The ledger gives a sequence without waiting for anything.
  void SkipAfter(const SaveId&, Duration) override {}
  void Accept(const SaveId& save, const std::optional<storage::v1::RetentionPolicy>& retention) override;
  void Sealed(const SaveId& save) override;
  void Fail(const SaveId& save, const absl::Status& why) override;
  void OpenPart(InflightId64 id, const std::string& tag, int64_t sequence, const std::string& inflight,
                int64_t manifest_bytes, Callback<absl::Status> done) override;

 private:
  Run* const run_;
  Hooks hooks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RUN_LOCAL_AUTHORITY_H_
