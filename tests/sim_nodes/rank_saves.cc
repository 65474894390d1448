// A rank saves: which saves it makes, and each one from Begin to its end.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "tests/sim_nodes/rank.h"
#include "tests/sim_nodes/rank_inl.h"

namespace ckptd::sim_nodes {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kMiB = 1 << 20;

void SetDuration(Duration duration, google::protobuf::Duration* to) {
  to->set_seconds(duration / seconds(1));
  to->set_nanos(static_cast<int32_t>(duration % seconds(1) / std::chrono::nanoseconds(1)));
}

// Unique for the save, the path and the position.
sim::Marks MarksFor(const SaveId& save, const std::string& path, int64_t size) {
  sim::Marks marks(sim::CountMarks(size));
  for (size_t i = 0; i < marks.size(); ++i)
    marks[i] = sim::Mix(sim::Mix(NameOf(save)), sim::Mix(sim::Mix(path), i));
  return marks;
}

// The memory of a file: `size` bytes from `offset` on, in segments that follow one another.
std::vector<std::span<std::byte>> RunsOf(const std::vector<std::shared_ptr<sim::Mapping>>& segments,
                                         int64_t offset, int64_t size) {
  std::vector<std::span<std::byte>> runs;
  for (const auto& segment : segments) {
    if (offset < segment->size && size > 0) {
      const int64_t run = std::min(size, segment->size - offset);
      runs.emplace_back(segment->data + offset, static_cast<size_t>(run));
      size -= run;
    }
    offset = std::max<int64_t>(0, offset - segment->size);
  }
  return runs;
}

}  // namespace

// ---- choosing saves

std::string Rank::TagOf(int n) const {
  sim::Random random(sim::Mix(launch_->seed, static_cast<uint64_t>(n)));
  if (world_.plan().resaves && random.Percent(50)) return absl::StrCat("again", random.Below(3));
  return absl::StrCat(launch_->id, "-", n);
}

