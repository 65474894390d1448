// A trainer saves: which saves it makes, and each one from Begin to its end.
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "tests/sim/trainer.h"
#include "tests/sim/trainer_inl.h"

namespace ckptd::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kMiB = 1 << 20;

void SetDuration(Duration duration, google::protobuf::Duration* to) {
  to->set_seconds(duration / seconds(1));
  to->set_nanos(static_cast<int32_t>(duration % seconds(1) / std::chrono::nanoseconds(1)));
}

// The marks that a trainer writes into a file: unique for the save, the path and the position.
Marks MarksFor(const SaveName& name, const std::string& path, int64_t size) {
  Marks marks(CountMarks(size));
  for (size_t i = 0; i < marks.size(); ++i) marks[i] = Mix(Mix(name.ToString()), Mix(Mix(path), i));
  return marks;
}

bool Ended(v1::Level level) { return level >= v1::COMMITTED; }

}  // namespace

// ---- Choosing saves

std::string Trainer::TagOf(int n) const {
  Random random(Mix(launch_->seed, static_cast<uint64_t>(n)));
  if (world_.plan().resaves && random.Percent(50)) return absl::StrCat("again", random.Below(3));
  return absl::StrCat(launch_->id, "-", n);
}

Trainer::SavePlan Trainer::PlanOf(int n) const {
  Random alike(Mix(launch_->seed, static_cast<uint64_t>(n) + 7777));  // The same on all ranks.
  Random own(Mix(launch_->seed, Mix(static_cast<uint64_t>(n), static_cast<uint64_t>(rank_))));
  SavePlan plan;
  plan.tag = TagOf(n);
  for (int m = 0; m < n; ++m) plan.ordinal += TagOf(m) == plan.tag;
  const int64_t busy = alike.Below(3);
  if (busy == 0 && world_.plan().skip) plan.busy = v1::SKIP;
  if (busy == 1 && world_.plan().supersede) plan.busy = v1::SUPERSEDE;
  const bool short_timeouts = world_.plan().short_timeouts && alike.Percent(50);
  plan.timeout = short_timeouts ? milliseconds(alike.Between(1, 1000)) : seconds(20);
  plan.commit_timeout =
      short_timeouts && alike.Percent(50) ? milliseconds(alike.Between(100, 5000)) : seconds(40);
  plan.growing = world_.plan().growing && own.Percent(40);
  const bool conflict = world_.plan().conflicts && alike.Percent(15);
  constexpr int64_t kSizes[] = {0, 100, 4096, 5000, kMiB, 2 * kMiB, 2 * kMiB + 100, 3 * kMiB};
  for (int64_t i = own.Below(4); i > 0; --i) {
    const std::string path = conflict && i == 1 ? "shared" : absl::StrCat("r", rank_, "/f", i);
    plan.files.push_back({path, kSizes[own.Percent(70) ? own.Below(5) : own.Below(8)]});
  }
  plan.leaves_one_out = own.Percent(10);
  if (alike.Percent(10)) plan.only_rank = static_cast<int>(alike.Below(launch_->world_size));
  return plan;
}

bool Trainer::Contributes(const SavePlan& plan) const {
  return plan.only_rank < 0 || plan.only_rank == rank_;
}

// The ranks whose parts the daemon makes itself, empty.
std::vector<int> Trainer::AbsentRanks(const SavePlan& plan) const {
  std::vector<int> absent;
  for (int rank = 0; plan.only_rank >= 0 && rank < launch_->world_size; ++rank) {
    if (rank != plan.only_rank) absent.push_back(rank);
  }
  return absent;
}

v1::SaveKey Trainer::KeyOf(const Saving& saving) const {
  v1::SaveKey key;
  key.set_run(root_);
  key.set_rank(rank_);
  key.set_tag(saving.name.tag);
  key.set_ordinal(saving.name.ordinal);
  return key;
}

