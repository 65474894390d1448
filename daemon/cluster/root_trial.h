// Has the nodes of each launch try together whether the file system of their root gives what several nodes need.
#ifndef CKPTD_DAEMON_CLUSTER_ROOT_TRIAL_H_
#define CKPTD_DAEMON_CLUSTER_ROOT_TRIAL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/engine/seams/shared_files_io.h"
#include "daemon/etcd/backoff.h"
#include "daemon/etcd/etcd.h"
#include "daemon/etcd/etcd_listing.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"
#include "storage/commit/shared/trials/try_nodes.h"

namespace ckptd {

// When etcd has all ranks of an attempt that this node has joined, their nodes try the root together, beside the work of
// the attempt. All of them know the participants from etcd, and judge alike, so they need no other agreement. No trial
// is made if all of them have tried the root before. An attempt whose trial cannot be made goes on. Used on one thread.
class RootTrial {
 public:
  struct Options {
    std::string prefix;  // Of the run's keys.
    std::string run;     // The path of the root, for messages.
    Duration visibility = std::chrono::seconds(5);
  };
  struct Hooks {
    // unsuitable() has changed.
    std::function<void()> changed;
    std::function<void(const std::string& message)> noticed;    // As Authority::Hooks::noticed.
    std::function<void(const std::string& message)> succeeded;  // Information for the log.
  };
  // `etcd`, `clock` and `files` must outlive it.
  RootTrial(Etcd* etcd, Clock* clock, SharedFilesIo* files, Options options, Hooks hooks);
  ~RootTrial() { *stop_ = true; }

  // A rank of this node has joined the attempt. The first rank of a newer attempt ends the trial of the earlier one, and
  // discards its result.
  void Joined(int64_t attempt, int world_size, const std::string& node);
  void OnTick();

  // FAILED_PRECONDITION, reason ROOT_UNSUITABLE: what the nodes of the newest attempt have found, and what to do.
  const absl::Status& unsuitable() const { return unsuitable_; }

 private:
  void Look();
  void OnRanks(int64_t attempt, const absl::StatusOr<EtcdListing>& ranks);
  void Try(std::vector<std::string> nodes);
  void OnTried(const std::vector<std::string>& nodes, const absl::StatusOr<NodesTried>& tried);

  Etcd* const etcd_;
  Clock* const clock_;
  SharedFilesIo* const files_;
  const Options options_;
  const Hooks hooks_;

  // The newest attempt.
  int64_t attempt_ = 0;
  int world_size_ = 0;
  std::string node_;
  bool is_looking_ = false;  // The nodes of the attempt are not known yet; until look_until_.
  bool asked_ = false;       // A listing is in flight.
  Instant look_until_{};
  Backoff look_again_;
  // Ends the trial that runs; read by other threads.
  std::shared_ptr<std::atomic<bool>> stop_ = std::make_shared<std::atomic<bool>>(false);
  absl::Status unsuitable_;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_ROOT_TRIAL_H_
