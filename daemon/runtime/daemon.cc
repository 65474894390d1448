// The daemon's life: it starts its parts in the order of their needs, serves, drains, and stops them in the
// reverse order. Longer than other files, because what starts a part and what stops it are read together.
#include "daemon/runtime/daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ckptd/version.h"
#include "daemon/attach/attach_queue.h"
#include "daemon/attach/root_attacher.h"
#include "daemon/attach/state_directory.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/loop_gate.h"
#include "daemon/base/unix_listener.h"
#include "daemon/config/config.h"
#include "daemon/config/shared_folders.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/seams/shared_files_io.h"
#include "daemon/etcd/grpc/grpc_etcd.h"
#include "daemon/grpc/base/call_limits.h"
#include "daemon/grpc/grpc_server.h"
#include "daemon/handoff/handoff_server.h"
#include "daemon/history/history_store.h"
#include "daemon/log/grpc_log.h"
#include "daemon/log/log.h"
#include "daemon/log/save_log.h"
#include "daemon/memory/segment_pool.h"
#include "daemon/metrics/http_server.h"
#include "daemon/metrics/metrics.h"
#include "daemon/root_io/threaded_root_io.h"
#include "daemon/runtime/cluster/cluster_node.h"
#include "daemon/runtime/cluster/shared_folder_looks.h"
#include "daemon/runtime/cluster/shared_roots.h"
#include "daemon/runtime/config_reloader.h"
#include "daemon/runtime/make_cluster_node.h"
#include "daemon/runtime/part_options.h"
#include "daemon/runtime/process/exit_guard.h"
#include "daemon/runtime/process/machine.h"
#include "daemon/runtime/running_config.h"
#include "daemon/runtime/session_events.h"
#include "daemon/runtime/start/manager_inheritance.h"
#include "daemon/runtime/start/root_recovery.h"
#include "daemon/succession/inheritance.h"
#include "daemon/succession/seal_journal.h"
#include "daemon/systemd/manager_store.h"
#include "daemon/systemd/notifier.h"
#include "daemon/upload/bucket_uploads.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

// Waits for the lock and the sockets of a daemon that was killed, until the kernel has torn it down.
constexpr Duration kPredecessorTimeout = std::chrono::seconds(5);
constexpr Duration kTick = std::chrono::milliseconds(50);  // Of the engine.
constexpr Duration kTurn = std::chrono::seconds(1);        // Of the main thread.
constexpr Duration kStatusEvery = std::chrono::seconds(5);
// Waits for an answer of the engine's thread, which never blocks.
constexpr Duration kEngineTimeout = std::chrono::seconds(5);
// Lets calls in flight finish when the servers stop.
constexpr Duration kCallGrace = std::chrono::seconds(1);
// Lets retention finish removing checkpoints once no save is sealed any more.
constexpr Duration kRetentionTimeout = std::chrono::seconds(30);
// Waits until the other nodes have ended what this daemon loses. Without it, they wait for its next start.
constexpr Duration kEndSavesTimeout = std::chrono::seconds(2);
// Waits for etcd to give this node's name up, after that. Without it, the name is free when the lease has
// ended.
constexpr Duration kReleaseTimeout = std::chrono::seconds(2);
// From the end of the drain to the end of the process.
constexpr Duration kStopTimeout = std::chrono::seconds(15);
// Of file systems, to finish what they are at.
constexpr Duration kRootTimeout = std::chrono::seconds(5);
// Of a private daemon, to send what waits once its last session has ended.
constexpr Duration kUploadTimeout = std::chrono::hours(1);
constexpr int kWorkers = 64;

sigset_t HandledSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  return signals;
}

