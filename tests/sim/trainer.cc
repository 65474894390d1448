#include "tests/sim/trainer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

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

// What a trainer writes into a file: nobody else writes the same.
Marks MarksFor(const SaveName& name, const std::string& path, int64_t size) {
  Marks marks(CountMarks(size));
  for (size_t i = 0; i < marks.size(); ++i) marks[i] = Mix(Mix(name.Words()), Mix(Mix(path), i));
  return marks;
}

bool Ended(v1::Level level) { return level >= v1::COMMITTED; }

}  // namespace

Trainer::Mapping::Mapping(int fd, int64_t bytes, SegmentAccess access)
    : data(static_cast<std::byte*>(mmap(nullptr, bytes,
                                        access == SegmentAccess::kRead ? PROT_READ : PROT_READ | PROT_WRITE,
                                        MAP_SHARED, fd, 0))),
      size(bytes) {
  close(fd);
}
Trainer::Mapping::~Mapping() {
  if (data != MAP_FAILED) munmap(data, size);
}

std::string Trainer::Who() const {
  return absl::StrCat(instance_, " (run ", launch_->run, " rank ", rank_, " attempt ", attempt_, " session ",
                      session_, ")");
}

std::string Trainer::Words() const {
  std::string words = Who();
  if (session_ == 0) absl::StrAppend(&words, " connects");
  if (session_ != 0 && !joined_) absl::StrAppend(&words, " joins");
  if (resuming_) absl::StrAppend(&words, " resumes");
  for (const auto& saving : savings_) {
    absl::StrAppend(&words, " ", saving->name.Words(), " in phase ", static_cast<int>(saving->phase),
                    saving->outstanding ? " (asked)" : "");
  }
  return words;
}

bool Trainer::idle() const {
  return dead_ || (session_ != 0 && joined_ && !resuming_ && savings_.empty() && opening_ == 0);
}

template <typename T, typename Handler>
Reply<T> Trainer::Expect(const std::string& what, Handler handler) {
  return world_.Expect<T>(absl::StrCat(what, " of ", Who()),
                          [self = shared_from_this(), connection = connection_,
                           handler = std::move(handler)](absl::StatusOr<T> answer) mutable {
                            if (!self->dead_ && self->connection_ == connection) handler(std::move(answer));
                          });
}

// ---- coming and going

void Trainer::Gone() {
  ++connection_;
  session_ = 0;
  joined_ = resuming_ = false;
  opening_ = 0;
  for (const std::string& lease : leases_) world_.oracle().LeaseOver(launch_->run, lease);
  leases_.clear();
  located_.clear();
  resuming_leases_.clear();
  read_over_.clear();
  for (const SavingPtr& saving : savings_) saving->outstanding = saving->copies > 0;
}

void Trainer::Kill() {
  if (dead_) return;
  world_.Trace("kill ", Who());
  const SessionId session = session_;
  Gone();
  dead_ = true;
  mapped_.clear();
  savings_.clear();
  if (session != 0 && world_.engine() != nullptr) world_.engine()->SessionClosed(session, "killed");
}

void Trainer::LoseSession() {
  if (dead_ || session_ == 0) return;
  world_.Trace("session lost: ", Who());
  lost_session_ = session_;
  for (const std::string& lease : leases_) world_.oracle().LeaseOver(launch_->run, lease);
  world_.engine()->SessionClosed(session_, "connection lost");
  Later(random_.Spread(microseconds(10), seconds(1)), &Trainer::DaemonGone);
}

void Trainer::DaemonGone() {
  if (dead_) return;
  Gone();
  Later(random_.Spread(milliseconds(1), seconds(2)), &Trainer::Connect);
}

void Trainer::Connect() {
  if (world_.engine() == nullptr) return Later(milliseconds(50), &Trainer::Connect);
  if (session_ == 0) {
    session_ = world_.NewSession();
    SessionInfo info;
    info.id = session_;
    info.uid = launch_->uid;
    info.client_instance = instance_;
    info.descriptors = launch_->descriptors;
    world_.engine()->SessionOpened(info);
    if (daemon_ != world_.daemon()) mapped_.clear();
    daemon_ = world_.daemon();
  }
  world_.engine()->AttachRoot(session_, world_.Attachment(launch_->run),
                              Expect<std::string>("AttachRoot", [this](absl::StatusOr<std::string> root) {
                                if (!root.ok()) return Later(milliseconds(200), &Trainer::Connect);
                                root_ = *root;
                                Later(microseconds(50), &Trainer::Join);
                              }));
}

