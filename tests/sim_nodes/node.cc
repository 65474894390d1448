#include "tests/sim_nodes/node.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "daemon/memory/populator.h"
#include "storage/base/callback_scope.h"
#include "storage/base/errors.h"
#include "tests/sim_nodes/shared_bucket.h"
#include "tests/sim_nodes/shared_disk.h"

namespace ckptd::sim_nodes {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kSegment = 2 << 20;
constexpr Duration kTick = milliseconds(50);
constexpr Duration kReleaseTimeout = seconds(2);  // As the daemon's.
constexpr Duration kLongestTry = seconds(2);      // Of a call to etcd: then the call is repeated.
constexpr Duration kDrainTimeout = seconds(20);
constexpr char kClusterPrefix[] = "/ckptd/";

}  // namespace

// Its segments have no pages until they are written to.
class Node::SimPopulator : public Populator {
 public:
  SimPopulator(Node* node, int64_t segment_bytes, Made made)
      : node_(*node), segment_bytes_(segment_bytes), made_(std::move(made)) {}

  void Make(SegmentId id) override {
    After(milliseconds(node_.random_.Between(1, 20)), [this, id] {
      made_({id, SegmentMemory::MakeSparse(segment_bytes_), absl::OkStatus()});
    });
  }
  void Free(SegmentId, SegmentMemory) override {}
  void Forget(SegmentId, std::function<void(absl::Status)> forgotten) override {
    After(milliseconds(1), [forgotten = std::move(forgotten)] { forgotten(absl::OkStatus()); });
  }

 private:
  void After(Duration delay, std::function<void()> event) {
    node_.world_.schedule().After(delay, scope_.Guard(std::move(event)));
  }

  Node& node_;
  const int64_t segment_bytes_;
  const Made made_;
  CallbackScope scope_;
};

Node::Node(World* world, int index)
    : world_(*world),
      index_(index),
      name_(absl::StrCat("node", index)),
      random_(sim::Mix(world->plan().seed, 50 + static_cast<uint64_t>(index))),
      clock_(&world->schedule().clock(),
             world->plan().clocks_apart
                 ? seconds(sim::Random(sim::Mix(world->plan().seed, 90 + static_cast<uint64_t>(index)))
                               .Between(-20'000, 20'000))
                 : seconds(0)) {}

Node::~Node() { Kill(); }

// ---- one daemon

void Node::Later(Duration delay, absl::AnyInvocable<void()> event) {
  world_.schedule().After(delay, scope_->Guard([this, event = scope_->Guard(std::move(event))]() mutable {
    pause_.Deliver(std::move(event));
  }));
}

void Node::Start() {
  if (up()) return;
  ++daemon_;
  Trace("daemon ", daemon_, " starts");
  scope_.emplace();
  client_ = world_.etcd().Connect();
  cut_off_ = false;
  etcd_ = std::make_unique<PausableEtcd>(client_.get(), &pause_);
  StartEngine();
  Join();
  Later(kTick, [this] { Tick(); });
  if (knows_root_) engine_->RecoverRoot(Attachment(), Expect<std::string>("RecoverRoot", [](auto) {}));
}

void Node::StartEngine() {
  SegmentPoolOptions options;
  options.bytes = world_.plan().segments * kSegment;
  options.segment_bytes = kSegment;
  options.resident_bytes = options.bytes / 2;
  options.pages = PagePolicy::kPlain;
  pool_ = SegmentPool::Start(
      options, [this](absl::AnyInvocable<void()> work) { Later(microseconds(5), std::move(work)); },
      [](const std::string&) {}, PoolSuccession{},
      [this](int64_t segment_bytes, Populator::Made made) {
        return std::make_unique<SimPopulator>(this, segment_bytes, std::move(made));
      });
  SharedRoots::Options shared;
  shared.cluster_prefix = kClusterPrefix;
  shared.grace = kGrace;
  if (world_.plan().forgets) shared.ended_kept_for = 3 * kGrace;
  roots_ = std::make_unique<SharedRoots>(
      etcd_.get(), &clock_, shared,
      [this](absl::AnyInvocable<void()> work) { Later(microseconds(5), std::move(work)); },
      [this](SharedRoots::Follower follower) { return Follow(std::move(follower)); },
      [this](const absl::Status& why) { membership_->RegisterAnew(why); });
  EngineOptions engine;
  engine.daemon_version = "simulated";
  engine.daemon_instance = absl::StrCat(name_, " daemon ", daemon_);
  engine.node = name_;
  engine_ = std::make_unique<Engine>(engine, &clock_, pool_.get(), this);
}

