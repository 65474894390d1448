#include "daemon/engine/resume/run_joiner.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/engine/resume/local_ranks.h"
#include "daemon/engine/run/members.h"
#include "daemon/engine/seams/limits.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

constexpr int kMaxRanks = 65536;
constexpr int kMaxOrphans = 1000;

absl::Status SpansNodes(const v1::JoinRunRequest& request, size_t local, const Run& run,
                        const std::string& node) {
  const std::string start =
      absl::StrCat("world_size ", request.world_size(), " spans nodes (", local, " ranks are on this one); ");
  const std::string never = run.local_io == nullptr ? "" : run.local_io->why_one_node();
  if (!never.empty())
    return MakeError(absl::StatusCode::kUnimplemented, reason::kMultiNodeUnsupported,
                     absl::StrCat(start, never));
  const std::string needs =
      node.empty() ? "this daemon knows no other node: to be one of several, it needs `cluster { "
                     "etcd_endpoints: \"https://HOST:2379\" }` in its configuration, and there the folder"
                   : absl::StrCat("node \"", node, "\" does not share this root: it needs the folder");
  return MakeError(absl::StatusCode::kUnimplemented, reason::kMultiNodeUnsupported,
                   absl::StrCat(start, needs, " of the root ", run.path,
                                " in `cluster { shared_folders: ... }`, on every node; or run all ranks on "
                                "one node"));
}

// All ranks of a node say the same of it: their saves count on that.
absl::Status CheckSameNode(const Members& members, int64_t attempt, int rank,
                           const std::vector<int>& local_ranks) {
  const Member* other = members.AnyOfAttempt(attempt);
  if (other == nullptr || other->local_ranks == local_ranks) return absl::OkStatus();
  const auto words = [](const std::vector<int>& ranks) {
    return ranks.empty() ? "all ranks" : absl::StrCat("ranks ", JoinRanks(ranks));
  };
  return InvalidArgument(absl::StrCat("rank ", rank, " says that ", words(local_ranks),
                                      " are on this node, and rank ", other->rank,
                                      " of the same launch that ", words(other->local_ranks),
                                      " are; set the same local_ranks on all ranks of a node"));
}

absl::Status CheckJoin(const v1::JoinRunRequest& request, int most_ranks) {
  if (request.world_size() < 1 || request.world_size() > kMaxRanks) {
    return InvalidArgument(
        absl::StrCat("world_size is ", request.world_size(), "; it is in [1, ", kMaxRanks, "]"));
  }
  if (request.world_size() > most_ranks) {
    return LimitExceeded(absl::StrCat("a run with world_size ", request.world_size()), "ranks", most_ranks,
                         "ranks_per_run");
  }
  if (request.rank() < 0 || request.rank() >= request.world_size()) {
    return InvalidArgument(
        absl::StrCat("rank is ", request.rank(), "; it is in [0, ", request.world_size(), ")"));
  }
  if (request.launch_id().empty() || request.launch_id().size() > 500) {
    return InvalidArgument(
        absl::StrCat("launch_id has ", request.launch_id().size(), " characters; it has 1 to 500"));
  }
  if (request.process().size() > 100 || request.job().size() > 500) {
    return InvalidArgument(absl::StrCat("process has ", request.process().size(), " characters, and job ",
                                        request.job().size(), "; at most 100 and 500"));
  }
  if (request.run_id().size() > 200) {
    return InvalidArgument(absl::StrCat("run_id has ", request.run_id().size(), " characters; at most 200"));
  }
  if (request.orphaned_size() > kMaxOrphans) {
    return InvalidArgument(
        absl::StrCat("orphaned names ", request.orphaned_size(), " saves; at most ", kMaxOrphans));
  }
  for (const v1::SaveKey& key : request.orphaned()) CKPTD_RETURN_IF_ERROR(CheckTag(key.tag()));
  return absl::OkStatus();
}

storage::v1::UploadRecord UploadsOf(const v1::JoinRunRequest& request) {
  storage::v1::UploadRecord policy;
  if (!request.has_upload()) return policy;
  policy.set_url(request.upload().url());
  policy.set_every(std::max(1, request.upload().every()));
  policy.set_keep_last(request.upload().keep_last());
  policy.set_evict_before_upload(request.upload().evict_before_upload());
  return policy;
}

}  // namespace

