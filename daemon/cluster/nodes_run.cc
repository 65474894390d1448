#include "daemon/cluster/nodes_run.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/cluster/node/node_save.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/etcd/etcd_listing.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/keys/keys.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/state/found_messages.h"
#include "daemon/ledger/state/run_root.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {

using ledger::v1::SaveState;

namespace {

constexpr Duration kLookPause = std::chrono::milliseconds(200);

}  // namespace

NodesRun::NodesRun(Etcd* etcd, Clock* clock, SharedFilesIo* files, Options options)
    : etcd_(etcd),
      clock_(clock),
      files_(files),
      options_(std::move(options)),
      saves_(etcd, clock,
             {.run = options_.path,
              .post = options_.post,
              .why_unregistered = [this] { return WhyUnregistered(); },
              .may_begin = [this] { return MayBeginSave(); }},
             {.changed = [this](const SaveId& save,
                                const Decision& decision) { hooks_.changed(save, decision); },
              .failed = [this](const SaveId& save, const absl::Status& why) { hooks_.failed(save, why); },
              .released = [this](const SaveId& save) { hooks_.released(save); },
              .committed =
                  [this](const SharedSave& save) { list_.OnCommittedHere(save.sequence, save.state.tag()); },
              .other_committed =
                  [this](const SharedSave& save) {
                    list_.OnCommitted(save.sequence, save.state.tag());
                    hooks_.root_changed();
                  },
              .newest_committed = [this](const SharedSave& save) { OnNewestCommitted(save); },
              .lost = [this](const absl::Status& why) { over_ = why; },
              .moved_in = [this] { hooks_.root_changed(); }}),
      list_(clock, options_.visibility,
            {.save_state = [this](int64_t sequence) { return saves_.Shown(sequence); },
             .saves_revision = [this] { return saves_.revision(); },
             .removed = [this](int64_t sequence) { hooks_.removed(sequence); },
             .noticed = [this](const std::string& message) { hooks_.noticed(message); },
             .root_changed = [this] { hooks_.root_changed(); }}) {}

// Runs no callback of a caller, who may be gone.
NodesRun::~NodesRun() {
  callbacks_.End();
  DropLeadership();
  saves_.EndRegistration();
}

// ---- registrations

ledger::v1::RunRoot NodesRun::RootOf(const SharedFilesIo::RunOfRoot& root) const {
  ledger::v1::RunRoot message;
  message.set_inode(root.inode);
  message.set_uid(root.uid);
  message.set_path(options_.path);
  return message;
}

// For an early answer. While etcd does not answer, the next registration says so.
void NodesRun::CheckRoot(const SharedFilesIo::RunOfRoot& root, Callback<absl::Status> checked) {
  etcdserverpb::RangeRequest request;
  request.set_key(LedgerKeys(absl::StrCat(options_.cluster_prefix, "runs/", root.id, "/")).Root());
  etcd_->Range(request, absl::StrCat("looking whether ", options_.path, " is the root of its run"),
               callbacks_.Guard([here = RootOf(root), id = root.id, checked = std::move(checked)](
                                    const absl::StatusOr<etcdserverpb::RangeResponse>& found) mutable {
                 if (!found.ok()) return checked(absl::OkStatus());
                 checked(CheckRunRoot(id, here, {found->kvs().begin(), found->kvs().end()}));
               }));
}