void Node::Join() {
  NodeMembership::Options options;
  options.prefix = kClusterPrefix;
  options.name = name_;
  options.host = "host of " + name_;
  options.incarnations = state_directory_;
  options.lease_seconds = kLeaseSeconds;
  membership_ = std::make_unique<NodeMembership>(
      etcd_.get(), &clock_, options,
      [this](const std::vector<std::string>& incarnations, NodeRegistration::Done remembered) {
        state_directory_ = incarnations;
        Later(milliseconds(1),
              [remembered = std::move(remembered)]() mutable { remembered(absl::OkStatus()); });
      },
      [this] { return absl::StrCat(name_, " incarnation ", ++incarnations_); },
      [this](const absl::StatusOr<NodeIdentity>& changed) { MembershipChanged(changed); });
}

void Node::Kill() {
  if (!up()) return;
  Trace("daemon ", daemon_, " ends");
  scope_->End();
  stopping_ = false;
  ++daemon_;  // From here on no reply is due.
  pending_.clear();
  engine_ = nullptr;
  roots_ = nullptr;
  pool_ = nullptr;
  membership_ = nullptr;
  identity_ = nullptr;
  followers_.clear();
  etcd_ = nullptr;
  client_ = nullptr;
  pause_.Drop();
  run_name_.clear();
  --daemon_;
  world_.oracle().LeasesLost(index_);
  world_.DaemonGone(index_);
}

void Node::Stop() {
  if (!up()) return;
  stopping_ = true;
  const std::function<void()> kill = scope_->Guard([this] {
    // Not within a call of the daemon.
    world_.schedule().After(milliseconds(1), scope_->Guard([this] { Kill(); }));
  });
  Call([this, kill](Engine& engine) {
    engine.Drain([this, kill] {
      Later(milliseconds(1), [this, kill] {
        world_.Count("drained");
        roots_->Resign([this, kill](const absl::Status&) {
          world_.oracle().LeasesLost(index_);
          if (std::exchange(identity_, nullptr) != nullptr) TellFollowers();
          membership_->Release([kill](const absl::Status&) { kill(); });
        });
        Later(kReleaseTimeout, kill);
      });
    });
  });
  world_.schedule().After(kDrainTimeout, kill);
}

void Node::BeginPause() {
  if (!up()) return;
  Trace("pauses");
  pause_.Begin();
  world_.oracle().LeasesLost(index_);
}

void Node::EndPause() {
  if (!up() || !pause_.paused()) return;
  Trace("goes on");
  pause_.End();
}

void Node::CutOff(bool cut) {
  if (!up()) return;
  Trace(cut ? "is cut off from etcd" : "reaches etcd again");
  client_->CutOff(cut);
  cut_off_ = cut;
  if (!cut) reached_at_ = world_.schedule().clock().Now();
  if (cut) world_.oracle().LeasesLost(index_);
}

bool Node::may_lag() const {
  const Duration since = world_.schedule().clock().Now() - reached_at_;
  return cut_off_ || since < kLongestTry + world_.plan().etcd.latest_event;
}

void Node::RegisterAnew() {
  Call([this](Engine&) {
    if (identity_ == nullptr) return;
    world_.Count("registers anew");
    membership_->RegisterAnew(
        MakeError(absl::StatusCode::kPermissionDenied, "LEDGER_REFUSED", "refused once"));
  });
}

void Node::Tick() {
  membership_->OnTick();
  engine_->Tick();
  CheckLatest();
  Later(kTick, [this] { Tick(); });
}

// ---- the registration