void RunJoiner::Join(SessionId session, Run* run, const v1::JoinRunRequest& request,
                     Reply<v1::JoinRunResponse> reply) {
  if (absl::Status wrong = CheckJoin(request, ranks_per_run_); !wrong.ok()) return reply(wrong);
  const absl::StatusOr<std::vector<int>> local_ranks = LocalRanksOf(request);
  if (!local_ranks.ok()) return reply(local_ranks.status());
  if (!local_ranks->empty() && !run->authority->may_span_nodes())
    return reply(SpansNodes(request, local_ranks->size(), *run, node_));
  const std::string& known_id = run->ledger->record().run_id();
  if (!request.run_id().empty() && !known_id.empty() && request.run_id() != known_id) {
    return reply(MakeError(absl::StatusCode::kFailedPrecondition, reason::kRunIdMismatch,
                           absl::StrCat("run_id is \"", request.run_id(), "\", but the root ", run->path,
                                        " holds run \"", known_id, "\"; use another root or that id")));
  }
  if (request.has_upload()) {
    if (absl::Status refused = hooks_.check_upload(*run, request.upload()); !refused.ok())
      return reply(refused);
  }
  Ledger::JoinSpec spec;
  spec.rank = request.rank();
  spec.world_size = request.world_size();
  spec.launch_id = request.launch_id();
  spec.instance = sessions_->Find(session)->client_instance;
  spec.requested_attempt = request.attempt();
  spec.run_id = request.run_id();
  spec.process = request.process();
  spec.job = request.job();
  spec.takeover = request.takeover();
  if (request.rank() == 0) spec.uploads = UploadsOf(request);
  const std::string running = request.takeover() ? run->ledger->RunningBeside(request.job()) : "";
  run->ledger->Join(spec, [this, session, instance = spec.instance, name = run->name, request, running,
                           reply = std::move(reply)](const absl::StatusOr<int64_t>& attempt) mutable {
    if (attempt.ok()) EndIfGone(name, instance);
    Joined(session, name, request, running, attempt, std::move(reply));
  });
}

// It ended while the ledger was asked, which was told the end before it knew the session.
void RunJoiner::EndIfGone(const std::string& run_name, const std::string& instance) {
  Run* run = hooks_.find_run(run_name);
  if (run != nullptr && !sessions_->InstanceLives(instance)) run->ledger->ProcessEnded(instance);
}

void RunJoiner::Joined(SessionId session, const std::string& run_name, const v1::JoinRunRequest& request,
                       const std::string& running, const absl::StatusOr<int64_t>& attempt,
                       Reply<v1::JoinRunResponse> reply) {
  Run* run = hooks_.find_run(run_name);
  const SessionInfo* info = sessions_->Find(session);
  if (run == nullptr || info == nullptr) {
    return reply(
        MakeError(absl::StatusCode::kUnauthenticated, reason::kUnknownToken, "the session has ended"));
  }
  if (!attempt.ok()) return reply(attempt.status());
  std::vector<int> local_ranks = *LocalRanksOf(request);  // It was checked.
  if (absl::Status differs = CheckSameNode(run->members, *attempt, request.rank(), local_ranks);
      !differs.ok())
    return reply(differs);
  run->members.Join(Member{session, info->client_instance, request.rank(), request.world_size(), *attempt,
                           std::move(local_ranks)});
  hooks_.joined(run, *attempt, request);
  v1::JoinRunResponse response;
  response.set_run(run->name);
  response.set_attempt(*attempt);
  response.set_run_id(request.run_id().empty() ? run->ledger->record().run_id() : request.run_id());
  if (running.empty()) {
    if (request.rank() == 0) AddWarnings(*run, running, &response);
    return reply(std::move(response));
  }
  // Other launches are fenced off by their first Begin or resume. A takeover is answered when the other job
  // can commit nothing more.
  run->ledger->Activate(
      *attempt, [this, run_name, running, rank = request.rank(), response = std::move(response),
                 reply = std::move(reply)](const absl::Status& active) mutable {
        Run* acting = hooks_.find_run(run_name);
        if (!active.ok() || acting == nullptr) {
          return reply(!active.ok() ? active
                                    : MakeError(absl::StatusCode::kUnauthenticated, reason::kUnknownToken,
                                                "the session has ended"));
        }
        hooks_.fence_off(acting, response.attempt());
        if (rank == 0) AddWarnings(*acting, running, &response);
        reply(std::move(response));
      });
}

void RunJoiner::AddWarnings(const Run& run, const std::string& running, v1::JoinRunResponse* response) const {
  for (const std::string& warning : run.probe.warnings)
    response->add_warnings(absl::StrCat("the root ", run.path, ": ", warning));
  if (running.empty()) return;
  const std::string taken_over =
      absl::StrCat("attempt ", response->attempt(), " takes ", run.path, " over from ", running,
                   ", which still runs and is fenced off now");
  response->add_warnings(taken_over);
  observer_->OnWarning(taken_over);
}

}  // namespace ckptd