void NodesRun::Opened(const SharedFilesIo::RunOfRoot& root) {
  if (!prefix_.empty()) return;  // It was opened before.
  root_ = root;
  const std::string& run_id = root_.id;
  prefix_ = absl::StrCat(options_.cluster_prefix, "runs/", run_id, "/");
  const std::string& run = options_.path;
  const auto why = [this] { return WhyUnregistered(); };
  ledger_ = std::make_unique<NodesLedger>(
      etcd_, clock_,
      NodesLedger::Options{
          options_.cluster_prefix, prefix_, run_id, options_.path, options_.patience, why,
          [this] { return CheckUse(); },
          [this](const SettingKeys::Policy& policy, Ledger::Answer<absl::Status> set) {
            settings_->SetRetention(policy, std::move(set));
          },
          [this](int64_t attempt, const storage::v1::UploadRecord& policy, Ledger::Answer<absl::Status> set) {
            uploads_->SetPolicy(attempt, policy, std::move(set));
          },
          [this](int64_t attempt, int world_size) {
            if (node_) trial_->Joined(attempt, world_size, node_->name);
          }});
  calls_ = std::make_unique<LedgerCalls>(clock_, absl::StrCat("run ", run), why);
  resume_ =
      std::make_unique<NodesResume>(etcd_, clock_, ledger_.get(), NodesResume::Options{prefix_, run, why});
  readers_ = std::make_unique<ReaderKeys>(
      etcd_, clock_, ReaderKeys::Options{prefix_, run, options_.patience, why, list_.ended_removals()});
  damages_ = std::make_unique<DamageKeys>(
      etcd_, clock_, DamageKeys::Options{prefix_, run, options_.patience, why, list_.ended_removals()},
      [this](int64_t sequence, const DamageKeys::Damage& damage) {
        if (!list_.IsBeingRemoved(sequence)) hooks_.damage_changed(sequence, damage, nullptr);
      });
  settings_ = std::make_unique<SettingKeys>(
      etcd_, clock_, SettingKeys::Options{prefix_, run, options_.patience, why, list_.ended_removals()},
      SettingKeys::Hooks{
          .pin_changed = [this](const std::string& tag, int64_t sequence,
                                bool pinned) { OnPinChanged(tag, sequence, pinned); },
          .retention_changed =
              [this](const SettingKeys::Policy& policy) { ledger_->OnRetentionOverride(policy); },
          .known = [this] { ReportNewestCommitted(); },
          .ended = [this](const absl::Status& refused) { over_ = refused; }});
  requests_ = std::make_unique<CoordinatorRequests>(
      etcd_, clock_, CoordinatorRequests::Options{prefix_, run, options_.patience, why},
      CoordinatorRequests::Hooks{
          .serve = [this](const CoordinatorRequests::Request& request,
                          CoordinatorRequests::Done done) { Serve(request, std::move(done)); },
          .has_coordinator = [this] { return election_ != nullptr && election_->has_leader(); },
          .ended = [this](const absl::Status& refused) { over_ = refused; }});
  uploads_ =
      std::make_unique<UploadKeys>(etcd_, clock_, UploadKeys::Options{prefix_, run, options_.patience, why},
                                   [this](const absl::Status& refused) { over_ = refused; });
  trial_ = std::make_unique<RootTrial>(
      etcd_, clock_, files_, RootTrial::Options{prefix_, run, options_.visibility},
      RootTrial::Hooks{.changed = [this] { OnUnsuitableChanged(); },
                       .noticed = [this](const std::string& message) { hooks_.noticed(message); },
                       .succeeded =
                           [this](const std::string& message) {
                             if (options_.log_info) options_.log_info(message);
                           }});
}

void NodesRun::Start(Hooks hooks) {
  hooks_ = std::move(hooks);
  started_ = true;
  if (node_) BeginRegistration();
}

void NodesRun::SetNode(const NodeIdentity* node) {
  const bool had = node_.has_value();
  if (started_) EndRegistration();
  node_.reset();
  if (node != nullptr) node_ = *node;
  root_error_ = absl::OkStatus();
  if (started_ && had && !node_) {
    const absl::Status why = WhyUnregistered();
    hooks_.lost(
        MakeError(absl::StatusCode::kFailedPrecondition, ledger_reason::kNodeReplaced,
                  absl::StrCat("this node's registration in etcd was lost; run ", options_.path,
                               " waits for the next one", why.ok() ? "" : ": ", std::string(why.message()))));
  }
  if (started_ && had) saves_.FailUnsealed();
  if (started_ && node_) BeginRegistration();
}

absl::Status NodesRun::WhyUnregistered() const {
  if (!root_error_.ok()) return root_error_;
  return options_.why_unregistered ? options_.why_unregistered() : absl::OkStatus();
}

// Nothing is asked of the run before etcd has said that this root is the run's.
void NodesRun::BeginRegistration() {
  calls_->SetRegistered(true);
  registered_ = clock_->Now();
  uses_ = std::make_unique<EtcdMirror>(
      etcd_, UsesOfOwner(), absl::StrCat("following what the owner of run ", options_.path, " has in etcd"),
      [](const std::vector<std::string>&) {}, [this](const absl::Status& why) { over_ = why; });
  uses_->Start();
  BindRoot();
}

void NodesRun::GoOnWithRegistration() {
  ledger_->SetNode(&*node_);
  resume_->SetNode(&*node_);
  readers_->SetNode(&*node_);
  damages_->SetNode(&*node_);
  settings_->SetNode(&*node_);
  requests_->SetNode(&*node_);
  uploads_->SetNode(&*node_);
  election_ = std::make_unique<RunCoordinator>(
      etcd_, clock_, RunCoordinator::Options{prefix_, *node_, options_.path},
      [this](const RunCoordinator::Leadership& leadership) { OnLeadership(leadership); },
      [this](const absl::Status& why) { over_ = why; });
  const LedgerKeys keys(prefix_);
  condemned_ = std::make_unique<EtcdMirror>(
      etcd_, keys.Damages(), PrefixEnd(keys.Evictings()),
      absl::StrCat("following the removals and the damage of run ", options_.path),
      [this](const std::vector<std::string>& changed) { OnCheckpointKeys(changed); },
      [this](const absl::Status& why) { over_ = why; });
  FollowUse();
  election_->Start();
  condemned_->Start();
  saves_.BeginRegistration(prefix_, *node_);
}

