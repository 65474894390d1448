#include "tests/sim/world.h"

#include <algorithm>
#include <utility>

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
// Once no fault happens any more, nothing waits for longer: a save's patience (20 s to be admitted, 40 s to
// be sealed), a hung disk (30 s), and some of it one after the other.
constexpr Duration kPatience = seconds(300);
// A disk may hang (30 s) under each of what a prefetch asks of it: open, read, mark.
constexpr Duration kPrefetchPatience = seconds(120);
// Of a user who holds more than its share. A save within its own share waits for this, perhaps for the turn
// of a larger one before that, and for the disk: its patience (20 s) is enough.
constexpr Duration kGrace = seconds(2);
constexpr int64_t kMostSteps = 2'000'000;  // Of one case.

}  // namespace

// Answers when the clock says so; its segments have no pages until somebody writes.
class World::SimPopulator : public Populator {
 public:
  SimPopulator(World* world, int64_t segment_bytes, Made made)
      : world_(*world), segment_bytes_(segment_bytes), made_(std::move(made)) {}

  void Make(SegmentId id) override {
    world_.schedule_.After(
        milliseconds(world_.random_.Between(1, 20)), [this, id, alive = std::weak_ptr<char>(alive_)] {
          if (alive.expired()) return;
          if (world_.schedule_.clock().Now() < world_.no_memory_until_ && !world_.ending_) {
            world_.Count("no memory");
            return made_({id, MakeError(absl::StatusCode::kResourceExhausted, "POOL_EXHAUSTED", "no memory"),
                          absl::OkStatus()});
          }
          made_({id, SegmentMemory::MakeSparse(segment_bytes_), absl::OkStatus()});
        });
  }
  void Free(SegmentId, SegmentMemory memory) override {
    if (!world_.oracle_.InUse(memory.data(), memory.size())) return;
    world_.oracle_.Violated("a segment is freed while an I/O uses it");
    world_.graveyard_.push_back(std::move(memory));
  }
  void Forget(SegmentId, std::function<void(absl::Status)> forgotten) override {
    world_.schedule_.After(milliseconds(world_.random_.Between(1, 5)),
                           [forgotten = std::move(forgotten), alive = std::weak_ptr<char>(alive_)] {
                             if (!alive.expired()) forgotten(absl::OkStatus());
                           });
  }

 private:
  World& world_;
  const int64_t segment_bytes_;
  const Made made_;
  const std::shared_ptr<char> alive_ = std::make_shared<char>();
};

