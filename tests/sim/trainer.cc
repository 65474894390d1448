// A trainer connects, joins and resumes, and reconnects after a loss.
#include "tests/sim/trainer.h"

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "tests/sim/trainer_inl.h"

namespace ckptd::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

}  // namespace

std::string Trainer::Who() const {
  return absl::StrCat(instance_, " (run ", launch_->run, " rank ", rank_, " attempt ", attempt_, " session ",
                      session_, ")");
}

std::string Trainer::ToString() const {
  std::string words = Who();
  if (session_ == 0) absl::StrAppend(&words, " connects");
  if (session_ != 0 && !joined_) absl::StrAppend(&words, " joins");
  if (resuming_) absl::StrAppend(&words, " resumes");
  for (const auto& saving : savings_) {
    absl::StrAppend(&words, " ", saving->name.ToString(), " in phase ", static_cast<int>(saving->phase),
                    saving->outstanding ? " (asked)" : "");
  }
  return words;
}

bool Trainer::idle() const {
  return dead_ || (session_ != 0 && joined_ && !resuming_ && savings_.empty() && opening_ == 0);
}

// ---- Connecting and ending

void Trainer::ForgetConnection() {
  ++connection_;
  session_ = 0;
  joined_ = resuming_ = false;
  opening_ = 0;
  for (const std::string& lease : leases_) world_.oracle().LeaseEnded(launch_->run, lease);
  leases_.clear();
  located_.clear();
  resuming_leases_.clear();
  read_leases_.clear();
  for (const SavingPtr& saving : savings_) saving->outstanding = saving->copies > 0;
}

void Trainer::Kill() {
  if (dead_) return;
  world_.Trace("kill ", Who());
  const SessionId session = session_;
  ForgetConnection();
  dead_ = true;
  mapped_.clear();
  savings_.clear();
  if (session != 0 && world_.engine() != nullptr) world_.engine()->SessionClosed(session, "killed");
}

void Trainer::LoseSession() {
  if (dead_ || session_ == 0) return;
  world_.Trace("session lost: ", Who());
  lost_session_ = session_;
  for (const std::string& lease : leases_) world_.oracle().LeaseEnded(launch_->run, lease);
  world_.engine()->SessionClosed(session_, "connection lost");
  Later(random_.Spread(microseconds(10), seconds(1)), &Trainer::DaemonGone);
}