int OpenSignals() {
  const sigset_t signals = HandledSignals();
  return ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

std::string HostName() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

LogField ErrorField(const absl::Status& status) { return {"error", std::string(status.message())}; }

std::string ClusterText(const v1::Status& status) {
  if (!status.has_cluster()) return "";
  const v1::ClusterStatus& cluster = status.cluster();
  return absl::StrCat(", node ", cluster.node(), cluster.registered() ? " registered" : " not registered",
                      cluster.error().reason().empty() ? "" : ": ", cluster.error().reason());
}

std::string StatusText(const v1::Status& status) {
  int64_t checkpoints = 0, in_flight = 0;
  for (const v1::Run& run : status.runs()) {
    checkpoints += run.checkpoint_count();
    in_flight += run.in_flight_size();
  }
  constexpr int64_t kMiB = 1 << 20;
  return absl::StrCat(status.state(), ": ", status.runs_size(), " runs, ", checkpoints, " checkpoints, ",
                      in_flight, " in flight, ", status.sessions(), " sessions, pool ",
                      status.pool().used_bytes() / kMiB, " of ", status.pool().total_bytes() / kMiB,
                      " MiB in use", ClusterText(status));
}

class Daemon {
 public:
  explicit Daemon(const DaemonOptions& options)
      : options_(options),
        config_(options_.config),
        reloader_(
            options_.config, options_.reload,
            {.set_limits = [this](const config::v1::DaemonConfig& config) { SetLimits(config); },
             .set_pool = [this](const config::v1::DaemonConfig& config) { return SetPool(config); },
             .set_shared_folders =
                 [this](const config::v1::DaemonConfig& config) {
                   return SetSharedFolders(config.cluster().shared_folders());
                 },
             .renew_etcd_credentials =
                 [this](const config::v1::DaemonConfig& config) { return RenewEtcdCredentials(config); }}),
        signals_(OpenSignals()),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        save_log_(&metrics_),
        sessions_(config_.max_sessions(), config_.limits().sessions_per_uid()),
        authenticator_(&peers_, &sessions_, ::geteuid(), OverflowUid(),
                       config_.security().trust_all_namespaces()),
        call_limits_(config_.limits().calls_per_uid(), config_.limits().call_memory_bytes_per_uid()) {}
  ~Daemon() { Stop(); }

  absl::Status Start();
  // Serves until something ends the daemon. Returns the exit code.
  int Serve();

 private:
  absl::Status StartEngine(Inheritance inheritance);
  absl::Status StartCluster(const GrpcEtcd::Post& post);
  EngineOptions OptionsOfEngine(const config::v1::DaemonConfig& config);
  absl::StatusOr<RootAccess> OpenRoot(RootToOpen root);
  absl::StatusOr<RootAccess> OpenBucketRoot(const RootToOpen& root);
  void SetLimits(const config::v1::DaemonConfig& config);
  absl::Status SetPool(const config::v1::DaemonConfig& config);
  absl::Status SetSharedFolders(const SharedFolders& folders);
  absl::StatusOr<bool> RenewEtcdCredentials(const config::v1::DaemonConfig& config);
  absl::Status StartServers();
  absl::Status StartMetrics();
  absl::Status SayReady();
  void WriteDownConfig();
  static void WarnOfMemoryLimit(const config::v1::DaemonConfig& config);

  enum class Event { kNone, kEnd, kReload };
  Event WaitForEvent(Duration timeout);
  void Wake() { ::eventfd_write(wake_.get(), 1); }
  void Notify(const std::string& state);
  void FeedWatchdog();
  void PublishStatus();
  bool IsUploading();
  bool IsIdleTooLong();
  absl::StatusOr<v1::Status> AskStatus();
  v1::ClusterStatus DescribeCluster() const;  // On the engine's thread.

  // Publishes what is sealed, until `deadline`. Returns whether all of it is published.
  bool Drain(Instant deadline);
  // Gives this node's name up, so that another daemon can have it at once.
  void LeaveCluster();
  void Stop();

  const DaemonOptions options_;
  const config::v1::DaemonConfig& config_;
  ConfigReloader reloader_;
  const UniqueFd signals_, wake_;
  std::unique_ptr<Notifier> notifier_;
  std::unique_ptr<ManagerStore> store_;  // Null: the service manager keeps no descriptors.
  std::optional<Duration> watchdog_;
  std::array<int64_t, 3> fed_turns_ = {-1, -1, -1};
  Instant next_status_{};
  Instant last_busy_{};
  Instant last_session_{};
  std::atomic<bool> keepers_left_ = false;
  std::atomic<bool> drained_ = false;
  std::atomic<bool> sealed_saves_ = false;  // As of the engine's last tick, like uploads_wait_.
  std::atomic<bool> uploads_wait_ = false;

  DaemonMetrics metrics_;
  SaveLog save_log_;
  SessionRegistry sessions_;
  PeerTable peers_;
  CallAuthenticator authenticator_;
  CallLimits call_limits_;
  ServiceContext context_;

  // In the order in which they are made. Stop takes them down: first the servers, which call the others, then
  // the loop, then what the loop used.
  std::unique_ptr<StateDirectory> state_;
  std::unique_ptr<RootRecovery>
      root_recovery_;  // Declared before the loop and attaches_: outlives their threads.
  std::unique_ptr<EventLoop> loop_;
  std::shared_ptr<LoopGate> gate_;
  std::unique_ptr<ThreadedRootIoFactory> root_ios_;
  std::unique_ptr<WorkerPool> state_worker_;  // Writes the list of known roots.
  std::unique_ptr<HistoryStore> history_;
  std::unique_ptr<BucketUploads> uploads_;
  std::unique_ptr<RootAttacher> attacher_;
  std::unique_ptr<AttachQueue> attaches_;
  std::unique_ptr<SealJournal> journal_;  // Null: no service manager would keep it.
  std::unique_ptr<SegmentPool> pool_;
  std::unique_ptr<ClusterNode> cluster_;       // Null: this daemon is in no cluster.
  std::unique_ptr<SharedRoots> shared_roots_;  // Null likewise, and the next one.
  std::unique_ptr<SharedFolderLooks> shared_folders_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<WorkerPool> workers_;
  std::unique_ptr<SessionEvents> events_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<HandoffServer> handoff_;
  std::vector<std::unique_ptr<HttpServer>> http_;
};

absl::Status Daemon::Start() {
  if (!signals_ || !wake_) return ErrnoError(errno, "signalfd and eventfd");
  CKPTD_ASSIGN_OR_RETURN(notifier_, MakeNotifier());
  watchdog_ = WatchdogInterval();
  ::signal(SIGPIPE, SIG_IGN);
  if (options_.is_private)
    ::signal(SIGHUP, SIG_IGN);  // The daemon outlives the terminal of the job that started it.
  RouteGrpcLog();
  CKPTD_ASSIGN_OR_RETURN(context_.daemon_instance, RandomId());
  context_.daemon_version = kVersion;
  Log(LogLevel::kInfo, "starting",
      {{"version", kVersion},
       {"instance", context_.daemon_instance},
       {"descriptors", RaiseDescriptorLimit()}});
  WarnOfMemoryLimit(config_);
  CKPTD_ASSIGN_OR_RETURN(state_, StateDirectory::Open(config_.state_directory(), kPredecessorTimeout,
                                                      KnownRootLimitsOf(config_)));
  for (const std::string& problem : state_->problems()) Log(LogLevel::kWarning, problem);
  // After the state directory is locked: the daemon before this one has ended.
  ManagerInheritance inherited = TakeManagerInheritance(notifier_.get());
  store_ = std::move(inherited.store);
  journal_ = std::move(inherited.journal);
  CKPTD_RETURN_IF_ERROR(StartEngine(std::move(inherited.left)));
  root_recovery_->Start(state_->roots());
  CKPTD_RETURN_IF_ERROR(StartServers());
  return SayReady();
}

void Daemon::WarnOfMemoryLimit(const config::v1::DaemonConfig& config) {
  const std::optional<int64_t> limit = ControlGroupMemoryLimit();
  if (!limit || *limit > config.pool().bytes()) return;
  Log(LogLevel::kWarning,
      "the control group's memory limit is not larger than the pool: raise MemoryMax, or lower pool.bytes",
      {{"limit_bytes", *limit}, {"pool_bytes", config.pool().bytes()}});
}

absl::Status Daemon::StartEngine(Inheritance inheritance) {
  loop_ = std::make_unique<EventLoop>("ckptd-engine");
  gate_ = std::make_shared<LoopGate>(loop_.get());
  const auto post = [gate = gate_](absl::AnyInvocable<void()> work) { gate->Post(std::move(work)); };
  root_ios_ = std::make_unique<ThreadedRootIoFactory>(RootIoOptionsOf(config_), &SystemClock(), post);
  state_worker_ = std::make_unique<WorkerPool>(1);
  history_ = std::make_unique<HistoryStore>(
      HistoryStore::Options{.directory = config_.state_directory() + "/history",
                            .warn = [](const std::string& text) { Log(LogLevel::kWarning, text); },
                            .dropped = [this] { metrics_.OnHistoryDropped(); },
                            .post = post});
  save_log_.SetHistory(history_.get());
  uploads_ = std::make_unique<BucketUploads>(UploadOptionsOf(config_, options_.is_private, post));
  attaches_ = std::make_unique<AttachQueue>(AttachLimitsOf(config_), &SystemClock());
  attacher_ = std::make_unique<RootAttacher>(
      state_.get(), [this](RootToOpen root) { return OpenRoot(std::move(root)); },
      RootAttacher::Threads{
          .state = [this](absl::AnyInvocable<void()> work) { state_worker_->Submit(std::move(work)); },
          .engine = post,
          .inspect =
              [this](uid_t uid, uint64_t device, AttachQueue::Inspect inspect, AttachQueue::Done done) {
                attaches_->Submit(uid, absl::StrCat("device ", device), std::move(inspect), std::move(done),
                                  /*any_number=*/true);
              }});
  pool_ = SegmentPool::Start(
      PoolOptionsOf(config_), post, [](const std::string& text) { Log(LogLevel::kWarning, text); },
      {.store = store_.get(), .used = std::move(inheritance.used), .unused = std::move(inheritance.unused)});
  CKPTD_RETURN_IF_ERROR(StartCluster(post));
  engine_ = std::make_unique<Engine>(OptionsOfEngine(config_), &SystemClock(), pool_.get(), &save_log_,
                                     journal_.get());
  engine_->Inherit(std::move(inheritance.saves));
  loop_->Start(
      [this] {
        engine_->Tick();
        if (cluster_ != nullptr)
          cluster_->OnTick([this] { return engine_->GetStatus({.uid = ::geteuid(), .privileged = true}); });
        if (shared_folders_ != nullptr) shared_folders_->OnTick();
        sealed_saves_ = engine_->HasSealedSaves();
        uploads_wait_ = engine_->HasUploads();
      },
      kTick);
  workers_ = std::make_unique<WorkerPool>(kWorkers);
  root_recovery_ =
      std::make_unique<RootRecovery>(attaches_.get(), attacher_.get(), loop_.get(), engine_.get());
  return absl::OkStatus();
}

absl::Status Daemon::StartCluster(const GrpcEtcd::Post& post) {
  CKPTD_ASSIGN_OR_RETURN(cluster_, MakeClusterNode(config_, {.state = state_.get(),
                                                             .state_worker = state_worker_.get(),
                                                             .metrics = &metrics_,
                                                             .post = post,
                                                             .instance = context_.daemon_instance}));
  if (cluster_ == nullptr) return absl::OkStatus();
  SharedRoots::Options options = SharedRootsOptionsOf(config_);
  options.why_unregistered = [this] { return cluster_->WhyUnregistered(); };
  shared_roots_ = std::make_unique<SharedRoots>(
      cluster_->etcd(), &SystemClock(), std::move(options), post,
      [this](SharedRoots::Follower follower) { return cluster_->Follow(std::move(follower)); },
      [this](const absl::Status& why) { cluster_->RegisterAnew(why); });
  shared_folders_ = std::make_unique<SharedFolderLooks>(
      &SystemClock(), LookAtSharedFolder,
      [this, post](SharedFolderLooks::Look look, SharedFolderLooks::Done done) {
        // The folders count as one file system, so that those which hang leave threads to the roots of this
        // user.
        attaches_->Submit(
            ::geteuid(), "shared folders",
            [look = std::move(look)]() mutable -> absl::StatusOr<RootAttachment> {
              CKPTD_RETURN_IF_ERROR(look());
              return RootAttachment();
            },
            [post, done = std::move(done)](const absl::StatusOr<RootAttachment>& looked) mutable {
              if (ReasonOf(looked.status()) == "DRAINING") return;  // The daemon ends.
              post([done = std::move(done), status = looked.status()]() mutable { done(status); });
            },
            /*any_number=*/true);
      });
  const SharedFolders& folders = config_.cluster().shared_folders();
  shared_folders_->SetFolders({folders.begin(), folders.end()});
  return absl::OkStatus();
}

// What LimitsConfig has, at a reload. On the main thread; the engine follows.
void Daemon::SetLimits(const config::v1::DaemonConfig& config) {
  const config::v1::LimitsConfig& limits = config.limits();
  sessions_.SetMostPerUser(limits.sessions_per_uid());
  call_limits_.SetLimits(limits.calls_per_uid(), limits.call_memory_bytes_per_uid());
  state_->SetLimits(KnownRootLimitsOf(config));
  attaches_->SetTimeout(AttachLimitsOf(config).timeout);
  grpc_->SetLimits(GrpcLimitsOf(config));
  handoff_->SetMostConnectionsPerUser(limits.connections_per_uid());
  loop_->Post([this, options = OptionsOfEngine(config), bound = SharedRootsOptionsOf(config).bound] {
    engine_->SetLimits(options);
    if (shared_roots_ != nullptr) shared_roots_->SetBound(bound);
  });
}

absl::Status Daemon::SetPool(const config::v1::DaemonConfig& config) {
  const int64_t least = SegmentPool::kLeastSegments * pool_->segment_bytes();
  if (config.pool().bytes() < least) {
    return absl::InvalidArgumentError(
        absl::StrCat("pool.bytes is ", config.pool().bytes(),
                     ", and the pool has at least 4 segments, which are ", pool_->segment_bytes(),
                     " bytes each until a restart: set it to ", least, " or more, or restart the daemon"));
  }
  WarnOfMemoryLimit(config);
  loop_->Post([this, budget = PoolBudgetOf(config)] { pool_->SetBudget(budget); });
  return absl::OkStatus();
}

// A root that is open cannot become a shared one, or cease to be one: all nodes must take it for the same.
absl::Status Daemon::SetSharedFolders(const SharedFolders& folders) {
  auto promise = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> done = promise->get_future();
  loop_->Post([this, promise, folders] {
    const std::vector<std::string> in_use =
        engine_->CloseIdleRoots([this, &folders](const std::string& path) {
          return shared_roots_->IsShared(path) != IsInSharedFolder(folders, path);
        });
    if (in_use.empty()) {
      shared_roots_->SetFolders(folders);
      shared_folders_->SetFolders({folders.begin(), folders.end()});
      return promise->set_value(absl::OkStatus());
    }
    promise->set_value(absl::FailedPreconditionError(absl::StrCat(
        "these roots are open, and would begin or cease to be shared: ", absl::StrJoin(in_use, ", "),
        "; reload again when their jobs have ended and they are closed (limits.idle_root_seconds), or "
        "restart the daemon")));
  });
  return done.get();  // The engine never blocks; the watchdog ends a daemon where it does.
}

// Reads the files here, and not on the engine's thread. etcd has a few seconds to accept what is in them.
absl::StatusOr<bool> Daemon::RenewEtcdCredentials(const config::v1::DaemonConfig& config) {
  CKPTD_ASSIGN_OR_RETURN(const ClusterNode::Options options, ClusterOptionsOf(config));
  CKPTD_ASSIGN_OR_RETURN(EtcdCredentials credentials, ReadEtcdCredentials(options.etcd));
  auto promise = std::make_shared<std::promise<absl::StatusOr<bool>>>();
  std::future<absl::StatusOr<bool>> done = promise->get_future();
  loop_->Post([this, promise, credentials = std::move(credentials)]() mutable {
    cluster_->Renew(std::move(credentials),
                    [promise](absl::StatusOr<bool> changed) { promise->set_value(std::move(changed)); });
  });
  return done.get();
}

EngineOptions Daemon::OptionsOfEngine(const config::v1::DaemonConfig& config) {
  EngineOptions options = EngineOptionsOf(config, context_.daemon_instance);
  options.shared_folder = [this](const std::string& own_path) {
    return shared_roots_ == nullptr ? "" : shared_roots_->FolderOf(own_path);
  };
  return options;
}

absl::StatusOr<RootAccess> Daemon::OpenBucketRoot(const RootToOpen& root) {
  CKPTD_RETURN_IF_ERROR(uploads_->CheckRights(root.user.uid, root.path));
  CKPTD_ASSIGN_OR_RETURN(
      std::unique_ptr<LocalRootIo> io,
      root_ios_->MakeBucket({.url = root.path,
                             .uid = root.user.uid,
                             .owner = absl::StrCat("on ", HostName(), " (process ", ::getpid(), ")"),
                             .parallel_parts = config_.upload().parallel_parts()}));
  return RootAccess(std::move(io));
}

absl::StatusOr<RootAccess> Daemon::OpenRoot(RootToOpen root) {
  if (root.is_bucket) return OpenBucketRoot(root);
  UniqueFd directory(::fcntl(root.directory.get(), F_DUPFD_CLOEXEC, 3));
  if (!directory) return ErrnoError(errno, absl::StrCat("duplicating the descriptor of ", root.path));
  std::unique_ptr<UploadIo> uploads = uploads_->ForRoot(std::move(directory), root.user);
  // A job in another mount namespace: its directory may be the one that the nodes share, reached through another mount,
  // and this daemon would use it as a root of its own.
  if (shared_roots_ != nullptr && root.own_path.empty() && shared_roots_->IsShared(root.path)) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "ROOT_UNSUITABLE",
        absl::StrCat(
            "the directory ", root.path,
            " of the job is another one than this daemon has at that path, which is in "
            "cluster.shared_folders: mount the shared file system once on the node, for the daemon and for "
            "jobs in containers, or give the job's directory another path"));
  }
  if (shared_roots_ != nullptr && shared_roots_->IsShared(root.own_path)) {
    CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<SharedFilesIo> files,
                           root_ios_->MakeShared(std::move(root.directory), std::move(root.user),
                                                 {.node = config_.cluster().node_name(),
                                                  .incarnation = context_.daemon_instance}));
    RootAccess shared = shared_roots_->Open(std::move(files), root.path);
    shared.uploads = std::move(uploads);
    return shared;
  }
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<LocalRootIo> io,
                         root_ios_->Make(std::move(root.directory), std::move(root.user)));
  RootAccess access(std::move(io));
  access.uploads = std::move(uploads);
  return access;
}

