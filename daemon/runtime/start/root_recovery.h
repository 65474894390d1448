// Recovers the roots that the daemon knows from its last run, and tries those again that cannot be opened
// yet.
#ifndef CKPTD_DAEMON_RUNTIME_START_ROOT_RECOVERY_H_
#define CKPTD_DAEMON_RUNTIME_START_ROOT_RECOVERY_H_

#include <functional>
#include <vector>

#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/attach/attach_queue.h"
#include "daemon/attach/root_attacher.h"
#include "daemon/attach/root_retries.h"
#include "daemon/base/event_loop.h"
#include "daemon/engine/engine.h"

namespace ckptd {

// Used on the main thread. Its callbacks run on the threads of `attaches` and `loop`, so it must outlive
// both.
class RootRecovery {
 public:
  RootRecovery(AttachQueue* attaches, RootAttacher* attacher, EventLoop* loop, Engine* engine)
      : attaches_(attaches), attacher_(attacher), loop_(loop), engine_(engine) {}

  // Starts to recover all `roots`, and waits for them for 2 s at most. Logs the result of each.
  void Start(const std::vector<storage::v1::KnownRoot>& roots);
  // Tries the roots again whose turn it is (root_retries.h). Call it about once a second.
  void RetryDue();

 private:
  void Recover(const storage::v1::KnownRoot& root, std::function<void()> ended);

  AttachQueue* const attaches_;
  RootAttacher* const attacher_;
  EventLoop* const loop_;
  Engine* const engine_;
  RootRetries retries_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_RUNTIME_START_ROOT_RECOVERY_H_
