#include "daemon/runtime/cluster/shared_roots.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "daemon/cluster/nodes_root_io.h"
#include "daemon/cluster/nodes_run.h"
#include "daemon/log/log.h"

namespace ckptd {

// Is told each registration for as long as the engine has the root open.
class SharedRoots::OpenRun : public NodesRun {
 public:
  OpenRun(SharedRoots* roots, SharedFilesIo* files, NodesRun::Options options)
      : NodesRun(roots->etcd_, roots->clock_, files, std::move(options)), roots_(*roots) {
    roots_.runs_.insert(this);
    following_ = roots_.follow_([this](const NodeIdentity* node) { SetNode(node); });
  }
  ~OpenRun() override { roots_.runs_.erase(this); }

 private:
  SharedRoots& roots_;
  std::shared_ptr<const Follower> following_;
};

SharedRoots::SharedRoots(Etcd* etcd, Clock* clock, Options options, Post post, Follow follow,
                         RegisterAnew register_anew)
    : etcd_(etcd),
      clock_(clock),
      options_(std::move(options)),
      post_(std::move(post)),
      follow_(std::move(follow)),
      register_anew_(std::move(register_anew)) {}

void SharedRoots::SetBound(const UseBound& bound) {
  options_.bound = bound;
  for (OpenRun* run : runs_) run->SetBound(bound);
}

RootAccess SharedRoots::Open(std::unique_ptr<SharedFilesIo> files, const std::string& path) {
  NodesRun::Options options;
  options.cluster_prefix = options_.cluster_prefix;
  options.path = path;
  options.grace = options_.grace;
  options.visibility = options_.visibility;
  options.ended_kept_for = options_.ended_kept_for;
  options.bound = options_.bound;
  options.post = post_;
  options.register_anew = register_anew_;
  options.why_unregistered = options_.why_unregistered;
  options.log_error = [](const std::string& message) { Log(LogLevel::kError, message); };
  options.log_info = [](const std::string& message) { Log(LogLevel::kInfo, message); };
  auto io = std::make_unique<NodesRootIo>(std::move(files));
  auto run = std::make_unique<OpenRun>(this, io->files(), std::move(options));
  io->Connect(run.get());
  return {std::move(io), std::move(run)};
}

// `ask` asks each run, which answers later or within the call.
void SharedRoots::AskAll(const std::function<void(OpenRun*, Answer)>& ask,
                         absl::AnyInvocable<void(absl::Status)> answered) {
  struct Waiting {
    size_t runs;
    absl::Status first_error;
    absl::AnyInvocable<void(absl::Status)> answered;
  };
  // One more than there are runs, so that the answer comes after all were asked.
  const auto waiting =
      std::make_shared<Waiting>(Waiting{runs_.size() + 1, absl::OkStatus(), std::move(answered)});
  const Answer answer = [waiting](const absl::Status& status) {
    waiting->first_error.Update(status);
    if (--waiting->runs == 0) waiting->answered(waiting->first_error);
  };
  for (OpenRun* run : runs_) ask(run, answer);
  answer(absl::OkStatus());
}

void SharedRoots::EndSaves(Instant deadline, absl::AnyInvocable<void()> ended) {
  AskAll(
      [deadline](OpenRun* run, const Answer& answer) {
        run->EndSaves(deadline, [answer] { answer(absl::OkStatus()); });
      },
      [ended = std::move(ended)](const absl::Status&) mutable { ended(); });
}

void SharedRoots::Resign(absl::AnyInvocable<void(absl::Status)> resigned) {
  AskAll([](OpenRun* run, const Answer& answer) { run->Resign(answer); }, std::move(resigned));
}

void SharedRoots::Describe(v1::ClusterStatus* status) const {
  for (const std::string& folder : options_.folders) status->add_shared_folders(folder);
  status->set_visibility_seconds(static_cast<int32_t>(options_.visibility / std::chrono::seconds(1)));
  std::vector<const OpenRun*> runs(runs_.begin(), runs_.end());
  std::sort(runs.begin(), runs.end(),
            [](const OpenRun* a, const OpenRun* b) { return a->path() < b->path(); });
  for (const OpenRun* run : runs) {
    v1::SharedRunStatus& added = *status->add_shared_runs();
    added.set_root(run->path());
    added.set_coordinator(run->coordinator());
    for (const SaveId& save : run->UnfinishedSaves()) {
      v1::SharedSaveStatus& unfinished = *added.add_saves();
      unfinished.set_tag(save.tag);
      unfinished.set_attempt(save.attempt);
      unfinished.set_waits_for(run->WaitsFor(save));
    }
  }
}

}  // namespace ckptd