World::World(const Plan& plan, bool trace) : plan_(plan), tracing_(trace), random_(Mix(plan.seed, 1)) {
  std::shared_ptr<Volume> volume;
  for (int run = 0; run < plan_.roots(); ++run) {
    if (volume == nullptr || !plan_.shared) volume = std::make_shared<Volume>(Volume{plan_.disk_bytes, {}});
    disks_.push_back(std::make_shared<SimDisk>(
        run, volume, plan_.faults, Mix(plan_.seed, 100 + static_cast<uint64_t>(run)), &schedule_, &oracle_));
    oracle_.SetKept(run, plan_.kept);
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

// ---- the daemon

RootAttachment World::Attachment(int run) {
  RootAttachment attachment;
  attachment.device = plan_.shared ? 1 : static_cast<uint64_t>(run) + 1;
  attachment.inode = static_cast<uint64_t>(run) + 2;
  attachment.path = absl::StrCat("/root", run);
  attachment.uid = plan_.UidOf(run);
  attachment.make_io = [disk = disks_[run]] { return std::make_unique<SimRootIo>(disk); };
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
  engine_options.over_share_grace = kGrace;
  engine_ = std::make_unique<Engine>(engine_options, &schedule_.clock(), pool_.get(), this);
  if (daemon_ > 1) {  // It knows its roots.
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
  ++daemon_;  // From here on no reply is owed.
  run_names_.clear();
  oracle_.LeasesOver();  // What the disk is doing in the engine's last moment may be to empty trash.
  engine_.reset();
  pool_.reset();
  read_ahead_.clear();
  now_in_memory_.clear();
  --daemon_;
  oracle_.DaemonGone();
  for (const auto& trainer : Living()) trainer->DaemonGone();
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
  oracle_.SaveOver(run->second, checkpoint.sequence(), checkpoint.level() == v1::COMMITTED);
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

// ---- what is done to the world

std::vector<std::shared_ptr<Trainer>> World::Living(int run) const {
  std::vector<std::shared_ptr<Trainer>> living;
  for (const auto& trainer : trainers_) {
    if (!trainer->dead() && (run < 0 || trainer->launch().run == run)) living.push_back(trainer);
  }
  return living;
}

std::shared_ptr<Trainer> World::Pick(uint64_t which) const {
  const auto living = Living();
  return living.empty() ? nullptr : living[which % living.size()];
}

void World::LaunchJob(int run, uint64_t how, std::shared_ptr<Launch> again) {
  std::shared_ptr<Launch> launch = again;
  if (launch == nullptr) {
    launch = std::make_shared<Launch>();
    launch->run = run;
    launch->uid = plan_.UidOf(run);
    launch->id = absl::StrCat("L", launches_++);
    launch->world_size = static_cast<int>(1 + how % 3);
    launch->seed = Mix(plan_.seed, how);
    launch->resumes = how / 16 % 8 != 0;
    launch->descriptors = !plan_.grpc_only || how / 256 % 2 == 0;
  }
  newest_launch_[run] = launch;
  for (int rank = 0; rank < launch->world_size; ++rank) {
    trainers_.push_back(std::make_shared<Trainer>(this, launch, rank, absl::StrCat("p", trainers_.size())));
    trainers_.back()->Start();
  }
}

std::vector<std::string> World::TagsOf(const std::string& run_name) {
  v1::ListCheckpointsRequest request;
  request.set_parent(run_name);
  std::vector<std::string> tags;
  engine_->ListCheckpoints(Caller{0, 0, true}, request,
                           Expect<v1::ListCheckpointsResponse>("List", [&tags](auto answer) {
                             if (!answer.ok()) return;
                             for (const auto& each : answer->checkpoints()) tags.push_back(each.tag());
                           }));
  return tags;
}

// Each tag has one outcome, in order, before the end; and what is said of it is so on disk.
void World::Adopt(int run, const std::string& run_name, const Operation& operation) {
  v1::AdoptCheckpointsRequest request;
  request.set_parent(run_name);
  request.set_allow_removal(operation.b % 2 == 0);
  const std::vector<std::string> tags = disks_[run]->ForeignTags();
  if (operation.b / 2 % 3 == 0) {
    request.add_tags("step_0");
    if (!tags.empty()) request.add_tags(tags[operation.b / 8 % tags.size()]);
  }
  if (operation.b / 512 % 2 == 0 && !tags.empty() && !plan_.small_disk) {  // It is written anew meanwhile.
    schedule_.After(random_.Spread(milliseconds(1), seconds(1)),
                    [this, run, tag = tags[operation.b / 1024 % tags.size()]] {
                      if (disks_[run]->IsForeign(tag))
                        disks_[run]->AddForeign(tag, schedule_.clock().UnixMicros());
                    });
  }
  struct Told {
    int outcomes = 0, count = 0;
    bool ended = false, listens = true;
    Reply<bool> end;
  };
  auto told = std::make_shared<Told>();
  const int listens_to = operation.b / 64 % 4 == 0 ? 2 : 1000;
  told->end = Expect<bool>("AdoptCheckpoints", [this, told = told.get()](absl::StatusOr<bool> ended) {
    if (ended.ok() && told->outcomes != told->count)
      oracle_.Violated(absl::StrCat("an adoption ends well, and tells of ", told->outcomes, " of ",
                                    told->count, " checkpoints"));
  });
  engine_->AdoptCheckpoints(
      Caller{0, 0, true}, request,
      [this, run, told, listens_to](const v1::AdoptCheckpointsResponse& event) {
        if (told->ended || !told->listens) oracle_.Violated("an adoption tells of something after its end");
        if (event.outcome() == v1::ADOPT_OUTCOME_UNSPECIFIED) return true;
        Trace("  ", event.tag(), ": ", v1::AdoptOutcome_Name(event.outcome()), " ", event.error().reason());
        Count(absl::StrCat("adopt ", v1::AdoptOutcome_Name(event.outcome()), " ", event.error().reason()));
        told->count = event.count();
        if (event.index() != ++told->outcomes)
          oracle_.Violated("an adoption tells of its checkpoints out of order");
        const bool foreign = disks_[run]->IsForeign(event.tag());
        if (event.outcome() == v1::ADOPTED &&
            (foreign || !disks_[run]->Holds(event.tag(), event.checkpoint().sequence())))
          oracle_.Violated(absl::StrCat(event.tag(), " is said to be adopted, and is not on disk"));
        told->listens = told->outcomes < listens_to;
        return told->listens;
      },
      [told](const absl::Status& status) {
        told->ended = true;
        told->end(status.ok() ? absl::StatusOr<bool>(true) : absl::StatusOr<bool>(status));
      });
}

void World::Prefetch(int run, const std::string& name, bool then_open, uint64_t by) {
  const Instant asked = schedule_.clock().Now();
  engine_->Prefetch(
      Caller{0, 0, true}, name,
      Expect<v1::Checkpoint>(absl::StrCat("Prefetch ", name), [this, run, asked, then_open,
                                                               by](absl::StatusOr<v1::Checkpoint> read) {
        if (schedule_.clock().Now() > asked + kPrefetchPatience)
          oracle_.Violated("a prefetch is answered long after everything that it waits for");
        if (!read.ok()) return Count(absl::StrCat("not read ahead: ", ReasonOf(read.status())));
        Count("read ahead");
        now_in_memory_.emplace_back(run, *read);
        read_ahead_.emplace(run, read->sequence());
        if (!then_open) return;
        schedule_.After(microseconds(10), [this, run, by, tag = read->tag()] {
          const auto living = Living(run);
          if (!living.empty() && engine_ != nullptr) living[by % living.size()]->Open(tag);
        });
      }));
}

void World::Do(const Operation& operation) {
  Trace("-- ", operation.Words());
  Count(absl::StrCat("act ", static_cast<int>(operation.act)));
  const int run = static_cast<int>(operation.a % static_cast<uint64_t>(plan_.runs));
  const std::shared_ptr<Trainer> trainer = Pick(operation.a);
  const auto newest = newest_launch_.find(run);
  const bool up = engine_ != nullptr;
  const auto known = run_names_.find(run);
  const std::string run_name = known == run_names_.end() ? "" : known->second;
  const auto name = [&](const std::string& tag) { return absl::StrCat(run_name, "/checkpoints/", tag); };
  switch (operation.act) {
    case Act::kLaunch:
      // An old launch's trainers are killed, or stay and come late.
      if (operation.b % 3 != 0) {
        for (const auto& old : Living(run)) old->Kill();
      }
      return LaunchJob(run, operation.b / 3, nullptr);
    case Act::kKillTrainer:
      if (trainer != nullptr) trainer->Kill();
      return;
    case Act::kKillLaunch:
      for (const auto& each : Living(run)) each->Kill();
      return;
    case Act::kLoseSession:
      if (trainer != nullptr && up) trainer->LoseSession();
      return;
    case Act::kRespawnRank:
      if (newest == newest_launch_.end()) return;
      for (const auto& each : Living(run)) {
        if (&each->launch() != newest->second.get() ||
            each->rank() != static_cast<int>(operation.b % static_cast<uint64_t>(newest->second->world_size)))
          continue;
        const int rank = each->rank();
        each->Kill();
        trainers_.push_back(
            std::make_shared<Trainer>(this, newest->second, rank, absl::StrCat("p", trainers_.size())));
        trainers_.back()->Start();
        return;
      }
      return;
    case Act::kRespawnLaunch:
      if (newest == newest_launch_.end()) return;
      for (const auto& each : Living(run)) {
        if (&each->launch() == newest->second.get()) each->Kill();
      }
      return LaunchJob(run, operation.b, newest->second);
    case Act::kRestart:
      return KillDaemon(milliseconds(operation.a % 500), operation.b % 4 == 0);
    case Act::kDrain:
      if (!up) return;
      engine_->Drain([this, daemon = daemon_] {
        schedule_.After(milliseconds(1), [this, daemon] {
          if (daemon == daemon_ && engine_ != nullptr) {
            Count("drained");
            KillDaemon(milliseconds(100), false);
          }
        });
      });
      schedule_.After(seconds(20), [this, daemon = daemon_] {
        if (daemon == daemon_ && engine_ != nullptr) KillDaemon(milliseconds(100), false);
      });
      return;
    case Act::kAbort:
      if (trainer != nullptr && up) trainer->Abort();
      return;
    case Act::kOperatorAbort: {
      if (!up) return;
      const v1::Status status = engine_->GetStatus(Caller{0, 0, true});
      for (const v1::Run& each : status.runs()) {
        if (each.name() != run_name || each.in_flight().empty()) continue;
        const auto& victim = each.in_flight(static_cast<int>(operation.b % each.in_flight().size()));
        // By tag: whichever save of it is the newest.
        for (const auto& other : each.in_flight()) {
          if (other.tag() == victim.tag())
            oracle_.Excuse({run, other.attempt(), other.tag(), other.ordinal()});
        }
        v1::AbortRequest request;
        request.set_name(victim.name());
        return engine_->Abort(Caller{0, 0, true}, request,
                              Expect<v1::AbortResponse>("Abort by name", [](auto) {}));
      }
      return;
    }
    case Act::kOpen:
      if (trainer != nullptr && up)
        trainer->Open(operation.b % 2 == 0 ? "latest" : absl::StrCat("again", operation.b % 3));
      return;
    case Act::kPin:
    case Act::kUnpin: {
      if (!up || run_name.empty()) return;
      const std::vector<std::string> tags = TagsOf(run_name);
      if (tags.empty()) return;
      engine_->SetPinned(Caller{0, 0, true}, name(tags[operation.b % tags.size()]),
                         operation.act == Act::kPin, Expect<v1::Checkpoint>("SetPinned", [](auto) {}));
      return;
    }
    case Act::kPrefetch: {
      if (!up || run_name.empty()) return;
      const std::vector<std::string> tags = TagsOf(run_name);
      const bool latest = tags.empty() || operation.b % 2 == 0;
      return Prefetch(run, name(latest ? "latest" : tags[operation.b / 2 % tags.size()]),
                      operation.b / 64 % 2 == 0, operation.a);
    }
    case Act::kForeign: {
      if (plan_.small_disk) return;  // Who was admitted has its room.
      const bool in_the_way = operation.b % 5 == 0;
      const std::string tag =
          absl::StrCat(in_the_way ? "again" : "step_", operation.b / 5 % (in_the_way ? 3 : 6));
      const seconds age = seconds(operation.b / 64 % 2 == 0 ? 0 : operation.b / 128 % 60);
      return disks_[run]->AddForeign(tag, schedule_.clock().UnixMicros() - age / microseconds(1));
    }
    case Act::kAdopt:
      if (up && !run_name.empty()) Adopt(run, run_name, operation);
      return;
    case Act::kRot:
      return disks_[run]->Rot(operation.b);
    case Act::kHang:
      for (const auto& disk : disks_) {
        if (plan_.shared ? !plan_.hostile : disk->run() == run)
          disk->HangUntil(schedule_.clock().Now() + milliseconds(operation.b % 30000));
      }
      return;
    case Act::kNoMemory:
      no_memory_until_ = schedule_.clock().Now() + milliseconds(operation.b % 5000);
      return;
    case Act::kStepDate:
      return schedule_.clock().StepDate(seconds(static_cast<int64_t>(operation.b % 200000) - 100000));
    case Act::kRepeat:
      if (trainer != nullptr && up) trainer->Repeat();
      return;
  }
}

// ---- what must hold

std::optional<v1::Checkpoint> World::Known(int run, const std::string& tag) {
  const auto name = run_names_.find(run);
  if (name == run_names_.end()) return std::nullopt;
  v1::GetCheckpointRequest request;
  request.set_name(absl::StrCat(name->second, "/checkpoints/", tag));
  std::optional<v1::Checkpoint> known;
  engine_->GetCheckpoint(Caller{0, 0, true}, request, [&known](absl::StatusOr<v1::Checkpoint> answer) {
    if (answer.ok()) known = *std::move(answer);
  });
  return known;
}

int64_t World::Opened() const {
  int64_t opened = 0;
  for (const auto& disk : disks_) opened += disk->opened();
  return opened;
}

// A step in which a checkpoint was opened and memory is in use that was not: a prefetch has reserved it.
// (A reader asks for it in a step of its own.)
void World::CheckReadAhead(const PoolUsage& usage) {
  const int64_t taken = usage.used_bytes - usage_.used_bytes;
  if (Opened() != opened_ && taken > 0) {
    Count("reserved to read ahead");
    if (usage.lent_bytes != usage_.lent_bytes)
      oracle_.Violated("what is read ahead takes memory that is lent to trainers");
    if (usage.total_bytes - usage.used_bytes < taken)
      oracle_.Violated("what is read ahead leaves no memory for a save of its size");
    if (taken > pool_->resident_limit_bytes())
      oracle_.Violated("what is read ahead is more than copies may have");
  }
  if (usage.resident_bytes > pool_->resident_limit_bytes())
    oracle_.Violated("copies have more memory than they may");
  for (const auto& [run, said] : std::exchange(now_in_memory_, {})) {
    const auto known = Known(run, said.tag());
    if (known && known->sequence() == said.sequence() && disks_[run]->HasBytes(said.tag()) &&
        !known->resident())
      oracle_.Violated(absl::StrCat(said.tag(), " of run ", run, " is said to be in memory, and is not"));
  }
}

std::string World::RunName(int run) const {
  const auto name = run_names_.find(run);
  return name == run_names_.end() ? "" : name->second;
}

// A save for which there is room in its user's share of the pool waits for no other user for good.
void World::CheckNotStarved(int run, const v1::Checkpoint& ended) {
  if (!plan_.hostile || run >= plan_.runs) return;
  const std::string& reason = ended.error().reason();
  // (That of its disk is another matter.)
  const bool waited =
      reason == "ADMISSION_TIMEOUT" && ended.error().message().find("file system") == std::string::npos;
  if (!waited && reason != "OVER_SHARE") return;
  // At most so much is the user's own: saves in flight, two that have just ended, and what is read.
  int64_t own = 2 + oracle_.CountRead(run);
  const v1::Status status = engine_->GetStatus(Caller{0, 0, true});
  for (const v1::Run& each : status.runs()) {
    if (each.name() == RunName(run)) own += each.in_flight_size();
  }
  Count("waited beside a hostile user");
  if (own * kMostSegmentsOfSave <= plan_.segments / (plan_.runs + 1))
    oracle_.Violated(absl::StrCat("another user keeps ", ended.tag(), " of run ", run,
                                  " from memory: ", ended.error().message()));
}

// A save is refused for want of room on disk only where nothing on that disk gives any back.
void World::CheckNoRoomComes(int run, const v1::Checkpoint& ended) {
  if (ended.error().reason() != "NO_SPACE" ||
      ended.error().message().find("free some space") == std::string::npos)
    return;
  Count("no room on disk");
  const DiskFaults& faults = plan_.faults;
  if (faults.publish + faults.indeterminate + faults.discard + faults.evict + faults.trash + faults.read > 0)
    return;  // The engine may not know what is in trash.
  for (const auto& disk : disks_) {
    if (RunName(disk->run()).empty() || (!plan_.shared && disk->run() != run)) continue;
    if (disk->MayGiveRoom(disk->run() == run ? ended.sequence() : 0))
      oracle_.Violated(absl::StrCat(ended.tag(), " of run ", run, " is refused for want of room, which run ",
                                    disk->run(), " may give back"));
  }
}

void World::CheckDamageIsMarked() {
  for (const Oracle::Found& found : oracle_.TakeFound()) {
    Count("damage read");
    const auto known = Known(found.run, found.tag);
    if (!known || known->sequence() != found.sequence || known->has_damage()) continue;
    const v1::Status status = engine_->GetStatus(Caller{0, 0, true});
    for (const v1::Run& run : status.runs()) {
      if (run.name() == run_names_.at(found.run) && !run.read_only())
        oracle_.Violated(
            absl::StrCat(found.tag, " of run ", found.run, " was found to be damaged, and is not marked"));
    }
  }
}

void World::Check() {
  if (engine_ == nullptr) return;
  oracle_.EndStep();
  const PoolUsage usage = pool_->usage();
  const int64_t lent = usage.lent_bytes + usage.resident_bytes;
  if (usage.used_bytes < 0 || usage.lent_bytes < 0 || usage.resident_bytes < 0 || usage.ready_bytes < 0 ||
      usage.used_bytes + lent > usage.total_bytes || usage.ready_bytes + lent > usage.total_bytes) {
    oracle_.Violated(absl::StrCat("the pool's accounts: ", usage.used_bytes, " used, ", usage.lent_bytes,
                                  " idle, ", usage.resident_bytes, " copies, ", usage.ready_bytes,
                                  " ready of ", usage.total_bytes));
  }
  if (usage.used_bytes < MappedBytes())
    oracle_.Violated("what a reader maps whose session lives is not counted as used");
  CheckReadAhead(usage);
  CheckDamageIsMarked();
  for (const auto& [run, run_name] : run_names_) {
    v1::GetCheckpointRequest request;
    request.set_name(absl::StrCat(run_name, "/checkpoints/latest"));
    bool answered = false;
    engine_->GetCheckpoint(
        Caller{0, 0, true}, request, [&, run = run](absl::StatusOr<v1::Checkpoint> latest) {
          answered = true;
          if (latest.ok() || ReasonOf(latest.status()) == "NO_CHECKPOINT")
            oracle_.Latest(run, latest.ok() ? latest->sequence() : 0);
          if (latest.ok() && !disks_[run]->Holds(latest->tag(), latest->sequence()))
            oracle_.Violated(absl::StrCat("latest of run ", run, " is sequence ", latest->sequence(),
                                          ", which the disk does not hold"));
        });
    if (!answered) oracle_.Violated("GetCheckpoint does not answer at once");
  }
}

// Of the sessions that live: what they map is in use for as long as they do.
int64_t World::MappedBytes() const {
  std::map<int64_t, int64_t> segments;
  for (const auto& trainer : trainers_) trainer->AddMapped(&segments);
  int64_t bytes = 0;
  for (const auto& segment : segments) bytes += segment.second;
  return bytes;
}

bool World::Quiet() {
  if (engine_ == nullptr || starting_ || !pending_.empty()) return false;
  for (const auto& trainer : trainers_) {
    if (!trainer->idle()) return false;
  }
  const v1::Status status = engine_->GetStatus(Caller{0, 0, true});
  for (const v1::Run& run : status.runs()) {
    if (!run.in_flight().empty() || run.read_only() || run.trash_bytes() > 0) return false;
  }
  // Of what is mapped the whole copy is in use, also memory of it in which no file lies.
  const int64_t used = pool_->usage().used_bytes, mapped = MappedBytes();
  return mapped == 0 ? used == 0 : used >= mapped;
}

std::string World::WhatGoesOn() {
  std::string words;
  for (const auto& trainer : trainers_) {
    if (!trainer->idle()) absl::StrAppend(&words, "; ", trainer->Words());
  }
  for (const auto& pending : pending_) absl::StrAppend(&words, "; not answered: ", pending.second.what);
  if (engine_ == nullptr) return words;
  const v1::Status status = engine_->GetStatus(Caller{0, 0, true});
  for (const v1::Run& run : status.runs()) {
    for (const auto& save : run.in_flight()) absl::StrAppend(&words, "; in flight: ", save.tag());
    if (run.read_only()) absl::StrAppend(&words, "; read-only: ", run.path());
    if (run.trash_bytes() > 0) absl::StrAppend(&words, "; in trash of ", run.path(), ": ", run.trash_bytes());
  }
  return absl::StrCat(words, "; memory in use: ", pool_->usage().used_bytes, ", mapped: ", MappedBytes());
}

// Until nothing is due before `until`, something is violated, or (if it may) all is quiet.
bool World::RunUntil(Duration until, bool may_be_quiet) {
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
    } else if (may_be_quiet && Quiet()) {
      // The event that would have ended it may still come, to nobody.
      while (!reached) schedule_.RunNext();
      return true;
    }
    if (result_.steps > kMostSteps) oracle_.Violated("it goes round and round");
  }
  return false;
}

// No faults any more: everything comes to an end, everything is given back, and every root takes a save.
void World::End() {
  ending_ = true;
  for (const auto& disk : disks_) disk->EndFaults();
  if (hostile_ != nullptr) hostile_->End();
  auto settle = [this](const char* what) {
    if (!RunUntil(schedule_.elapsed() + kPatience, true) && oracle_.violation().empty())
      oracle_.Violated(absl::StrCat(what, " does not come to an end", WhatGoesOn()));
    return oracle_.violation().empty();
  };
  if (!settle("what was under way")) return;
  for (const auto& trainer : Living()) trainer->Kill();
  if (!settle("the end of all trainers")) return;
  if (const int64_t lent = pool_->usage().lent_bytes; lent != 0)
    return oracle_.Violated(
        absl::StrCat("all trainers have ended, and ", lent, " bytes are still lent to them"));
  KillDaemon(milliseconds(1), false);  // What an earlier fault left in flight, the next daemon takes away.
  if (!settle("recovery")) return;
  for (int run = 0; run < plan_.roots(); ++run) {
    const std::string left = disks_[run]->Leftovers();
    if (!left.empty()) return oracle_.Violated(absl::StrCat("left on disk of run ", run, ":", left));
    auto last = std::make_shared<Launch>();
    last->run = run;
    last->uid = plan_.UidOf(run);
    last->id = absl::StrCat("last", run);
    last->world_size = 2;
    last->seed = plan_.seed;
    LaunchJob(run, 0, last);
  }
  if (!settle("the last launch")) return;
  const auto last = Living();
  for (const auto& trainer : last) trainer->LastSave();
  if (!settle("the last save")) return;
  for (const auto& trainer : last) {
    const bool room = !plan_.small_disk && plan_.segments >= 2 * plan_.roots();
    if (room && !trainer->last_save_committed())
      return oracle_.Violated(absl::StrCat("a root without faults takes no save of ", trainer->Words()));
    trainer->Kill();
  }
  if (!settle("the last trainers")) return;
  const PoolUsage usage = pool_->usage();
  if (usage.used_bytes != 0 || usage.lent_bytes != 0) {
    oracle_.Violated(absl::StrCat("at the end ", usage.used_bytes, " bytes of memory are used and ",
                                  usage.lent_bytes, " lent, to nobody"));
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
    schedule_.After(operation.at, [this, &operation] { Do(operation); });
  RunUntil(plan_.length, false);
  if (oracle_.violation().empty()) End();
  for (const auto& trainer : trainers_) trainer->ReadMapped();
  result_.violation = oracle_.violation();
  return std::move(result_);
}

}  // namespace ckptd::sim