void Trainer::Join() {
  v1::JoinRunRequest request;
  request.set_root(root_);
  request.set_rank(rank_);
  request.set_world_size(launch_->world_size);
  request.set_launch_id(launch_->id);
  for (const SavingPtr& saving : savings_) {
    if (!saving->seal_ok || saving->daemon == daemon_) continue;
    v1::SaveKey& lost = *request.add_orphaned();
    lost = KeyOf(*saving);
    world_.oracle().Excuse(saving->name);
  }
  world_.engine()->JoinRun(
      caller(), request,
      Expect<v1::JoinRunResponse>("JoinRun", [this](absl::StatusOr<v1::JoinRunResponse> answer) {
        if (!answer.ok()) {
          const std::string reason = ReasonOf(answer.status());
          // Its rank is somebody else's now, or is still held by a session that is about to end.
          if (reason == "FENCED" || reason == "WORLD_SIZE_MISMATCH" ||
              (reason == "RANK_TAKEN" && random_.Percent(20)))
            return Kill();
          return Later(milliseconds(100), &Trainer::Join);
        }
        if (attempt_ != 0 && attempt_ != answer->attempt() && !acted_) {
          savings_
              .clear();  // A daemon that was killed had not remembered the attempt: nothing was done in it.
          saves_ = 0;
        } else if (attempt_ != 0 && attempt_ != answer->attempt()) {
          world_.oracle().Violated(absl::StrCat(Who(), " reconnects and is of attempt ", answer->attempt()));
        }
        attempt_ = answer->attempt();
        joined_ = true;
        for (const SavingPtr& saving : savings_) {
          const bool same_daemon = saving->daemon == daemon_;
          if (saving->phase != Phase::kWait && saving->phase != Phase::kDone)
            saving->phase = same_daemon && saving->seal_sent ? Phase::kSeal : Phase::kBegin;
          if (!same_daemon) saving->seal_ok = false;
          if (saving->phase == Phase::kBegin) saving->seal_sent = false;
          Think(saving);
        }
        // A client repeats its FinishResume over a new connection; some give up and resume again.
        if (finishing_ != 0 && random_.Percent(80)) {
          resuming_ = true;
          return Later(random_.Spread(microseconds(50), seconds(1)), &Trainer::FinishResume, finishing_);
        }
        // Some ask again over a new connection, as if the answer had been lost.
        if (resumed_ && launch_->resumes && random_.Percent(30)) {
          asks_again_ = true;
          resumed_ = false;
        }
        if (!resumed_ && launch_->resumes)
          return Later(random_.Spread(microseconds(50), seconds(1)), &Trainer::Resume);
        resumed_ = true;
        Later(random_.Spread(microseconds(50), seconds(1)), &Trainer::NextSave);
      }));
}

