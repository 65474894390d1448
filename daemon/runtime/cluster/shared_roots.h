// The roots that several nodes share, for the engine of this one: which roots these are, and what the engine
// gets to reach them.
#ifndef CKPTD_DAEMON_RUNTIME_CLUSTER_SHARED_ROOTS_H_
#define CKPTD_DAEMON_RUNTIME_CLUSTER_SHARED_ROOTS_H_

#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "ckptd/v1/messages.pb.h"
#include "daemon/config/shared_folders.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/seams/shared_files_io.h"
#include "daemon/etcd/etcd.h"
#include "daemon/ledger/nodes/node_identity.h"
#include "daemon/ledger/state/user_use.h"
#include "storage/base/clock.h"

namespace ckptd {

// Used on the engine's thread; destroyed after the engine, and with it all runs that it has
// opened.
//
// A root opens without a registration of this node in etcd: what needs one waits for it, and is answered with
// LEDGER_UNAVAILABLE when that takes too long (NodesRun).
class SharedRoots {
 public:
  struct Options {
    SharedFolders folders;
    std::string cluster_prefix;  // Of all keys of ckptd in this etcd, with the slash at its end.
    Duration grace{};            // For a lost node to come back.
    Duration visibility = std::chrono::seconds(5);    // As NodesRun::Options::visibility.
    Duration ended_kept_for = std::chrono::hours(1);  // As NodesRun::Options::ended_kept_for.
    UseBound bound;                                   // On what the runs of one user have in etcd.
    // As ClusterNode::WhyUnregistered; may be null.
    std::function<absl::Status()> why_unregistered = nullptr;
  };
  using Post = std::function<void(absl::AnyInvocable<void()>)>;  // To the engine's thread; thread-safe.
  using Follower = std::function<void(const NodeIdentity*)>;     // The registration of this node; null: none.
  // As ClusterNode::Follow.
  using Follow = std::function<std::shared_ptr<const Follower>(Follower)>;
  // As ClusterNode::RegisterAnew.
  using RegisterAnew = std::function<void(const absl::Status& why)>;

  // `clock`: that of the engine, whose deadlines it gets. `etcd` and `clock` must outlive it.
  SharedRoots(Etcd* etcd, Clock* clock, Options options, Post post, Follow follow,
              RegisterAnew register_anew);

  // Also for the runs that are open.
  void SetBound(const UseBound& bound);
  // For roots that are opened from now on. One that is open stays what it is, so those whose folder comes or goes
  // must be closed before.
  void SetFolders(const SharedFolders& folders) { options_.folders = folders; }

  // Of a root at this path, which is absolute and without symbolic links; empty: this process has none.
  bool IsShared(const std::string& path) const { return IsInSharedFolder(options_.folders, path); }
  // The folder that it is in; empty: none of these.
  std::string FolderOf(const std::string& path) const { return SharedFolderOf(options_.folders, path); }

  // `path`: of the root, as the processes of a launch name it.
  RootAccess Open(std::unique_ptr<SharedFilesIo> files, const std::string& path);

  // Ends the saves that the end of this daemon would lose, so that the other nodes do not wait for it. Before
  // Resign; call it once. `ended` runs at the deadline at the latest.
  void EndSaves(Instant deadline, absl::AnyInvocable<void()> ended);
  // Gives up what this node decides for others, so that they go on at once. Before the node gives its name
  // up; call it once. The first error counts.
  void Resign(absl::AnyInvocable<void(absl::Status)> resigned);

  // Adds the shared folders, and the open runs.
  void Describe(v1::ClusterStatus* status) const;

 private:
  class OpenRun;
  using Answer = std::function<void(const absl::Status&)>;
  void AskAll(const std::function<void(OpenRun*, Answer)>& ask,
              absl::AnyInvocable<void(absl::Status)> answered);

  Etcd* const etcd_;
  Clock* const clock_;
  Options options_;
  const Post post_;
  const Follow follow_;
  const RegisterAnew register_anew_;
  std::set<OpenRun*> runs_;  // The engine owns them.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_CLUSTER_SHARED_ROOTS_H_
