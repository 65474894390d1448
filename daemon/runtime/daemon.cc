#include "daemon/runtime/daemon.h"

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
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ckptd/version.h"
#include "daemon/attach/attach_queue.h"
#include "daemon/attach/root_attacher.h"
#include "daemon/attach/root_retries.h"
#include "daemon/attach/state_directory.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/loop_gate.h"
#include "daemon/base/unix_listener.h"
#include "daemon/config/config.h"
#include "daemon/engine/engine.h"
#include "daemon/grpc/call_limits.h"
#include "daemon/grpc/grpc_server.h"
#include "daemon/handoff/handoff_server.h"
#include "daemon/log/grpc_log.h"
#include "daemon/log/log.h"
#include "daemon/log/save_log.h"
#include "daemon/memory/segment_pool.h"
#include "daemon/metrics/http_server.h"
#include "daemon/metrics/metrics.h"
#include "daemon/root_io/threaded_root_io.h"
#include "daemon/runtime/countdown.h"
#include "daemon/runtime/exit_guard.h"
#include "daemon/runtime/machine.h"
#include "daemon/runtime/session_events.h"
#include "daemon/succession/inheritance.h"
#include "daemon/succession/seal_journal.h"
#include "daemon/systemd/manager_store.h"
#include "daemon/systemd/notifier.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

// For what a daemon that was killed still holds until the kernel has taken all of it down.
constexpr Duration kPredecessorPatience = std::chrono::seconds(5);
constexpr Duration kTick = std::chrono::milliseconds(50);
constexpr Duration kTurn = std::chrono::seconds(1);
constexpr Duration kStatusEvery = std::chrono::seconds(5);
// How long known roots may take at start before the daemon serves without them.
constexpr Duration kRecoverPatience = std::chrono::seconds(2);
// An answer of the engine's thread, which never blocks.
constexpr Duration kEnginePatience = std::chrono::seconds(5);
// Calls under way when the servers stop.
constexpr Duration kCallGrace = std::chrono::seconds(1);
// What retention removes, when nothing is sealed any more.
constexpr Duration kRetentionPatience = std::chrono::seconds(30);
// From the end of the drain to the end of the process.
constexpr Duration kStopPatience = std::chrono::seconds(15);
constexpr Duration kRootPatience = std::chrono::seconds(5);
constexpr Duration kManagerPatience = std::chrono::seconds(5);
constexpr int kWorkers = 64;
// Of one user: all ranks of a node may attach at the same moment.
constexpr int kWaitingAttaches = 1024;

sigset_t EndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

int OpenSignals() {
  const sigset_t signals = EndSignals();
  return ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

PagePolicy PagesOf(config::v1::HugePages pages) {
  switch (pages) {
    case config::v1::TRANSPARENT:
      return PagePolicy::kTransparent;
    case config::v1::PLAIN:
      return PagePolicy::kPlain;
    default:
      return PagePolicy::kAuto;
  }
}

IoBackend BackendOf(config::v1::Backend backend) {
  switch (backend) {
    case config::v1::BACKEND_IO_URING:
      return IoBackend::kUring;
    case config::v1::BACKEND_THREADS:
      return IoBackend::kThreads;
    default:
      return IoBackend::kAuto;
  }
}

LogField ErrorField(const absl::Status& status) { return {"error", std::string(status.message())}; }

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
                      " MiB in use");
}

class Daemon {
 public:
  explicit Daemon(const DaemonOptions& options)
      : options_(options),
        config_(options_.config),
        signals_(OpenSignals()),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        save_log_(&metrics_),
        sessions_(config_.max_sessions(), config_.limits().sessions_per_uid()),
        authenticator_(&peers_, &sessions_, ::geteuid(), OverflowUid(),
                       config_.security().trust_all_namespaces()),
        call_limits_(config_.limits().calls_per_uid(), config_.limits().call_memory_bytes_per_uid()) {}
  ~Daemon() { Stop(); }