void Trainer::Resume() {
  if (world_.ending() && random_.Percent(10)) resumed_ = true;  // One that never asks.
  resuming_ = false;
  if (resumed_) return NextSave();
  resuming_ = true;
  v1::ResumeRequest request;
  request.set_run(root_);
  request.set_rank(rank_);
  request.mutable_timeout()->set_seconds(random_.Percent(30) ? 1 : 30);
  const Oracle::Before before = world_.oracle().Now(launch_->run);
  world_.oracle().AsksToAct(launch_->run, attempt_);
  world_.oracle().AsksResume(launch_->run, attempt_);
  world_.engine()->Resume(
      caller(), request,
      Expect<v1::ResumeResponse>("Resume", [this, before](absl::StatusOr<v1::ResumeResponse> answer) {
        resuming_ = false;
        if (!answer.ok()) {
          const std::string reason = ReasonOf(answer.status());
          if (reason == "CHECKPOINT_DAMAGED") {  // All that there is: somebody says to begin anew.
            world_.Count("resume of damaged ones alone");
            resumed_ = true;
            return NextSave();
          }
          if (reason == "FENCED") {
            world_.oracle().ToldFenced(launch_->run, attempt_);
            world_.Count("resume fenced");
            return Kill();
          }
          // It has said that it had read it, and the others have agreed since: the process ends.
          if (reason == "NO_CHECKPOINT" && finishing_ != 0) return Kill();
          if (reason == "NO_CHECKPOINT" &&
              asks_again_) {  // It has had its time: the attempt has committed since.
            resumed_ = true;
            return NextSave();
          }
          if (reason == "NO_CHECKPOINT") {
            world_.oracle().Violated(absl::StrCat(
                Who(), " is to resume from what is not there: ", std::string(answer.status().message())));
          }
          resuming_ = true;
          return Later(milliseconds(200), &Trainer::Resume);
        }
        world_.oracle().ActedOk(launch_->run, attempt_, before, "Resume");
        acted_ = true;
        finishing_ = 0;
        world_.oracle().Resumed(launch_->run, attempt_, answer->checkpoint().sequence(),
                                answer->checkpoint().tag());
        world_.Count(answer->has_checkpoint() ? "resumed from a checkpoint" : "resumed from nothing");
        if (!answer->lease().empty()) {
          resuming_leases_.insert(answer->lease());
          LeaseGiven(answer->lease(), answer->checkpoint().sequence());
          Later(random_.Spread(milliseconds(1), seconds(8)), &Trainer::CloseLease, answer->lease());
        }
        if (answer->has_checkpoint() && !asks_again_) {
          resuming_ = true;
          return Later(random_.Spread(milliseconds(1), seconds(5)), &Trainer::FinishResume,
                       answer->checkpoint().sequence());
        }
        resumed_ = true;
        Later(random_.Spread(milliseconds(1), seconds(1)), &Trainer::NextSave);
      }));
}

// It has read its part, or finds that it cannot.
void Trainer::FinishResume(int64_t sequence) {
  v1::FinishResumeRequest request;
  request.set_run(root_);
  request.set_rank(rank_);
  request.set_sequence(sequence);
  request.mutable_timeout()->set_seconds(random_.Percent(30) ? 1 : 10);
  const bool repeated = std::exchange(finishing_, sequence) != 0;
  const bool damaged = !repeated && !world_.ending() && random_.Percent(world_.plan().damage);
  const bool fails = !repeated && !damaged && !world_.ending() && random_.Percent(3);
  if (damaged) {
    request.mutable_damage()->set_message("as planned");
    world_.oracle().Damaged(launch_->run, sequence);
    world_.Count("damage found");
  }
  if (fails) request.set_failure("as planned");
  for (const std::string& lease : resuming_leases_) {
    located_.erase(lease);
    read_over_.insert(lease);
  }
  resuming_leases_.clear();
  world_.engine()->FinishResume(
      caller(), request,
      Expect<v1::FinishResumeResponse>(
          absl::StrCat("FinishResume ", sequence,
                       damaged ? " damaged"
                       : fails ? " failed"
                               : ""),
          [this, sequence, damaged, fails](absl::StatusOr<v1::FinishResumeResponse> answer) {
            finishing_ = 0;
            if (answer.ok() && !damaged && !fails) {
              world_.oracle().Agreed(launch_->run, attempt_, sequence);
              world_.Count("agreed");
              resuming_ = false;
              resumed_ = true;
              return Later(random_.Spread(milliseconds(1), seconds(1)), &Trainer::NextSave);
            }
            const std::string reason = ReasonOf(answer.status());
            if (reason == "FENCED") {
              world_.oracle().ToldFenced(launch_->run, attempt_);
              return Kill();
            }
            if (reason == "IO_ERROR" || reason == "NO_SPACE")
              return Later(milliseconds(200), &Trainer::FinishResume, sequence);
            world_.Count(absl::StrCat("resume not finished ", reason));
            ResumeAgain();
          }));
}

// A few times; then the process gives up, as one whose peers are gone does. At the end it goes on alone.
void Trainer::ResumeAgain() {
  if (++failed_resumes_ <= 5 && !world_.ending())
    return Later(random_.Spread(milliseconds(1), seconds(1)), &Trainer::Resume);
  if (!world_.ending()) return Kill();
  resuming_ = false;
  resumed_ = true;
  NextSave();
}