void Node::MembershipChanged(const absl::StatusOr<NodeIdentity>& changed) {
  const bool was_registered = identity_ != nullptr;
  if (!changed.ok()) {
    if (!was_registered) return;
    Trace("registration lost: ", changed.status().ToString());
    world_.Count("registration lost");
    world_.oracle().Fault();
    world_.oracle().LeasesLost(index_);
    identity_ = nullptr;
  } else {
    registration_ = *changed;
    identity_ = &registration_;
  }
  TellFollowers();
}

std::shared_ptr<const SharedRoots::Follower> Node::Follow(SharedRoots::Follower follower) {
  auto added = std::make_shared<const SharedRoots::Follower>(std::move(follower));
  followers_.push_back(added);
  (*added)(identity_);
  return added;
}

void Node::TellFollowers() {
  std::erase_if(followers_, [](const auto& follower) { return follower.expired(); });
  const auto present = followers_;
  for (const auto& follower : present) {
    if (const auto tell = follower.lock()) (*tell)(identity_);
  }
}

// ---- the engine

RootAttachment Node::Attachment() {
  RootAttachment attachment;
  attachment.device = 1;
  attachment.inode = 2;
  attachment.path = kPath;
  attachment.uid = 1000;
  attachment.make_io = [this]() -> absl::StatusOr<RootAccess> {
    RootAccess access = roots_->Open(
        std::make_unique<SimSharedFiles>(&world_.disk(), &pause_, name_, absl::StrCat(name_, " ", daemon_)),
        kPath);
    if (world_.bucket() != nullptr)
      access.uploads = std::make_unique<SimBucketIo>(world_.bucket(), &pause_, name_);
    return access;
  };
  return attachment;
}

void Node::Call(absl::AnyInvocable<void(Engine&)> call) {
  if (!up()) return;
  pause_.Deliver(scope_->Guard([this, call = std::move(call)]() mutable { call(*engine_); }));
}

bool Node::coordinates() const {
  if (roots_ == nullptr) return false;
  v1::ClusterStatus status;
  roots_->Describe(&status);
  return status.shared_runs_size() > 0 && status.shared_runs(0).coordinator() == name_;
}

v1::Status Node::Status() { return engine_->GetStatus(Caller{0, 0, true}); }

void Node::Resolve(const std::string& tag, bool is_checkpoint) {
  if (!up() || run_name_.empty()) return;
  v1::ResolveSaveRequest request;
  request.set_name(absl::StrCat(run_name_, "/checkpoints/", tag));
  request.set_outcome(is_checkpoint ? v1::ResolveSaveRequest::IS_CHECKPOINT
                                    : v1::ResolveSaveRequest::IS_NO_CHECKPOINT);
  Call([this, request](Engine& engine) {
    engine.ResolveSave(Caller{0, 0, true}, request,
                       Expect<v1::ResolveSaveResponse>("ResolveSave", [this](const auto& resolved) {
                         if (resolved.ok()) world_.Count("resolved by an operator");
                       }));
  });
}

void Node::SetPinned(const std::string& tag, bool pinned) {
  if (run_name_.empty()) return;
  Call([this, tag, pinned](Engine& engine) {
    v1::GetCheckpointRequest request;
    request.set_name(absl::StrCat(run_name_, "/checkpoints/", tag));
    int64_t sequence = 0;
    engine.GetCheckpoint(Caller{0, 0, true}, request,
                         [&sequence](const absl::StatusOr<v1::Checkpoint>& found) {
                           if (found.ok() && found->level() == v1::COMMITTED) sequence = found->sequence();
                         });
    if (sequence == 0) return;
    const int64_t sent = world_.oracle().PinSent(tag, sequence, pinned);
    engine.SetPinned(
        Caller{0, 0, true}, request.name(), pinned,
        Expect<v1::Checkpoint>(absl::StrCat(pinned ? "Pin " : "Unpin ", tag),
                               [this, sequence, pinned, sent](const absl::StatusOr<v1::Checkpoint>& set) {
                                 if (!set.ok()) return;
                                 world_.oracle().PinAnswered(sequence, pinned, sent);
                                 world_.Count(pinned ? "pinned" : "unpinned");
                               }));
  });
}

