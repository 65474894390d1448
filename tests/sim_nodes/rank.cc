// A rank connects, joins, resumes and reads, and reconnects after a loss.
#include "tests/sim_nodes/rank.h"

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "tests/sim_nodes/rank_inl.h"

namespace ckptd::sim_nodes {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kResumesBeforeItGivesUp = 5;

}  // namespace

std::string Rank::ToString() const {
  std::string words = absl::StrCat(process_, " (", node_.name(), " rank ", rank_, " of ", launch_->id,
                                   " attempt ", attempt_, ")");
  if (session_ == 0) absl::StrAppend(&words, " connects");
  if (session_ != 0 && !joined_) absl::StrAppend(&words, " joins");
  if (resuming_) absl::StrAppend(&words, " resumes");
  for (const SavingPtr& saving : savings_) {
    absl::StrAppend(&words, " ", NameOf(saving->name), " in phase ", static_cast<int>(saving->phase),
                    saving->outstanding ? " (asked)" : "");
  }
  return words;
}

bool Rank::idle() const {
  return dead_ || (session_ != 0 && joined_ && !resuming_ && savings_.empty() && opening_ == 0);
}

// ---- the process

void Rank::ForgetConnection() {
  ++connection_;
  session_ = 0;
  joined_ = resuming_ = false;
  opening_ = 0;
  for (const std::string& lease : leases_) world_.oracle().LeaseEnded(node_.index(), lease);
  leases_.clear();
  mapped_.clear();
  for (const SavingPtr& saving : savings_) saving->outstanding = false;
}

void Rank::Kill() {
  if (dead_) return;
  world_.Trace("kill ", ToString());
  const SessionId session = session_;
  ForgetConnection();
  dead_ = true;
  savings_.clear();
  if (session != 0) node_.Call([session](Engine& engine) { engine.SessionClosed(session, "killed"); });
}

void Rank::LoseSession() {
  if (dead_ || session_ == 0) return;
  world_.Trace("session lost: ", ToString());
  for (const std::string& lease : leases_) world_.oracle().LeaseEnded(node_.index(), lease);
  leases_.clear();
  node_.Call([session = session_](Engine& engine) { engine.SessionClosed(session, "connection lost"); });
  Later(random_.Spread(microseconds(10), seconds(1)), &Rank::DaemonGone);
}

void Rank::DaemonGone() {
  if (dead_) return;
  ForgetConnection();
  Later(random_.Spread(milliseconds(1), seconds(2)), &Rank::Connect);
}

void Rank::Fenced() {
  world_.oracle().ToldFenced(attempt_);
  world_.Count("fenced");
  Kill();
}

// ---- connecting and joining

void Rank::Connect() {
  if (!node_.up() || node_.paused()) return Later(milliseconds(50), &Rank::Connect);
  if (session_ == 0) {
    session_ = node_.NewSession();
    daemon_ = node_.daemon();
    SessionInfo info;
    info.id = session_;
    info.uid = 1000;
    info.client_instance = process_;
    node_.Call([info](Engine& engine) { engine.SessionOpened(info); });
  }
  node_.Call([self = shared_from_this(), connection = connection_](Engine& engine) {
    engine.AttachRoot(
        self->session_, self->node_.Attachment(),
        self->node_.Expect<std::string>("AttachRoot of " + self->process_,
                                        [self, connection](const absl::StatusOr<std::string>& root) {
                                          if (self->dead_ || self->connection_ != connection) return;
                                          if (!root.ok())
                                            return self->Later(milliseconds(200), &Rank::Connect);
                                          self->root_ = *root;
                                          self->Later(microseconds(50), &Rank::Join);
                                        }));
  });
}

void Rank::Join() {
  v1::JoinRunRequest request;
  request.set_root(root_);
  request.set_rank(rank_);
  request.set_world_size(launch_->world_size());
  request.set_launch_id(launch_->id);
  request.set_process(process_);
  request.set_job("the job");
  std::vector<int> local;
  for (int rank = 0; rank < launch_->world_size(); ++rank) {
    if (launch_->nodes[static_cast<size_t>(rank)] == node_.index()) local.push_back(rank);
  }
  if (static_cast<int>(local.size()) < launch_->world_size()) {
    for (int rank : local) request.add_local_ranks(rank);
  }
  if (const sim::UploadPlan& uploads = world_.plan().uploads; uploads.every > 0) {
    v1::UploadPolicy& policy = *request.mutable_upload();
    policy.set_url("s3://bucket/run");
    policy.set_every(uploads.every);
    policy.set_keep_last(uploads.keep_last);
    policy.set_evict_before_upload(uploads.evict_before_upload);
    policy.set_no_restore(!uploads.restore);
  }
  for (const SavingPtr& saving : savings_) {
    if (saving->seal_ok && saving->daemon != daemon_) *request.add_orphaned() = KeyOf(*saving);
  }
  Ask<v1::JoinRunResponse>(
      &Engine::JoinRun, "JoinRun", request, [this](const absl::StatusOr<v1::JoinRunResponse>& answer) {
        if (answer.ok()) return Joined(answer->attempt());
        const std::string reason = ReasonOf(answer.status());
        // Another process has its rank, or a session that is about to end still has it; or ranks of two
        // launches live, and the other ranks of both have ended.
        if (reason == "FENCED" || reason == "WORLD_SIZE_MISMATCH" || reason == "LAUNCH_IDS_DIFFER" ||
            (reason == "RANK_TAKEN" && random_.Percent(20)))
          return Kill();
        Later(milliseconds(100), &Rank::Join);
      });
}