void Trainer::LeaseGiven(const std::string& lease, int64_t sequence) {
  leases_.push_back(lease);
  world_.oracle().LeaseOpen(launch_->run, sequence, lease);
  if (random_.Percent(60))
    Later(random_.Spread(microseconds(50), seconds(2)), &Trainer::Locate, lease, sequence);
}

// Looks at the bytes at once, and once more when the lease ends.
void Trainer::Locate(std::string lease, int64_t sequence) {
  if (read_over_.contains(lease)) return;
  v1::LocateFilesRequest request;
  request.set_lease(lease);
  request.set_map(random_.Percent(world_.plan().maps));
  world_.engine()->LocateFiles(
      caller(), request,
      Expect<v1::LocateFilesResponse>("LocateFiles", [this, lease, sequence](
                                                         absl::StatusOr<v1::LocateFilesResponse> answer) {
        if (!answer.ok()) return;
        Located located{sequence, {}};
        std::map<int64_t, int64_t> bytes;
        for (const v1::ResidentPart& part : answer->parts()) {
          for (const v1::Segment& segment : part.segments()) bytes[segment.id()] = segment.size_bytes();
        }
        world_.Trace("  ", answer->parts_size(), " parts in ", bytes.size(), " segments",
                     answer->may_map() ? ", which it may map" : "");
        if (std::find(leases_.begin(), leases_.end(), lease) == leases_.end() || read_over_.contains(lease)) {
          if (answer->may_map()) MapForGood(located, std::move(bytes));  // It comes too late to be read.
          return;
        }
        for (const v1::ResidentPart& part : answer->parts()) {
          LocatedPart& found = located.parts.emplace_back();
          found.rank = part.rank();
          for (const v1::Segment& segment : part.segments()) {
            auto memory = world_.pool()->directory().Find(session_, segment.id(), SegmentAccess::kRead);
            if (!memory.ok()) {
              return world_.oracle().Violated(
                  absl::StrCat("segment ", segment.id(), " is located for ", Who(),
                               ", but is not there: ", std::string(memory.status().message())));
            }
            found.segments.push_back(
                std::make_shared<Mapping>(memory->fd, memory->size, SegmentAccess::kRead));
          }
          for (const v1::FilePlacement& file : part.placements())
            found.placed[file.path()] = {file.offset(), file.size_bytes()};
        }
        world_.Count(located.parts.empty() ? "not in memory" : "read from memory");
        if (!located.parts.empty() && world_.IsReadAhead(launch_->run, sequence))
          world_.Count("read ahead and then from memory");
        if (answer->may_map()) MapForGood(located, std::move(bytes));
        located_[lease] = std::move(located);
        ReadLocated(lease);
      }));
}

void Trainer::MapForGood(const Located& located, std::map<int64_t, int64_t> bytes) {
  world_.Count("mapped");
  std::vector<int64_t> segments;
  for (const auto& entry : bytes) segments.push_back(entry.first);
  world_.oracle().Mapped(segments);
  mapped_for_good_.push_back({session_, daemon_, located, std::move(bytes)});
  for (int i = 0; i < 2; ++i) {
    world_.schedule().After(random_.Spread(milliseconds(1), seconds(40)),
                            [self = shared_from_this()] { self->ReadMapped(); });
  }
}

void Trainer::ReadMapped() {
  for (const Mapped& mapped : mapped_for_good_) {
    if (mapped.session != session_) world_.Count("mapped beyond its session, and as it was");
    Read(mapped.located);
  }
}

void Trainer::AddMapped(std::map<int64_t, int64_t>* segments) const {
  for (const Mapped& mapped : mapped_for_good_) {
    if (session_ != 0 && session_ != lost_session_ && mapped.session == session_ &&
        mapped.daemon == world_.daemon())
      segments->insert(mapped.bytes.begin(), mapped.bytes.end());
  }
}

void Trainer::ReadLocated(const std::string& lease) {
  auto found = located_.find(lease);
  if (found != located_.end()) Read(found->second);
}

