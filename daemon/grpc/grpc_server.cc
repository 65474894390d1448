#include "daemon/grpc/grpc_server.h"

#include <fcntl.h>
#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_posix.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/grpc/admin_service.h"
#include "daemon/grpc/checkpoints_service.h"
#include "storage/base/errors.h"

#ifdef _GLIBCXX_TSAN
// When a call ends before gRPC has set it up, a thread of gRPC's own serialises the answer. ThreadSanitizer
// does not see how the answer got there (tsan_hop.h).
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:ByteSizeLong\nrace:_InternalSerialize\n";
}
#endif

namespace ckptd {
namespace {

constexpr int kTurnMillis = 500;
constexpr int kMaxReceiveBytes = 4 << 20;
constexpr int kMaxThreads = 32;  // Reflection is the only service that holds a thread for each call.

// Gives connections descriptor numbers in turn, so that a number is not reused soon after a connection was
// closed. gRPC identifies a connection by its number alone, and a late call must not count as one of the next
// user.
class DescriptorNumbers {
 public:
  DescriptorNumbers() {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    const auto most = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 32768));
    first_ = most / 2;
    end_ = most;
    next_ = first_;
  }

  // Returns the connection under the next free number, or unchanged if there is none.
  UniqueFd Renumber(UniqueFd connection) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      const int fd = ::fcntl(connection.get(), F_DUPFD_CLOEXEC, next_);
      next_ = fd >= 0 && fd + 1 < end_ ? fd + 1 : first_;
      if (fd >= 0 && fd < end_) return UniqueFd(fd);
      if (fd >= 0) ::close(fd);
    }
    return connection;
  }

 private:
  int first_ = 0, end_ = 0, next_ = 0;
};

// Counts the connections that gRPC has open. gRPC does not report when it closes one, so this looks whether
// the descriptor still is the same socket.
class OpenConnections {
 public:
  OpenConnections(int most, int most_of_uid) : most_(most), most_of_uid_(most_of_uid) {}

  void SetMostOfUid(int most) { most_of_uid_ = most; }

  // Adds the connection. Returns "", or why a limit refuses it.
  std::string Add(int fd, uid_t uid) {
    const auto full = [&] { return static_cast<int>(open_.size()) >= most_ || of_uid_[uid] >= most_of_uid_; };
    if (full()) DropClosed();
    if (of_uid_[uid] >= most_of_uid_)
      return absl::StrCat("uid ", uid, " has ", of_uid_[uid], " already (limits.connections_per_uid)");
    if (full()) return absl::StrCat("there are ", open_.size(), " already");
    Drop(fd);
    open_.emplace(fd, Socket{InodeOf(fd), uid});
    ++of_uid_[uid];
    return "";
  }

 private:
  struct Socket {
    ino_t inode;
    uid_t uid;
  };

  static ino_t InodeOf(int fd) {
    struct stat info {};
    return ::fstat(fd, &info) == 0 ? info.st_ino : 0;
  }
  void Drop(int fd) {
    const auto found = open_.find(fd);
    if (found == open_.end()) return;
    if (--of_uid_[found->second.uid] == 0) of_uid_.erase(found->second.uid);
    open_.erase(found);
  }
  void DropClosed() {
    std::vector<int> closed;
    for (const auto& [fd, socket] : open_) {
      if (InodeOf(fd) != socket.inode) closed.push_back(fd);
    }
    for (const int fd : closed) Drop(fd);
  }

  const int most_;
  int most_of_uid_;
  std::map<int, Socket> open_;
  std::map<uid_t, int> of_uid_;
};

void InitGrpcOnce() {
  // Both settings are process-wide and must precede the first builder.
  static const bool done = [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    // Keeps gRPC initialised until the process ends: its shutdown would wait up to 10 s for one of its
    // pollers.
    ::grpc_init();
    return true;
  }();
  (void)done;
}

}  // namespace

class GrpcServer::Impl {
 public:
  Impl(UniqueFd listener, PeerTable* peers, ServiceContext* context,
       std::function<void(const std::string&)> log, GrpcLimits limits)
      : listener_(std::move(listener)),
        stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        peers_(peers),
        log_(std::move(log)),
        limits_(limits),
        most_of_uid_(limits.max_connections_per_uid),
        connections_(limits.max_connections, limits.max_connections_per_uid),
        checkpoints_(MakeCheckpointsService(context)),
        admin_(MakeAdminService(context)) {}

  ~Impl() { Stop(Duration::zero()); }

