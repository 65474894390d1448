// `watch`: prints a line for each change of level, and for progress in between. On a terminal a line of
// progress overwrites the one before.
#include <algorithm>
#include <optional>
#include <ostream>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/ckptctl/commands/commands.h"
#include "client/ckptctl/commands/daemon_call.h"
#include "client/ckptctl/text/json.h"
#include "client/ckptctl/text/names.h"
#include "client/ckptctl/text/render.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd::ctl {
namespace {

// How often `--until-idle` asks what is in flight: a save may end between two streams.
constexpr Duration kSlice = std::chrono::seconds(1);

class Watcher {
 public:
  Watcher(const Context& context, client::Rpc& rpc, std::string run, double interval)
      : context_(context), rpc_(rpc), run_(std::move(run)), interval_(FromSeconds(interval)) {}

  absl::Status ForEver() {
    return rpc_.Watch(Request(), Left(), [this](const v1::WatchResponse& event) {
      Show(event);
      return true;
    });
  }

  absl::Status UntilIdle() {
    CKPTD_RETURN_IF_ERROR(Refresh());
    while (!open_.empty() && Left() > Duration(0)) {
      CKPTD_RETURN_IF_ERROR(
          rpc_.Watch(Request(), std::min(kSlice, Left()), [this](const v1::WatchResponse& event) {
            Show(event);
            return !open_.empty();
          }));
      CKPTD_RETURN_IF_ERROR(Refresh());
    }
    return absl::OkStatus();
  }

  bool idle() const { return open_.empty(); }
  bool failed() const { return failed_; }

 private:
  v1::WatchRequest Request() const {
    v1::WatchRequest request;
    request.set_parent(run_);
    request.mutable_interval()->set_seconds(interval_.count() / 1'000'000'000);
    request.mutable_interval()->set_nanos(static_cast<int32_t>(interval_.count() % 1'000'000'000));
    return request;
  }

  Duration Left() const {
    return deadline_ ? std::max(Duration(0), *deadline_ - SystemClock().Now())
                     : Duration(std::chrono::hours(24 * 365));
  }

  // Updates what is in flight. A save that was in flight and no longer is has ended between two streams.
  absl::Status Refresh() {
    CKPTD_ASSIGN_OR_RETURN(v1::ListRunsResponse runs, rpc_.ListRuns(std::chrono::seconds(10)));
    std::set<std::string> now;
    for (const v1::Run& run : runs.runs()) {
      if (!run_.empty() && run.name() != run_) continue;
      for (const v1::Checkpoint& checkpoint : run.in_flight()) now.insert(checkpoint.name());
    }
    for (const std::string& name : std::set<std::string>(open_)) {
      if (now.contains(name)) continue;
      v1::GetCheckpointRequest request;
      request.set_name(name);
      absl::StatusOr<v1::Checkpoint> ended = rpc_.GetCheckpoint(request, std::chrono::seconds(10));
      if (!ended.ok()) continue;  // It was committed, and evicted since.
      v1::WatchResponse event;
      *event.mutable_checkpoint() = *std::move(ended);
      const int64_t now_us = SystemClock().UnixMicros();
      event.mutable_time()->set_seconds(now_us / 1'000'000);
      event.mutable_time()->set_nanos(static_cast<int32_t>(now_us % 1'000'000 * 1000));
      Show(event);
    }
    open_ = std::move(now);
    return absl::OkStatus();
  }

  void Show(const v1::WatchResponse& event) {
    const v1::Checkpoint& checkpoint = event.checkpoint();
    const bool ended = event.has_restore() ? event.restore().ended() : checkpoint.level() >= v1::COMMITTED;
    if (event.has_restore()) {
      // --until-idle does not wait for readers.
    } else if (ended) {
      open_.erase(checkpoint.name());
      failed_ |= checkpoint.level() != v1::COMMITTED;
    } else {
      open_.insert(checkpoint.name());
    }
    if (context_.json) {
      *context_.out << ToJson(event, /*one_line=*/true) << std::flush;
      return;
    }
    const std::string line = lines_.Line(event);
    const std::string what = event.has_restore()
                                 ? event.restore().lease()
                                 : absl::StrCat(checkpoint.name(), " ", checkpoint.sequence());
    if (!context_.live) {
      *context_.out << line << std::endl;
      return;
    }
    const bool is_last = ended && checkpoint.upload().state() != v1::CheckpointUpload::UPLOADING;
    // A line about the same checkpoint's progress is not terminated yet: overwrite it.
    *context_.out << (what == open_line_   ? "\r\x1b[K"
                      : open_line_.empty() ? ""
                                           : "\n")
                  << line << (is_last ? "\n" : "") << std::flush;
    open_line_ = is_last ? "" : what;
  }

  const Context& context_;
  client::Rpc& rpc_;
  const std::string run_;
  const Duration interval_;
  const std::optional<Instant> deadline_ =
      context_.timeout_seconds ? std::optional(SystemClock().Now() + FromSeconds(*context_.timeout_seconds))
                               : std::nullopt;
  ProgressLines lines_;
  std::set<std::string> open_;  // The names of the saves in flight.
  bool failed_ = false;
  std::string open_line_;
};

}  // namespace

absl::StatusOr<ExitCode> Watch(const Context& context, const std::string& run, bool until_idle,
                               double interval_seconds) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Rpc> rpc, Connect(context));
  std::string name;
  if (!run.empty()) {
    CKPTD_ASSIGN_OR_RETURN(v1::ListRunsResponse runs, rpc->ListRuns(std::chrono::seconds(10)));
    CKPTD_ASSIGN_OR_RETURN(v1::Run wanted, FindRun(runs, run));
    name = wanted.name();
  }
  Watcher watcher(context, *rpc, name, interval_seconds);
  CKPTD_RETURN_IF_ERROR(until_idle ? watcher.UntilIdle() : watcher.ForEver());
  if (until_idle && !watcher.idle()) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, "WAIT_TIMEOUT",
                     "saves are still in flight after --timeout");
  }
  return watcher.failed() ? kNotSo : kOk;
}

}  // namespace ckptd::ctl