void Trainer::Read(const Located& located) {
  for (const LocatedPart& part : located.parts) {
    Contents contents;
    for (const auto& [path, place] : part.placed) {
      std::vector<std::span<const std::byte>> runs;
      auto [offset, left] = place;
      for (const auto& segment : part.segments) {
        if (offset >= segment->size) {
          offset -= segment->size;
          continue;
        }
        if (left == 0) break;
        const int64_t run = std::min(left, segment->size - offset);
        runs.emplace_back(segment->data + offset, static_cast<size_t>(run));
        left -= run;
        offset = 0;
      }
      contents[path] = Digest(runs);
    }
    world_.oracle().ReadFromMemory(launch_->run, located.sequence, part.rank, contents);
  }
}

void Trainer::CloseLease(std::string lease) {
  if (std::erase(leases_, lease) == 0) return;
  ReadLocated(lease);
  located_.erase(lease);
  world_.oracle().LeaseOver(launch_->run, lease);
  v1::CloseCheckpointRequest request;
  request.set_lease(lease);
  world_.engine()->CloseCheckpoint(caller(), request,
                                   Expect<v1::CloseCheckpointResponse>("CloseCheckpoint", [](auto) {}));
}

void Trainer::CloseLeases() {
  while (!leases_.empty()) CloseLease(leases_.back());
}

void Trainer::Open(const std::string& tag) {
  if (dead_ || !joined_) return;
  v1::OpenCheckpointRequest request;
  request.set_name(absl::StrCat(root_, "/checkpoints/", tag));
  ++opening_;
  world_.engine()->OpenCheckpoint(
      caller(), request,
      Expect<v1::OpenCheckpointResponse>(
          "OpenCheckpoint", [this](absl::StatusOr<v1::OpenCheckpointResponse> answer) {
            --opening_;
            if (!answer.ok()) return;
            world_.Count("opened");
            LeaseGiven(answer->lease(), answer->checkpoint().sequence());
            Later(random_.Spread(milliseconds(1), seconds(20)), &Trainer::CloseLease, answer->lease());
          }));
}

// ---- what it saves

std::string Trainer::TagOf(int n) const {
  Random random(Mix(launch_->seed, static_cast<uint64_t>(n)));
  if (world_.plan().resaves && random.Percent(50)) return absl::StrCat("again", random.Below(3));
  return absl::StrCat(launch_->id, "-", n);
}

