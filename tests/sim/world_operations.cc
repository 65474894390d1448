// The operations of a plan: launches, kills, and actions of operators, readers and other programs.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "tests/sim/trainer.h"
#include "tests/sim/world.h"

namespace ckptd::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A disk may hang (30 s) during each step of a prefetch: open, read, mark.
constexpr Duration kPrefetchTimeout = seconds(120);

}  // namespace

std::vector<std::shared_ptr<Trainer>> World::LivingTrainers(int run) const {
  std::vector<std::shared_ptr<Trainer>> living;
  for (const auto& trainer : trainers_) {
    if (!trainer->dead() && (run < 0 || trainer->launch().run == run)) living.push_back(trainer);
  }
  return living;
}

std::shared_ptr<Trainer> World::Pick(uint64_t which) const {
  const auto living = LivingTrainers();
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
    launch->other_model = plan_.models && how / 1024 % 3 == 0;
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

// The answers must name each tag once, in order, before the end; and each outcome must be true on disk.
void World::Adopt(int run, const std::string& run_name, const Operation& operation) {
  v1::AdoptCheckpointsRequest request;
  request.set_parent(run_name);
  request.set_allow_removal(operation.b % 2 == 0);
  const std::vector<std::string> tags = disks_[run]->ForeignTags();
  if (operation.b / 2 % 3 == 0) {
    request.add_tags("step_0");
    if (!tags.empty()) request.add_tags(tags[operation.b / 8 % tags.size()]);
  }
  // The tag is written again meanwhile.
  if (operation.b / 512 % 2 == 0 && !tags.empty() && !plan_.small_disk) {
    schedule_.After(random_.Spread(milliseconds(1), seconds(1)),
                    [this, run, tag = tags[operation.b / 1024 % tags.size()]] {
                      if (disks_[run]->IsForeign(tag))
                        disks_[run]->AddForeign(tag, schedule_.clock().UnixMicros());
                    });
  }
  struct AdoptionProgress {
    int outcomes = 0, count = 0;
    bool ended = false, listens = true;
    Reply<bool> end;
  };
  auto progress = std::make_shared<AdoptionProgress>();
  const int listens_to = operation.b / 64 % 4 == 0 ? 2 : 1000;
  progress->end =
      Expect<bool>("AdoptCheckpoints", [this, progress = progress.get()](absl::StatusOr<bool> ended) {
        if (ended.ok() && progress->outcomes != progress->count)
          oracle_.Violated(absl::StrCat("an adoption succeeded but reported ", progress->outcomes, " of ",
                                        progress->count, " checkpoints"));
      });
  engine_->AdoptCheckpoints(
      Caller{0, 0, true}, request,
      [this, run, progress, listens_to](const v1::AdoptCheckpointsResponse& event) {
        if (progress->ended || !progress->listens)
          oracle_.Violated("an adoption reported progress after its end");
        if (event.outcome() == v1::ADOPT_OUTCOME_UNSPECIFIED) return true;
        Trace("  ", event.tag(), ": ", v1::AdoptOutcome_Name(event.outcome()), " ", event.error().reason());
        Count(absl::StrCat("adopt ", v1::AdoptOutcome_Name(event.outcome()), " ", event.error().reason()));
        progress->count = event.count();
        if (event.index() != ++progress->outcomes)
          oracle_.Violated("an adoption reported its checkpoints out of order");
        const bool foreign = disks_[run]->IsForeign(event.tag());
        if (event.outcome() == v1::ADOPTED &&
            (foreign || !disks_[run]->Holds(event.tag(), event.checkpoint().sequence())))
          oracle_.Violated(absl::StrCat(event.tag(), " was reported as adopted, but is not on disk"));
        progress->listens = progress->outcomes < listens_to;
        return progress->listens;
      },
      [progress](const absl::Status& status) {
        progress->ended = true;
        progress->end(status.ok() ? absl::StatusOr<bool>(true) : absl::StatusOr<bool>(status));
      });
}

void World::Prefetch(int run, const std::string& name, bool then_open, uint64_t by) {
  const Instant asked = schedule_.clock().Now();
  engine_->Prefetch(
      Caller{0, 0, true}, name,
      Expect<v1::Checkpoint>(absl::StrCat("Prefetch ", name),
                             [this, run, asked, then_open, by](absl::StatusOr<v1::Checkpoint> read) {
                               if (schedule_.clock().Now() > asked + kPrefetchTimeout)
                                 oracle_.Violated("a prefetch was answered after its deadline");
                               if (!read.ok())
                                 return Count(absl::StrCat("not prefetched: ", ReasonOf(read.status())));
                               Count("prefetched");
                               reported_resident_.emplace_back(run, *read);
                               prefetched_.emplace(run, read->sequence());
                               if (!then_open) return;
                               schedule_.After(microseconds(10), [this, run, by, tag = read->tag()] {
                                 const auto living = LivingTrainers(run);
                                 if (!living.empty() && engine_ != nullptr)
                                   living[by % living.size()]->Open(tag);
                               });
                             }));
}

// Brings one of the trashed checkpoints back. The answer must be true on disk and in the catalog.
void World::Undelete(int run, const std::string& run_name, uint64_t which) {
  v1::ListTrashRequest request;
  request.set_run(run_name);
  engine_->ListTrash(
      Caller{0, 0, true}, request,
      Expect<v1::ListTrashResponse>(
          "ListTrash", [this, run, which](absl::StatusOr<v1::ListTrashResponse> list) {
            if (!list.ok() || list->checkpoints().empty() || engine_ == nullptr) return;
            const v1::Checkpoint& one =
                list->checkpoints(static_cast<int>(which % static_cast<uint64_t>(list->checkpoints_size())))
                    .checkpoint();
            v1::UndeleteCheckpointRequest undelete;
            undelete.set_name(one.name());
            undelete.set_sequence(one.sequence());
            engine_->UndeleteCheckpoint(
                Caller{0, 0, true}, undelete,
                Expect<v1::Checkpoint>("Undelete", [this, run](absl::StatusOr<v1::Checkpoint> back) {
                  Count(back.ok() ? "undeleted" : absl::StrCat("not undeleted: ", ReasonOf(back.status())));
                  if (!back.ok()) return;
                  const auto known = FindCheckpoint(run, back->tag());
                  if (!disks_[run]->Holds(back->tag(), back->sequence()) || !known ||
                      known->sequence() != back->sequence() || !known->pinned())
                    oracle_.Violated(
                        absl::StrCat(back->tag(), " of run ", run, " is reported as back, but is not"));
                }));
          }));
}

void World::Apply(const Operation& operation) {
  Trace("-- ", operation.ToString());
  Count(absl::StrCat("operation ", static_cast<int>(operation.kind)));
  const int run = static_cast<int>(operation.a % static_cast<uint64_t>(plan_.runs));
  const std::shared_ptr<Trainer> trainer = Pick(operation.a);
  const auto newest = newest_launch_.find(run);
  const bool up = engine_ != nullptr;
  const auto known = run_names_.find(run);
  const std::string run_name = known == run_names_.end() ? "" : known->second;
  const auto name = [&](const std::string& tag) { return absl::StrCat(run_name, "/checkpoints/", tag); };
  switch (operation.kind) {
    case OperationKind::kLaunch:
      // The trainers of an old launch are killed, or stay alive and act late.
      if (operation.b % 3 != 0) {
        for (const auto& old : LivingTrainers(run)) old->Kill();
      }
      return LaunchJob(run, operation.b / 3, nullptr);
    case OperationKind::kKillTrainer:
      if (trainer != nullptr) trainer->Kill();
      return;
    case OperationKind::kKillLaunch:
      for (const auto& each : LivingTrainers(run)) each->Kill();
      return;
    case OperationKind::kLoseSession:
      if (trainer != nullptr && up) trainer->LoseSession();
      return;
    case OperationKind::kRespawnRank:
      if (newest == newest_launch_.end()) return;
      for (const auto& each : LivingTrainers(run)) {
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
    case OperationKind::kRespawnLaunch:
      if (newest == newest_launch_.end()) return;
      for (const auto& each : LivingTrainers(run)) {
        if (&each->launch() == newest->second.get()) each->Kill();
      }
      return LaunchJob(run, operation.b, newest->second);
    case OperationKind::kRestart:
      return KillDaemon(milliseconds(operation.a % 500), operation.b % 4 == 0);
    case OperationKind::kDrain:
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
    case OperationKind::kAbort:
      if (trainer != nullptr && up) trainer->Abort();
      return;
    case OperationKind::kOperatorAbort: {
      if (!up) return;
      const v1::Status status = engine_->GetStatus(Caller{0, 0, true});
      for (const v1::Run& each : status.runs()) {
        if (each.name() != run_name || each.in_flight().empty()) continue;
        const auto& victim = each.in_flight(static_cast<int>(operation.b % each.in_flight().size()));
        // By tag: the abort hits the newest save of the tag.
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
    case OperationKind::kOpen:
      if (trainer != nullptr && up)
        trainer->Open(operation.b % 2 == 0 ? "latest" : absl::StrCat("again", operation.b % 3));
      return;
    case OperationKind::kPin:
    case OperationKind::kUnpin: {
      if (!up || run_name.empty()) return;
      const std::vector<std::string> tags = TagsOf(run_name);
      if (tags.empty()) return;
      engine_->SetPinned(Caller{0, 0, true}, name(tags[operation.b % tags.size()]),
                         operation.kind == OperationKind::kPin,
                         Expect<v1::Checkpoint>("SetPinned", [](auto) {}));
      return;
    }
    case OperationKind::kPrefetch: {
      if (!up || run_name.empty()) return;
      const std::vector<std::string> tags = TagsOf(run_name);
      const bool latest = tags.empty() || operation.b % 2 == 0;
      return Prefetch(run, name(latest ? "latest" : tags[operation.b / 2 % tags.size()]),
                      operation.b / 64 % 2 == 0, operation.a);
    }
    case OperationKind::kForeign: {
      if (plan_.small_disk) return;  // An admitted save has its room reserved.
      const bool in_the_way = operation.b % 5 == 0;
      const std::string tag =
          absl::StrCat(in_the_way ? "again" : "step_", operation.b / 5 % (in_the_way ? 3 : 6));
      const seconds age = seconds(operation.b / 64 % 2 == 0 ? 0 : operation.b / 128 % 60);
      return disks_[run]->AddForeign(tag, schedule_.clock().UnixMicros() - age / microseconds(1));
    }
    case OperationKind::kAdopt:
      if (up && !run_name.empty()) Adopt(run, run_name, operation);
      return;
    case OperationKind::kUndelete:
      if (up && !run_name.empty()) Undelete(run, run_name, operation.b);
      return;
    case OperationKind::kMoveIn:
      if (!plan_.small_disk && disks_[run]->MoveIn(*disks_[operation.b % disks_.size()])) Count("moved in");
      return;
    case OperationKind::kPutBack:
      if (!plan_.small_disk && disks_[run]->PutBack(operation.b)) Count("put back");
      return;
    case OperationKind::kRemoveOurs:
      if (up && !run_name.empty() && disks_[run]->RemoveCkptdFolder()) Count("removed .ckptd");
      return;
    case OperationKind::kDamageFile:
      return disks_[run]->DamageFile(operation.b);
    case OperationKind::kHang:
      for (const auto& disk : disks_) {
        if (plan_.shared ? !plan_.hostile : disk->run() == run)
          disk->HangUntil(schedule_.clock().Now() + milliseconds(operation.b % 30000));
      }
      return;
    case OperationKind::kNoMemory:
      no_memory_until_ = schedule_.clock().Now() + milliseconds(operation.b % 5000);
      return;
    case OperationKind::kStepDate:
      return schedule_.clock().StepDate(seconds(static_cast<int64_t>(operation.b % 200000) - 100000));
    case OperationKind::kRepeat:
      if (trainer != nullptr && up) trainer->Repeat();
      return;
  }
}

}  // namespace ckptd::sim