void NodesRun::EndRegistration() {
  DropLeadership();
  coordinator_name_.clear();
  election_ = nullptr;
  condemned_ = nullptr;
  uses_ = nullptr;
  bind_again_.reset();
  list_.OnRegistrationEnded();
  saves_.EndRegistration();
  over_ = absl::OkStatus();
  if (ledger_ == nullptr) return;
  ledger_->SetNode(nullptr);
  resume_->SetNode(nullptr);
  readers_->SetNode(nullptr);
  damages_->SetNode(nullptr);
  settings_->SetNode(nullptr);
  requests_->SetNode(nullptr);
  uploads_->SetNode(nullptr);
  calls_->SetRegistered(false);
}

// Binds the run to this directory, if it is the first, or compares. An etcd that is another one, or was
// restored from a backup, may not know all that is in the root: new terms, sequences and attempts
// come after those. (The number of an attempt is part of a save's name: a save of an attempt that has one of
// the root's would be taken for a checkpoint that is there.)
void NodesRun::BindRoot() {
  bound_through_ = newest_;
  bound_attempt_ = highest_attempt_;
  const LedgerKeys keys(prefix_);
  const auto refused = std::make_shared<absl::Status>();
  const auto bind = [this, keys, refused](LedgerCalls::Answer<absl::Status> done) {
    CompareAndSwap swap;
    swap.ranges = {{keys.Sequence()},         {keys.Root()},          {keys.Term()},
                   {keys.SaveState(newest_)}, {keys.AttemptInRoot()}, {keys.Head(highest_attempt_)},
                   {UsesOfOwner(), true},     {keys.UploadRecord()}};
    swap.held = {node_->Held()};
    swap.decide = [keys, refused, run = root_.id, here = RootOf(root_), newest = newest_, known = highest_,
                   term = highest_term_, attempt = highest_attempt_, of_attempt = of_highest_attempt_,
                   is_registering = !saves_.registered(), bound = options_.bound, uses = UsesOfOwner()](
                      const CompareAndSwap::Found& found) -> std::vector<etcdserverpb::RequestOp> {
      *refused = CheckRunRoot(run, here, found[1]);
      if (refused->ok() && found[1].empty()) *refused = ckptd::CheckUse(here.uid(), found[6], bound);
      if (!refused->ok()) return {};
      std::vector<etcdserverpb::RequestOp> operations;
      const std::string use = uses + run;
      const bool is_counted = std::any_of(found[6].begin(), found[6].end(),
                                          [&use](const auto& pair) { return pair.key() == use; });
      if (!is_counted) {
        ledger::v1::RunUse least;
        least.set_path(here.path());
        operations.push_back(Put(use, least.SerializeAsString()));
      }
      if (auto bind_root = BindRunRoot(keys.Root(), here, found[1]))
        operations.push_back(*std::move(bind_root));
      auto last_term = FirstOf<ledger::v1::LastTerm>(found[2]);
      if (last_term.term() < term) {
        last_term.set_term(term);
        operations.push_back(Put(keys.Term(), last_term.SerializeAsString()));
      }
      auto last = FirstOf<ledger::v1::LastSequence>(found[0]);
      // A save that is a checkpoint, and that etcd would give to ranks once more: it is not the last one any
      // more.
      const SaveState::Phase phase = FirstOf<SaveState>(found[3]).phase();
      const bool is_behind = phase == SaveState::OPEN || phase == SaveState::PROPOSED;
      const int64_t highest = is_behind ? std::max(known, newest + 1) : known;
      // Etcd does not know this save, so it may not know all ranks of that attempt either.
      const bool was_taken_back = is_registering && last.sequence() < highest;
      auto in_root = FirstOf<ledger::v1::ActiveAttempt>(found[4]);
      // The attempt of a checkpoint that came from a bucket is one of the run that was lost.
      const int64_t fetched = FirstOf<ledger::v1::RunUploads>(found[7]).record().fetched_sequence();
      if (of_attempt != fetched && (found[5].empty() || was_taken_back) && in_root.attempt() < attempt) {
        in_root.set_attempt(attempt);
        operations.push_back(Put(keys.AttemptInRoot(), in_root.SerializeAsString()));
      }
      if (last.sequence() >= highest) return operations;
      last.set_sequence(highest);
      operations.push_back(Put(keys.Sequence(), last.SerializeAsString()));
      return operations;
    };
    swap.purpose = absl::StrCat("comparing the root and the last sequence of run ", options_.path);
    SwapIn(etcd_, std::move(swap), std::move(done));
  };
  calls_->Ask<absl::Status>("about the root of", Instant::max(), bind,
                            [this, refused](const absl::Status& bound) {
                              if (!bound.ok()) over_ = bound;
                              if (!bound.ok() || !node_ || saves_.registered()) return;
                              if (!refused->ok()) return RootRefused(*refused);
                              root_error_ = absl::OkStatus();
                              GoOnWithRegistration();
                            });
}