Trainer::SavePlan Trainer::PlanOf(int n) const {
  Random alike(Mix(launch_->seed, static_cast<uint64_t>(n) + 7777));  // On all ranks.
  Random own(Mix(launch_->seed, Mix(static_cast<uint64_t>(n), static_cast<uint64_t>(rank_))));
  SavePlan plan;
  plan.tag = TagOf(n);
  for (int m = 0; m < n; ++m) plan.ordinal += TagOf(m) == plan.tag;
  const int64_t busy = alike.Below(3);
  if (busy == 0 && world_.plan().skip) plan.busy = v1::SKIP;
  if (busy == 1 && world_.plan().supersede) plan.busy = v1::SUPERSEDE;
  const bool short_patience = world_.plan().short_patience && alike.Percent(50);
  plan.timeout = short_patience ? milliseconds(alike.Between(1, 1000)) : seconds(20);
  plan.commit_timeout =
      short_patience && alike.Percent(50) ? milliseconds(alike.Between(100, 5000)) : seconds(40);
  plan.growing = world_.plan().growing && own.Percent(40);
  const bool conflict = world_.plan().conflicts && alike.Percent(15);
  constexpr int64_t kSizes[] = {0, 100, 4096, 5000, kMiB, 2 * kMiB, 2 * kMiB + 100, 3 * kMiB};
  for (int64_t i = own.Below(4); i > 0; --i) {
    const std::string path = conflict && i == 1 ? "shared" : absl::StrCat("r", rank_, "/f", i);
    plan.files.push_back({path, kSizes[own.Percent(70) ? own.Below(5) : own.Below(8)]});
  }
  plan.leaves_one_out = own.Percent(10);
  return plan;
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
    Think(saving);
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

// ---- a save

void Trainer::Refused(const SavingPtr& saving, const absl::Status& status, Oracle::Before) {
  static const std::set<std::string> kEnds = {"SUPERSEDED",    "SESSION_LOST",      "SAVE_ABORTED",
                                              "RANKS_MISSING", "ADMISSION_TIMEOUT", "STAGED_LOST"};
  const std::string reason = ReasonOf(status);
  const std::string message(status.message());
  if (saving->plan.busy == v1::SKIP && reason == "ADMISSION_TIMEOUT" &&
      message.find("file system") == std::string::npos)
    world_.oracle().Violated(
        absl::StrCat(saving->name.Words(), " is to be skipped when there is no room, and waited: ", message));
  if (kEnds.contains(reason)) world_.oracle().Heard(saving->name, rank_, v1::FAILED, reason, 0);
  if (reason == "FENCED") {
    world_.oracle().ToldFenced(launch_->run, attempt_);
    world_.Count("fenced");
    fenced_ = !random_.Percent(30) || world_.ending();  // Some do not listen.
    saving->phase = Phase::kWait;
    return Think(saving);
  }
  if (reason == "UNKNOWN_TOKEN" || reason == "NOT_JOINED" || reason == "DRAINING" ||
      reason == "UNKNOWN_RUN") {
    return Later(milliseconds(100), &Trainer::Drive, saving);
  }
  if (reason == "RANK_TAKEN" && random_.Percent(50)) return Later(milliseconds(100), &Trainer::Drive, saving);
  saving->phase = Phase::kWait;  // How did it end, if it ever was?
  Think(saving);
}

void Trainer::Begin(SavingPtr saving) {
  v1::BeginRequest request;
  *request.mutable_key() = KeyOf(*saving);
  request.set_step(saving->n);
  request.set_growing(saving->plan.growing);
  request.set_busy(saving->plan.busy);
  SetDuration(saving->plan.timeout, request.mutable_timeout());
  SetDuration(saving->plan.commit_timeout, request.mutable_commit_timeout());
  if (world_.plan().kept) request.set_num_kept_ckpts(*world_.plan().kept);
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
  const Oracle::Before before = world_.oracle().Now(launch_->run);
  world_.oracle().AsksToAct(launch_->run, attempt_);
  world_.engine()->Begin(
      caller(), request,
      Expect<v1::BeginResponse>(
          absl::StrCat("Begin ", saving->name.Words()),
          [this, saving, before](absl::StatusOr<v1::BeginResponse> answer) {
            if (saving->phase != Phase::kBegin) return;  // The answer to a repeated one.
            saving->outstanding = false;
            if (!answer.ok()) return Refused(saving, answer.status(), before);
            world_.oracle().ActedOk(launch_->run, attempt_, before, "Begin");
            acted_ = true;
            saving->begun = true;
            saving->sequence = answer->sequence();
            if (answer->level() == v1::SKIPPED) {
              world_.oracle().Heard(saving->name, rank_, v1::SKIPPED, "SKIPPED", saving->sequence);
              saving->phase = Phase::kWait;
              return Think(saving);
            }
            for (int64_t retired : answer->retired_segments()) mapped_.erase(retired);
            Show(saving, answer->segments(), answer->placements());
            saving->phase =
                saving->plan.growing && !saving->plan.files.empty() ? Phase::kExtend : Phase::kCopy;
            Think(saving);
          }));
}

void Trainer::Show(const SavingPtr& saving, const google::protobuf::RepeatedPtrField<v1::Segment>& segments,
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
            absl::StrCat("segment ", segment.id(), " is shown to ", Who(),
                         ", but is not its: ", std::string(found.status().message())));
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
  const Oracle::Before before = world_.oracle().Now(launch_->run);
  world_.engine()->Extend(
      caller(), request,
      Expect<v1::ExtendResponse>(absl::StrCat("Extend ", saving->name.Words()),
                                 [this, saving, before](absl::StatusOr<v1::ExtendResponse> answer) {
                                   saving->outstanding = false;
                                   if (!answer.ok()) return Refused(saving, answer.status(), before);
                                   world_.oracle().ActedOk(launch_->run, attempt_, before, "Extend");
                                   Show(saving, answer->segments(), answer->placements());
                                   if (++saving->extended == saving->plan.files.size())
                                     saving->phase = Phase::kCopy;
                                   Think(saving);
                                 }));
}

