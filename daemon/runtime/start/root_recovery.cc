#include "daemon/runtime/start/root_recovery.h"

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "daemon/log/log.h"
#include "daemon/runtime/start/countdown.h"
#include "storage/base/clock.h"

namespace ckptd {
namespace {

// How long the daemon waits for its known roots at start before it serves without the missing ones.
constexpr Duration kRecoverTimeout = std::chrono::seconds(2);

LogField ErrorField(const absl::Status& status) { return {"error", std::string(status.message())}; }

}  // namespace

void RootRecovery::Start(const std::vector<storage::v1::KnownRoot>& roots) {
  auto pending = std::make_shared<Countdown>(roots.size());
  for (const storage::v1::KnownRoot& root : roots) Recover(root, [pending] { pending->Down(); });
  // The engine holds requests for a root until it is recovered, so the daemon may serve before that. A root
  // that hangs must not keep the others waiting.
  if (const size_t left = pending->Wait(kRecoverTimeout); left > 0) {
    Log(LogLevel::kWarning, "some known roots are not recovered yet; serving the others meanwhile",
        {{"roots", left}});
  }
}

// Opens the root by its path at each attempt: its file system may have been mounted again since, and a
// descriptor that stays open would keep a failed file system from being unmounted.
void RootRecovery::Recover(const storage::v1::KnownRoot& root, std::function<void()> ended) {
  const auto end = [this, root, ended = std::move(ended)](const absl::StatusOr<std::string>& run) {
    ended();
    const bool reported = retries_.failures(root) > 0;
    const bool again = retries_.Ended(root, run.status(), SystemClock().Now());
    if (run.ok()) return Log(LogLevel::kInfo, "root recovered", {{"run", *run}, {"root", root.path()}});
    if (again && reported) return;
    Log(LogLevel::kWarning,
        again ? "a known root is not recovered yet; it is tried again" : "a known root is not recovered",
        {{"root", root.path()}, ErrorField(run.status())});
  };
  attaches_->Submit(
      static_cast<uid_t>(root.uid()), absl::StrCat("device ", root.device()),
      [this, root] { return attacher_->Reopen(root); },
      [this, end](absl::StatusOr<RootAttachment> attachment) {
        if (!attachment.ok()) return end(attachment.status());
        loop_->Post([this, attachment = *std::move(attachment), end]() mutable {
          engine_->RecoverRoot(std::move(attachment), end);
        });
      },
      /*any_number=*/true);
}

void RootRecovery::RetryDue() {
  for (const storage::v1::KnownRoot& root : retries_.TakeDue(SystemClock().Now())) Recover(root, [] {});
}

}  // namespace ckptd