// The run waits, as without a registration, until that is put right: a copy that was not known as one when
// the root was opened, or a new run of an owner who has too many.
void NodesRun::RootRefused(const absl::Status& why) {
  constexpr Duration kPause = std::chrono::seconds(30);
  if (root_error_.ok()) hooks_.noticed(std::string(why.message()));
  root_error_ = why;
  calls_->SetRegistered(false);
  if (ReasonOf(why) == reason::kLimitExceeded) bind_again_ = clock_->Now() + kPause;
}

// OK also before etcd has shown it.
absl::Status NodesRun::CheckUse() const {
  if (uses_ == nullptr) return absl::OkStatus();
  std::vector<etcdserverpb::KeyValue> uses;
  for (const auto& [key, pair] : uses_->keys()) uses.push_back(pair);
  return ckptd::CheckUse(root_.uid, uses, options_.bound);
}

absl::Status NodesRun::MayBeginSave() const {
  if (trial_ != nullptr && !trial_->unsuitable().ok()) return trial_->unsuitable();
  return CheckUse();
}

// A scan takes the warning into what is known of the root, or out of it.
void NodesRun::OnUnsuitableChanged() {
  const absl::Status& why = trial_->unsuitable();
  if (!why.ok() && options_.log_error) options_.log_error(std::string(why.message()));
  if (!why.ok()) saves_.FailUndurable(why);
  hooks_.root_changed();
}

// The node's other runs begin anew with it, so one that cannot go on under any does not ask often.
void NodesRun::AskForRegistration() {
  const Instant now = clock_->Now();
  if (now - registered_ >= kLongestPause) again_.Succeeded();
  if (!again_.IsOver(now)) return;
  again_.Failed(now);
  options_.register_anew(std::exchange(over_, absl::OkStatus()));
}

void NodesRun::OnTick() {
  if (!started_) return;
  if (!over_.ok() && node_) AskForRegistration();
  if (std::exchange(coordinator_over_, false)) DropLeadership();
  FollowFileSystem();
  FollowUse();
  if (election_ != nullptr) election_->OnTick();
  RunDue();
  list_.OnTick();
  ledger_->OnTick();
  trial_->OnTick();
  calls_->OnTick();
  resume_->OnTick();
  readers_->OnTick();
  damages_->OnTick();
  settings_->OnTick();
  requests_->OnTick();
  uploads_->OnTick();
  if (coordinator_ != nullptr) coordinator_->OnTick();
  if (evictions_ != nullptr) evictions_->OnTick();
  if (counter_ != nullptr) counter_->OnTick();
  if (bind_again_ && clock_->Now() >= *bind_again_) {
    bind_again_.reset();
    calls_->SetRegistered(true);
    BindRoot();
  }
  saves_.OnTick(coordinator_.get());
}

// ---- files

void NodesRun::OpenPart(InflightId64 id, const std::string& tag, int64_t sequence,
                        const std::string& inflight, int64_t /*manifest_bytes*/,
                        Callback<absl::Status> done) {
  files_->OpenPart(id, tag, sequence, inflight, std::move(done));
}

void NodesRun::FinishPart(InflightId64 id, std::vector<storage::v1::PartRecord> parts,
                          Callback<absl::StatusOr<std::string>> done) {
  files_->FinishPart(id, std::move(parts), std::move(done));
}

// A file system that shows changes so late may show the next one too late.
void NodesRun::NoticeLateness(const std::string& tag, Duration after, bool seen) {
  if (seen && after <= options_.visibility / 2) return;
  hooks_.noticed(absl::StrCat("the checkpoint ", tag, ", which is committed, ",
                              seen ? "was seen" : "could not be read", " on this node after ",
                              after / std::chrono::milliseconds(1), " ms; cluster.visibility_seconds is ",
                              options_.visibility / std::chrono::seconds(1),
                              ". If the file system is only slow to show changes, raise that on all nodes: "
                              "ckptctl doctor ROOT --nodes=N, run "
                              "on N nodes at once, measures it"));
}

