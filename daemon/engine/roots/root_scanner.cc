#include "daemon/engine/roots/root_scanner.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ckptd {
namespace {

constexpr Duration kRetryInterval = std::chrono::seconds(1);

}  // namespace

RootScanner::RootScanner(Clock* clock, EngineObserver* observer, Hooks hooks)
    : clock_(clock), observer_(observer), hooks_(std::move(hooks)) {}

void RootScanner::Scan(Run* run) {
  State& state = states_.Of(run);
  if (run->scanning) {
    state.again = true;
    return;
  }
  run->scanning = true;
  state.again_at.reset();
  run->io->Rescan([this, run, written = hooks_.written_bytes(*run)](absl::StatusOr<RootSnapshot> snapshot) {
    OnScanned(run, written, std::move(snapshot));
  });
}

void RootScanner::ScanAndLog(Run* run) {
  states_.Of(run).logs_end = true;
  Scan(run);
}

void RootScanner::OnScanned(Run* run, int64_t written_bytes, absl::StatusOr<RootSnapshot> snapshot) {
  State& state = states_.Of(run);
  run->scanning = false;
  if (std::exchange(state.again, false)) return Scan(run);
  if (!snapshot.ok()) return OnScanFailed(run, snapshot.status());
  state.failed = false;
  hooks_.load(run, *std::move(snapshot), written_bytes);
  // Most scans follow a change of the daemon's own, and no log line has told the user to wait for them.
  if (std::exchange(state.logs_end, false))
    observer_->OnInfo(absl::StrCat("the root ", run->path, " was scanned anew and takes saves again"));
  hooks_.usable(run);
}

void RootScanner::OnScanFailed(Run* run, const absl::Status& why) {
  State& state = states_.Of(run);
  state.logs_end = true;
  if (!std::exchange(state.failed, true)) {
    observer_->OnWarning(absl::StrCat(
        "the root ", run->path,
        " is read-only: scanning it anew failed, and is tried again: ", std::string(why.message())));
  }
  run->read_only = true;
  state.again_at = clock_->Now() + kRetryInterval;
}

void RootScanner::AwaitScan(Run* run) {
  run->read_only = true;
  if (!run->scanning && !IsRetryScheduled(*run)) Scan(run);
}

void RootScanner::OnTick(Run* run, Instant now) {
  const State& state = states_.Of(run);
  if (state.again_at && now >= *state.again_at) Scan(run);
}

}  // namespace ckptd