  absl::Status Start() {
    InitGrpcOnce();
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(kMaxReceiveBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits_.streams_per_connection);
    quota_.emplace("ckptd");
    quota_->Resize(static_cast<size_t>(limits_.memory_bytes));
    quota_->SetMaxThreads(kMaxThreads);
    builder.SetResourceQuota(*quota_);
    builder.RegisterService(checkpoints_.get());
    builder.RegisterService(admin_.get());
    server_ = builder.BuildAndStart();
    if (!server_) return MakeError(absl::StatusCode::kInternal, "GRPC", "the gRPC server did not start");
    SetServing(false);
    accept_thread_ = std::thread([this] {
      ::pthread_setname_np(::pthread_self(), "ckptd-accept");
      AcceptLoop();
    });
    return absl::OkStatus();
  }

  void SetLimits(const GrpcLimits& limits) {
    most_of_uid_ = limits.max_connections_per_uid;
    quota_->Resize(static_cast<size_t>(limits.memory_bytes));
  }

  void SetServing(bool serving) {
    grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
    for (const char* service : {"", "ckptd.v1.Checkpoints", "ckptd.v1.Admin"}) {
      health->SetServingStatus(service, serving);
    }
  }

  void Stop(Duration grace) {
    if (!accept_thread_.joinable()) return;
    // Do not shut the listener down to wake the thread: a service manager may hold the same socket.
    ::eventfd_write(stop_.get(), 1);
    accept_thread_.join();
    listener_.reset();
    server_->Shutdown(std::chrono::system_clock::now() +
                      std::chrono::duration_cast<std::chrono::system_clock::duration>(grace));
    server_->Wait();
  }

  int64_t turns() const { return turns_; }

 private:
  void AcceptLoop() {
    int listening = listener_.get();
    while (true) {
      // After a failed accept the listener is not polled for one turn. (poll ignores a negative descriptor.)
      pollfd fds[2] = {{listening, POLLIN, 0}, {stop_.get(), POLLIN, 0}};
      ::poll(fds, 2, kTurnMillis);
      ++turns_;
      if (fds[1].revents != 0) return;
      listening = listener_.get();
      if (fds[0].revents != 0 && !AcceptOne()) listening = -1;
    }
  }

  // Returns false if accepting failed for want of resources.
  bool AcceptOne() {
    UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return true;
      log_(absl::StrCat("cannot accept a gRPC connection: ", std::strerror(errno)));
      return false;
    }
    absl::StatusOr<Peer> peer = PeerOfSocket(connection.get());
    if (!peer.ok()) {
      log_(absl::StrCat("gRPC connection refused: ", std::string(peer.status().message())));
      return true;
    }
    connection = numbers_.Renumber(std::move(connection));
    connections_.SetMostOfUid(most_of_uid_);
    if (const std::string refused = connections_.Add(connection.get(), peer->user.uid); !refused.empty()) {
      if (!std::exchange(refusal_reported_, true)) log_(absl::StrCat("gRPC connection refused: ", refused));
      return true;
    }
    refusal_reported_ = false;
    peers_->Add(connection.get(), *std::move(peer));
    grpc::AddInsecureChannelFromFd(server_.get(), connection.release());
    return true;
  }

  UniqueFd listener_;
  const UniqueFd stop_;
  PeerTable* const peers_;
  const std::function<void(const std::string&)> log_;
  const GrpcLimits limits_;       // As of the start.
  std::atomic<int> most_of_uid_;  // Connections.
  std::optional<grpc::ResourceQuota> quota_;
  OpenConnections connections_;    // Used on the accepting thread only.
  bool refusal_reported_ = false;  // Used on the accepting thread only.
  const std::unique_ptr<grpc::Service> checkpoints_;
  const std::unique_ptr<grpc::Service> admin_;
  std::unique_ptr<grpc::Server> server_;
  DescriptorNumbers numbers_;  // Used on the accepting thread only.
  std::atomic<int64_t> turns_ = 0;
  std::thread accept_thread_;
};

GrpcServer::GrpcServer() = default;
GrpcServer::~GrpcServer() = default;

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(UniqueFd listener, PeerTable* peers,
                                                              ServiceContext* context,
                                                              std::function<void(const std::string&)> log,
                                                              GrpcLimits limits) {
  std::unique_ptr<GrpcServer> server(new GrpcServer);
  server->impl_ = std::make_unique<Impl>(std::move(listener), peers, context, std::move(log), limits);
  if (absl::Status started = server->impl_->Start(); !started.ok()) return started;
  return server;
}

void GrpcServer::SetLimits(const GrpcLimits& limits) { impl_->SetLimits(limits); }
void GrpcServer::SetServing(bool serving) { impl_->SetServing(serving); }
void GrpcServer::Stop(Duration grace) { impl_->Stop(grace); }
int64_t GrpcServer::turns() const { return impl_->turns(); }

}  // namespace ckptd