void NodesRun::LoadCheckpoint(const std::string& tag, int64_t sequence,
                              Callback<absl::StatusOr<LoadedCheckpoint>> done) {
  files_->LoadCheckpoint(tag, sequence,
                         callbacks_.Guard([this, tag, asked = clock_->Now(), done = std::move(done)](
                                              absl::StatusOr<LoadedCheckpoint> loaded) mutable {
                           NoticeLateness(tag, clock_->Now() - asked, loaded.ok());
                           if (loaded.ok()) damages_->Apply(&loaded->checkpoint);
                           if (loaded.ok()) settings_->Apply(&loaded->checkpoint);
                           done(std::move(loaded));
                         }));
}

// ---- leadership

void NodesRun::OnLeadership(const RunCoordinator::Leadership& leadership) {
  DropLeadership();
  coordinator_name_ = leadership.node;
  if (std::exchange(told_term_, leadership.term) != leadership.term && hooks_.coordinator_changed)
    hooks_.coordinator_changed(leadership.node, leadership.term);
  if (!leadership.mine) return;
  SaveCoordinator::Options options;
  options.prefix = prefix_;
  options.node = *node_;
  options.run = options_.path;
  options.grace = options_.grace;
  options.visibility = options_.visibility;
  options.ended_kept_for = options_.ended_kept_for;
  // The scan finds what earlier coordinators have begun to remove, and updates the pointer files.
  coordinator_ = std::make_unique<SaveCoordinator>(
      etcd_, clock_, files_, options, leadership,
      SaveCoordinator::Hooks{.term_begun =
                                 [this] {
                                   evictions_->TermBegun();
                                   hooks_.root_changed();
                                 },
                             .latest_begin_us = [this] { return list_.latest_begin_us(); },
                             .lost = [this](const absl::Status& why) { OnLeadershipLost(why); }});
  evictions_ = std::make_unique<Evictions>(
      etcd_, clock_, files_,
      CheckpointReaders::Options{prefix_, *node_, options_.path, list_.ended_removals()}, leadership.held);
  counter_ = std::make_unique<UseCounter>(
      etcd_, clock_, UseCounter::Options{prefix_, UsesOfOwner() + root_.id, options_.path, leadership.held});
  requests_->SetLeadership(&leadership.held);
  uploads_->SetLeadership(&leadership.held);
  term_over_ = std::make_shared<std::atomic<bool>>(false);
  coordinator_->Start();
  EndRemovals();
  hooks_.leadership_changed();
}

// This node may lead still: then no other node takes over before the registration ends.
void NodesRun::OnLeadershipLost(const absl::Status& why) {
  coordinator_over_ = true;
  if (ReasonOf(why) != ledger_reason::kNotCoordinator) over_ = why;
}

// All nodes would wait for a coordinator whose file system hangs. What it has asked for may be carried out
// later, as that of a coordinator that was paused.
void NodesRun::FollowFileSystem() {
  const Instant now = clock_->Now();
  const std::optional<Instant> since = files_->pending_since();
  if (hangs_since_ && since != hangs_since_) {
    hangs_since_.reset();
    last_hang_ = now;
  }
  if (!hangs_since_ && now - last_hang_ >= kLongestHang) hang_ = kHang;
  if (hangs_since_ || !since || now - *since < hang_) return;
  hangs_since_ = since;
  hang_ = std::min(2 * hang_, kLongestHang);
  if (coordinator_ != nullptr) {
    DropLeadership();
    coordinator_name_.clear();
    hooks_.stepped_down(now - *since);
  }
}

// A node that has no use for the run leads no longer than what is under way, so that the run can be closed.
void NodesRun::FollowUse() {
  const bool is_used = !idle_ || !readers_->idle() || !requests_->idle() ||
                       (coordinator_ != nullptr && !coordinator_->idle()) ||
                       (evictions_ != nullptr && !evictions_->idle());
  if (!is_used && coordinator_ != nullptr) {
    DropLeadership();
    coordinator_name_.clear();
  }
  if (election_ != nullptr) election_->SetWilling(is_used && !hangs_since_);
}

// Etcd would keep them for as long as the registration lives: the leadership, which this node may have before
// it is told so, a reader key, and a request.
bool NodesRun::may_close() const {
  if (election_ == nullptr) return true;
  return election_->follows_another() && readers_->idle() && requests_->idle();
}