  absl::Status Start();
  // Until something ends the daemon. The exit code.
  int Serve();

 private:
  Inheritance TakeOver();
  void StartJournal(int store_size);
  void StartEngine(Inheritance inheritance);
  void RecoverRoots();
  void RecoverRoot(const storage::v1::KnownRoot& root, std::function<void()> ended);
  void RetryRoots();
  absl::Status StartServers();
  absl::Status StartMetrics();
  absl::Status SayReady();
  void WarnOfMemoryLimit();

  enum class Event { kNone, kSignal };
  Event WaitForEvent(Duration timeout);
  void Wake() { ::eventfd_write(wake_.get(), 1); }
  void Notify(const std::string& state);
  void FeedWatchdog();
  void PublishStatus();
  bool IsIdleTooLong();
  absl::StatusOr<v1::Status> AskStatus();

  // Whether everything sealed is published.
  bool Drain(Instant deadline);
  void Stop();

  const DaemonOptions options_;
  const config::v1::DaemonConfig& config_;
  const UniqueFd signals_;
  const UniqueFd wake_;
  std::unique_ptr<Notifier> notifier_;
  std::unique_ptr<ManagerStore> store_;  // Null: the manager keeps nothing for us.
  std::optional<Duration> watchdog_;
  std::array<int64_t, 3> fed_turns_ = {-1, -1, -1};
  Instant next_status_{};
  Instant last_busy_{};
  std::atomic<bool> keepers_left_ = false;
  std::atomic<bool> drained_ = false;
  std::atomic<bool> sealed_saves_ = false;  // As of the engine's last tick.

  DaemonMetrics metrics_;
  SaveLog save_log_;
  SessionRegistry sessions_;
  PeerTable peers_;
  CallAuthenticator authenticator_;
  CallLimits call_limits_;
  ServiceContext context_;

  // In the order in which they are made. Stop takes them down: first who calls, then the loop, then what it
  // worked with.
  std::unique_ptr<StateDirectory> state_;
  std::unique_ptr<EventLoop> loop_;
  std::shared_ptr<LoopGate> gate_;
  std::unique_ptr<ThreadedRootIoFactory> root_ios_;
  std::unique_ptr<WorkerPool> state_worker_;  // Writes the list of known roots.
  std::unique_ptr<RootAttacher> attacher_;
  RootRetries root_retries_;  // Outlives what calls it: attaches_ and the loop.
  std::unique_ptr<AttachQueue> attaches_;
  std::unique_ptr<SealJournal> journal_;  // Null: nobody would find it.
  std::unique_ptr<SegmentPool> pool_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<WorkerPool> workers_;
  std::unique_ptr<SessionEvents> events_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<HandoffServer> handoff_;
  std::unique_ptr<HttpServer> http_;
};

absl::Status Daemon::Start() {
  if (!signals_ || !wake_) return ErrnoError(errno, "signalfd and eventfd");
  CKPTD_ASSIGN_OR_RETURN(notifier_, MakeNotifier());
  watchdog_ = WatchdogInterval();
  ::signal(SIGPIPE, SIG_IGN);
  if (options_.is_private) ::signal(SIGHUP, SIG_IGN);  // It outlives the terminal of the job that started it.
  RouteGrpcLog();
  CKPTD_ASSIGN_OR_RETURN(context_.daemon_instance, RandomId());
  context_.daemon_version = kVersion;
  Log(LogLevel::kInfo, "starting",
      {{"version", kVersion},
       {"instance", context_.daemon_instance},
       {"descriptors", RaiseDescriptorLimit()}});
  WarnOfMemoryLimit();
  CKPTD_ASSIGN_OR_RETURN(state_,
                         StateDirectory::Open(config_.state_directory(), kPredecessorPatience,
                                              {.roots_per_uid = config_.limits().known_roots_per_uid()}));
  for (const std::string& problem : state_->problems()) Log(LogLevel::kWarning, problem);
  StartEngine(TakeOver());
  RecoverRoots();
  CKPTD_RETURN_IF_ERROR(StartServers());
  return SayReady();
}