absl::Status Daemon::StartServers() {
  context_.engine = engine_.get();
  context_.loop = loop_.get();
  context_.sessions = &sessions_;
  context_.authenticator = &authenticator_;
  context_.workers = workers_.get();
  context_.history = history_.get();
  context_.attaches = attaches_.get();
  const auto& container_roots = config_.security().container_roots();
  context_.container_roots = {container_roots.begin(), container_roots.end()};
  context_.call_limits = &call_limits_;
  if (cluster_ != nullptr) {
    context_.cluster_status = [this] { return DescribeCluster(); };
    context_.add_summaries = [this](v1::Status status, Reply<v1::Status> reply) {
      cluster_->AddSummaries(std::move(status), std::move(reply));
    };
  }
  context_.make_attachment = [this](UniqueFd directory, const std::string& path, const FileUser& user) {
    return attacher_->Attach(std::move(directory), path, user);
  };
  CKPTD_ASSIGN_OR_RETURN(const UnixListenerOptions socket, SocketOptionsOf(config_, kPredecessorTimeout));
  CKPTD_ASSIGN_OR_RETURN(UniqueFd listener, ListenUnix(socket));
  const auto log = [](const std::string& text) { Log(LogLevel::kWarning, text); };
  CKPTD_ASSIGN_OR_RETURN(
      grpc_, GrpcServer::Start(std::move(listener), &peers_, &context_, log, GrpcLimitsOf(config_)));
  events_ = std::make_unique<SessionEvents>(&context_, [this] {
    keepers_left_ = true;
    Wake();
  });
  const HandoffOptions handoff = HandoffOptionsOf(config_, socket, context_.daemon_instance);
  CKPTD_ASSIGN_OR_RETURN(handoff_,
                         HandoffServer::Start(handoff, &sessions_, &pool_->directory(), events_.get(), log));
  // Nobody should lose checkpoints because nobody can watch.
  if (const absl::Status metrics = StartMetrics(); !metrics.ok()) {
    Log(LogLevel::kError, "/metrics is not served", {{"error", std::string(metrics.message())}});
  }
  return absl::OkStatus();
}

