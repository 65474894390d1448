// `top`: who uses the memory and the disk, measured again and again.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <ostream>
#include <thread>
#include <utility>

#include "client/ckptctl/commands/commands.h"
#include "client/ckptctl/commands/daemon_call.h"
#include "client/ckptctl/text/json.h"
#include "client/ckptctl/text/top_text.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace ckptd::ctl {
namespace {

constexpr int kRows = 10;       // Of each table, where the terminal does not say how many fit.
constexpr int kFixedLines = 8;  // Of the screen, besides the rows of its three tables.

absl::StatusOr<TopSample> Sample(client::Rpc& rpc, const Context& context) {
  TopSample sample;
  CKPTD_ASSIGN_OR_RETURN(sample.status, rpc.GetStatus(CallTimeout(context)));
  CKPTD_ASSIGN_OR_RETURN(sample.sessions, rpc.ListSessions(CallTimeout(context)));
  sample.unix_us = SystemClock().UnixMicros();
  return sample;
}

int RowsThatFit() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) return kRows;
  return std::max(2, (static_cast<int>(size.ws_row) - kFixedLines) / 3 - 1);
}

}  // namespace

absl::StatusOr<ExitCode> Top(const Context& context, bool once, double interval_seconds) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Rpc> rpc, Connect(context));
  CKPTD_ASSIGN_OR_RETURN(TopSample before, Sample(*rpc, context));
  while (true) {
    std::this_thread::sleep_for(FromSeconds(interval_seconds));
    CKPTD_ASSIGN_OR_RETURN(TopSample now, Sample(*rpc, context));
    if (context.json) {
      *context.out << ToJson(now.status, /*one_line=*/true) << std::flush;
    } else {
      const bool overwrites = context.live && !once;
      if (overwrites) *context.out << "\x1b[H\x1b[2J";  // To the upper left corner of an empty screen.
      WriteText(context, RenderTop(before, now, once || !context.live ? kRows : RowsThatFit()));
      if (!overwrites && !once) *context.out << "\n";
      *context.out << std::flush;
    }
    if (once) return kOk;
    before = std::move(now);
  }
}

}  // namespace ckptd::ctl