void Daemon::WarnOfMemoryLimit() {
  const std::optional<int64_t> limit = ControlGroupMemoryLimit();
  if (!limit || *limit > config_.pool().bytes()) return;
  Log(LogLevel::kWarning,
      "the control group's memory limit is not above the pool: raise MemoryMax, or lower pool.bytes",
      {{"limit_bytes", *limit}, {"pool_bytes", config_.pool().bytes()}});
}

// After the state directory is locked: the daemon before this one has ended.
Inheritance Daemon::TakeOver() {
  std::vector<NamedDescriptor> descriptors = TakeManagerDescriptors();
  std::set<std::string> held;
  for (const NamedDescriptor& descriptor : descriptors) held.insert(descriptor.name);
  Inheritance inheritance = TakeInheritance(std::move(descriptors));
  for (const std::string& problem : inheritance.problems) Log(LogLevel::kWarning, problem);
  if (!held.empty()) {
    Log(LogLevel::kInfo, "taking over from an earlier daemon",
        {{"sealed_saves", inheritance.saves.size()},
         {"segments", inheritance.used.size()},
         {"segments_freed", inheritance.unused.size()}});
  }
  const int most = ManagerStoreSize();
  if (most == 0 && held.empty()) return inheritance;
  store_ = std::make_unique<ManagerStore>(notifier_.get(), most, std::move(held), kManagerPatience);
  for (const std::string& name : inheritance.useless) (void)store_->Remove(name);
  journal_ = std::move(inheritance.journal);
  if (!journal_) StartJournal(most);
  return inheritance;
}

void Daemon::StartJournal(int store_size) {
  absl::StatusOr<std::unique_ptr<SealJournal>> journal = SealJournal::Create();
  absl::Status kept = journal.status();
  if (kept.ok()) kept = store_->Put(kJournalName, (*journal)->fd());
  if (kept.ok()) {
    journal_ = *std::move(journal);
    Log(LogLevel::kInfo, "the service manager keeps what is sealed", {{"descriptors", store_size}});
    return;
  }
  Log(LogLevel::kWarning,
      "the service manager does not keep what is sealed: it is lost if this daemon is killed",
      {ErrorField(kept)});
}

