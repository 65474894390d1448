// A case: daemons start and are killed, operations happen, and in the end everything must settle.
#include "tests/sim/world.h"

#include <algorithm>
#include <utility>

#include "storage/base/callback_scope.h"
#include "storage/base/errors.h"
#include "tests/sim/hostile.h"
#include "tests/sim/trainer.h"

namespace ckptd::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kSegment = 2 << 20;
constexpr Duration kTick = milliseconds(50);
// After the last fault, nothing takes longer than this: timeouts of saves (20 s for admission, 40 s for
// sealing) and hung disks (30 s) can follow one another.
constexpr Duration kSettleTimeout = seconds(300);
// An upload that has failed may be tried again minutes later.
constexpr Duration kSettleUploadsTimeout = seconds(900);
constexpr int kTicksForUploads = 20;
constexpr int64_t kMaxSteps = 2'000'000;  // Per case.

}  // namespace

// Answers by the simulated clock. Its segments have no pages until they are written to.
class World::SimPopulator : public Populator {
 public:
  SimPopulator(World* world, int64_t segment_bytes, Made made)
      : world_(*world), segment_bytes_(segment_bytes), made_(std::move(made)) {}

  void Make(SegmentId id) override {
    world_.schedule_.After(milliseconds(world_.random_.Between(1, 20)), scope_.Guard([this, id] {
      if (world_.schedule_.clock().Now() < world_.no_memory_until_ && !world_.ending_) {
        world_.Count("no memory");
        return made_({id, MakeError(absl::StatusCode::kResourceExhausted, "POOL_EXHAUSTED", "no memory"),
                      absl::OkStatus()});
      }
      made_({id, SegmentMemory::MakeSparse(segment_bytes_), absl::OkStatus()});
    }));
  }
  void Free(SegmentId, SegmentMemory memory) override {
    if (!world_.oracle_.InUse(memory.data(), memory.size())) return;
    world_.oracle_.Violated("a segment is freed while an I/O uses it");
    world_.graveyard_.push_back(std::move(memory));
  }
  void Forget(SegmentId, std::function<void(absl::Status)> forgotten) override {
    world_.schedule_.After(milliseconds(world_.random_.Between(1, 5)),
                           scope_.Guard([forgotten = std::move(forgotten)] { forgotten(absl::OkStatus()); }));
  }

 private:
  World& world_;
  const int64_t segment_bytes_;
  const Made made_;
  CallbackScope scope_;
};

World::World(const Plan& plan, bool trace) : plan_(plan), tracing_(trace), random_(Mix(plan.seed, 1)) {
  std::shared_ptr<Volume> volume;
  for (int run = 0; run < plan_.roots(); ++run) {
    if (volume == nullptr || !plan_.shared) volume = std::make_shared<Volume>(Volume{plan_.disk_bytes, {}});
    disks_.push_back(std::make_shared<SimDisk>(
        run, volume, plan_.faults, Mix(plan_.seed, 100 + static_cast<uint64_t>(run)), &schedule_, &oracle_));
    if (HasBucket(run)) {
      buckets_[run] = std::make_shared<SimBucket>(disks_[run], plan_.uploads,
                                                  Mix(plan_.seed, 200 + static_cast<uint64_t>(run)),
                                                  &schedule_, &oracle_);
      disks_[run]->SetBucket(buckets_[run].get());
    }
    oracle_.SetKept(run, plan_.kept, plan_.every_steps);
    runs_by_path_[absl::StrCat("/root", run)] = run;
    for (int i = 0; i < plan_.foreign; ++i)
      disks_[run]->AddForeign(absl::StrCat("step_", i),
                              schedule_.clock().UnixMicros() - 1'000'000 * (10 - i));
  }
}

World::~World() {
  ++daemon_;
  engine_.reset();
  pool_.reset();
}

// ---- The daemon

RootAttachment World::Attachment(int run) {
  RootAttachment attachment;
  attachment.device = plan_.shared ? 1 : static_cast<uint64_t>(run) + 1;
  attachment.inode = static_cast<uint64_t>(run) + 2;
  attachment.path = absl::StrCat("/root", run);
  attachment.uid = plan_.UidOf(run);
  attachment.make_io = [disk = disks_[run], bucket = HasBucket(run) ? buckets_[run] : nullptr] {
    RootAccess access{std::make_unique<SimRootIo>(disk)};
    if (bucket != nullptr) access.uploads = std::make_unique<SimUploadIo>(bucket);
    return access;
  };
  return attachment;
}

