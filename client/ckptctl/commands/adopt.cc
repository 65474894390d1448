// `adopt`: turns finished checkpoints of another program into ckptd's. Also finds them for `describe`.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/ckptctl/commands/commands.h"
#include "client/ckptctl/commands/daemon_call.h"
#include "client/ckptctl/commands/disk_root.h"
#include "client/ckptctl/text/json.h"
#include "client/ckptctl/text/names.h"
#include "client/ckptctl/text/render.h"
#include "client/ckptctl/text/text.h"
#include "client/cpp/session/handoff.h"
#include "storage/base/errors.h"
#include "storage/base/real_path.h"
#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"

namespace ckptd::ctl {
namespace {

// Refuses a directory that holds no checkpoint. The daemon makes a .ckptd in each root that it attaches, and
// must not do so in a directory that is no root, such as a checkpoint. NOT_FOUND, reason NO_CHECKPOINT.
absl::Status CheckIsRoot(const std::string& path) {
  const absl::StatusOr<DiskRoot> root = ReadDiskRoot(path);
  if (!root.ok()) return root.status();
  if (!root->checkpoints.checkpoints().empty() || !root->checkpoints.foreign().empty())
    return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kNotFound, "NO_CHECKPOINT",
      absl::StrCat(path, " holds no checkpoint to adopt; name the directory that holds the checkpoints"));
}

// Attaches a root that the daemon has never seen, as a trainer would. The run then belongs to the user who
// does this, so the caller must be the owner of the root.
absl::StatusOr<std::string> Attach(const Context& context, const std::string& root) {
  const UniqueFd directory(open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat stat = {};
  if (!directory || fstat(directory.get(), &stat) != 0)
    return ErrnoError(errno, absl::StrCat("opening ", root));
  if (stat.st_uid != geteuid()) {
    return MakeError(
        absl::StatusCode::kPermissionDenied, "WRONG_UID",
        absl::StrCat("the daemon does not know ", root, " yet, and the directory belongs to uid ",
                     stat.st_uid, "; run this command as that user, who will own the run"));
  }
  CKPTD_ASSIGN_OR_RETURN(const std::string path, RealPath(root));
  CKPTD_RETURN_IF_ERROR(CheckIsRoot(path));
  CKPTD_ASSIGN_OR_RETURN(const client::Endpoint endpoint, client::ParseEndpoint(context.endpoint));
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Handoff> handoff,
                         client::Handoff::Connect(endpoint.handoff_path));
  v1::Hello hello;
  hello.set_min_version(1);
  hello.set_max_version(1);
  hello.set_client_instance(client::RandomHex128());
  hello.set_client_name("ckptctl");
  CKPTD_RETURN_IF_ERROR(handoff->Hello(hello, CallTimeout(context)).status());
  return handoff->AttachRoot(directory.get(), path, CallTimeout(context));
}

absl::StatusOr<std::string> RunOf(client::Rpc& rpc, const Context& context, const std::string& run) {
  CKPTD_ASSIGN_OR_RETURN(v1::ListRunsResponse runs, rpc.ListRuns(CallTimeout(context)));
  const absl::StatusOr<v1::Run> known = FindRun(runs, run);
  if (known.ok()) return known->name();
  struct stat stat = {};
  if (ReasonOf(known.status()) != "UNKNOWN_RUN" || ::stat(run.c_str(), &stat) != 0 || !S_ISDIR(stat.st_mode))
    return known.status();
  return Attach(context, run);
}

// Prints one line for each tag. On a terminal a line with progress is overwritten.
class Adopter {
 public:
  explicit Adopter(const Context& context) : context_(context) {}
  ~Adopter() { Wipe(); }

  void Hear(const v1::AdoptCheckpointsResponse& event) {
    adopted_ += event.outcome() == v1::ADOPTED;
    ours_ += event.outcome() == v1::ALREADY_OURS;
    refused_ += event.outcome() == v1::REFUSED;
    if (context_.json) {
      *context_.out << ToJson(event, /*one_line=*/true) << std::flush;
    } else if (event.outcome() != v1::ADOPT_OUTCOME_UNSPECIFIED) {
      Wipe();
      *context_.out << RenderAdoption(event) << std::endl;
    } else if (context_.live) {
      Wipe();
      *context_.err << RenderAdoption(event) << std::flush;
      shown_ = true;
    }
  }

  ExitCode End() {
    Wipe();
    if (!context_.json && adopted_ + ours_ + refused_ == 0) *context_.out << "no checkpoint to adopt\n";
    if (!context_.json && adopted_ + ours_ + refused_ > 1) {
      *context_.out << adopted_ << " adopted, " << ours_ << " already ckptd's, " << refused_ << " refused\n";
    }
    return refused_ == 0 ? kOk : kRefused;
  }

 private:
  void Wipe() {
    if (std::exchange(shown_, false)) *context_.err << "\r\x1b[K" << std::flush;
  }

  const Context& context_;
  int adopted_ = 0, ours_ = 0, refused_ = 0;
  bool shown_ = false;
};

}  // namespace

absl::StatusOr<ExitCode> Adopt(const Context& context, const std::string& run,
                               const std::vector<std::string>& tags, bool allow_removal) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Rpc> rpc, Connect(context));
  v1::AdoptCheckpointsRequest request;
  CKPTD_ASSIGN_OR_RETURN(*request.mutable_parent(), RunOf(*rpc, context, run));
  for (const std::string& tag : tags) request.add_tags(tag);
  request.set_allow_removal(allow_removal);
  // No bound is known: the daemon reads every byte.
  const Duration timeout = FromSeconds(context.timeout_seconds.value_or(365.0 * 86400));
  Adopter adopter(context);
  const absl::Status ended = rpc->AdoptCheckpoints(
      request, timeout, [&adopter](const v1::AdoptCheckpointsResponse& event) { adopter.Hear(event); });
  if (absl::IsDeadlineExceeded(ended) && context.timeout_seconds.has_value()) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, "WAIT_TIMEOUT",
                     "not all checkpoints were adopted within --timeout; those that were stay adopted, and "
                     "the same command goes on with the others");
  }
  if (!ended.ok()) return ended;
  return adopter.End();
}

absl::StatusOr<v1::ForeignCheckpoint> FindForeign(client::Rpc& rpc, const Context& context,
                                                  const std::string& checkpoint) {
  const size_t end = checkpoint.find("/checkpoints/");
  v1::ListCheckpointsRequest request;
  request.set_parent(checkpoint.substr(0, end));
  request.set_page_size(1000);
  request.set_show_foreign(true);
  do {
    CKPTD_ASSIGN_OR_RETURN(v1::ListCheckpointsResponse page,
                           rpc.ListCheckpoints(request, CallTimeout(context)));
    request.set_page_token(page.next_page_token());
    for (const v1::ForeignCheckpoint& foreign : page.foreign()) {
      if (absl::StrCat(request.parent(), "/checkpoints/", foreign.tag()) == checkpoint) return foreign;
    }
  } while (!request.page_token().empty());
  return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                   absl::StrCat("no other program has finished a checkpoint ", checkpoint));
}

}  // namespace ckptd::ctl