void Daemon::StartEngine(Inheritance inheritance) {
  loop_ = std::make_unique<EventLoop>("ckptd-engine");
  gate_ = std::make_shared<LoopGate>(loop_.get());
  const auto post = [gate = gate_](absl::AnyInvocable<void()> work) { gate->Post(std::move(work)); };
  const auto& io = config_.io();
  ThreadedRootIoOptions root_options;
  root_options.backend = BackendOf(io.backend());
  root_options.writer.chunk_bytes = io.chunk_bytes();
  root_options.writer.depth = io.depth();
  root_options.checksum_threads = io.checksum_threads();
  root_ios_ = std::make_unique<ThreadedRootIoFactory>(root_options, &SystemClock(), post);
  state_worker_ = std::make_unique<WorkerPool>(1);
  AttachLimits attach_limits;
  attach_limits.waiting_per_uid = kWaitingAttaches;
  attach_limits.patience = std::chrono::seconds(config_.limits().attach_timeout_seconds());
  attaches_ = std::make_unique<AttachQueue>(attach_limits, &SystemClock());
  attacher_ = std::make_unique<RootAttacher>(
      state_.get(),
      [this](UniqueFd directory, const FileUser& user) {
        return root_ios_->Make(std::move(directory), user);
      },
      RootAttacher::Threads{
          .state = [this](absl::AnyInvocable<void()> work) { state_worker_->Submit(std::move(work)); },
          .engine = post,
          .look =
              [this](uid_t uid, uint64_t device, AttachQueue::Look look, AttachQueue::Done done) {
                attaches_->Submit(uid, absl::StrCat("device ", device), std::move(look), std::move(done),
                                  /*any_number=*/true);
              }});
  const auto& pool = config_.pool();
  pool_ = SegmentPool::Start(
      {.bytes = pool.bytes(),
       .segment_bytes = pool.segment_bytes(),
       .populate_ahead_bytes = pool.populate_ahead_bytes(),
       .resident_bytes = pool.resident_bytes(),
       .pages = PagesOf(pool.huge_pages())},
      post, [](const std::string& text) { Log(LogLevel::kWarning, text); },
      {.store = store_.get(), .used = std::move(inheritance.used), .unused = std::move(inheritance.unused)});
  EngineOptions options;
  options.daemon_version = context_.daemon_version;
  options.daemon_instance = context_.daemon_instance;
  options.degraded_after = std::chrono::seconds(config_.degraded_after_seconds());
  options.chunk_bytes = io.chunk_bytes();
  options.scrub_period = std::chrono::hours(config_.scrub().period_hours());
  options.scrub_bytes_per_second = config_.scrub().bytes_per_second();
  const auto& limits = config_.limits();
  options.max_admission_timeout = std::chrono::seconds(limits.max_admission_timeout_seconds());
  options.max_commit_timeout = std::chrono::seconds(limits.max_commit_timeout_seconds());
  options.max_pool_percent_per_user = limits.max_pool_percent_per_user();
  options.max_reader_pool_percent_per_user = limits.max_reader_pool_percent_per_user();
  options.over_share_grace = std::chrono::seconds(limits.over_share_grace_seconds());
  options.idle_root = std::chrono::seconds(config_.limits().idle_root_seconds());
  options.roots_per_uid = config_.limits().roots_per_uid();
  options.file_systems_per_uid = config_.limits().file_systems_per_uid();
  options.attach_timeout = attach_limits.patience;
  options.limits.ranks_per_run = limits.ranks_per_run();
  options.limits.files_per_part = limits.files_per_part();
  options.limits.files_per_uid = limits.files_per_uid();
  options.limits.saves_per_uid = limits.saves_per_uid();
  options.limits.leases_per_uid = limits.leases_per_uid();
  options.limits.manifest_bytes_per_uid = limits.manifest_bytes_per_uid();
  options.limits.watches_per_uid = limits.watches_per_uid();
  engine_ = std::make_unique<Engine>(options, &SystemClock(), pool_.get(), &save_log_, journal_.get());
  engine_->Inherit(std::move(inheritance.saves));
  loop_->Start(
      [this] {
        engine_->Tick();
        sealed_saves_ = engine_->HasSealedSaves();
      },
      kTick);
  workers_ = std::make_unique<WorkerPool>(kWorkers);
}

void Daemon::RecoverRoots() {
  const std::vector<storage::v1::KnownRoot> roots = state_->roots();
  auto pending = std::make_shared<Countdown>(roots.size());
  for (const storage::v1::KnownRoot& root : roots) RecoverRoot(root, [pending] { pending->Down(); });
  // What is asked about a root while it is recovered waits in the engine. One that hangs must not keep the
  // others.
  if (const size_t left = pending->Wait(kRecoverPatience); left > 0) {
    Log(LogLevel::kWarning, "known roots are not recovered yet; serving the others meanwhile",
        {{"roots", left}});
  }
}