void Trainer::DaemonGone() {
  if (dead_) return;
  ForgetConnection();
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
  request.set_process(instance_);
  request.set_job(launch_->id);
  // Otherwise it waits for the end of the other launch.
  request.set_takeover((launch_->seed % 4 != 0 && !launch_->other_model) || world_.ending());
  if (world_.HasBucket(launch_->run)) {
    const UploadPlan& uploads = world_.plan().uploads;
    v1::UploadPolicy& policy = *request.mutable_upload();
    policy.set_url(absl::StrCat("s3://bucket/run", launch_->run));
    policy.set_every(uploads.every);
    policy.set_keep_last(uploads.keep_last);
    policy.set_evict_before_upload(uploads.evict_before_upload);
    policy.set_no_restore(!uploads.restore);
  }
  for (const SavingPtr& saving : savings_) {
    if (!saving->seal_ok || saving->daemon == daemon_) continue;
    v1::SaveKey& lost = *request.add_orphaned();
    lost = KeyOf(*saving);
    world_.oracle().Excuse(saving->name);
  }
  const bool takeover = request.takeover();
  const Oracle::FenceState before = world_.oracle().FenceStateOf(launch_->run);
  if (takeover) {
    world_.oracle().TakeoverSent(launch_->run);
    world_.oracle().CountsAll(launch_->run);
  }
  world_.engine()->JoinRun(
      caller(), request,
      Expect<v1::JoinRunResponse>(
          "JoinRun", [this, takeover, before](absl::StatusOr<v1::JoinRunResponse> answer) {
            if (takeover) world_.oracle().TakeoverAnswered(launch_->run, answer.ok() ? answer->attempt() : 0);
            if (!answer.ok()) {
              const std::string reason = ReasonOf(answer.status());
              // Another process has its rank, or a session that is about to end still holds it.
              if (reason == "FENCED" || reason == "WORLD_SIZE_MISMATCH" ||
                  (reason == "RANK_TAKEN" && random_.Percent(20)))
                return Kill();
              if (reason == "RUN_IN_USE") world_.Count("run in use");
              return Later(milliseconds(100), &Trainer::Join);
            }
            if (attempt_ != 0 && attempt_ != answer->attempt() && !acted_) {
              savings_.clear();  // The killed daemon had not recorded the attempt, so no save of it began.
              saves_ = 0;
            } else if (attempt_ != 0 && attempt_ != answer->attempt()) {
              world_.oracle().Violated(
                  absl::StrCat(Who(), " reconnected and was given attempt ", answer->attempt()));
            }
            attempt_ = answer->attempt();
            world_.oracle().Joined(launch_->run, attempt_, rank_, instance_);
            joined_ = true;
            for (const std::string& warning : answer->warnings()) {
              if (warning.find("is fenced off now") == std::string::npos) continue;
              world_.oracle().RequestTookEffect(launch_->run, attempt_, before, "the takeover");
              world_.Count("taken over");
            }
            for (const SavingPtr& saving : savings_) {
              const bool same_daemon = saving->daemon == daemon_;
              if (saving->phase != Phase::kWait && saving->phase != Phase::kDone)
                saving->phase = same_daemon && saving->seal_sent ? Phase::kSeal : Phase::kBegin;
              if (!same_daemon) saving->seal_ok = false;
              if (saving->phase == Phase::kBegin) saving->seal_sent = false;
              ContinueLater(saving);
            }
            // A client repeats its FinishResume over a new connection; some give up and resume again.
            if (finishing_ != 0 && random_.Percent(80)) {
              resuming_ = true;
              return Later(random_.Spread(microseconds(50), seconds(1)), &Trainer::FinishResume, finishing_);
            }
            // Some resume again over a new connection, as if the answer had been lost.
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
  if (world_.ending() && random_.Percent(10)) resumed_ = true;  // Some never resume.
  resuming_ = false;
  if (resumed_) return NextSave();
  resuming_ = true;
  v1::ResumeRequest request;
  request.set_run(root_);
  request.set_rank(rank_);
  request.set_allow_suspect(allows_suspect_);
  request.mutable_timeout()->set_seconds(random_.Percent(30) ? 1 : 30);
  const Oracle::FenceState before = world_.oracle().FenceStateOf(launch_->run);
  world_.oracle().RequestSent(launch_->run, attempt_);
  world_.oracle().ResumeSent(launch_->run, attempt_);
  world_.engine()->Resume(
      caller(), request,
      Expect<v1::ResumeResponse>("Resume", [this, before](absl::StatusOr<v1::ResumeResponse> answer) {
        resuming_ = false;
        if (!answer.ok()) {
          const std::string reason = ReasonOf(answer.status());
          // Every checkpoint is damaged: an operator decides to start from nothing.
          if (reason == "CHECKPOINT_DAMAGED") {
            world_.Count("resume of damaged ones alone");
            launch_->from_nothing.insert(attempt_);
            resumed_ = true;
            return NextSave();
          }
          if (reason == "SUSPECT" && !allows_suspect_) {
            world_.Count("resume of suspect ones alone");
            allows_suspect_ = resuming_ = true;
            return Later(milliseconds(200), &Trainer::Resume);
          }
          if (reason == "FENCED") {
            world_.oracle().ToldFenced(launch_->run, attempt_);
            world_.Count("resume fenced");
            return Kill();
          }
          // The rank had reported that it has read its part, and the ranks have agreed since: the process
          // ends.
          if (reason == "NO_CHECKPOINT" && finishing_ != 0) return Kill();
          // Other ranks of its attempt began from nothing, and retention removed the checkpoint for their
          // saves.
          if (reason == "NO_CHECKPOINT" && launch_->from_nothing.contains(attempt_)) return Kill();
          if (reason == "NO_CHECKPOINT" && asks_again_) {  // The attempt has committed since.
            resumed_ = true;
            return NextSave();
          }
          // A checkpoint was moved in from another run, where an attempt had the same number. A daemon that
          // starts takes it for a save of this attempt: design.md.
          if (reason == "NO_CHECKPOINT" && world_.oracle().WasMovedIn(launch_->run, attempt_)) return Kill();
          if (reason == "NO_CHECKPOINT") {
            world_.oracle().Violated(
                absl::StrCat(Who(), " was told to resume from a checkpoint that does not exist: ",
                             std::string(answer.status().message())));
          }
          resuming_ = true;
          return Later(milliseconds(200), &Trainer::Resume);
        }
        world_.oracle().RequestTookEffect(launch_->run, attempt_, before, "Resume");
        acted_ = true;
        world_.oracle().Acted(launch_->run, attempt_, rank_, instance_);
        finishing_ = 0;
        world_.Trace(Who(), " resumes from ", answer->checkpoint().tag(), ", sequence ",
                     answer->checkpoint().sequence());
        world_.oracle().Resumed(launch_->run, attempt_, answer->checkpoint().sequence(),
                                answer->checkpoint().tag(), allows_suspect_);
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

// Reports that the rank has read its part, or found it damaged.
void Trainer::FinishResume(int64_t sequence) {
  v1::FinishResumeRequest request;
  request.set_run(root_);
  request.set_rank(rank_);
  request.set_sequence(sequence);
  request.mutable_timeout()->set_seconds(random_.Percent(30) ? 1 : 10);
  const bool repeated = std::exchange(finishing_, sequence) != 0;
  const bool damaged = !repeated && !world_.ending() && random_.Percent(world_.plan().damage);
  const bool has_other_model = launch_->other_model && !damaged && !world_.ending();
  const bool fails = has_other_model || (!repeated && !damaged && !world_.ending() && random_.Percent(3));
  if (damaged) {
    request.mutable_damage()->set_message("as planned");
    world_.oracle().Damaged(launch_->run, sequence);
    world_.Count("damage found");
  }
  if (fails) request.set_failure("as planned");
  for (const std::string& lease : resuming_leases_) {
    located_.erase(lease);
    read_leases_.insert(lease);
  }
  resuming_leases_.clear();
  world_.engine()->FinishResume(
      caller(), request,
      Expect<v1::FinishResumeResponse>(
          absl::StrCat("FinishResume ", sequence,
                       damaged ? " damaged"
                       : fails ? " failed"
                               : ""),
          [this, sequence, damaged, fails, has_other_model](absl::StatusOr<v1::FinishResumeResponse> answer) {
            const std::string reason = ReasonOf(answer.status());
            // The disk may have the record that all ranks have read their parts all the same.
            if (reason == "IO_ERROR" || reason == "NO_SPACE")
              return Later(milliseconds(200), &Trainer::FinishResume, sequence);
            finishing_ = 0;
            if (answer.ok() && !damaged && !fails) {
              world_.oracle().Agreed(launch_->run, attempt_, sequence);
              world_.Count("agreed");
              resuming_ = false;
              resumed_ = true;
              return Later(random_.Spread(milliseconds(1), seconds(1)), &Trainer::NextSave);
            }
            if (reason == "FENCED") {
              world_.oracle().ToldFenced(launch_->run, attempt_);
              return Kill();
            }
            world_.Count(absl::StrCat("resume not finished ", reason));
            if (has_other_model && (answer.ok() || reason == "RESUME_FAILED")) {
              world_.Count("another model");
              launch_->from_nothing.insert(attempt_);
              world_.oracle().HasAnotherModel(launch_->run, attempt_, sequence);
              resuming_ = false;
              resumed_ = true;
              return Later(random_.Spread(milliseconds(1), seconds(1)), &Trainer::NextSave);
            }
            ResumeAgain();
          }));
}

// Retries a few times; then the process gives up, as one whose peers are gone does. At the end of the case it
// continues alone.
void Trainer::ResumeAgain() {
  if (++failed_resumes_ <= 5 && !world_.ending())
    return Later(random_.Spread(milliseconds(1), seconds(1)), &Trainer::Resume);
  if (!world_.ending()) return Kill();
  resuming_ = false;
  resumed_ = true;
  NextSave();
}

}  // namespace ckptd::sim