// File by file; whatever becomes of the save meanwhile, the copy goes on, as in a process that has not heard
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
  auto use = std::make_shared<int64_t>(0);  // Of the memory, by a stream.
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
  // The stream stays open for a while; meanwhile nothing may take this memory away, unless it is told so.
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
    saving->phase = Phase::kWait;  // WriteFile was refused: then it has ended.
    return Think(saving);
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
  world_.oracle().SealSent(saving->name, rank_, launch_->world_size, std::move(contents));
  saving->outstanding = saving->seal_sent = true;
  const Oracle::Before before = world_.oracle().Now(launch_->run);
  world_.engine()->Seal(
      caller(), request,
      Expect<v1::SealResponse>(absl::StrCat("Seal ", saving->name.Words()),
                               [this, saving, before](absl::StatusOr<v1::SealResponse> answer) {
                                 if (saving->phase == Phase::kDone) return;
                                 saving->outstanding = false;
                                 if (!answer.ok()) {
                                   // The stream of a file has not ended yet.
                                   if (ReasonOf(answer.status()) == "UNKNOWN_SAVE" && !launch_->descriptors &&
                                       !absl::IsNotFound(answer.status()))
                                     return Later(milliseconds(50), &Trainer::Drive, saving);
                                   return Refused(saving, answer.status(), before);
                                 }
                                 world_.oracle().SealOk(saving->name, rank_, before, saving->seal_ok,
                                                        answer->level());
                                 world_.Count("sealed");
                                 saving->seal_ok = true;
                                 saving->phase = Phase::kWait;
                                 Think(saving);
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
          absl::StrCat("Wait ", saving->name.Words()),
          [this, saving, sent, timeout](absl::StatusOr<v1::WaitResponse> answer) {
            if (saving->phase == Phase::kDone) return;
            saving->outstanding = false;
            if (world_.schedule().clock().Now() > sent + timeout + milliseconds(200))
              world_.oracle().Violated(absl::StrCat("Wait of ", Who(), " is answered after its deadline"));
            if (!answer.ok()) {
              if (ReasonOf(answer.status()) == "UNKNOWN_SAVE") {
                if (saving->begun && saving->sequence != 0)
                  world_.oracle().Violated(
                      absl::StrCat(saving->name.Words(), " was begun, and is not known"));
                return Done(saving);
              }
              return Later(milliseconds(100), &Trainer::Drive, saving);
            }
            const v1::Checkpoint& checkpoint = answer->checkpoint();
            world_.Trace("  ", v1::Level_Name(checkpoint.level()), " ", checkpoint.error().reason());
            if (!Ended(checkpoint.level())) return Think(saving);
            world_.oracle().Heard(saving->name, rank_, checkpoint.level(), checkpoint.error().reason(),
                                  checkpoint.sequence());
            if (saving->last && checkpoint.level() == v1::COMMITTED) last_save_committed_ = true;
            Done(saving);
          }));
}

// ---- what is done to it

void Trainer::Abort() {
  if (dead_ || !joined_ || savings_.empty()) return;
  const SavingPtr& saving = savings_[random_.Below(static_cast<int64_t>(savings_.size()))];
  v1::AbortRequest request;
  *request.mutable_key() = KeyOf(*saving);
  request.set_message("as planned");
  world_.oracle().Excuse(saving->name);
  world_.engine()->Abort(
      caller(), request,
      Expect<v1::AbortResponse>(absl::StrCat("Abort ", saving->name.Words()), [](auto) {}));
}

void Trainer::Repeat() {
  if (dead_ || !joined_) return;
  for (const SavingPtr& saving : savings_) {
    if (saving->phase == Phase::kBegin) {
      if (saving->outstanding) Begin(saving);
    } else if (saving->phase == Phase::kSeal && saving->seal_sent) {
      if (saving->outstanding) Seal(saving);
    } else if (saving->phase == Phase::kWait && saving->seal_ok && saving->daemon == daemon_) {
      Seal(saving);
    }
  }
}

}  // namespace ckptd::sim
