// `drain`: prepares a restart of the daemon or of the machine, and shows what has to be waited for.
#include <algorithm>
#include <ostream>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/ckptctl/commands/commands.h"
#include "client/ckptctl/commands/daemon_call.h"
#include "client/ckptctl/text/json.h"
#include "client/ckptctl/text/render.h"
#include "client/ckptctl/text/text.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace ckptd::ctl {
namespace {

// How often the daemon is asked how far it is.
constexpr Duration kPoll = std::chrono::milliseconds(500);

std::string Name(const v1::UnfinishedWork& work) {
  return Printable(work.tag().empty() ? work.root() : absl::StrCat(work.root(), "/", work.tag()));
}

// For messages: the bytes of the saves in flight.
std::string Written(const v1::Status& status) {
  int64_t written = 0, all = 0;
  for (const v1::Run& run : status.runs()) {
    for (const v1::Checkpoint& save : run.in_flight()) {
      written += save.written_bytes();
      all += save.size_bytes();
    }
  }
  return all == 0 ? "" : absl::StrCat(", ", HumanBytes(written), " of ", HumanBytes(all), " written");
}

// The checkpoints that are not in their bucket yet. Their uploads go on after a restart, so nothing waits for them; who
// gives the machine up with its disk has to. Empty: there are none.
std::string Uploads(const v1::Status& status) {
  std::string text;
  for (const v1::Run& run : status.runs()) {
    for (const v1::Checkpoint& waiting : run.uploads().waiting()) {
      absl::StrAppend(&text, "  ", Printable(absl::StrCat(run.path(), "/", waiting.tag())), " (",
                      OneLine(UploadText(waiting, SystemClock().UnixMicros())), ")\n");
    }
  }
  return text.empty()
             ? ""
             : "These uploads go on after a restart. If the machine's disk is lost with it, wait for them "
               "first (ckptctl wait --level=uploaded):\n" +
                   text;
}

// Changes when an operator should read it again.
std::string WhatIsLeft(const v1::DrainStatus& drain) {
  std::string text;
  for (const v1::UnfinishedWork& work : drain.unfinished())
    absl::StrAppend(&text, "  ", Name(work), " waits for ", OneLine(work.waits_for()), "\n");
  return text;
}

class Progress {
 public:
  explicit Progress(const Context& context) : context_(context) {}

  void Show(const v1::Status& status, double seconds) {
    if (context_.json) return;
    const std::string left = WhatIsLeft(status.drain());
    if (left != shown_) {
      EndLine();
      *context_.err << "still under way after " << HumanSeconds(seconds) << ":\n" << left << std::flush;
      shown_ = left;
    }
    if (!context_.live) return;
    *context_.err << "\r\x1b[K" << HumanSeconds(seconds) << Written(status) << std::flush;
    open_line_ = true;
  }
  void EndLine() {
    if (open_line_) *context_.err << "\r\x1b[K" << std::flush;
    open_line_ = false;
  }

 private:
  const Context& context_;
  std::string shown_;
  bool open_line_ = false;
};

void Report(const Context& context, const v1::Status& status, double seconds) {
  if (context.json) {
    *context.out << ToJson(status);
    return;
  }
  if (status.drain().drained()) {
    *context.out << "DRAINED after " << HumanSeconds(seconds)
                 << ": nothing is lost if the daemon or the machine restarts now. It takes saves again after "
                    "that, or after ckptctl drain --undo\n"
                 << Uploads(status);
    return;
  }
  std::string text = absl::StrCat("NOT DRAINED after ", HumanSeconds(seconds),
                                  "; no new save is taken, and the daemon goes on with these:\n");
  Table table({"UNDER WAY", "WAITS FOR", "IF THE DAEMON ENDS NOW"});
  for (const v1::UnfinishedWork& work : status.drain().unfinished())
    table.Add({Name(work), OneLine(work.waits_for()), OneLine(work.if_ended())});
  WriteText(context, absl::StrCat(text, table.ToString(2),
                                  "  -> ckptctl drain waits again; ckptctl abort NAME ends a save; "
                                  "ckptctl drain --undo takes saves again\n",
                                  Uploads(status)));
}

}  // namespace

absl::StatusOr<ExitCode> Drain(const Context& context, const DrainArguments& arguments) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Rpc> rpc, Connect(context));
  v1::DrainRequest request;
  request.set_undo(arguments.undo);
  request.set_message(arguments.message);
  const Instant start = SystemClock().Now();
  const Instant deadline = start + FromSeconds(arguments.deadline_seconds);
  const auto seconds = [start] { return std::chrono::duration<double>(SystemClock().Now() - start).count(); };
  CKPTD_ASSIGN_OR_RETURN(v1::Status status, rpc->Drain(request, CallTimeout(context)));
  if (arguments.undo) {
    if (context.json) {
      *context.out << ToJson(status);
    } else {
      *context.out << "the daemon takes new saves\n";
    }
    return kOk;
  }
  const std::string instance = status.daemon_instance();
  Progress progress(context);
  while (!status.drain().drained() && SystemClock().Now() < deadline) {
    progress.Show(status, seconds());
    std::this_thread::sleep_for(std::min<Duration>(kPoll, deadline - SystemClock().Now()));
    CKPTD_ASSIGN_OR_RETURN(status, rpc->GetStatus(CallTimeout(context)));
    if (status.has_drain() && status.daemon_instance() == instance) continue;
    progress.EndLine();
    return absl::AbortedError(
        status.daemon_instance() == instance
            ? "another operator has undone the drain; ask them, then run ckptctl drain again"
            : "the daemon was restarted meanwhile, and takes saves again; look at its log");
  }
  progress.EndLine();
  Report(context, status, seconds());
  return status.drain().drained() ? kOk : kNotDrained;
}

}  // namespace ckptd::ctl