// By its path anew each time: the file system may have been mounted again since, and no descriptor may keep
// one that has failed from being unmounted.
void Daemon::RecoverRoot(const storage::v1::KnownRoot& root, std::function<void()> ended) {
  const auto end = [this, root, ended = std::move(ended)](const absl::StatusOr<std::string>& run) {
    ended();
    const bool said = root_retries_.failures(root) > 0;
    const bool again = root_retries_.Ended(root, run.status(), SystemClock().Now());
    if (run.ok()) return Log(LogLevel::kInfo, "root recovered", {{"run", *run}, {"root", root.path()}});
    if (again && said) return;
    Log(LogLevel::kWarning,
        again ? "a known root is not recovered yet; it is tried again" : "a known root is not recovered",
        {{"root", root.path()}, ErrorField(run.status())});
  };
  attaches_->Submit(
      static_cast<uid_t>(root.uid()), absl::StrCat("device ", root.device()),
      [this, root] { return attacher_->Reopen(root); },
      [this, end](absl::StatusOr<RootAttachment> attachment) {
        if (!attachment.ok()) return end(attachment.status());
        loop_->Post([this, attachment = *std::move(attachment), end]() mutable {
          engine_->RecoverRoot(std::move(attachment), end);
        });
      },
      /*any_number=*/true);
}

void Daemon::RetryRoots() {
  for (const storage::v1::KnownRoot& root : root_retries_.TakeDue(SystemClock().Now()))
    RecoverRoot(root, [] {});
}

absl::Status Daemon::StartServers() {
  context_.engine = engine_.get();
  context_.loop = loop_.get();
  context_.sessions = &sessions_;
  context_.authenticator = &authenticator_;
  context_.workers = workers_.get();
  context_.attaches = attaches_.get();
  const auto& container_roots = config_.security().container_roots();
  context_.container_roots = {container_roots.begin(), container_roots.end()};
  context_.call_limits = &call_limits_;
  context_.make_attachment = [this](UniqueFd directory, const std::string& path, const FileUser& user) {
    return attacher_->Attach(std::move(directory), path, user);
  };
  UnixListenerOptions socket{.path = config_.socket_path(),
                             .type = SOCK_STREAM,
                             .mode = SocketMode(config_.socket_mode()),
                             .group = {},
                             .patience = kPredecessorPatience};
  if (!config_.socket_group().empty()) {
    CKPTD_ASSIGN_OR_RETURN(socket.group, FindGroup(config_.socket_group()));
  }
  CKPTD_ASSIGN_OR_RETURN(UniqueFd listener, ListenUnix(socket));
  const auto log = [](const std::string& text) { Log(LogLevel::kWarning, text); };
  GrpcLimits grpc_limits;
  grpc_limits.max_connections = 4 * config_.max_sessions();
  grpc_limits.max_connections_per_uid = config_.limits().connections_per_uid();
  grpc_limits.streams_per_connection = config_.limits().streams_per_connection();
  grpc_limits.memory_bytes = config_.limits().grpc_memory_bytes();
  CKPTD_ASSIGN_OR_RETURN(grpc_, GrpcServer::Start(std::move(listener), &peers_, &context_, log, grpc_limits));
  events_ = std::make_unique<SessionEvents>(&context_, [this] {
    keepers_left_ = true;
    Wake();
  });
  HandoffOptions handoff;
  handoff.socket_path = config_.socket_path() + ".handoff";
  handoff.mode = socket.mode;
  handoff.group = socket.group;
  handoff.listen_patience = kPredecessorPatience;
  handoff.max_connections = 2 * config_.max_sessions();
  handoff.max_connections_per_uid = config_.limits().connections_per_uid();
  handoff.daemon_instance = context_.daemon_instance;
  handoff.daemon_version = context_.daemon_version;
  CKPTD_ASSIGN_OR_RETURN(handoff_,
                         HandoffServer::Start(handoff, &sessions_, &pool_->directory(), events_.get(), log));
  return StartMetrics();
}