void Node::FindUnkept(std::function<void(std::string tags)> found) {
  v1::ExplainRetentionRequest request;
  request.set_run(run_name_);
  engine_->ExplainRetention(Caller{0, 0, true}, request,
                            Expect<v1::ExplainRetentionResponse>(
                                "ExplainRetention", [found = std::move(found)](const auto& answer) {
                                  if (!answer.ok()) return found(std::string(answer.status().message()));
                                  std::string tags;
                                  for (const v1::RetentionDecision& decision : answer->decisions()) {
                                    if (decision.kept_by().empty())
                                      absl::StrAppend(&tags, tags.empty() ? "" : ", ", decision.tag());
                                  }
                                  found(std::move(tags));
                                }));
}

bool Node::Lists(const std::string& tag, int64_t sequence) {
  if (!up() || run_name_.empty()) return false;
  v1::GetCheckpointRequest request;
  request.set_name(absl::StrCat(run_name_, "/checkpoints/", tag));
  bool lists = false;
  engine_->GetCheckpoint(
      Caller{0, 0, true}, request, [&lists, sequence](absl::StatusOr<v1::Checkpoint> found) {
        lists = found.ok() && found->sequence() == sequence && found->level() == v1::COMMITTED;
      });
  return lists;
}

void Node::CheckLatest() {
  if (run_name_.empty()) return;
  v1::GetCheckpointRequest request;
  request.set_name(absl::StrCat(run_name_, "/checkpoints/latest"));
  engine_->GetCheckpoint(Caller{0, 0, true}, request, [this](absl::StatusOr<v1::Checkpoint> latest) {
    if (latest.ok() || ReasonOf(latest.status()) == "NO_CHECKPOINT")
      world_.oracle().Latest(absl::StrCat(name_, " daemon ", daemon_), latest.ok() ? latest->sequence() : 0);
  });
  if (!world_.plan().damage) return;
  const v1::Status status = Status();
  for (const v1::Run& run : status.runs()) {
    for (const v1::Checkpoint& damaged : run.damaged())
      world_.oracle().CalledDamaged(name_, damaged.sequence());
  }
}

std::string Node::Activity() {
  if (!up()) return absl::StrCat("; ", name_, " is down");
  std::string words;
  for (const auto& [id, what] : pending_) absl::StrAppend(&words, "; not answered: ", what);
  const v1::Status status = Status();
  for (const v1::Run& run : status.runs()) {
    for (const auto& save : run.in_flight())
      absl::StrAppend(&words, "; in flight on ", name_, ": ", save.tag());
    if (run.read_only()) absl::StrAppend(&words, "; read-only on ", name_);
  }
  v1::ClusterStatus cluster;
  roots_->Describe(&cluster);
  for (const auto& run : cluster.shared_runs()) {
    for (const auto& save : run.saves())
      absl::StrAppend(&words, "; ", save.tag(), " waits for ", save.waits_for());
  }
  if (pool_->usage().used_bytes != 0) absl::StrAppend(&words, "; memory is used on ", name_);
  return words;
}

std::string Node::Waiting() {
  std::string words;
  const v1::Status status = Status();
  for (const v1::Run& run : status.runs()) {
    for (const auto& waiting : run.uploads().waiting())
      absl::StrAppend(&words, "; waits on ", name_, " for its upload: ", waiting.tag(), " ",
                      waiting.upload().error().message());
  }
  return words;
}

void Node::OnSaveEnded(const SaveSummary& summary) {
  const v1::Checkpoint& save = summary.checkpoint;
  Trace("  save ended: attempt ", save.attempt(), " ", save.tag(), "#", save.ordinal(), " sequence ",
        save.sequence(), " ", v1::Level_Name(save.level()), " ", save.error().reason(), " ",
        save.error().message());
  world_.Count(absl::StrCat("ended ", v1::Level_Name(save.level()), " ", save.error().reason()));
}
void Node::OnWarning(const std::string& message) {
  Trace("  warning: ", message);
  if (absl::StrContains(message, "no longer coordinates")) world_.Count("coordinator hangs");
}
void Node::OnInfo(const std::string& message) { Trace("  info: ", message); }
void Node::OnRootOpened(const std::string& run, const std::string&, const ProbeResult&) {
  run_name_ = run;
  knows_root_ = true;
}

}  // namespace ckptd::sim_nodes
