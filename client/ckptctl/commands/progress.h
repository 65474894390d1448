// Shows "verifying step_100: 1.2 GiB" in one line of the terminal, overwritten each time.
#ifndef CKPTD_CLIENT_CKPTCTL_COMMANDS_PROGRESS_H_
#define CKPTD_CLIENT_CKPTCTL_COMMANDS_PROGRESS_H_

#include <ostream>
#include <string>
#include <utility>

#include "client/ckptctl/commands/commands.h"
#include "client/ckptctl/text/text.h"
#include "storage/base/clock.h"

namespace ckptd::ctl {

class Progress {
 public:
  Progress(const Context& context, std::string what) : context_(context), what_(std::move(what)) {}
  void Show(const std::string& tag, int64_t bytes) {
    const Instant now = SystemClock().Now();
    if (!context_.live || now < next_) return;
    next_ = now + std::chrono::milliseconds(100);
    shown_ = true;
    *context_.err << "\r\x1b[K" << what_ << " " << Printable(tag) << ": " << HumanBytes(bytes) << std::flush;
  }
  ~Progress() {
    if (shown_) *context_.err << "\r\x1b[K" << std::flush;
  }

 private:
  const Context& context_;
  const std::string what_;
  Instant next_;
  bool shown_ = false;
};

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_COMMANDS_PROGRESS_H_