void Trainer::NextSave() {
  if (!joined_ || !resumed_ || fenced_) return;
  if (last_save_) {
    if (last_save_committed_ || !savings_.empty()) return;
  } else if (world_.ending()) {
    return;
  }
  const size_t most = world_.plan().overlap ? 3 : 1;
  if (savings_.size() < most) {
    auto saving = std::make_shared<Saving>();
    while (!last_save_ && !Contributes(PlanOf(saves_))) ++saves_;
    saving->n = saves_++;
    saving->last = last_save_;
    saving->plan = PlanOf(saving->n);
    if (last_save_) {
      saving->plan = SavePlan();
      saving->plan.tag = absl::StrCat("last-", launch_->id);
      saving->plan.timeout = seconds(20);
      saving->plan.commit_timeout = seconds(40);
      saving->plan.files = {{absl::StrCat("r", rank_), 100}};
    }
    saving->name = {launch_->run, attempt_, saving->plan.tag, saving->plan.ordinal};
    savings_.push_back(saving);
    ContinueLater(saving);
  }
  if (!last_save_) Later(random_.Spread(milliseconds(20), seconds(2)), &Trainer::NextSave);
}

void Trainer::Done(const SavingPtr& saving) {
  saving->phase = Phase::kDone;
  std::erase(savings_, saving);
  if (fenced_ && savings_.empty()) return Kill();
}

void Trainer::Drive(SavingPtr saving) {
  if (!joined_ || saving->outstanding) return;
  switch (saving->phase) {
    case Phase::kBegin:
      return Begin(std::move(saving));
    case Phase::kExtend:
      return Extend(std::move(saving));
    case Phase::kCopy:
      return Copy(std::move(saving));
    case Phase::kSeal:
      return Seal(std::move(saving));
    case Phase::kWait:
      return Wait(std::move(saving));
    case Phase::kDone:
      return;
  }
}

// ---- A save

void Trainer::HandleRefusal(const SavingPtr& saving, const absl::Status& status, Oracle::FenceState) {
  static const std::set<std::string> kEnds = {"SUPERSEDED",    "SESSION_LOST",      "SAVE_ABORTED",
                                              "RANKS_MISSING", "ADMISSION_TIMEOUT", "STAGED_LOST"};
  const std::string reason = ReasonOf(status);
  const std::string message(status.message());
  if (saving->plan.busy == v1::SKIP && reason == "ADMISSION_TIMEOUT" &&
      message.find("file system") == std::string::npos)
    world_.oracle().Violated(absl::StrCat(saving->name.ToString(),
                                          " must be skipped when there is no room, but waited: ", message));
  if (kEnds.contains(reason)) world_.oracle().OutcomeReported(saving->name, rank_, v1::FAILED, reason, 0);
  if (reason == "FENCED") {
    world_.oracle().ToldFenced(launch_->run, attempt_);
    world_.Count("fenced");
    fenced_ = !random_.Percent(30) || world_.ending();  // Some trainers ignore it.
    saving->phase = Phase::kWait;
    return ContinueLater(saving);
  }
  if (reason == "UNKNOWN_TOKEN" || reason == "NOT_JOINED" || reason == "DRAINING" ||
      reason == "UNKNOWN_RUN") {
    return Later(milliseconds(100), &Trainer::Drive, saving);
  }
  if (reason == "RANK_TAKEN" && random_.Percent(50)) return Later(milliseconds(100), &Trainer::Drive, saving);
  saving->phase = Phase::kWait;  // Ask how the save ended.
  ContinueLater(saving);
}