void World::StartDaemon() {
  starting_ = false;
  ++daemon_;
  Trace("daemon ", daemon_, " starts");
  oracle_.DaemonStarted();
  SegmentPoolOptions options;
  options.bytes = plan_.segments * kSegment;
  options.segment_bytes = kSegment;
  options.populate_ahead_bytes = plan_.seed % 2 == 0 ? options.bytes : 0;
  options.resident_bytes = plan_.seed % 3 == 0 ? 0 : plan_.seed % 3 == 1 ? options.bytes / 2 : options.bytes;
  options.pages = PagePolicy::kPlain;
  pool_ = SegmentPool::Start(
      options,
      [this, daemon = daemon_](absl::AnyInvocable<void()> work) {
        schedule_.After(microseconds(5), [this, daemon, work = std::move(work)]() mutable {
          if (daemon == daemon_) work();
        });
      },
      [](std::string) {}, PoolSuccession{},
      [this](int64_t segment_bytes, Populator::Made made) {
        return std::make_unique<SimPopulator>(this, segment_bytes, std::move(made));
      });
  EngineOptions engine_options;
  engine_options.daemon_version = "simulated";
  engine_options.daemon_instance = absl::StrCat("daemon ", daemon_);
  engine_options.scrub_period = seconds(plan_.seed % 5 == 0 ? 0 : 5);
  engine_options.over_share_grace = kOverShareGrace;
  engine_options.trash_grace = plan_.grace;
  engine_ = std::make_unique<Engine>(engine_options, &schedule_.clock(), pool_.get(), this);
  if (daemon_ > 1) {  // The daemon knows its roots.
    for (int run = 0; run < plan_.roots(); ++run) {
      engine_->RecoverRoot(Attachment(run), Expect<std::string>("RecoverRoot", [](auto) {}));
    }
  }
  schedule_.After(kTick, [this, daemon = daemon_] { Tick(daemon); });
}

void World::KillDaemon(Duration pause, bool locked) {
  if (engine_ == nullptr) return;
  Trace("daemon ", daemon_, " is killed");
  Count("restart");
  ++daemon_;  // From here on no reply is due.
  run_names_.clear();
  oracle_.AllLeasesEnded();  // While the engine is destroyed, the disk may be emptying trash.
  engine_.reset();
  pool_.reset();
  prefetched_.clear();
  reported_resident_.clear();
  --daemon_;
  oracle_.DaemonGone();
  for (const auto& trainer : LivingTrainers()) trainer->DaemonGone();
  if (hostile_ != nullptr) hostile_->DaemonGone();
  if (locked) {
    for (const auto& disk : disks_)
      disk->LockUntil(schedule_.clock().Now() + pause + milliseconds(random_.Between(1, 2000)));
  }
  starting_ = true;
  schedule_.After(pause, [this] { StartDaemon(); });
}

void World::Tick(int64_t daemon) {
  if (daemon != daemon_ || engine_ == nullptr) return;
  in_tick_ = true;
  engine_->Tick();
  if (++ticks_ % kTicksForUploads == 0) CheckUploads();
  schedule_.After(kTick, [this, daemon] { Tick(daemon); });
}

void World::OnSaveEnded(const SaveSummary& summary) {
  auto run = runs_by_path_.find(summary.path);
  const v1::Checkpoint& checkpoint = summary.checkpoint;
  Trace("  save ended: run ", run->second, " attempt ", checkpoint.attempt(), " ", checkpoint.tag(), "#",
        checkpoint.ordinal(), " sequence ", checkpoint.sequence(), " ", v1::Level_Name(checkpoint.level()),
        " ", checkpoint.error().reason());
  Count(absl::StrCat("ended ", v1::Level_Name(checkpoint.level())));
  if (checkpoint.error().reason() == "OVER_SHARE") Count("over its share");
  oracle_.SaveEnded(run->second, checkpoint.sequence(), checkpoint.level() == v1::COMMITTED);
  CheckNotStarved(run->second, checkpoint);
  CheckNoRoomComes(run->second, checkpoint);
}
void World::OnWarning(const std::string& message) { Trace("  warning: ", message); }
void World::OnInfo(const std::string& message) {
  if (message.find("published: complete") != std::string::npos) Count("recovered");
  Trace("  info: ", message);
}
void World::OnRootOpened(const std::string& run, const std::string& path, const ProbeResult&) {
  run_names_[runs_by_path_.at(path)] = run;
}

// ---- The run

// Runs events until `until`, a violation, or (if `stop_when_idle`) until nothing is going on.
bool World::RunUntil(Duration until, bool stop_when_idle) {
  bool reached = false;
  schedule_.After(std::max(Duration::zero(), until - schedule_.elapsed()), [&reached] { reached = true; });
  while (!reached && oracle_.violation().empty()) {
    in_tick_ = false;
    opened_ = Opened();
    usage_ = pool_ == nullptr ? PoolUsage() : pool_->usage();
    schedule_.RunNext();
    if (!in_tick_) {
      ++result_.steps;
      Check();
    } else if (stop_when_idle && IsIdle()) {
      // The event that marks the end is still queued: run past it, so that it does not refer to this frame
      // later.
      while (!reached) schedule_.RunNext();
      return true;
    }
    if (result_.steps > kMaxSteps) oracle_.Violated("the case does not end");
  }
  return false;
}