// Ends the removals that an earlier coordinator has decided.
void NodesRun::EndRemovals() {
  if (evictions_ == nullptr) return;
  const auto ended = [](const absl::Status&) {};  // If it fails, the next scan finds it again.
  for (const auto& [tag, sequence, inode] : std::exchange(half_removed_, {})) {
    if (!IsUnderWay(sequence))
      evictions_->ContinueRemoval({sequence, tag, inode}, damages_->damaged(), ended);
  }
  // A save that takes the tag of one removes it itself, right before.
  for (const auto& [sequence, removal] : list_.removals()) {
    const ledger::v1::Evicting& decision = removal.decision;
    if (decision.replaced_by() != 0 || decision.ended() || removal.tag.empty() || IsUnderWay(sequence))
      continue;
    hooks_.noticed(absl::StrCat("the checkpoint ", removal.tag, ", sequence ", sequence,
                                ", is removed, as an earlier coordinator has decided"));
    evictions_->Finish({sequence, removal.tag, decision.inode()}, ended);
  }
}

void NodesRun::DropLeadership() {
  coordinator_over_ = false;
  if (coordinator_ == nullptr) return;
  requests_->SetLeadership(nullptr);
  uploads_->SetLeadership(nullptr);
  term_over_->store(true);
  term_over_ = nullptr;
  coordinator_ = nullptr;
  evictions_ = nullptr;
  counter_ = nullptr;
  files_->EndTerm();
  if (!callbacks_.ended()) hooks_.leadership_changed();
}

void NodesRun::Resign(absl::AnyInvocable<void(absl::Status)> resigned) {
  DropLeadership();
  if (election_ == nullptr) return resigned(absl::OkStatus());
  election_->Resign(std::move(resigned));
}

// A removal ends with the leadership. Once the run is closed, the callback does not run.
void NodesRun::Evict(const std::string& tag, int64_t sequence, Callback<absl::Status> done) {
  if (evictions_ != nullptr) {
    return evictions_->Evict(tag, sequence, damages_->damaged(), list_.sequences(),
                             callbacks_.Guard(std::move(done)));
  }
  options_.post([done = std::move(done),
                 error = NotCoordinator("remove its checkpoints", options_.path)]() mutable { done(error); });
}

void NodesRun::SettleSave(const std::string& tag, bool is_checkpoint,
                          Callback<absl::StatusOr<Settled>> done) {
  CoordinatorRequests::Request request;
  request.mutable_settle_save()->set_tag(tag);
  request.mutable_settle_save()->set_is_checkpoint(is_checkpoint);
  requests_->Ask(std::move(request), [is_checkpoint, done = std::move(done)](
                                         const absl::StatusOr<CoordinatorRequests::Reply>& reply) mutable {
    if (!reply.ok()) return done(reply.status());
    done(Settled{reply->sequence(), is_checkpoint});
  });
}

void NodesRun::Delete(const std::string& tag, int64_t sequence, bool force, Callback<absl::Status> deleted) {
  CoordinatorRequests::Request request;
  request.mutable_delete_checkpoint()->set_tag(tag);
  request.mutable_delete_checkpoint()->set_sequence(sequence);
  request.mutable_delete_checkpoint()->set_force(force);
  requests_->Ask(std::move(request), [deleted = std::move(deleted)](
                                         const absl::StatusOr<CoordinatorRequests::Reply>& reply) mutable {
    deleted(reply.status());
  });
}

// An earlier coordinator may have carried the request out, and not answered it.
void NodesRun::Serve(const CoordinatorRequests::Request& request, CoordinatorRequests::Done done) {
  if (!coordinates()) return done(NotCoordinator("serve its operators", options_.path));
  if (request.has_settle_save()) {
    return coordinator_->SettleSave(request.settle_save().tag(), request.settle_save().is_checkpoint(),
                                    [done = std::move(done)](const absl::StatusOr<Settled>& settled) mutable {
                                      if (!settled.ok()) return done(settled.status());
                                      CoordinatorRequests::Reply reply;
                                      reply.set_sequence(settled->sequence);
                                      done(reply);
                                    });
  }
  if (request.has_restore()) return ServeRestore(request.restore(), std::move(done));
  if (!request.has_delete_checkpoint()) {
    return done(absl::UnimplementedError(absl::StrCat("the daemon that coordinates ", options_.path,
                                                      " is older, and does not know the request")));
  }
  const int64_t sequence = request.delete_checkpoint().sequence();
  hooks_.delete_requested(request.delete_checkpoint().tag(), sequence, request.delete_checkpoint().force(),
                          [this, sequence, done = std::move(done)](const absl::Status& deleted) mutable {
                            const bool is_gone = list_.IsBeingRemoved(sequence) || WasRemoved(sequence);
                            if (!deleted.ok() && !(ReasonOf(deleted) == reason::kNoCheckpoint && is_gone))
                              return done(deleted);
                            done(CoordinatorRequests::Reply());
                          });
}