void Trainer::Begin(SavingPtr saving) {
  v1::BeginRequest request;
  *request.mutable_key() = KeyOf(*saving);
  request.set_step(saving->n);
  request.set_growing(saving->plan.growing);
  request.set_busy(saving->plan.busy);
  SetDuration(saving->plan.timeout, request.mutable_timeout());
  SetDuration(saving->plan.commit_timeout, request.mutable_commit_timeout());
  if (world_.plan().every_steps > 0) {
    request.mutable_retention()->set_last(*world_.plan().kept);
    request.mutable_retention()->set_every_steps(world_.plan().every_steps);
  } else if (world_.plan().kept) {
    request.set_num_kept_ckpts(*world_.plan().kept);
  }
  if (saving->plan.only_rank >= 0) request.add_ranks(saving->plan.only_rank);
  for (int rank : AbsentRanks(saving->plan))
    world_.oracle().SealSent(saving->name, rank, launch_->world_size, {});
  if (!saving->plan.growing) {
    for (const File& file : saving->plan.files) {
      v1::FileSpec& spec = *request.add_files();
      spec.set_path(file.path);
      spec.set_size_bytes(file.size);
    }
  }
  saving->outstanding = true;
  saving->daemon = daemon_;
  saving->extended = 0;
  world_.oracle().BeginSent(saving->name);
  const Oracle::FenceState before = world_.oracle().FenceStateOf(launch_->run);
  world_.oracle().RequestSent(launch_->run, attempt_);
  world_.engine()->Begin(
      caller(), request,
      Expect<v1::BeginResponse>(
          absl::StrCat("Begin ", saving->name.ToString()),
          [this, saving, before](absl::StatusOr<v1::BeginResponse> answer) {
            if (saving->phase != Phase::kBegin) return;  // The answer to a repeated Begin.
            saving->outstanding = false;
            if (!answer.ok()) return HandleRefusal(saving, answer.status(), before);
            // A save that is skipped because the file system does not answer has not activated the attempt.
            if (answer->level() != v1::SKIPPED) {
              world_.oracle().RequestTookEffect(launch_->run, attempt_, before, "Begin");
              acted_ = true;
              world_.oracle().Acted(launch_->run, attempt_, rank_, instance_);
            }
            saving->begun = true;
            saving->sequence = answer->sequence();
            world_.oracle().Begun(saving->name, saving->sequence);
            if (answer->level() == v1::SKIPPED) {
              world_.oracle().OutcomeReported(saving->name, rank_, v1::SKIPPED, "SKIPPED", saving->sequence);
              saving->phase = Phase::kWait;
              return ContinueLater(saving);
            }
            for (int64_t retired : answer->retired_segments()) mapped_.erase(retired);
            MapSegments(saving, answer->segments(), answer->placements());
            saving->phase =
                saving->plan.growing && !saving->plan.files.empty() ? Phase::kExtend : Phase::kCopy;
            ContinueLater(saving);
          }));
}

void Trainer::MapSegments(const SavingPtr& saving,
                          const google::protobuf::RepeatedPtrField<v1::Segment>& segments,
                          const google::protobuf::RepeatedPtrField<v1::FilePlacement>& placements) {
  std::vector<int64_t> ids;
  saving->segments.clear();
  for (const v1::Segment& segment : segments) {
    ids.push_back(segment.id());
    std::shared_ptr<Mapping>& mapping = mapped_[segment.id()];
    if (mapping == nullptr) {
      auto found = world_.pool()->directory().Find(session_, segment.id(), SegmentAccess::kWrite);
      if (!found.ok()) {
        return world_.oracle().Violated(
            absl::StrCat("segment ", segment.id(), " was given to ", Who(),
                         ", which cannot open it: ", std::string(found.status().message())));
      }
      mapping = std::make_shared<Mapping>(found->fd, found->size, SegmentAccess::kWrite);
    }
    saving->segments.push_back(mapping);
  }
  for (const v1::FilePlacement& placement : placements)
    saving->placed[placement.path()] = {placement.offset(), placement.size_bytes()};
  world_.oracle().Granted(saving->name, rank_, saving->sequence, session_, ids);
}

void Trainer::Extend(SavingPtr saving) {
  v1::ExtendRequest request;
  *request.mutable_key() = KeyOf(*saving);
  const File& file = saving->plan.files.at(saving->extended);
  v1::FileSpec& spec = *request.add_files();
  spec.set_path(file.path);
  spec.set_size_bytes(file.size);
  saving->outstanding = true;
  const Oracle::FenceState before = world_.oracle().FenceStateOf(launch_->run);
  world_.engine()->Extend(caller(), request,
                          Expect<v1::ExtendResponse>(
                              absl::StrCat("Extend ", saving->name.ToString()),
                              [this, saving, before](absl::StatusOr<v1::ExtendResponse> answer) {
                                saving->outstanding = false;
                                if (!answer.ok()) return HandleRefusal(saving, answer.status(), before);
                                world_.oracle().RequestTookEffect(launch_->run, attempt_, before, "Extend");
                                MapSegments(saving, answer->segments(), answer->placements());
                                if (++saving->extended == saving->plan.files.size())
                                  saving->phase = Phase::kCopy;
                                ContinueLater(saving);
                              }));
}

