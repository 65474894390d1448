// JoinRun: a session becomes a rank of a run.
#ifndef CKPTD_DAEMON_ENGINE_RESUME_RUN_JOINER_H_
#define CKPTD_DAEMON_ENGINE_RESUME_RUN_JOINER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"
#include "daemon/engine/run/run.h"
#include "daemon/engine/run/session_table.h"
#include "daemon/engine/seams/engine_types.h"

namespace ckptd {

// Checks a JoinRun, asks the ledger for the attempt of the caller's process, and enters the rank into
// Run::members. Keeps no state between calls.
class RunJoiner {
 public:
  struct Hooks {
    // Null: the run has been closed.
    std::function<Run*(const std::string& name)> find_run;
    // The rank is in Run::members. Runs before the answer.
    std::function<void(Run*, int64_t attempt, const v1::JoinRunRequest&)> joined;
    // The attempt acts now: unsealed saves of older attempts end.
    std::function<void(Run*, int64_t attempt)> fence_off;
    std::function<absl::Status(const Run&, const v1::UploadPolicy&)> check_upload = nullptr;
  };

  // `node`: EngineOptions::node.
  RunJoiner(int ranks_per_run, std::string node, EngineObserver* observer, const SessionTable* sessions,
            Hooks hooks)
      : ranks_per_run_(ranks_per_run),
        node_(std::move(node)),
        observer_(observer),
        sessions_(sessions),
        hooks_(std::move(hooks)) {}

  void SetMostRanksPerRun(int ranks) { ranks_per_run_ = ranks; }

  // Call it while the session is open.
  void Join(SessionId session, Run* run, const v1::JoinRunRequest& request, Reply<v1::JoinRunResponse> reply);

 private:
  void EndIfGone(const std::string& run_name, const std::string& instance);
  // `running`: the launch of another job that is taken over; empty: none.
  void Joined(SessionId session, const std::string& run_name, const v1::JoinRunRequest& request,
              const std::string& running, const absl::StatusOr<int64_t>& attempt,
              Reply<v1::JoinRunResponse> reply);
  void AddWarnings(const Run& run, const std::string& running, v1::JoinRunResponse* response) const;

  int ranks_per_run_;
  const std::string node_;
  EngineObserver* const observer_;
  const SessionTable* const sessions_;
  const Hooks hooks_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RESUME_RUN_JOINER_H_
