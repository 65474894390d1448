// A process of a job: it connects to the daemon of its node, joins, resumes and saves. It reconnects when its
// session or the daemon is gone, and ends when it is told that it is fenced.
#ifndef CKPTD_TESTS_SIM_NODES_RANK_H_
#define CKPTD_TESTS_SIM_NODES_RANK_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/sim/mapping.h"
#include "tests/sim_nodes/node.h"
#include "tests/sim_nodes/world.h"

namespace ckptd::sim_nodes {

class Rank : public std::enable_shared_from_this<Rank> {
 public:
  Rank(World* world, std::shared_ptr<Launch> launch, int rank, std::string process)
      : world_(*world),
        launch_(std::move(launch)),
        rank_(rank),
        process_(std::move(process)),
        node_(world->node(launch_->nodes[static_cast<size_t>(rank)])),
        random_(sim::Mix(launch_->seed, sim::Mix(static_cast<uint64_t>(rank), sim::Mix(process_)))) {}

  const Launch& launch() const { return *launch_; }
  const Node& node() const { return node_; }
  bool dead() const { return dead_; }
  // Whether no request is in progress and the rank waits for nothing.
  bool idle() const;
  std::string ToString() const;

  void Start() {
    Later(random_.Spread(std::chrono::milliseconds(1), std::chrono::seconds(1)), &Rank::Connect);
  }
  void Kill();
  void LoseSession();  // The daemon ends the session; the process notices a little later.
  void DaemonGone();
  // Opens a checkpoint, and closes it a while later.
  void Open(const std::string& tag);
  // Aborts one of its saves, which it may not have begun yet; `which`: modulo their number.
  void Abort(uint64_t which);
  // Does one more save, the same on all ranks. `ordinal`: of its tag.
  void LastSave(int64_t ordinal);
  // Whether the last save failed because its directory did not exist.
  bool last_save_had_no_directory() const { return last_save_had_no_directory_; }
  bool last_save_committed() const { return last_save_committed_; }

 private:
  // One rank's view of the launch's n-th save.
  struct SavePlan {
    std::string tag;
    int64_t ordinal = 1;
    v1::BusyPolicy busy = v1::WAIT;
    Duration timeout = std::chrono::seconds(20), commit_timeout = std::chrono::seconds(60);
    std::map<std::string, int64_t> files;  // Sizes by path.
    std::set<int> ranks;                   // That have something to save.
  };
  enum class Phase { kBegin, kSeal, kWait, kDone };
  struct Saving {
    SavePlan plan;
    SaveId name;
    bool last = false;
    Phase phase = Phase::kBegin;
    bool outstanding = false;  // A request or the copy is in progress.
    bool seal_ok = false;
    int64_t daemon = 0;  // That of the last Begin.
    int64_t sequence = 0;
    sim::Contents contents;
  };
  using SavingPtr = std::shared_ptr<Saving>;

  template <typename... Args>
  void Later(Duration delay, void (Rank::*then)(Args...), std::decay_t<Args>... args) {
    world_.schedule().After(delay, [self = shared_from_this(), connection = connection_, then, args...] {
      if (!self->dead_ && self->connection_ == connection) ((*self).*then)(args...);
    });
  }
  // Sends a request to the daemon. `heard` runs with the answer, unless the connection is another one by
  // then.
  template <typename Response, typename Request>
  void Ask(void (Engine::*call)(const Caller&, const Request&, Reply<Response>), const std::string& what,
           const Request& request, std::function<void(const absl::StatusOr<Response>&)> heard);

  void Connect();
  void Join();
  void Joined(int64_t ledger_attempt);
  void Resume();
  void Resumed(const v1::ResumeResponse& answer, const std::set<int64_t>& told_before);
  void FinishResume(int64_t sequence);
  void ResumeAgain();
  void OpenLease(const std::string& lease, int64_t sequence, int losses_before);
  void CloseLease(std::string lease);
  // Reports the damage that it has found.
  void EndReading(std::string lease, v1::Checkpoint read);
  void ForgetConnection();
  void Fenced();

  void NextSave();
  SavePlan PlanOf(int n) const;
  std::string TagOf(int n) const;
  v1::SaveKey KeyOf(const Saving& saving) const;
  void AddSave(SavePlan plan, bool last);
  void Drive(SavingPtr saving);
  void Begin(const SavingPtr& saving);
  void Copy(const SavingPtr& saving, const v1::BeginResponse& granted);
  void Copied(SavingPtr saving);
  void Seal(const SavingPtr& saving);
  void Wait(const SavingPtr& saving);
  void HearEnd(const SavingPtr& saving, const v1::Checkpoint& checkpoint);
  void Refused(const SavingPtr& saving, const absl::Status& why);
  void Done(const SavingPtr& saving);
  void ContinueLater(const SavingPtr& saving) {
    Later(random_.Spread(std::chrono::microseconds(50), std::chrono::milliseconds(500)), &Rank::Drive,
          saving);
  }

  World& world_;
  const std::shared_ptr<Launch> launch_;
  const int rank_;
  const std::string process_;
  Node& node_;
  sim::Random random_;

  bool dead_ = false;
  int connection_ = 0;  // Counts connections; requests of an earlier one are not answered.
  SessionId session_ = 0;
  int64_t daemon_ = 0;  // That of the session.
  std::string root_;
  int64_t attempt_ = 0;            // As the oracle numbers them,
  int64_t attempt_of_ledger_ = 0;  // and as etcd does.
  bool joined_ = false, resumed_ = false, resuming_ = false;
  bool last_save_committed_ = false, last_save_had_no_directory_ = false;
  bool allows_suspect_ = false;  // Resumes from a suspect checkpoint, too.
  int failed_resumes_ = 0;
  int saves_ = 0;
  std::vector<SavingPtr> savings_;                           // In progress.
  std::map<int64_t, std::shared_ptr<sim::Mapping>> mapped_;  // Segments of this session.
  std::set<std::string> leases_;
  int losses_before_resume_ = 0;
  int opening_ = 0;
};

}  // namespace ckptd::sim_nodes
#endif  // CKPTD_TESTS_SIM_NODES_RANK_H_
