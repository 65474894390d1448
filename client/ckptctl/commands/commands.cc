#include "client/ckptctl/commands/commands.h"

#include <algorithm>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/ckptctl/commands/daemon_call.h"
#include "client/ckptctl/commands/disk_root.h"
#include "client/ckptctl/text/json.h"
#include "client/ckptctl/text/names.h"
#include "client/ckptctl/text/render.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd::ctl {
namespace {

constexpr double kDefaultWaitSeconds = 60;
constexpr double kDefaultPrefetchSeconds = 600;
constexpr Duration kForeignTimeout = std::chrono::seconds(5);

int64_t NowMicros() { return SystemClock().UnixMicros(); }

absl::StatusOr<v1::Level> ParseLevel(const std::string& text) {
  std::string upper;
  for (const char c : text) upper += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  v1::Level level;
  if (v1::Level_Parse(upper, &level) && level >= v1::STAGED && level <= v1::UPLOADED) return level;
  return InvalidArgument(
      absl::StrCat("--level is \"", text, "\"; allowed are staged, sealed, committed and uploaded"));
}

void Print(const Context& context, const v1::Checkpoint& checkpoint) {
  if (context.json) {
    *context.out << ToJson(checkpoint);
  } else {
    WriteText(context, RenderCheckpoint(checkpoint, NowMicros()));
  }
}

void Print(const Context& context, const v1::ForeignCheckpoint& foreign) {
  *context.out << (context.json ? ToJson(foreign) : RenderForeign(foreign, NowMicros()));
}

// Reads a root from disk that `unserved` says a daemon could not be asked about. Returns `unserved` if it is
// wrong usage, or if `path` is no root that this process can find.
absl::StatusOr<DiskRoot> ReadUnserved(const Context& context, const std::string& path,
                                      const absl::Status& unserved) {
  if (absl::IsInvalidArgument(unserved) || path.starts_with("runs/")) return unserved;
  absl::StatusOr<DiskRoot> root = ReadDiskRoot(path);
  const bool is_unknown = ReasonOf(unserved) == "UNKNOWN_RUN";
  if (is_unknown && absl::IsNotFound(root.status())) return unserved;  // It names the runs that there are.
  if (!root.ok()) return root.status();
  *context.err << "ckptctl: read " << Printable(root->path) << " from disk, without saves in flight: "
               << (is_unknown ? "the daemon does not know it" : OneLine(std::string(unserved.message())))
               << "\n";
  return root;
}

// Asks the daemon for its runs. `rpc` is null if this fails before the call.
absl::StatusOr<v1::ListRunsResponse> AskForRuns(const Context& context, std::unique_ptr<client::Rpc>* rpc) {
  CKPTD_ASSIGN_OR_RETURN(*rpc, Connect(context));
  return (*rpc)->ListRuns(CallTimeout(context));
}

absl::StatusOr<ExitCode> ListFromDisk(const Context& context, const DiskRoot& root) {
  if (context.json) {
    *context.out << ToJson(root.checkpoints);
  } else {
    WriteText(context, absl::StrCat(Printable(root.path), "  (uid ", root.uid, ")\n",
                                    RenderCheckpoints(root.checkpoints, NowMicros())));
  }
  return kOk;
}

// `name` is ROOT/TAG of a root that the daemon does not serve, for the reason `unserved`.
absl::StatusOr<ExitCode> DescribeFromDisk(const Context& context, std::string name,
                                          const absl::Status& unserved) {
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  const size_t slash = name.rfind('/');
  if (slash == std::string::npos) return unserved;
  const std::string path = slash == 0 ? "/" : name.substr(0, slash), tag = name.substr(slash + 1);
  CKPTD_ASSIGN_OR_RETURN(const DiskRoot root, ReadUnserved(context, path, unserved));
  for (const v1::ForeignCheckpoint& foreign : root.checkpoints.foreign()) {
    if (foreign.tag() != tag) continue;
    Print(context, foreign);
    return kOk;
  }
  CKPTD_ASSIGN_OR_RETURN(const v1::Checkpoint checkpoint, DescribeOnDisk(root, tag));
  Print(context, checkpoint);
  return kOk;
}

// Adds all checkpoints of a run, page by page. The daemon looks for foreign ones on the disk, which may hang.
// If it does, this falls back to ckptd's own checkpoints, which the daemon has in memory.
absl::Status AddCheckpoints(client::Rpc& rpc, const Context& context, const std::string& run, bool all,
                            v1::ListCheckpointsResponse* out) {
  v1::ListCheckpointsRequest request;
  request.set_parent(run);
  request.set_page_size(1000);
  request.set_show_all(all);
  request.set_show_foreign(true);
  do {
    absl::StatusOr<v1::ListCheckpointsResponse> page =
        rpc.ListCheckpoints(request, std::min(CallTimeout(context), kForeignTimeout));
    if (absl::IsDeadlineExceeded(page.status())) {
      request.set_show_foreign(false);
      page = rpc.ListCheckpoints(request, CallTimeout(context));
      if (page.ok()) *context.err << "ckptctl: the disk did not answer: foreign checkpoints are not listed\n";
    }
    if (!page.ok()) return page.status();
    request.set_page_token(page->next_page_token());
    out->mutable_checkpoints()->MergeFrom(page->checkpoints());
    out->mutable_foreign()->MergeFrom(page->foreign());
  } while (!request.page_token().empty());
  return absl::OkStatus();
}

// Prints the run's path and owner: the path is what a client named, so the owner tells runs apart. Best
// effort.
void PrintOwner(client::Rpc& rpc, const Context& context, const std::string& name) {
  const absl::StatusOr<v1::ListRunsResponse> runs = rpc.ListRuns(CallTimeout(context));
  if (!runs.ok()) return;
  for (const v1::Run& run : runs->runs()) {
    if (run.name() != name) continue;
    *context.out << "  root         " << Printable(run.path()) << " of uid " << run.uid() << "\n";
  }
}

}  // namespace