// Turns faults off and checks that everything ends, that all memory is returned, and that every root accepts
// a save.
void World::End() {
  ending_ = true;
  for (const auto& disk : disks_) disk->EndFaults();
  for (const auto& [run, bucket] : buckets_) bucket->model().EndFaults();
  if (hostile_ != nullptr) hostile_->End();
  if (!Settle("the work in progress")) return;
  for (const auto& trainer : LivingTrainers()) trainer->Kill();
  if (!Settle("the end of all trainers")) return;
  if (const int64_t lent = pool_->usage().lent_bytes; lent != 0)
    return oracle_.Violated(
        absl::StrCat("all trainers have ended, but ", lent, " bytes are still lent to them"));
  KillDaemon(milliseconds(1), false);  // The next daemon removes what an earlier fault left in flight.
  if (!Settle("recovery")) return;
  for (int run = 0; run < plan_.roots(); ++run) {
    const std::string left = disks_[run]->Leftovers();
    if (!left.empty()) return oracle_.Violated(absl::StrCat("left on disk of run ", run, ":", left));
    LaunchTwoRanks(run, absl::StrCat("last", run));
  }
  if (!Settle("the last launch")) return;
  const auto last = LivingTrainers();
  for (const auto& trainer : last) trainer->LastSave();
  if (!Settle("the last save")) return;
  for (const auto& trainer : last) {
    const bool room = !plan_.small_disk && plan_.segments >= 2 * plan_.roots();
    if (room && !trainer->last_save_committed())
      return oracle_.Violated(
          absl::StrCat("a root without faults did not commit the save of ", trainer->ToString()));
    trainer->Kill();
  }
  if (!Settle("the last trainers")) return;
  const PoolUsage usage = pool_->usage();
  if (usage.used_bytes != 0 || usage.lent_bytes != 0) {
    return oracle_.Violated(absl::StrCat("at the end ", usage.used_bytes, " bytes of memory are used and ",
                                         usage.lent_bytes, " lent, to nobody"));
  }
  for (const auto& [run, bucket] : buckets_) {
    if (const std::string left = bucket->Leftovers(); !left.empty())
      return oracle_.Violated(absl::StrCat("in the bucket of run ", run, ":", left));
  }
  LoseDisks();
}

void World::LaunchTwoRanks(int run, const std::string& id) {
  auto launch = std::make_shared<Launch>();
  launch->run = run;
  launch->uid = plan_.UidOf(run);
  launch->id = id;
  launch->world_size = 2;
  launch->seed = plan_.seed;
  LaunchJob(run, 0, launch);
}

bool World::Settle(const std::string& what) {
  const Duration timeout = buckets_.empty() ? kSettleTimeout : kSettleUploadsTimeout;
  if (!RunUntil(schedule_.elapsed() + timeout, true) && oracle_.violation().empty())
    oracle_.Violated(absl::StrCat(what, " did not end", DescribeActivity()));
  return oracle_.violation().empty();
}

// All disks are lost: the next launch of each run must go on from the newest checkpoint of its bucket.
void World::LoseDisks() {
  if (!plan_.uploads.restore) return;
  KillDaemon(milliseconds(1), false);
  for (const auto& [run, bucket] : buckets_) {
    disks_[run]->Lose();
    oracle_.RootLost(run, bucket->model().NewestWithoutRoot());
    LaunchTwoRanks(run, absl::StrCat("after the loss ", run));
  }
  if (!Settle("the launch after the loss of the disk")) return;
  for (const auto& trainer : LivingTrainers()) trainer->Kill();
  if (!Settle("its end")) return;
  for (const auto& [run, bucket] : buckets_) {
    // Some trainers never resume.
    if (bucket->model().Newest() != 0 && oracle_.HasResumedAfterLoss(run)) Count("resumed from a bucket");
  }
}

Result World::Run() {
  StartDaemon();
  if (plan_.hostile) {
    LaunchJob(plan_.runs, Mix(plan_.seed, 5), nullptr);
    hostile_ = std::make_shared<Hostile>(this, Mix(plan_.seed, 6));
    hostile_->Start();
  }
  for (const Operation& operation : plan_.operations)
    schedule_.After(operation.at, [this, &operation] { Apply(operation); });
  RunUntil(plan_.length, false);
  if (oracle_.violation().empty()) End();
  for (const auto& trainer : trainers_) trainer->ReadMapped();
  result_.violation = oracle_.violation();
  return std::move(result_);
}

}  // namespace ckptd::sim