absl::Status Daemon::StartMetrics() {
  const auto& metrics = config_.metrics();
  HttpServer::Options options;
  options.port = metrics.port();
  if (!metrics.socket_path().empty()) {
    UnixListenerOptions socket{.path = metrics.socket_path(),
                               .type = SOCK_STREAM,
                               .mode = SocketMode(metrics.socket_mode()),
                               .group = {},
                               .patience = kPredecessorPatience};
    if (!metrics.socket_group().empty()) {
      CKPTD_ASSIGN_OR_RETURN(socket.group, FindGroup(metrics.socket_group()));
    }
    CKPTD_ASSIGN_OR_RETURN(options.listener, ListenUnix(socket));
  }
  if (options.port < 0 && !options.listener) return absl::OkStatus();
  if (!metrics.token_file().empty()) {
    CKPTD_ASSIGN_OR_RETURN(options.token, ReadToken(metrics.token_file()));
  }
  CKPTD_ASSIGN_OR_RETURN(
      http_, HttpServer::Start(std::move(options), [this]() -> absl::StatusOr<std::string> {
        CKPTD_ASSIGN_OR_RETURN(const v1::Status status, AskStatus());
        return metrics_.Render(status, SystemClock().UnixMicros(), config_.metrics().root_paths());
      }));
  return absl::OkStatus();
}

absl::Status Daemon::SayReady() {
  grpc_->SetServing(true);
  std::vector<LogField> fields = {{"socket", config_.socket_path()},
                                  {"pool_bytes", config_.pool().bytes()},
                                  {"segment_bytes", config_.pool().segment_bytes()}};
  if (http_ && http_->port() > 0) fields.emplace_back("metrics_port", http_->port());
  Log(LogLevel::kInfo, "serving", fields);
  Notify("READY=1");
  if (options_.ready_fd < 0) return absl::OkStatus();
  constexpr char kReady[] = "READY\n";
  UniqueFd ready(options_.ready_fd);
  if (::write(ready.get(), kReady, sizeof(kReady) - 1) != sizeof(kReady) - 1) {
    return ErrnoError(errno, absl::StrCat("write READY to descriptor ", options_.ready_fd, " (--ready_fd)"));
  }
  return absl::OkStatus();
}

