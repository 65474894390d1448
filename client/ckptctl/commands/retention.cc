// The commands about what a run keeps.
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/ckptctl/commands/commands.h"
#include "client/ckptctl/commands/daemon_call.h"
#include "client/ckptctl/text/json.h"
#include "client/ckptctl/text/names.h"
#include "client/ckptctl/text/render.h"
#include "client/ckptctl/text/retention_text.h"
#include "client/ckptctl/text/text.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace ckptd::ctl {
namespace {

absl::StatusOr<ExitCode> Explain(client::Rpc& rpc, const Context& context, const std::string& run,
                                 const v1::RetentionPolicy* policy) {
  v1::ExplainRetentionRequest request;
  request.set_run(run);
  if (policy != nullptr) *request.mutable_policy() = *policy;
  CKPTD_ASSIGN_OR_RETURN(v1::ExplainRetentionResponse explained,
                         rpc.ExplainRetention(request, CallTimeout(context)));
  *context.out << (context.json ? ToJson(explained) : RenderRetention(explained));
  return kOk;
}

}  // namespace

absl::StatusOr<ExitCode> Retention(const Context& context, const RetentionArguments& arguments) {
  v1::RetentionPolicy policy;
  if (!arguments.set.empty()) {
    CKPTD_ASSIGN_OR_RETURN(policy, ParseRetention(arguments.set));
  }
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Rpc> rpc, Connect(context));
  CKPTD_ASSIGN_OR_RETURN(v1::ListRunsResponse runs, rpc->ListRuns(CallTimeout(context)));
  CKPTD_ASSIGN_OR_RETURN(const v1::Run run, FindRun(runs, arguments.run));
  if (arguments.dry_run || (arguments.set.empty() && !arguments.clear))
    return Explain(*rpc, context, run.name(), arguments.set.empty() ? nullptr : &policy);
  v1::SetRetentionRequest request;
  request.set_run(run.name());
  if (!arguments.clear) *request.mutable_policy() = policy;
  CKPTD_ASSIGN_OR_RETURN(v1::Run changed, rpc->SetRetention(request, CallTimeout(context)));
  if (context.json) {
    *context.out << ToJson(changed);
  } else if (arguments.clear) {
    *context.out << Printable(run.path()) << " keeps what its job asks for, from the next commit on\n";
  } else {
    *context.out << Printable(run.path()) << " keeps " << RetentionText(policy)
                 << " from the next commit on\n";
  }
  return kOk;
}

absl::StatusOr<ExitCode> Delete(const Context& context, const std::string& name, bool force) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Rpc> rpc, Connect(context));
  v1::DeleteCheckpointRequest request;
  CKPTD_ASSIGN_OR_RETURN(*request.mutable_name(), Resolve(*rpc, context, name));
  request.set_force(force);
  CKPTD_ASSIGN_OR_RETURN(v1::Checkpoint deleted, rpc->DeleteCheckpoint(request, CallTimeout(context)));
  *context.out << (context.json ? ToJson(deleted) : absl::StrCat("deleted ", request.name(), "\n"));
  return kOk;
}

absl::StatusOr<ExitCode> ListTrash(const Context& context, const std::string& name) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Rpc> rpc, Connect(context));
  CKPTD_ASSIGN_OR_RETURN(v1::ListRunsResponse runs, rpc->ListRuns(CallTimeout(context)));
  CKPTD_ASSIGN_OR_RETURN(const v1::Run run, FindRun(runs, name));
  v1::ListTrashRequest request;
  request.set_run(run.name());
  CKPTD_ASSIGN_OR_RETURN(v1::ListTrashResponse trash, rpc->ListTrash(request, CallTimeout(context)));
  *context.out << (context.json ? ToJson(trash) : RenderTrash(trash, SystemClock().UnixMicros()));
  return kOk;
}

absl::StatusOr<ExitCode> Undelete(const Context& context, const std::string& name, int64_t sequence) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Rpc> rpc, Connect(context));
  v1::UndeleteCheckpointRequest request;
  CKPTD_ASSIGN_OR_RETURN(*request.mutable_name(), Resolve(*rpc, context, name));
  request.set_sequence(sequence);
  CKPTD_ASSIGN_OR_RETURN(v1::Checkpoint back, rpc->UndeleteCheckpoint(request, CallTimeout(context)));
  *context.out << (context.json ? ToJson(back)
                                : absl::StrCat(request.name(), " is back, and pinned: retention keeps it\n"));
  return kOk;
}

absl::StatusOr<ExitCode> ResolveSave(const Context& context, const std::string& name, bool is_checkpoint) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Rpc> rpc, Connect(context));
  v1::ResolveSaveRequest request;
  CKPTD_ASSIGN_OR_RETURN(*request.mutable_name(), Resolve(*rpc, context, name));
  request.set_outcome(is_checkpoint ? v1::ResolveSaveRequest::IS_CHECKPOINT
                                    : v1::ResolveSaveRequest::IS_NO_CHECKPOINT);
  CKPTD_ASSIGN_OR_RETURN(v1::ResolveSaveResponse resolved, rpc->ResolveSave(request, CallTimeout(context)));
  *context.out << (context.json
                       ? ToJson(resolved)
                       : absl::StrCat(request.name(), ", sequence ", resolved.sequence(),
                                      resolved.is_checkpoint() ? ", is a checkpoint" : ", is no checkpoint",
                                      "; the run publishes saves again\n"));
  return kOk;
}

}  // namespace ckptd::ctl
