// The operators' settings of a run: follows those in etcd, and writes those that are set on this node.
#ifndef CKPTD_DAEMON_CLUSTER_NODE_SETTING_KEYS_H_
#define CKPTD_DAEMON_CLUSTER_NODE_SETTING_KEYS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/cluster/node/ledger_calls.h"
#include "daemon/etcd/etcd.h"
#include "daemon/etcd/etcd_mirror.h"
#include "daemon/ledger/keys/ended_removals.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "daemon/ledger/state/run_settings.h"
#include "storage/base/clock.h"
#include "storage/commit/steps/types.h"

namespace ckptd {

// Follows the settings of the run, and keeps them across registrations. Used on one thread.
class SettingKeys {
 public:
  using Done = absl::AnyInvocable<void(absl::Status)>;
  using Policy = std::optional<storage::v1::RetentionPolicy>;

  struct Options {
    std::string prefix;  // Of the run's keys, with the slash at its end.
    std::string run;     // For messages.
    Duration patience = std::chrono::seconds(30);
    LedgerCalls::WhyUnregistered why_unregistered = nullptr;
    std::shared_ptr<const EndedRemovals> ended_removals = nullptr;  // See RunSettings.
  };
  // Run when a setting changes, on any node. The order in which one setting changes is the same on all nodes;
  // a node that was away sees only what holds now.
  struct Hooks {
    std::function<void(const std::string& tag, int64_t sequence, bool pinned)> pin_changed;
    std::function<void(const Policy&)> retention_changed;
    // Runs once, when this node knows all settings.
    std::function<void()> known;
    // Etcd refuses to show the settings: an error of EtcdMirror.
    std::function<void(const absl::Status& why)> ended;
  };
  // `etcd` and `clock` must outlive it.
  SettingKeys(Etcd* etcd, Clock* clock, Options options, Hooks hooks);

  // The present registration; null: none.
  void SetNode(const NodeIdentity* node);
  void OnTick() { calls_.OnTick(); }
  // Whether this node has known all settings, in this registration or an earlier one.
  bool known() const { return known_; }

  // OK: all nodes comply from now on, and the hook has run on this one. Errors of RunSettings;
  // LEDGER_UNAVAILABLE after the patience.
  void SetPinned(const std::string& tag, int64_t sequence, bool pinned, Done set);
  void SetRetention(const Policy& policy, Done set);

  // Gives a checkpoint that was found in the root etcd's pin. Writes a pin that only the root has, as in a
  // run that has come from another etcd, to etcd.
  void Apply(CommittedCheckpoint* checkpoint);

 private:
  void OnKeys(const std::vector<std::string>& changed);
  void OnPin(int64_t sequence, const ledger::v1::CheckpointPin& pin);
  void OnRetention(const ledger::v1::RetentionOverride& setting);
  void Remember(const std::string& tag, int64_t sequence);

  Etcd* const etcd_;
  Clock* const clock_;
  const Options options_;
  const Hooks hooks_;
  const LedgerKeys keys_;
  LedgerCalls calls_;
  // Of the present registration.
  std::unique_ptr<RunSettings> ledger_;
  std::unique_ptr<EtcdMirror> mirror_;
  bool known_ = false;
  std::map<int64_t, ledger::v1::CheckpointPin> pins_;  // By sequence.
  ledger::v1::RetentionOverride retention_;
  std::set<int64_t> remembering_;  // Their pins are being written to etcd.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_NODE_SETTING_KEYS_H_