Daemon::Event Daemon::WaitForEvent(Duration timeout) {
  pollfd fds[2] = {{signals_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
  const auto millis = std::chrono::ceil<std::chrono::milliseconds>(std::max(timeout, Duration::zero()));
  ::poll(fds, 2, static_cast<int>(millis.count()));
  eventfd_t ignored = 0;
  if (fds[1].revents != 0) ::eventfd_read(wake_.get(), &ignored);
  FeedWatchdog();
  signalfd_siginfo info{};
  return ::read(signals_.get(), &info, sizeof(info)) == sizeof(info) ? Event::kSignal : Event::kNone;
}

int Daemon::Serve() {
  last_busy_ = SystemClock().Now();
  bool hurried = true;
  while (true) {
    const Duration turn = watchdog_ ? std::min(kTurn, *watchdog_ / 4) : kTurn;
    if (WaitForEvent(turn) == Event::kSignal) {
      Log(LogLevel::kInfo, "asked to end: publishing what is sealed",
          {{"patience_s", config_.drain_timeout_seconds()}});
      break;
    }
    PublishStatus();
    attaches_->Expire();
    RetryRoots();
    if (!options_.is_private) continue;
    // Nobody waits for a private daemon's end: what is sealed gets the time that it takes.
    if (keepers_left_.exchange(false) && sessions_.CloseToKeepers()) {
      Log(LogLevel::kInfo, "the last keeper has left: publishing what is sealed");
      hurried = false;
      break;
    }
    if (IsIdleTooLong() && sessions_.CloseToKeepers()) {
      Log(LogLevel::kInfo, "nobody needs this private daemon any more");
      break;
    }
  }
  const Duration patience = std::chrono::seconds(config_.drain_timeout_seconds());
  const bool published = Drain(hurried ? SystemClock().Now() + patience : Instant::max());
  Stop();
  Log(LogLevel::kInfo, published ? "ended" : "ended with sealed saves that are not published");
  return published ? 0 : 1;
}

bool Daemon::IsIdleTooLong() {
  const Instant now = SystemClock().Now();
  if (sessions_.sessions() > 0 || sealed_saves_) last_busy_ = now;
  return now - last_busy_ >= options_.idle_timeout;
}

bool Daemon::Drain(Instant deadline) {
  Notify("STOPPING=1\nSTATUS=publishing what is sealed");
  grpc_->SetServing(false);
  loop_->Post([this] {
    engine_->Drain([this] {
      drained_ = true;
      Wake();
    });
  });
  Instant retention_deadline = SystemClock().Now() + kRetentionPatience;
  while (!drained_) {
    const Instant now = SystemClock().Now();
    if (sealed_saves_) retention_deadline = now + kRetentionPatience;
    if (!sealed_saves_ && now >= std::min(deadline, retention_deadline)) {
      Log(LogLevel::kWarning,
          "old checkpoints are still being removed: the next save's retention goes on with it");
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
    if (WaitForEvent(std::min({deadline - now, retention_deadline - now, kTurn})) == Event::kSignal) {
      Log(LogLevel::kWarning, "asked to end a second time: not waiting for sealed saves");
      return drained_;
    }
  }
  return true;
}

void Daemon::Stop() {
  const ExitGuard guard(kStopPatience,
                        "stopping takes too long, perhaps a file system hangs: leaving at once");
  handoff_.reset();
  if (grpc_) {
    // While we still listen: from now on the next daemon may have the name.
    ::unlink(config_.socket_path().c_str());
    grpc_->Stop(kCallGrace);
  }
  grpc_.reset();
  if (http_ && !config_.metrics().socket_path().empty()) ::unlink(config_.metrics().socket_path().c_str());
  http_.reset();
  events_.reset();
  workers_.reset();
  if (attaches_) attaches_->Close();
  if (gate_) gate_->Close();
  loop_.reset();
  state_worker_.reset();
  if (root_ios_) {
    const std::vector<std::string> hung = root_ios_->Close(kRootPatience);
    if (!hung.empty()) {
      // Their threads still use the segments, so these must stay mapped to the last instant.
      Log(LogLevel::kError, "file systems do not answer: leaving at once",
          {{"devices", absl::StrJoin(hung, ",")}});
      ::_exit(1);
    }
  }
  if (journal_ && journal_->size() > 0) {
    // The next daemon writes them from this memory, so it must not be given back.
    Log(LogLevel::kWarning, "leaving sealed saves to the next daemon", {{"saves", journal_->size()}});
    ::_exit(1);
  }
  engine_.reset();
  root_ios_.reset();  // Before the memory that its checksums are of.
  pool_.reset();
  attacher_.reset();
  state_.reset();
}

void Daemon::Notify(const std::string& state) {
  if (absl::Status sent = notifier_->Send(state); !sent.ok()) {
    Log(LogLevel::kWarning, "the service manager does not hear us", {ErrorField(sent)});
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

absl::StatusOr<v1::Status> Daemon::AskStatus() {
  auto promise = std::make_shared<std::promise<v1::Status>>();
  std::future<v1::Status> answer = promise->get_future();
  loop_->Post([this, promise] {
    promise->set_value(engine_->GetStatus({.session = 0, .uid = ::geteuid(), .privileged = true}));
  });
  if (answer.wait_for(kEnginePatience) != std::future_status::ready) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, "ENGINE_SLOW",
                     "the engine's thread has not answered within 5 s");
  }
  return answer.get();
}

}  // namespace

void BlockSignals() {
  const sigset_t signals = EndSignals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // A write beyond a limit on the size of files is an error of that write (EFBIG), and no reason to die.
  ::signal(SIGXFSZ, SIG_IGN);
}

int RunDaemon(const DaemonOptions& options) {
  ::umask(0);  // Of each file it is the trainer's that counts (FileUser::umask).
  Daemon daemon(options);
  if (const absl::Status started = daemon.Start(); !started.ok()) {
    Log(LogLevel::kError, "cannot start", {ErrorField(started)});
    return 1;
  }
  return daemon.Serve();
}

}  // namespace ckptd