// Copies file by file. The copy continues even if the save ends meanwhile, as in a process that was not told
// yet.
void Trainer::Copy(SavingPtr saving) {
  saving->outstanding = true;
  saving->contents.clear();
  Duration at = random_.Spread(microseconds(50), milliseconds(500));
  for (const File& file : saving->plan.files) {
    ++saving->copies;
    world_.schedule().After(at, [self = shared_from_this(), saving, path = file.path] {
      if (!self->dead_) self->CopyFile(saving, path);
    });
    at += random_.Spread(microseconds(50), milliseconds(500));
  }
  world_.schedule().After(at, [self = shared_from_this(), saving, connection = connection_] {
    saving->copies = 0;
    if (self->dead_) return;
    saving->outstanding = false;
    if (connection != self->connection_) return self->Drive(saving);
    if (saving->phase == Phase::kCopy) saving->phase = Phase::kSeal;
    self->Drive(saving);
  });
}

void Trainer::CopyFile(const SavingPtr& saving, const std::string& path) {
  auto [offset, left] = saving->placed.at(path);
  const int64_t size = left;
  std::vector<std::span<std::byte>> runs;
  int64_t write = 0;
  auto use = std::make_shared<int64_t>(0);  // Use of the memory by a stream.
  auto end_use = [this, use] {
    if (*use != 0) world_.oracle().EndUse(std::exchange(*use, 0));
  };
  if (!launch_->descriptors && world_.engine() != nullptr && session_ != 0) {
    auto target = world_.engine()->BeginWrite(caller(), KeyOf(*saving), path,
                                              [end_use](const absl::Status&) { end_use(); });
    if (!target.ok()) return;
    write = target->id;
    runs = target->runs;
  } else if (launch_->descriptors) {
    for (const auto& segment : saving->segments) {
      if (offset < segment->size && left > 0) {
        const int64_t run = std::min(left, segment->size - offset);
        runs.emplace_back(segment->data + offset, static_cast<size_t>(run));
        left -= run;
        offset = 0;
      } else {
        offset = std::max<int64_t>(0, offset - segment->size);
      }
    }
  }
  const Marks marks = MarksFor(saving->name, path, size);
  WriteMarks(runs, marks);
  saving->contents[path] = Digest(marks);
  if (write == 0) return;
  // The stream stays open for a while. Until its end the daemon may not take this memory away without ending
  // the stream.
  *use = world_.oracle().BeginUse({runs.begin(), runs.end()});
  ++saving->copies;
  world_.schedule().After(random_.Spread(microseconds(10), milliseconds(100)),
                          [self = shared_from_this(), daemon = world_.daemon(), write, end_use] {
                            if (self->world_.daemon() != daemon || self->world_.engine() == nullptr) return;
                            end_use();
                            self->world_.engine()->EndWrite(write);
                          });
}

void Trainer::Seal(SavingPtr saving) {
  for (const File& file : saving->plan.files) {
    if (saving->contents.contains(file.path)) continue;
    saving->phase = Phase::kWait;  // WriteFile was refused: the save has ended.
    return ContinueLater(saving);
  }
  v1::SealRequest request;
  *request.mutable_key() = KeyOf(*saving);
  Contents contents;
  for (size_t i = 0; i < saving->plan.files.size(); ++i) {
    if (i == 0 && saving->plan.leaves_one_out) continue;
    const File& file = saving->plan.files[i];
    v1::FileSpec& spec = *request.add_files();
    spec.set_path(file.path);
    spec.set_size_bytes(file.size);
    contents[file.path] = saving->contents.at(file.path);
  }
  // A retry repeats this choice.
  if (Random(Mix(Mix(saving->name.ToString()), static_cast<uint64_t>(rank_)))
          .Percent(world_.plan().suspect)) {
    request.set_suspect("as planned");
    world_.oracle().Suspected(saving->name);
    world_.Count("suspect parts");
  }
  world_.oracle().SealSent(saving->name, rank_, launch_->world_size, std::move(contents));
  saving->outstanding = saving->seal_sent = true;
  const Oracle::FenceState before = world_.oracle().FenceStateOf(launch_->run);
  world_.engine()->Seal(
      caller(), request,
      Expect<v1::SealResponse>(absl::StrCat("Seal ", saving->name.ToString()),
                               [this, saving, before](absl::StatusOr<v1::SealResponse> answer) {
                                 if (saving->phase == Phase::kDone) return;
                                 saving->outstanding = false;
                                 if (!answer.ok()) {
                                   // The stream of a file has not ended yet.
                                   if (ReasonOf(answer.status()) == "UNKNOWN_SAVE" && !launch_->descriptors &&
                                       !absl::IsNotFound(answer.status()))
                                     return Later(milliseconds(50), &Trainer::Drive, saving);
                                   return HandleRefusal(saving, answer.status(), before);
                                 }
                                 for (int rank : AbsentRanks(saving->plan))
                                   world_.oracle().SealOk(saving->name, rank, before, true, v1::OPEN);
                                 world_.oracle().SealOk(saving->name, rank_, before, saving->seal_ok,
                                                        answer->level());
                                 world_.Count("sealed");
                                 saving->seal_ok = true;
                                 saving->phase = Phase::kWait;
                                 ContinueLater(saving);
                               }));
}