void NodesRun::ServeRestore(const ledger::v1::CoordinatorRequest::Restore& restore,
                            CoordinatorRequests::Done done) {
  hooks_.restore_requested(
      {restore.attempt(), restore.url(), restore.run_id()},
      [this, done = std::move(done)](const absl::StatusOr<Newest>& newest) mutable {
        if (absl::IsCancelled(newest.status()))
          return done(NotCoordinator("fetch from its bucket", options_.path));
        if (!newest.ok()) {
          return done(Annotate(newest.status(), absl::StrCat("node \"", node_ ? node_->name : "",
                                                             "\", which coordinates the run")));
        }
        CoordinatorRequests::Reply reply;
        reply.set_tag(newest->tag);
        reply.set_sequence(newest->sequence);
        done(reply);
      });
}

void NodesRun::OnNewestCommitted(const SharedSave& save) {
  std::optional<storage::v1::RetentionPolicy> retention;
  if (save.state.has_retention()) retention = save.state.retention();
  newest_committed_ = {save.sequence, retention};
  ReportNewestCommitted();
}

// Not before this node knows the policy that an operator may have set in the place of the save's: retention
// would remove too much.
void NodesRun::ReportNewestCommitted() {
  if (!newest_committed_ || !settings_->known()) return;
  const auto [sequence, retention] = *std::exchange(newest_committed_, std::nullopt);
  hooks_.newest_committed(sequence, retention);
}

// The coordinator writes it into the root, too, for a run that moves to another etcd.
void NodesRun::OnPinChanged(const std::string& tag, int64_t sequence, bool pinned) {
  files_->SetPinned(
      tag, sequence, pinned, callbacks_.Guard([this, tag, pinned](const absl::Status& recorded) {
        if (recorded.ok()) return;
        hooks_.noticed(absl::StrCat(
            "it could not be recorded that ", tag, pinned ? " is pinned" : " is not pinned any more",
            ", which matters only if etcd is lost: ", std::string(recorded.message())));
      }));
  hooks_.pin_changed(tag, sequence, pinned);
}

void NodesRun::OnCheckpointKeys(const std::vector<std::string>& changed) {
  const LedgerKeys keys(prefix_);
  for (const std::string& key : changed) {
    int64_t sequence = 0;
    if (!absl::SimpleAtoi(LastPartOf(key), &sequence)) continue;
    if (key == keys.Damaged(sequence)) damages_->OnMark(sequence, condemned_->Find(key));
    const auto found = condemned_->keys().find(key);
    if (key == keys.Evicting(sequence) && found != condemned_->keys().end())
      list_.OnRemoval(sequence, found->second);
  }
  list_.OnRemovalsKnown();
  EndRemovals();
}

void NodesRun::ApplyDecided(RootSnapshot* root) {
  highest_ = std::max(highest_, root->highest_sequence);
  highest_term_ = std::max(highest_term_, root->highest_term);
  if (!root->committed.empty()) newest_ = std::max(newest_, root->committed.rbegin()->first);
  for (auto& [sequence, checkpoint] : root->committed) {
    damages_->Apply(&checkpoint);
    settings_->Apply(&checkpoint);
    if (checkpoint.summary.attempt() < highest_attempt_) continue;
    highest_attempt_ = checkpoint.summary.attempt();
    of_highest_attempt_ = sequence;
  }
  half_removed_ = root->half_removed;
  if (!trial_->unsuitable().ok()) root->probe.warnings.emplace_back(trial_->unsuitable().message());
  list_.Apply(root);
  // A checkpoint was moved in: saves that begin and attempts that join from now on come after it.
  if (saves_.registered() &&
      (highest_attempt_ > bound_attempt_ || (newest_ > bound_through_ && !saves_.Shown(newest_))))
    BindRoot();
  EndRemovals();
}

bool NodesRun::IsUnderWay(int64_t sequence) const {
  return evictions_ != nullptr && evictions_->IsUnderWay(sequence);
}

void NodesRun::CallLater(absl::AnyInvocable<void()> look) {
  later_.emplace_back(clock_->Now() + kLookPause, std::move(look));
}

void NodesRun::RunDue() {
  const Instant now = clock_->Now();
  std::vector<absl::AnyInvocable<void()>> due;
  for (auto& [at, look] : later_) {
    if (now >= at) due.push_back(std::move(look));
  }
  std::erase_if(later_, [now](const auto& look) { return now >= look.first; });
  for (auto& look : due) look();
}

// ---- uploads

namespace {

SharedUploads::Known AsKnown(const UploadKeys::Known& known) {
  return {known.record.record(), known.record.counted_through(), known.policy.policy(),
          known.policy.attempt()};
}

}  // namespace

SharedUploads::Known NodesRun::Shown() const { return AsKnown(uploads_->shown()); }

void NodesRun::Read(absl::AnyInvocable<void(absl::StatusOr<Known>)> read) {
  uploads_->Read([read = std::move(read)](const absl::StatusOr<UploadKeys::Known>& known) mutable {
    if (!known.ok()) return read(known.status());
    read(AsKnown(*known));
  });
}

