// Whether this node has the folders that all nodes share: for its log and for `ckptctl status`.
#ifndef CKPTD_DAEMON_RUNTIME_CLUSTER_SHARED_FOLDER_LOOKS_H_
#define CKPTD_DAEMON_RUNTIME_CLUSTER_SHARED_FOLDER_LOOKS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "ckptd/v1/messages.pb.h"
#include "storage/base/callback_scope.h"
#include "storage/base/clock.h"

namespace ckptd {

// Looks at each folder now and then, because its file system may be mounted late, or unmounted. Used on one thread.
class SharedFolderLooks {
 public:
  using Look = absl::AnyInvocable<absl::Status()>;
  using Done = absl::AnyInvocable<void(absl::Status)>;
  // Runs `look` on a thread that may hang with the file system. Answers on the thread of this object, with an error once the
  // look has taken too long; not when the daemon ends.
  using Run = std::function<void(Look look, Done done)>;

  // `look`: OK if the folder can be used; blocks on its file system.
  SharedFolderLooks(Clock* clock, std::function<absl::Status(const std::string& folder)> look, Run run)
      : clock_(clock), look_(std::move(look)), run_(std::move(run)) {}

  void SetFolders(const std::vector<std::string>& folders);
  void OnTick();
  // Those that could not be used when they were last looked at.
  void Describe(v1::ClusterStatus* status) const;

 private:
  struct Folder {
    // Of the last look that has ended.
    absl::Status status;
    Instant next_look{};
    // The look that runs, also one that has not answered in time: no second thread hangs with the same file system.
    std::weak_ptr<const bool> running;
  };
  void Start(const std::string& name, Folder& folder);
  void OnLooked(const std::string& name, const absl::Status& status);

  Clock* const clock_;
  const std::function<absl::Status(const std::string& folder)> look_;
  const Run run_;
  std::map<std::string, Folder> folders_;
  CallbackScope callbacks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_CLUSTER_SHARED_FOLDER_LOOKS_H_