Duration FromSeconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

// The daemon waits for etcd for up to 10 s, and then answers why it has no answer.
Duration CallTimeout(const Context& context) { return FromSeconds(context.timeout_seconds.value_or(20)); }

absl::StatusOr<std::unique_ptr<client::Rpc>> Connect(const Context& context) {
  CKPTD_ASSIGN_OR_RETURN(client::Endpoint endpoint, client::ParseEndpoint(context.endpoint));
  CKPTD_RETURN_IF_ERROR(client::CheckServer(endpoint.socket_path));
  return std::make_unique<client::Rpc>(endpoint, "");
}

absl::StatusOr<std::string> Resolve(client::Rpc& rpc, const Context& context, const std::string& name) {
  CKPTD_ASSIGN_OR_RETURN(v1::ListRunsResponse runs, rpc.ListRuns(CallTimeout(context)));
  return CheckpointName(runs, name);
}

void WriteText(const Context& context, const std::string& text) {
  *context.out << (context.color ? Highlight(text) : text);
}

absl::StatusOr<ExitCode> ShowStatus(const Context& context, bool verbose) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Rpc> rpc, Connect(context));
  CKPTD_ASSIGN_OR_RETURN(v1::Status status, rpc->GetStatus(CallTimeout(context)));
  if (context.json) {
    *context.out << ToJson(status);
  } else {
    WriteText(context,
              verbose ? RenderStatus(status, NowMicros()) : RenderStatusSummary(status, NowMicros()));
  }
  return kOk;
}

absl::StatusOr<ExitCode> ShowAllNodes(const Context& context) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Rpc> rpc, Connect(context));
  CKPTD_ASSIGN_OR_RETURN(v1::Status status, rpc->GetStatus(CallTimeout(context), /*all_nodes=*/true));
  if (!status.has_cluster()) {
    return absl::FailedPreconditionError(
        "this daemon shows no other nodes: its configuration has no block cluster, or you are neither root "
        "nor "
        "its user; ckptctl status shows this node alone");
  }
  if (context.json) {
    *context.out << ToJson(status);
  } else {
    WriteText(context, RenderAllNodes(status.cluster(), NowMicros()));
  }
  return AllNodesReport(status.cluster()) ? kOk : kNotSo;
}

absl::StatusOr<ExitCode> ListSessions(const Context& context) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Rpc> rpc, Connect(context));
  CKPTD_ASSIGN_OR_RETURN(v1::ListSessionsResponse sessions, rpc->ListSessions(CallTimeout(context)));
  *context.out << (context.json ? ToJson(sessions) : RenderSessions(sessions));
  return kOk;
}

absl::StatusOr<ExitCode> List(const Context& context, const std::string& run, bool all) {
  if (IsBucketUrl(run)) {
    CKPTD_ASSIGN_OR_RETURN(const DiskRoot root, ReadDiskRoot(run));
    return ListFromDisk(context, root);
  }
  std::unique_ptr<client::Rpc> rpc;
  absl::StatusOr<v1::ListRunsResponse> asked = AskForRuns(context, &rpc);
  if (!run.empty()) {
    absl::StatusOr<v1::Run> wanted = asked.ok() ? FindRun(*asked, run) : asked.status();
    if (!wanted.ok()) {
      CKPTD_ASSIGN_OR_RETURN(const DiskRoot root, ReadUnserved(context, run, wanted.status()));
      return ListFromDisk(context, root);
    }
    asked->clear_runs();
    *asked->add_runs() = *std::move(wanted);
  }
  CKPTD_ASSIGN_OR_RETURN(const v1::ListRunsResponse runs, std::move(asked));
  v1::ListCheckpointsResponse everything;
  for (const v1::Run& one : runs.runs()) {
    v1::ListCheckpointsResponse checkpoints;
    CKPTD_RETURN_IF_ERROR(AddCheckpoints(*rpc, context, one.name(), all, &checkpoints));
    if (!context.json) {
      WriteText(context,
                absl::StrCat(everything.checkpoints().empty() && everything.foreign().empty() ? "" : "\n",
                             one.name(), "  ", Printable(one.path()), "  (uid ", one.uid(), ")\n",
                             RenderCheckpoints(checkpoints, NowMicros())));
    }
    everything.mutable_checkpoints()->MergeFrom(checkpoints.checkpoints());
    everything.mutable_foreign()->MergeFrom(checkpoints.foreign());
  }
  if (context.json) *context.out << ToJson(everything);
  if (!context.json && runs.runs().empty()) *context.out << "no runs\n";
  return kOk;
}

