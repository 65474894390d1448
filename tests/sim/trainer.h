// A process of a job: it connects, joins, resumes and saves, and recovers as a real client does. It
// reconnects when its session or the daemon is gone, repeats unanswered requests, reports its staged saves,
// and ends when it is told that it is fenced.
#ifndef CKPTD_TESTS_SIM_TRAINER_H_
#define CKPTD_TESTS_SIM_TRAINER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/mapping.h"
#include "tests/sim/world.h"

namespace ckptd::sim {

class Trainer : public std::enable_shared_from_this<Trainer> {
 public:
  Trainer(World* world, std::shared_ptr<Launch> launch, int rank, std::string instance)
      : world_(*world),
        launch_(std::move(launch)),
        rank_(rank),
        instance_(std::move(instance)),
        random_(Mix(launch_->seed, Mix(rank_, Mix(instance_)))) {}

  const Launch& launch() const { return *launch_; }
  int rank() const { return rank_; }
  bool dead() const { return dead_; }
  SessionId session() const { return session_; }
  // True if no request is in progress and the trainer waits for nothing.
  bool idle() const;
  std::string ToString() const;

  void Start() {
    Later(random_.Spread(std::chrono::milliseconds(1), std::chrono::seconds(1)), &Trainer::Connect);
  }
  void Kill();
  void LoseSession();  // The daemon ends the session; the process notices a little later.
  void DaemonGone();
  void Abort();
  void Open(const std::string& tag);
  void Repeat();
  // Does one more save, the same on all ranks, after everything else.
  void LastSave() {
    last_save_ = true;
    CloseLeases();
    NextSave();
  }
  bool last_save_committed() const { return last_save_committed_; }
  // Checks everything that it maps once more, also after its death: another process may have inherited the
  // mapping.
  void ReadMapped();
  // Adds the segments of the living daemon that a living session maps, with their sizes.
  void AddMapped(std::map<int64_t, int64_t>* segments) const;

 private:
  struct File {
    std::string path;
    int64_t size;
  };
  // One rank's view of the launch's n-th save.
  struct SavePlan {
    std::string tag;
    int64_t ordinal = 1;
    bool growing = false;
    v1::BusyPolicy busy = v1::WAIT;
    Duration timeout{}, commit_timeout{};
    std::vector<File> files;
    bool leaves_one_out = false;
    int only_rank = -1;  // The one rank that contributes; -1: all do.
  };
  // One rank's files of an open checkpoint, in the daemon's memory.
  struct LocatedPart {
    int rank;
    std::vector<std::shared_ptr<Mapping>> segments;
    std::map<std::string, std::pair<int64_t, int64_t>> placed;  // Path -> offset, size.
  };
  struct Located {
    int64_t sequence = 0;
    std::vector<LocatedPart> parts;
  };
  // Memory that the process maps for as long as it wants, even after the end of its lease, session or daemon.
  struct Mapped {
    SessionId session;
    int64_t daemon;
    Located located;
    std::map<int64_t, int64_t> bytes;  // By segment.
  };
  bool Contributes(const SavePlan& plan) const;
  std::vector<int> AbsentRanks(const SavePlan& plan) const;
  enum class Phase { kBegin, kExtend, kCopy, kSeal, kWait, kDone };
  struct Saving {
    int n = 0;
    bool last = false;
    SavePlan plan;
    SaveName name;
    Phase phase = Phase::kBegin;
    bool outstanding = false;  // A request or the copy is in progress.
    bool begun = false;        // Begin was answered.
    bool seal_sent = false, seal_ok = false;
    int64_t daemon = 0;  // The daemon of the last Begin.
    int64_t sequence = 0;
    size_t extended = 0;
    std::vector<std::shared_ptr<Mapping>> segments;
    std::map<std::string, std::pair<int64_t, int64_t>> placed;  // Path -> offset, size.
    Contents contents;
    int copies = 0;
  };

  template <typename... Args>
  void Later(Duration delay, void (Trainer::*then)(Args...), std::decay_t<Args>... args) {
    world_.schedule().After(delay, [self = shared_from_this(), connection = connection_, then, args...] {
      if (!self->dead_ && self->connection_ == connection) ((*self).*then)(args...);
    });
  }
  // Returns a reply that is ignored unless the session that asked is still the current one.
  template <typename T, typename Handler>
  Reply<T> Expect(const std::string& what, Handler handler);
  Caller caller() const { return Caller{session_, launch_->uid, false}; }
  std::string Who() const;

  void Connect();
  void Join();
  void Resume();
  void FinishResume(int64_t sequence);
  void ResumeAgain();
  void LeaseGiven(const std::string& lease, int64_t sequence);
  void Locate(std::string lease, int64_t sequence);
  void ReadLocated(const std::string& lease);
  void Read(const Located& located);
  void MapForGood(const Located& located, std::map<int64_t, int64_t> bytes);
  void CloseLease(std::string lease);
  void CloseLeases();
  void ForgetConnection();
  void NextSave();
  SavePlan PlanOf(int n) const;
  std::string TagOf(int n) const;
  v1::SaveKey KeyOf(const Saving& saving) const;
  using SavingPtr = std::shared_ptr<Saving>;
  void Drive(SavingPtr saving);
  void Begin(SavingPtr saving);
  void Extend(SavingPtr saving);
  void Copy(SavingPtr saving);
  void CopyFile(const SavingPtr& saving, const std::string& path);
  void Seal(SavingPtr saving);
  void Wait(SavingPtr saving);
  void MapSegments(const SavingPtr& saving, const google::protobuf::RepeatedPtrField<v1::Segment>& segments,
                   const google::protobuf::RepeatedPtrField<v1::FilePlacement>& placements);
  void HandleRefusal(const SavingPtr& saving, const absl::Status& status, Oracle::FenceState before);
  void Done(const SavingPtr& saving);
  void ContinueLater(SavingPtr saving) {
    Later(random_.Spread(std::chrono::microseconds(50), std::chrono::milliseconds(500)), &Trainer::Drive,
          std::move(saving));
  }

  World& world_;
  const std::shared_ptr<Launch> launch_;
  const int rank_;
  const std::string instance_;
  Random random_;

  bool dead_ = false, fenced_ = false;
  bool acted_ = false;  // A Begin or Resume was answered.
  bool last_save_ = false, last_save_committed_ = false;
  int connection_ = 0;  // Counts connections; requests of an earlier connection are not answered.
  SessionId session_ = 0, lost_session_ = 0;
  int64_t daemon_ = 0;
  std::string root_;
  int64_t attempt_ = 0;
  bool joined_ = false, resumed_ = false, resuming_ = false, asks_again_ = false;
  bool allows_suspect_ = false;  // Resumes from a suspect checkpoint, too.
  int failed_resumes_ = 0;
  int64_t finishing_ = 0;  // The sequence of a FinishResume that has no answer yet; 0: none.
  int saves_ = 0;
  std::vector<SavingPtr> savings_;  // In progress.
  std::map<int64_t, std::shared_ptr<Mapping>> mapped_;
  std::vector<std::string> leases_;
  std::map<std::string, Located> located_;  // By lease.
  std::vector<Mapped> mapped_for_good_;
  // Leases of a resume. After the rank has reported that it has read one, the lease is in read_leases_, and
  // the rank does not read its memory any more.
  std::set<std::string> resuming_leases_;
  std::set<std::string> read_leases_;
  int opening_ = 0;
};

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_TRAINER_H_