void NodesRun::Write(const storage::v1::UploadRecord& record, int64_t counted_through,
                     int64_t sequences_above, absl::AnyInvocable<void(absl::Status)> written) {
  ledger::v1::RunUploads uploads;
  *uploads.mutable_record() = record;
  uploads.set_counted_through(counted_through);
  if (coordinator_ != nullptr) return uploads_->Write(uploads, sequences_above, std::move(written));
  options_.post(callbacks_.Guard(
      [written = std::move(written),
       error = NotCoordinator("upload its checkpoints", options_.path)]() mutable { written(error); }));
}

// A process that was paused asks this before it sends anything: the lease may have ended meanwhile.
std::function<bool()> NodesRun::StillCoordinates() const {
  const std::shared_ptr<const LeaseEnd> lease = node_ ? node_->lease_end : nullptr;
  return [over = term_over_, lease] {
    return over != nullptr && !over->load() && (lease == nullptr || !lease->IsOver());
  };
}

void NodesRun::BringBack(const Restore& restore, absl::AnyInvocable<void(absl::StatusOr<Newest>)> brought) {
  CoordinatorRequests::Request request;
  request.mutable_restore()->set_attempt(restore.attempt);
  request.mutable_restore()->set_url(restore.url);
  request.mutable_restore()->set_run_id(restore.run_id);
  requests_->Ask(std::move(request), [this, brought = std::move(brought)](
                                         const absl::StatusOr<CoordinatorRequests::Reply>& reply) mutable {
    if (!reply.ok()) return brought(reply.status());
    // The scan that follows must show it.
    if (reply->sequence() != 0) list_.OnCommitted(reply->sequence(), reply->tag());
    brought(Newest{reply->tag(), reply->sequence()});
  });
}

// ---- readers

void NodesRun::AcquireReader(int64_t sequence, Callback<absl::Status> acquired) {
  readers_->Acquire(sequence, std::move(acquired));
}

void NodesRun::ConfirmReader(int64_t sequence, Callback<absl::Status> confirmed) {
  readers_->Confirm(sequence, std::move(confirmed));
}

std::function<void()> NodesRun::ReleaserOf(int64_t sequence) {
  return [post = options_.post,
          release = callbacks_.Guard([this, sequence] { readers_->Release(sequence); })] { post(release); };
}

// ---- resume

// What other nodes have committed meanwhile is in the root, and perhaps not in this node's list.
void NodesRun::WhenSettled(int64_t attempt, Callback<absl::StatusOr<bool>> settled) {
  calls_->Ask<absl::Status>(
      absl::StrCat("whether all saves before attempt ", attempt, " have ended in"), Instant::max(),
      [this, attempt](LedgerCalls::Answer<absl::Status> done) { ListUnsettled(attempt, std::move(done)); },
      [settled = std::move(settled)](const absl::Status& over) mutable {
        settled(over.ok() ? absl::StatusOr<bool>(true) : over);
      });
}

void NodesRun::ListUnsettled(int64_t attempt, LedgerCalls::Answer<absl::Status> done) {
  ListPrefix(
      etcd_, LedgerKeys(prefix_).SaveStates(), absl::StrCat("looking at the saves of run ", options_.path),
      callbacks_.Guard([this, attempt, done = std::move(done)](absl::StatusOr<EtcdListing> listing) mutable {
        if (!listing.ok()) return done(listing.status());
        const size_t prefix = LedgerKeys(prefix_).SaveStates().size();
        for (const etcdserverpb::KeyValue& key : listing->keys) {
          SaveState state;
          int64_t sequence = 0;
          if (!state.ParseFromString(key.value()) || !absl::SimpleAtoi(key.key().substr(prefix), &sequence))
            continue;
          // The scan that follows must show it.
          if (state.phase() == SaveState::COMMITTED) list_.OnCommitted(sequence, state.tag());
          if (state.attempt() >= attempt || HasEnded(state)) continue;
          if (state.phase() == SaveState::OPEN) continue;  // No node's save yet.
          return done(MakeError(absl::StatusCode::kUnavailable, ledger_reason::kUnavailable,
                                absl::StrCat("the save of ", state.tag(), " of attempt ", state.attempt(),
                                             " is still ", SaveState::Phase_Name(state.phase()))));
        }
        done(absl::OkStatus());
      }));
}

void NodesRun::FinishResume(int64_t attempt, int64_t sequence, const absl::Status& mine, Instant deadline,
                            Callback<absl::Status> finished) {
  resume_->Finish(attempt, sequence, mine, deadline, std::move(finished));
}

}  // namespace ckptd