Rank::SavePlan Rank::PlanOf(int n) const {
  sim::Random alike(sim::Mix(launch_->seed, static_cast<uint64_t>(n) + 7777));  // The same on all ranks.
  sim::Random own(sim::Mix(launch_->seed, sim::Mix(static_cast<uint64_t>(n), static_cast<uint64_t>(rank_))));
  SavePlan plan;
  plan.tag = TagOf(n);
  for (int m = 0; m < n; ++m) plan.ordinal += TagOf(m) == plan.tag;
  if (world_.plan().skip && alike.Percent(40)) plan.busy = v1::SKIP;
  if (world_.plan().short_timeouts && alike.Percent(50)) {
    plan.timeout = milliseconds(alike.Between(1, 2000));
    plan.commit_timeout = milliseconds(alike.Between(100, 10'000));
  }
  plan.ranks = launch_->AllRanks();
  if (world_.plan().subsets && alike.Percent(30)) {
    for (int rank = 0; rank < launch_->world_size(); ++rank) {
      if (alike.Percent(50) && plan.ranks.size() > 1) plan.ranks.erase(rank);
    }
  }
  constexpr int64_t kSizes[] = {0, 100, 4096, 5000, kMiB, 2 * kMiB + 100};
  for (int64_t i = own.Below(4); i > 0; --i)
    plan.files[absl::StrCat("r", rank_, "/f", i)] = kSizes[own.Below(6)];
  return plan;
}

v1::SaveKey Rank::KeyOf(const Saving& saving) const {
  v1::SaveKey key;
  key.set_run(root_);
  key.set_rank(rank_);
  key.set_tag(saving.name.tag);
  key.set_ordinal(saving.name.ordinal);
  return key;
}

void Rank::NextSave() {
  if (!joined_ || !resumed_ || world_.ending()) return;
  if (savings_.size() < (world_.plan().overlap ? 3 : 1)) {
    while (!PlanOf(saves_).ranks.contains(rank_)) ++saves_;
    AddSave(PlanOf(saves_++), /*last=*/false);
  }
  Later(random_.Spread(milliseconds(20), seconds(2)), &Rank::NextSave);
}

void Rank::LastSave(int64_t ordinal) {
  SavePlan plan;
  plan.ordinal = ordinal;
  plan.tag = absl::StrCat("last-", launch_->id);
  plan.ranks = launch_->AllRanks();
  plan.files[absl::StrCat("r", rank_)] = 100;
  AddSave(std::move(plan), /*last=*/true);
}

void Rank::AddSave(SavePlan plan, bool last) {
  auto saving = std::make_shared<Saving>();
  saving->plan = std::move(plan);
  saving->last = last;
  saving->name = {attempt_, saving->plan.tag, saving->plan.ordinal};
  savings_.push_back(saving);
  ContinueLater(saving);
}

void Rank::Done(const SavingPtr& saving) {
  saving->phase = Phase::kDone;
  std::erase(savings_, saving);
}

// ---- a save

void Rank::Drive(SavingPtr saving) {
  if (!joined_ || saving->outstanding) return;
  switch (saving->phase) {
    case Phase::kBegin:
      return Begin(saving);
    case Phase::kSeal:
      return Seal(saving);
    case Phase::kWait:
      return Wait(saving);
    case Phase::kDone:
      return;
  }
}

// The save may have ended for this rank: Wait finds out.
void Rank::Refused(const SavingPtr& saving, const absl::Status& why) {
  const std::string reason = ReasonOf(why);
  if (reason == "FENCED") return Fenced();
  if (reason == "NOT_JOINED" || reason == "DRAINING" || reason == "UNKNOWN_RUN" || reason == "RANK_TAKEN")
    return Later(milliseconds(100), &Rank::Drive, saving);
  world_.Count(absl::StrCat("refused ", reason));
  saving->phase = Phase::kWait;
  ContinueLater(saving);
}

void Rank::Begin(const SavingPtr& saving) {
  v1::BeginRequest request;
  *request.mutable_key() = KeyOf(*saving);
  request.set_step(saves_);
  request.set_busy(saving->plan.busy);
  SetDuration(saving->plan.timeout, request.mutable_timeout());
  SetDuration(saving->plan.commit_timeout, request.mutable_commit_timeout());
  // Some saves name pointer files: a checkpoint that only a pointer file keeps must stay, also under later
  // coordinators.
  const std::string& tag = request.key().tag();
  sim::Random names(
      sim::Mix(sim::Mix(launch_->seed, sim::Mix(tag)), static_cast<uint64_t>(saving->plan.ordinal)));
  const bool is_bare = world_.plan().pointers && names.Percent(50);
  if (sim::Mix(tag) % 5 == 0 && !is_bare) (*request.mutable_pointers())["BEST"] = tag;
  if (world_.plan().pointers && !is_bare) (*request.mutable_pointers())["latest"] = tag;
  if (world_.plan().kept) request.set_num_kept_ckpts(*world_.plan().kept);
  if (static_cast<int>(saving->plan.ranks.size()) < launch_->world_size()) {
    for (int rank : saving->plan.ranks) request.add_ranks(rank);
  }
  for (const auto& [path, size] : saving->plan.files) {
    v1::FileSpec& spec = *request.add_files();
    spec.set_path(path);
    spec.set_size_bytes(size);
  }
  request.set_step(saving->last ? 1000 : 1);
  saving->outstanding = true;
  saving->daemon = daemon_;
  world_.oracle().RequestSent(attempt_);
  world_.oracle().BeginSent(saving->name, saving->plan.ranks);
  Ask<v1::BeginResponse>(&Engine::Begin, absl::StrCat("Begin ", NameOf(saving->name)), request,
                         // On a node that does not know the later attempt yet, ranks may join a save that was
                         // admitted before.
                         [this, saving, acted = world_.oracle().acted(),
                          joins = node_.may_lag() && world_.oracle().IsAdmitted(saving->name)](
                             const absl::StatusOr<v1::BeginResponse>& answer) {
                           saving->outstanding = false;
                           if (!answer.ok()) return Refused(saving, answer.status());
                           saving->sequence = answer->sequence();
                           if (answer->level() == v1::SKIPPED) {
                             saving->phase = Phase::kWait;
                             return ContinueLater(saving);
                           }
                           if (!joins) world_.oracle().TookEffect(attempt_, acted, "Begin");
                           world_.oracle().Begun(saving->name, saving->sequence);
                           Copy(saving, *answer);
                         });
}

void Rank::Copy(const SavingPtr& saving, const v1::BeginResponse& granted) {
  for (int64_t retired : granted.retired_segments()) mapped_.erase(retired);
  std::vector<std::shared_ptr<sim::Mapping>> segments;
  for (const v1::Segment& segment : granted.segments()) {
    std::shared_ptr<sim::Mapping>& mapping = mapped_[segment.id()];
    if (mapping == nullptr) {
      auto found = node_.pool()->directory().Find(session_, segment.id(), SegmentAccess::kWrite);
      if (!found.ok()) {
        return world_.oracle().Violated(
            absl::StrCat("segment ", segment.id(), " was given to ", ToString(),
                         ", which cannot open it: ", std::string(found.status().message())));
      }
      mapping = std::make_shared<sim::Mapping>(found->fd, found->size, SegmentAccess::kWrite);
    }
    segments.push_back(mapping);
  }
  saving->contents.clear();
  for (const v1::FilePlacement& file : granted.placements()) {
    const sim::Marks marks = MarksFor(saving->name, file.path(), file.size_bytes());
    sim::WriteMarks(RunsOf(segments, file.offset(), file.size_bytes()), marks);
    saving->contents[file.path()] = sim::Digest(marks);
  }
  saving->phase = Phase::kSeal;
  saving->outstanding = true;  // While it copies.
  Later(random_.Spread(microseconds(50), seconds(2)), &Rank::Copied, saving);
}

void Rank::Copied(SavingPtr saving) {
  saving->outstanding = false;
  Drive(std::move(saving));
}

void Rank::Seal(const SavingPtr& saving) {
  v1::SealRequest request;
  *request.mutable_key() = KeyOf(*saving);
  for (const auto& [path, size] : saving->plan.files) {
    v1::FileSpec& spec = *request.add_files();
    spec.set_path(path);
    spec.set_size_bytes(size);
  }
  // A retry repeats this choice.
  sim::Random random(sim::Mix(sim::Mix(NameOf(saving->name)), static_cast<uint64_t>(rank_)));
  if (!saving->last && random.Percent(world_.plan().suspect)) {
    request.set_suspect("as planned");
    world_.oracle().Suspected(saving->name);
    world_.Count("suspect parts");
  }
  world_.oracle().SealSent(saving->name, rank_, saving->contents);
  saving->outstanding = true;
  Ask<v1::SealResponse>(&Engine::Seal, absl::StrCat("Seal ", NameOf(saving->name)), request,
                        [this, saving](const absl::StatusOr<v1::SealResponse>& answer) {
                          saving->outstanding = false;
                          if (!answer.ok()) return Refused(saving, answer.status());
                          if (answer->level() == v1::SEALED || answer->level() == v1::COMMITTED)
                            world_.oracle().ToldSealed(saving->name);
                          saving->seal_ok = true;
                          saving->phase = Phase::kWait;
                          ContinueLater(saving);
                        });
}

void Rank::Abort(uint64_t which) {
  if (dead_ || !joined_ || savings_.empty()) return;
  const SavingPtr saving = savings_[which % savings_.size()];
  if (saving->last) return;
  v1::AbortRequest request;
  *request.mutable_key() = KeyOf(*saving);
  world_.oracle().AbortSent(saving->name);
  Ask<v1::AbortResponse>(&Engine::Abort, absl::StrCat("Abort ", NameOf(saving->name)), request,
                         [this](const absl::StatusOr<v1::AbortResponse>& answer) {
                           world_.Count(absl::StrCat("abort ", ReasonOf(answer.status())));
                         });
}

void Rank::Wait(const SavingPtr& saving) {
  v1::WaitRequest request;
  *request.mutable_key() = KeyOf(*saving);
  request.set_level(random_.Percent(30) ? v1::SEALED : v1::COMMITTED);
  const Duration timeout = random_.Percent(50) ? random_.Spread(milliseconds(1), seconds(1)) : seconds(30);
  SetDuration(timeout, request.mutable_timeout());
  request.set_sequence(saving->sequence);
  request.set_attempt(attempt_of_ledger_);
  saving->outstanding = true;
  Ask<v1::WaitResponse>(&Engine::Wait, absl::StrCat("Wait ", NameOf(saving->name)), request,
                        [this, saving](const absl::StatusOr<v1::WaitResponse>& answer) {
                          saving->outstanding = false;
                          if (answer.ok()) return HearEnd(saving, answer->checkpoint());
                          // The save never began, or only an earlier daemon knew it.
                          if (ReasonOf(answer.status()) == "UNKNOWN_SAVE") return Done(saving);
                          Later(milliseconds(100), &Rank::Drive, saving);
                        });
}

void Rank::HearEnd(const SavingPtr& saving, const v1::Checkpoint& checkpoint) {
  world_.Trace("  ", v1::Level_Name(checkpoint.level()), " ", checkpoint.error().reason());
  if (checkpoint.level() == v1::SEALED || checkpoint.level() == v1::COMMITTED)
    world_.oracle().ToldSealed(saving->name);
  if (checkpoint.level() < v1::COMMITTED) return ContinueLater(saving);
  world_.oracle().OutcomeReported(saving->name, ToString(), checkpoint.level(), checkpoint.error().reason(),
                                  checkpoint.sequence());
  if (saving->last) {
    last_save_committed_ = checkpoint.level() == v1::COMMITTED;
    last_save_had_no_directory_ = checkpoint.error().reason() == "ENOENT";
  }
  Done(saving);
  if (checkpoint.error().reason() == "FENCED") Fenced();
}

}  // namespace ckptd::sim_nodes