void Rank::Joined(int64_t ledger_attempt) {
  const int64_t attempt = world_.oracle().IdOf(ledger_attempt);
  if (attempt_ != 0 && attempt_ != attempt)
    world_.oracle().Violated(absl::StrCat(ToString(), " reconnected and was given attempt ", attempt));
  attempt_ = attempt;
  attempt_of_ledger_ = ledger_attempt;
  joined_ = true;
  for (const SavingPtr& saving : savings_) {
    // The rank asks for the outcome of a save that it had begun with an earlier daemon, and does not begin a
    // lost save again.
    saving->phase = saving->daemon == daemon_ && saving->phase != Phase::kWait ? saving->phase : Phase::kWait;
    ContinueLater(saving);
  }
  if (!resumed_ && launch_->resumes) {
    resuming_ = true;
    return Later(random_.Spread(microseconds(50), seconds(1)), &Rank::Resume);
  }
  resumed_ = true;
  Later(random_.Spread(microseconds(50), seconds(1)), &Rank::NextSave);
}

// ---- resuming

void Rank::Resume() {
  v1::ResumeRequest request;
  request.set_run(root_);
  request.set_rank(rank_);
  request.set_allow_suspect(allows_suspect_);
  request.mutable_timeout()->set_seconds(random_.Percent(20) ? 1 : 60);
  world_.oracle().RequestSent(attempt_);
  world_.oracle().ResumeSent(attempt_);
  losses_before_resume_ = world_.oracle().losses(node_.index());
  Ask<v1::ResumeResponse>(&Engine::Resume, "Resume", request,
                          [this, acted = world_.oracle().acted(), told = world_.oracle().told_damaged()](
                              const absl::StatusOr<v1::ResumeResponse>& answer) {
                            if (answer.ok()) {
                              world_.oracle().TookEffect(attempt_, acted, "Resume");
                              return Resumed(*answer, told);
                            }
                            const std::string reason = ReasonOf(answer.status());
                            if (reason == "FENCED") return Fenced();
                            world_.Count(absl::StrCat("resume ", reason));
                            // Other ranks of the attempt may have gone on, and have committed a save since.
                            if (reason == "NO_CHECKPOINT") return Kill();
                            if (reason == "SUSPECT") allows_suspect_ = true;
                            Later(milliseconds(500), &Rank::Resume);
                          });
}

void Rank::Resumed(const v1::ResumeResponse& answer, const std::set<int64_t>& told_before) {
  const int64_t sequence = answer.checkpoint().sequence();
  // An agreement stays, even if no rank was told of it yet: the answer may have been lost.
  const std::set<int64_t> told =
      world_.HasAgreed(attempt_of_ledger_, sequence) ? std::set<int64_t>() : told_before;
  world_.oracle().Resumed(attempt_, sequence, answer.checkpoint().tag(), told, allows_suspect_);
  for (const v1::Checkpoint& passed : answer.passed_over()) {
    if (passed.has_damage()) world_.oracle().CalledDamaged(node_.name(), passed.sequence());
  }
  world_.Count(answer.has_checkpoint() ? "resumed from a checkpoint" : "resumed from nothing");
  if (!answer.lease().empty()) {
    OpenLease(answer.lease(), answer.checkpoint().sequence(), losses_before_resume_);
    Later(random_.Spread(milliseconds(1), seconds(8)), &Rank::CloseLease, answer.lease());
  }
  if (answer.has_checkpoint())
    return Later(random_.Spread(milliseconds(1), seconds(5)), &Rank::FinishResume,
                 answer.checkpoint().sequence());
  resuming_ = false;
  resumed_ = true;
  Later(random_.Spread(milliseconds(1), seconds(1)), &Rank::NextSave);
}