absl::Status Daemon::StartMetrics() {
  CKPTD_ASSIGN_OR_RETURN(std::vector<HttpServer::Options> servers,
                         MetricsOptionsOf(config_, kPredecessorTimeout));
  const auto render = [this](MetricsFormat format) -> absl::StatusOr<std::string> {
    CKPTD_ASSIGN_OR_RETURN(const v1::Status status, AskStatus());
    return metrics_.Render(status, SystemClock().UnixMicros(), config_.metrics().root_paths(), format);
  };
  for (HttpServer::Options& options : servers) {
    options.on_listen = [](const absl::Status& status) {
      if (status.ok()) return Log(LogLevel::kInfo, "/metrics is served");
      Log(LogLevel::kWarning,
          "/metrics is not served: another program has the port. This daemon tries again every 5 s; set "
          "metrics.port to a free one, or use metrics.socket_path",
          {{"error", std::string(status.message())}});
    };
    CKPTD_ASSIGN_OR_RETURN(http_.emplace_back(), HttpServer::Start(std::move(options), render));
  }
  return absl::OkStatus();
}

absl::Status Daemon::SayReady() {
  grpc_->SetServing(true);
  std::vector<LogField> fields = {{"socket", config_.socket_path()},
                                  {"pool_bytes", config_.pool().bytes()},
                                  {"segment_bytes", config_.pool().segment_bytes()}};
  for (const std::unique_ptr<HttpServer>& http : http_) {
    if (http->port() > 0) fields.emplace_back("metrics_port", http->port());
  }
  Log(LogLevel::kInfo, "serving", fields);
  WriteDownConfig();
  Notify("READY=1");
  if (options_.ready_fd < 0) return absl::OkStatus();
  const std::string& text = options_.ready_text;
  UniqueFd ready(options_.ready_fd);
  if (::write(ready.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return ErrnoError(errno, absl::StrCat("write READY to descriptor ", options_.ready_fd, " (--ready_fd)"));
  }
  return absl::OkStatus();
}

void Daemon::WriteDownConfig() {
  int metrics_port = 0;
  for (const std::unique_ptr<HttpServer>& http : http_) metrics_port = std::max(metrics_port, http->port());
  if (const absl::Status written = WriteRunningConfig(reloader_.running(), metrics_port); !written.ok())
    Log(LogLevel::kWarning, "the configuration in force is not written down for ckptctl debug dump",
        {ErrorField(written)});
}

Daemon::Event Daemon::WaitForEvent(Duration timeout) {
  pollfd fds[2] = {{signals_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
  const auto millis = std::chrono::ceil<std::chrono::milliseconds>(std::max(timeout, Duration::zero()));
  ::poll(fds, 2, static_cast<int>(millis.count()));
  eventfd_t ignored = 0;
  if (fds[1].revents != 0) ::eventfd_read(wake_.get(), &ignored);
  FeedWatchdog();
  signalfd_siginfo info{};
  if (::read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return Event::kNone;
  return info.ssi_signo == SIGHUP && options_.reload ? Event::kReload : Event::kEnd;
}

int Daemon::Serve() {
  last_busy_ = last_session_ = SystemClock().Now();
  bool has_deadline = true;
  bool is_left = false;  // Its last keeper has said Goodbye.
  while (true) {
    const Duration turn = watchdog_ ? std::min(kTurn, *watchdog_ / 4) : kTurn;
    const Event event = WaitForEvent(turn);
    if (event == Event::kReload && reloader_.Reload()) WriteDownConfig();
    if (event == Event::kEnd) {
      Log(LogLevel::kInfo, "asked to end: publishing sealed saves",
          {{"drain_timeout_seconds", config_.drain_timeout_seconds()}});
      break;
    }
    PublishStatus();
    attaches_->Expire();
    root_recovery_->RetryDue();
    if (!options_.is_private) continue;
    // The sessions that are no keepers, such as those of ranks that were only given the endpoint, still need
    // it.
    if (keepers_left_.exchange(false)) is_left = true;
    if (sessions_.keepers() > 0) is_left = false;
    // A private daemon drains without a deadline, because nobody waits for its end.
    const bool is_unused = is_left && sessions_.sessions() == 0 && !IsUploading();
    if (is_unused && sessions_.CloseToKeepers()) {
      Log(LogLevel::kInfo, "the last keeper has left: publishing sealed saves");
      has_deadline = false;
      break;
    }
    if (IsIdleTooLong() && sessions_.CloseToKeepers()) {
      Log(LogLevel::kInfo, "ending: this private daemon had no session for idle_timeout");
      break;
    }
  }
  const Duration timeout = std::chrono::seconds(config_.drain_timeout_seconds());
  const bool published = Drain(has_deadline ? SystemClock().Now() + timeout : Instant::max());
  LeaveCluster();
  Stop();
  Log(LogLevel::kInfo, published ? "ended" : "ended before all sealed saves were published");
  return published ? 0 : 1;
}

// The bucket may be away for good, and nobody looks any more: the next private daemon of this folder goes on.
bool Daemon::IsUploading() {
  const Instant now = SystemClock().Now();
  if (sessions_.sessions() > 0) last_session_ = now;
  return uploads_wait_ && now - last_session_ < kUploadTimeout;
}

bool Daemon::IsIdleTooLong() {
  const Instant now = SystemClock().Now();
  if (sessions_.sessions() > 0 || sealed_saves_ || IsUploading()) last_busy_ = now;
  return now - last_busy_ >= options_.idle_timeout;
}

bool Daemon::Drain(Instant deadline) {
  Notify("STOPPING=1\nSTATUS=publishing sealed saves");
  grpc_->SetServing(false);
  loop_->Post([this] {
    engine_->Drain([this] {
      drained_ = true;
      Wake();
    });
  });
  Instant retention_deadline = SystemClock().Now() + kRetentionTimeout;
  while (!drained_) {
    const Instant now = SystemClock().Now();
    if (sealed_saves_) retention_deadline = now + kRetentionTimeout;
    if (!sealed_saves_ && now >= std::min(deadline, retention_deadline)) {
      Log(LogLevel::kWarning,
          "ending while old checkpoints are still being removed: the retention of the next save removes the "
          "rest");
      return true;
    }
    if (now >= deadline) {
      Log(LogLevel::kError,
          "sealed saves are not published within drain_timeout_seconds; the next daemon can finish "
          "only those that the service manager keeps",
          {{"drain_timeout_seconds", config_.drain_timeout_seconds()},
           {"kept", journal_ ? journal_->size() : 0}});
      return false;
    }
    if (WaitForEvent(std::min({deadline - now, retention_deadline - now, kTurn})) == Event::kEnd) {
      Log(LogLevel::kWarning, "asked to end a second time: not waiting for sealed saves any longer");
      return drained_;
    }
  }
  return true;
}

// After the drain: the node has its name while it publishes. Others coordinate its runs from now on.
void Daemon::LeaveCluster() {
  if (cluster_ == nullptr) return;
  auto promise = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> released = promise->get_future();
  loop_->Post([this, promise] {
    shared_roots_->EndSaves(SystemClock().Now() + kEndSavesTimeout, [this, promise] {
      // Whether it is answered with an error or not: what was not resigned ends with the lease.
      shared_roots_->Resign([this, promise](const absl::Status&) {
        cluster_->Release([promise](absl::Status status) { promise->set_value(std::move(status)); });
      });
    });
  });
  const Duration timeout = kEndSavesTimeout + kReleaseTimeout;
  const bool answered = released.wait_for(timeout) == std::future_status::ready;
  const absl::Status status =
      answered ? released.get() : absl::DeadlineExceededError("etcd has not answered within 4 s");
  if (status.ok()) return Log(LogLevel::kInfo, "no longer registered as a node");
  Log(LogLevel::kWarning, "the name of this node stays taken until its lease has ended",
      {{"lease_seconds", config_.cluster().lease_seconds()}, ErrorField(status)});
}

void Daemon::Stop() {
  const ExitGuard guard(
      kStopTimeout,
      "stopping takes longer than 15 s, perhaps because a file system hangs: ending the process at once");
  handoff_.reset();
  if (grpc_) {
    // Before the listener closes: from now on the next daemon may use the path.
    ::unlink(config_.socket_path().c_str());
    ::unlink(RunningConfigPath(config_.socket_path()).c_str());
    grpc_->Stop(kCallGrace);
  }
  grpc_.reset();
  if (!http_.empty() && !config_.metrics().socket_path().empty())
    ::unlink(config_.metrics().socket_path().c_str());
  http_.clear();
  events_.reset();
  workers_.reset();
  if (attaches_) attaches_->Close();
  if (gate_) gate_->Close();
  loop_.reset();
  state_worker_.reset();
  save_log_.SetHistory(nullptr);
  history_.reset();
  if (root_ios_) {
    const std::vector<std::string> hung = root_ios_->Close(kRootTimeout);
    if (!hung.empty()) {
      // Their threads still use the segments, which must stay mapped until the process ends.
      Log(LogLevel::kError, "file systems do not answer: ending the process at once",
          {{"devices", absl::StrJoin(hung, ",")}});
      ::_exit(1);
    }
  }
  if (journal_ && journal_->size() > 0) {
    // The next daemon writes these saves from this memory, so it must not be punched out.
    Log(LogLevel::kWarning, "leaving sealed saves to the next daemon", {{"saves", journal_->size()}});
    ::_exit(1);
  }
  engine_.reset();
  uploads_.reset();
  shared_folders_.reset();
  shared_roots_.reset();  // After the runs, which the engine owns.
  cluster_.reset();
  root_ios_.reset();  // Before the pool, whose memory its checksum threads read.
  pool_.reset();
  attacher_.reset();
  state_.reset();
}

void Daemon::Notify(const std::string& state) {
  if (absl::Status sent = notifier_->Send(state); !sent.ok()) {
    Log(LogLevel::kWarning, "cannot notify the service manager", {ErrorField(sent)});
  }
}

void Daemon::FeedWatchdog() {
  if (!watchdog_) return;
  const std::array<int64_t, 3> turns = {loop_->turns(), grpc_->turns(), handoff_->turns()};
  for (size_t i = 0; i < turns.size(); ++i) {
    if (turns[i] == fed_turns_[i]) return;
  }
  fed_turns_ = turns;
  Notify("WATCHDOG=1");
}

void Daemon::PublishStatus() {
  const Instant now = SystemClock().Now();
  if (now < next_status_) return;
  next_status_ = now + kStatusEvery;
  if (const absl::StatusOr<v1::Status> status = AskStatus(); status.ok())
    Notify("STATUS=" + StatusText(*status));
}

v1::ClusterStatus Daemon::DescribeCluster() const {
  v1::ClusterStatus status = cluster_->Status();
  shared_roots_->Describe(&status);
  shared_folders_->Describe(&status);
  return status;
}

absl::StatusOr<v1::Status> Daemon::AskStatus() {
  auto promise = std::make_shared<std::promise<v1::Status>>();
  std::future<v1::Status> answer = promise->get_future();
  loop_->Post([this, promise] {
    v1::Status status = engine_->GetStatus({.session = 0, .uid = ::geteuid(), .privileged = true});
    if (cluster_ != nullptr) *status.mutable_cluster() = DescribeCluster();
    promise->set_value(std::move(status));
  });
  if (answer.wait_for(kEngineTimeout) != std::future_status::ready) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, "ENGINE_SLOW",
                     "the engine's thread has not answered within 5 s");
  }
  return answer.get();
}

}  // namespace

void BlockSignals() {
  const sigset_t signals = HandledSignals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // A write beyond the limit on file sizes then fails with EFBIG instead of ending the daemon.
  ::signal(SIGXFSZ, SIG_IGN);
}

int RunDaemon(const DaemonOptions& options) {
  ::umask(0);  // Files get the umask of the trainer they belong to (FileUser::umask).
  Daemon daemon(options);
  if (const absl::Status started = daemon.Start(); !started.ok()) {
    Log(LogLevel::kError, "cannot start", {ErrorField(started)});
    return 1;
  }
  return daemon.Serve();
}

}  // namespace ckptd