void Trainer::Wait(SavingPtr saving) {
  v1::WaitRequest request;
  *request.mutable_key() = KeyOf(*saving);
  request.set_level(v1::COMMITTED);
  const Duration timeout = random_.Percent(50) ? random_.Spread(milliseconds(1), seconds(1)) : seconds(30);
  SetDuration(timeout, request.mutable_timeout());
  request.set_sequence(saving->sequence);
  request.set_attempt(attempt_);
  saving->outstanding = true;
  const Instant sent = world_.schedule().clock().Now();
  world_.engine()->Wait(
      caller(), request,
      Expect<v1::WaitResponse>(
          absl::StrCat("Wait ", saving->name.ToString()),
          [this, saving, sent, timeout](absl::StatusOr<v1::WaitResponse> answer) {
            if (saving->phase == Phase::kDone) return;
            saving->outstanding = false;
            if (world_.schedule().clock().Now() > sent + timeout + milliseconds(200))
              world_.oracle().Violated(absl::StrCat("Wait of ", Who(), " was answered after its deadline"));
            if (!answer.ok()) {
              if (ReasonOf(answer.status()) == "UNKNOWN_SAVE") {
                if (saving->begun && saving->sequence != 0)
                  world_.oracle().Violated(
                      absl::StrCat(saving->name.ToString(), " was begun, but is not known"));
                return Done(saving);
              }
              return Later(milliseconds(100), &Trainer::Drive, saving);
            }
            const v1::Checkpoint& checkpoint = answer->checkpoint();
            world_.Trace("  ", v1::Level_Name(checkpoint.level()), " ", checkpoint.error().reason());
            if (!Ended(checkpoint.level())) return ContinueLater(saving);
            world_.oracle().OutcomeReported(saving->name, rank_, checkpoint.level(),
                                            checkpoint.error().reason(), checkpoint.sequence());
            if (saving->last && checkpoint.level() == v1::COMMITTED) last_save_committed_ = true;
            Done(saving);
          }));
}

// ---- Operations on the trainer

void Trainer::Abort() {
  if (dead_ || !joined_ || savings_.empty()) return;
  const SavingPtr& saving = savings_[random_.Below(static_cast<int64_t>(savings_.size()))];
  v1::AbortRequest request;
  *request.mutable_key() = KeyOf(*saving);
  request.set_message("as planned");
  world_.oracle().Excuse(saving->name);
  world_.engine()->Abort(
      caller(), request,
      Expect<v1::AbortResponse>(absl::StrCat("Abort ", saving->name.ToString()), [](auto) {}));
}

void Trainer::Repeat() {
  if (dead_ || !joined_) return;
  for (const SavingPtr& saving : savings_) {
    if (saving->phase == Phase::kBegin) {
      // While a copy of an earlier connection goes on, Begin has not been sent yet.
      if (saving->outstanding && saving->copies == 0) Begin(saving);
    } else if (saving->phase == Phase::kSeal && saving->seal_sent) {
      if (saving->outstanding) Seal(saving);
    } else if (saving->phase == Phase::kWait && saving->seal_ok && saving->daemon == daemon_) {
      Seal(saving);
    }
  }
}

}  // namespace ckptd::sim