void Rank::FinishResume(int64_t sequence) {
  v1::FinishResumeRequest request;
  request.set_run(root_);
  request.set_rank(rank_);
  request.set_sequence(sequence);
  request.mutable_timeout()->set_seconds(random_.Percent(20) ? 1 : 60);
  const bool fails = !world_.ending() && random_.Percent(5);
  const auto damage =
      world_.plan().damage ? world_.disk().FindDamage(sequence, rank_, launch_->world_size()) : std::nullopt;
  if (damage) request.mutable_damage()->set_message(damage->message());
  if (fails && !damage) request.set_failure("as planned");
  const bool reads = !fails && !damage;
  if (reads) world_.oracle().FinishSent(attempt_, rank_, sequence);
  Ask<v1::FinishResumeResponse>(
      &Engine::FinishResume,
      absl::StrCat("FinishResume ", sequence,
                   damage  ? " damaged"
                   : fails ? " failed"
                           : ""),
      request,
      [this, sequence, reads,
       damaged = damage.has_value()](const absl::StatusOr<v1::FinishResumeResponse>& answer) {
        if (answer.ok() && reads) {
          world_.oracle().Agreed(attempt_, sequence, launch_->world_size());
          world_.Count("agreed");
          resuming_ = false;
          resumed_ = true;
          return Later(random_.Spread(milliseconds(1), seconds(1)), &Rank::NextSave);
        }
        const std::string reason = ReasonOf(answer.status());
        if (reason == "FENCED") return Fenced();
        if (answer.ok() && damaged) world_.oracle().ToldDamaged(sequence);
        if (reason == "CHECKPOINT_DAMAGED") {
          world_.oracle().CalledDamaged(node_.name(), sequence);
          world_.oracle().ToldDamaged(sequence);
        }
        world_.Count(absl::StrCat(damaged ? "damage reported " : "resume not finished ", reason));
        ResumeAgain();
      });
}

// Retries some times. Then the process ends, as a process whose peers are gone does.
void Rank::ResumeAgain() {
  if (++failed_resumes_ > kResumesBeforeItGivesUp) return Kill();
  Later(random_.Spread(milliseconds(1), seconds(1)), &Rank::Resume);
}

// ---- reading

void Rank::OpenLease(const std::string& lease, int64_t sequence, int losses_before) {
  leases_.insert(lease);
  world_.oracle().LeaseOpen(node_.index(), lease, sequence, losses_before);
}

void Rank::CloseLease(std::string lease) {
  if (leases_.erase(lease) == 0) return;
  world_.oracle().LeaseEnded(node_.index(), lease);
  v1::CloseCheckpointRequest request;
  request.set_lease(lease);
  Ask<v1::CloseCheckpointResponse>(&Engine::CloseCheckpoint, "CloseCheckpoint", request,
                                   [](const absl::StatusOr<v1::CloseCheckpointResponse>&) {});
}

void Rank::Open(const std::string& tag) {
  if (dead_ || !joined_) return;
  v1::OpenCheckpointRequest request;
  request.set_name(absl::StrCat(root_, "/checkpoints/", tag));
  ++opening_;
  Ask<v1::OpenCheckpointResponse>(&Engine::OpenCheckpoint, "OpenCheckpoint", request,
                                  [this, losses = world_.oracle().losses(node_.index())](
                                      const absl::StatusOr<v1::OpenCheckpointResponse>& answer) {
                                    --opening_;
                                    if (!answer.ok()) return;
                                    world_.Count("opened");
                                    OpenLease(answer->lease(), answer->checkpoint().sequence(), losses);
                                    if (world_.plan().damage) {
                                      return Later(milliseconds(random_.Between(1, 20'000)),
                                                   &Rank::EndReading, answer->lease(), answer->checkpoint());
                                    }
                                    Later(random_.Spread(milliseconds(1), seconds(20)), &Rank::CloseLease,
                                          answer->lease());
                                  });
}

void Rank::EndReading(std::string lease, v1::Checkpoint read) {
  const int64_t sequence = read.sequence();
  if (const auto damage = world_.disk().FindDamage(sequence, /*rank=*/0, /*of=*/1)) {
    v1::ReportDamageRequest request;
    request.set_name(absl::StrCat(root_, "/checkpoints/", read.tag()));
    request.set_sequence(sequence);
    request.mutable_damage()->set_message(damage->message());
    Ask<v1::ReportDamageResponse>(&Engine::ReportDamage, absl::StrCat("ReportDamage ", sequence), request,
                                  [this, sequence](const absl::StatusOr<v1::ReportDamageResponse>& answer) {
                                    if (answer.ok()) world_.oracle().ToldDamaged(sequence);
                                    world_.Count(absl::StrCat("damage reported ", ReasonOf(answer.status())));
                                  });
  }
  CloseLease(std::move(lease));
}

}  // namespace ckptd::sim_nodes