absl::StatusOr<ExitCode> Describe(const Context& context, const std::string& name) {
  std::unique_ptr<client::Rpc> rpc;
  const absl::StatusOr<v1::ListRunsResponse> runs = AskForRuns(context, &rpc);
  const absl::StatusOr<std::string> full_name = runs.ok() ? CheckpointName(*runs, name) : runs.status();
  if (!full_name.ok()) return DescribeFromDisk(context, name, full_name.status());
  v1::GetCheckpointRequest request;
  request.set_name(*full_name);
  request.set_view(v1::FULL);
  absl::StatusOr<v1::Checkpoint> checkpoint = rpc->GetCheckpoint(request, CallTimeout(context));
  if (ReasonOf(checkpoint.status()) == "NO_CHECKPOINT") {
    const absl::StatusOr<v1::ForeignCheckpoint> foreign = FindForeign(*rpc, context, request.name());
    if (foreign.ok()) {
      Print(context, *foreign);
      return kOk;
    }
  }
  if (!checkpoint.ok()) return checkpoint.status();
  Print(context, *checkpoint);
  if (!context.json) PrintOwner(*rpc, context, checkpoint->run());
  return kOk;
}

absl::StatusOr<ExitCode> Wait(const Context& context, const std::string& name, const std::string& level) {
  CKPTD_ASSIGN_OR_RETURN(const v1::Level wanted, ParseLevel(level));
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Rpc> rpc, Connect(context));
  const Duration timeout = FromSeconds(context.timeout_seconds.value_or(kDefaultWaitSeconds));
  v1::WaitRequest request;
  Context lookup = context;  // --timeout is for the level, and may be 0.
  lookup.timeout_seconds.reset();
  CKPTD_ASSIGN_OR_RETURN(*request.mutable_name(), Resolve(*rpc, lookup, name));
  request.set_level(wanted);
  request.mutable_timeout()->set_seconds(timeout.count() / 1'000'000'000);
  request.mutable_timeout()->set_nanos(static_cast<int32_t>(timeout.count() % 1'000'000'000));
  CKPTD_ASSIGN_OR_RETURN(v1::WaitResponse response, rpc->Wait(request, timeout + std::chrono::seconds(10)));
  const v1::Checkpoint& checkpoint = response.checkpoint();
  if (context.json) {
    *context.out << ToJson(checkpoint);
  } else {
    WriteText(context, absl::StrCat(Printable(checkpoint.tag()), " is ", RenderEnd(checkpoint), "\n"));
  }
  return checkpoint.level() >= wanted && checkpoint.level() <= v1::UPLOADED ? kOk : kNotSo;
}

absl::StatusOr<ExitCode> Abort(const Context& context, const std::string& name, const std::string& message) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Rpc> rpc, Connect(context));
  v1::AbortRequest request;
  CKPTD_ASSIGN_OR_RETURN(*request.mutable_name(), Resolve(*rpc, context, name));
  request.set_message(message);
  CKPTD_ASSIGN_OR_RETURN(v1::AbortResponse response, rpc->Abort(request, CallTimeout(context)));
  *context.out << (context.json ? ToJson(response) : absl::StrCat("aborted ", request.name(), "\n"));
  return kOk;
}

absl::StatusOr<ExitCode> SetPinned(const Context& context, const std::string& name, bool pinned) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Rpc> rpc, Connect(context));
  CKPTD_ASSIGN_OR_RETURN(const std::string full_name, Resolve(*rpc, context, name));
  v1::PinRequest pin;
  pin.set_name(full_name);
  v1::UnpinRequest unpin;
  unpin.set_name(full_name);
  CKPTD_ASSIGN_OR_RETURN(v1::Checkpoint checkpoint, pinned ? rpc->Pin(pin, CallTimeout(context))
                                                           : rpc->Unpin(unpin, CallTimeout(context)));
  *context.out << (context.json ? ToJson(checkpoint)
                                : absl::StrCat(pinned ? "pinned " : "unpinned ", full_name, "\n"));
  return kOk;
}

absl::StatusOr<ExitCode> Prefetch(const Context& context, const std::string& name) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Rpc> rpc, Connect(context));
  v1::PrefetchRequest request;
  CKPTD_ASSIGN_OR_RETURN(*request.mutable_name(), Resolve(*rpc, context, name));
  const Duration timeout = FromSeconds(context.timeout_seconds.value_or(kDefaultPrefetchSeconds));
  CKPTD_ASSIGN_OR_RETURN(v1::Checkpoint checkpoint, rpc->Prefetch(request, timeout));
  if (context.json) {
    *context.out << ToJson(checkpoint);
  } else {
    *context.out << Printable(checkpoint.tag()) << " is in memory (" << HumanBytes(checkpoint.size_bytes())
                 << ")\n";
  }
  return kOk;
}

}  // namespace ckptd::ctl
