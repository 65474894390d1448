#include "daemon/handoff/handoff_server.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/unix_listener.h"
#include "daemon/handoff/handoff_server_impl.h"
#include "daemon/sessions/peer_table.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr int kPacketsPerTurn = 16;  // Read from one connection before the others have their turn.
constexpr Duration kLongestTurn = std::chrono::seconds(1);  // So that the watchdog sees the loop turn.
constexpr Duration kAcceptPause = std::chrono::milliseconds(200);
constexpr Duration kHeldTurn = std::chrono::milliseconds(10);  // While answers wait for unread descriptors.

constexpr int kSoPeerPidfd = 77;  // SO_PEERPIDFD, Linux 6.5.

// Returns a pidfd of the process at the other end. An empty one if the process cannot be watched (another pid
// namespace, an old kernel). NOT_FOUND if it has ended already.
absl::StatusOr<UniqueFd> PidfdOf(int socket, pid_t pid) {
  int fd = -1;
  socklen_t size = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &fd, &size) == 0) return UniqueFd(fd);
  if (pid <= 0) return UniqueFd();
  UniqueFd opened(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!opened && errno == ESRCH) return absl::NotFoundError("its process has ended");
  return opened;
}

}  // namespace

absl::Status HandoffServer::Impl::Start() {
  CKPTD_ASSIGN_OR_RETURN(listener_, ListenUnix({.path = options_.socket_path,
                                                .type = SOCK_SEQPACKET,
                                                .mode = options_.mode,
                                                .group = options_.group,
                                                .timeout = options_.listen_timeout}));
  lstat(options_.socket_path.c_str(), &socket_file_);
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_ || replies_->wake_fd() < 0) return ErrnoError(errno, "epoll_create or eventfd");
  CKPTD_RETURN_IF_ERROR(Watch(listener_.get(), Key(Source::kListener), EPOLLIN));
  CKPTD_RETURN_IF_ERROR(Watch(replies_->wake_fd(), Key(Source::kWake), EPOLLIN));
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "ckptd-handoff");
  return absl::OkStatus();
}

HandoffServer::Impl::~Impl() {
  if (thread_.joinable()) {
    // Do not shut the listener down to wake the thread: a service manager may hold the same socket.
    stop_.store(true);
    replies_->Wake();
    thread_.join();
  }
  struct stat now {};
  if (listener_ && lstat(options_.socket_path.c_str(), &now) == 0 && now.st_dev == socket_file_.st_dev &&
      now.st_ino == socket_file_.st_ino) {
    unlink(options_.socket_path.c_str());
  }
}

absl::Status HandoffServer::Impl::Watch(int fd, uint64_t key, uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  return epoll_ctl(epoll_.get(), operation, fd, &event) == 0 ? absl::OkStatus()
                                                             : ErrnoError(errno, "epoll_ctl");
}

void HandoffServer::Impl::Run() {
  std::array<epoll_event, 64> events;
  while (!stop_.load()) {
    turns_.fetch_add(1, std::memory_order_relaxed);
    const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(UntilNextDeadline());
    const int count =
        epoll_wait(epoll_.get(), events.data(), events.size(), static_cast<int>(timeout.count()));
    for (int i = 0; i < count && !stop_.load(); ++i) Handle(events[i].data.u64);
    CheckHeld();
    CheckDeadlines();
  }
}

Duration HandoffServer::Impl::UntilNextDeadline() const {
  Instant next = SystemClock().Now() + kLongestTurn;
  if (accept_again_) next = std::min(next, *accept_again_);
  if (!held_.empty()) next = std::min(next, SystemClock().Now() + kHeldTurn);
  for (const auto& [id, connection] : connections_) {
    if (!connection.greeted) next = std::min(next, connection.hello_deadline);
  }
  return std::max(Duration::zero(), next - SystemClock().Now());
}

void HandoffServer::Impl::CheckDeadlines() {
  const Instant now = SystemClock().Now();
  if (accept_again_ && now >= *accept_again_) {
    accept_again_.reset();
    if (absl::Status watched = Watch(listener_.get(), Key(Source::kListener), EPOLLIN); !watched.ok()) {
      accept_again_ = now + kAcceptPause;
    }
  }
  if (unread_.num_remains() > 0) unread_.Refresh();
  std::vector<uint64_t> late;
  for (const auto& [id, connection] : connections_) {
    if (!connection.greeted && now >= connection.hello_deadline) late.push_back(id);
  }
  for (uint64_t id : late) DropForFault(id, absl::DeadlineExceededError("it did not say Hello in time"));
}

void HandoffServer::Impl::Handle(uint64_t key) {
  const uint64_t id = key >> 2;
  switch (static_cast<Source>(key & 3)) {
    case Source::kListener:
      return Accept();
    case Source::kWake:
      return TakeReplies();
    case Source::kSocket:
      return ReadFrom(id);
    case Source::kProcess:
      ReadFrom(id);  // Requests that it sent before it ended count.
      return Drop(id, "its process ended");
  }
}

// ---- connections

void HandoffServer::Impl::Accept() {
  while (true) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      AddConnection(std::move(socket));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    // Most likely the daemon has no descriptors left. The listener stays readable, so stop watching it for a
    // while.
    log_(absl::StrCat("cannot accept a hand-off connection: ",
                      std::string(ErrnoError(errno, "accept").message())));
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
    accept_again_ = SystemClock().Now() + kAcceptPause;
    return;
  }
}

void HandoffServer::Impl::AddConnection(UniqueFd socket) {
  const int open = static_cast<int>(connections_.size()) + unread_.num_remains();
  if (open >= options_.max_connections) {
    if (!std::exchange(full_reported_, true)) {
      log_(absl::StrCat("refused a hand-off connection: there are ", open,
                        " already, the most that max_sessions allows"));
    }
    return;
  }
  full_reported_ = false;
  absl::StatusOr<Peer> peer = PeerOfSocket(socket.get());
  if (!peer.ok())
    return log_(absl::StrCat("refused a hand-off connection: ", std::string(peer.status().message())));
  const uid_t uid = peer->user.uid;
  const auto of_uid = std::count_if(connections_.begin(), connections_.end(),
                                    [uid](const auto& entry) { return entry.second.peer.user.uid == uid; }) +
                      unread_.num_remains(uid);
  if (of_uid >= most_of_uid_) {
    if (full_uids_reported_.insert(uid).second) {
      log_(absl::StrCat("refused a hand-off connection: uid ", uid, " has ", of_uid,
                        " already (limits.connections_per_uid)"));
    }
    return;
  }
  full_uids_reported_.erase(uid);
  absl::StatusOr<UniqueFd> pidfd = PidfdOf(socket.get(), peer->pid);
  if (!pidfd.ok()) return;
  HandoffConnection connection;
  connection.id = ++last_connection_;
  connection.pidfd = *std::move(pidfd);
  connection.socket = std::move(socket);
  connection.peer = *std::move(peer);
  connection.hello_deadline = SystemClock().Now() + options_.hello_timeout;
  absl::Status watched =
      Watch(connection.socket.get(), Key(Source::kSocket, connection.id), EPOLLIN | EPOLLRDHUP);
  if (watched.ok() && connection.pidfd) {
    watched = Watch(connection.pidfd.get(), Key(Source::kProcess, connection.id), EPOLLIN);
  }
  if (!watched.ok())
    return log_(absl::StrCat("refused a hand-off connection: ", std::string(watched.message())));
  connections_.emplace(connection.id, std::move(connection));
}

void HandoffServer::Impl::ReadFrom(uint64_t id) {
  for (int i = 0; i < kPacketsPerTurn; ++i) {
    auto found = connections_.find(id);
    if (found == connections_.end()) return;
    HandoffConnection& connection = found->second;
    if (connection.leaving) {
      // After Goodbye only the end of the connection matters. Its answer may still be queued.
      return i == 0 ? Drop(id, "the connection was closed") : void();
    }
    absl::StatusOr<std::optional<Packet>> packet = ReceivePacket(connection.socket.get());
    if (absl::IsOutOfRange(packet.status())) return Drop(id, std::string(packet.status().message()));
    if (!packet.ok()) return DropForFault(id, packet.status());
    if (!packet->has_value()) return;
    if (absl::Status status = HandlePacket(connection, *std::move(*packet)); !status.ok()) {
      return DropForFault(id, status);
    }
    Flush(id);
  }
}

// Sends the answers that are ready, in the order of the requests.
void HandoffServer::Impl::Flush(uint64_t id) {
  auto found = connections_.find(id);
  if (found == connections_.end()) return;
  HandoffConnection& connection = found->second;
  while (!connection.answers.empty() && connection.answers.front().ready) {
    HandoffAnswer& answer = connection.answers.front();
    const int descriptors = static_cast<int>(answer.segments.size());
    if (descriptors > 0 && !unread_.CheckRoom(connection, descriptors).ok()) return Hold(connection);
    Packet packet;
    if (descriptors > 0) {
      absl::StatusOr<std::vector<UniqueFd>> segments = FindSegments(connection, answer);
      if (segments.ok()) {
        packet.descriptors = *std::move(segments);
      } else {
        answer.Fail(segments.status());
      }
    }
    packet.bytes = answer.response.SerializeAsString();
    const absl::Status sent = SendPacket(connection.socket.get(), packet);
    // Other processes of the daemon's user count against the kernel's limit, too.
    if (absl::IsResourceExhausted(sent)) return Hold(connection);
    if (!sent.ok()) return DropForFault(id, sent);
    unread_.Add(connection, static_cast<int>(packet.descriptors.size()));
    connection.held_since.reset();
    connection.answers.pop_front();
  }
  held_.erase(id);
  if (connection.leaving && connection.answers.empty()) Drop(id, "said goodbye");
}

// ---- answers that wait until descriptors are read

// Leaves the first answer of a connection queued until descriptors have been read.
void HandoffServer::Impl::Hold(HandoffConnection& connection) {
  if (!connection.held_since) connection.held_since = SystemClock().Now();
  held_.insert(connection.id);
}

void HandoffServer::Impl::CheckHeld() {
  const std::vector<uint64_t> held(held_.begin(), held_.end());
  for (uint64_t id : held) {
    Flush(id);
    const auto found = connections_.find(id);
    if (found == connections_.end() || !held_.contains(id)) continue;
    HandoffConnection& connection = found->second;
    if (SystemClock().Now() - *connection.held_since < options_.read_timeout) continue;
    GiveUpHeld(id,
               unread_.CheckRoom(connection, static_cast<int>(connection.answers.front().segments.size())));
  }
}

// Ends the wait of a held answer after read_timeout. Closes the connections that have left descriptors unread
// for that long, and answers with an error if this connection was not one of them.
void HandoffServer::Impl::GiveUpHeld(uint64_t id, const absl::Status& why) {
  const Instant now = SystemClock().Now();
  const HandoffConnection& waiting = connections_.at(id);
  const uid_t uid = waiting.peer.user.uid;
  const bool only_its_uid =
      unread_.ExceedsUidLimit(uid, static_cast<int>(waiting.answers.front().segments.size()));
  const bool own_fault = waiting.unread > 0;
  std::vector<uint64_t> idle;
  for (const auto& [other, connection] : connections_) {
    const bool to_blame = own_fault ? other == id : !only_its_uid || connection.peer.user.uid == uid;
    if (to_blame && connection.unread > 0 && now - connection.unread_since >= options_.read_timeout)
      idle.push_back(other);
  }
  for (uint64_t other : idle)
    DropForFault(other, absl::UnavailableError("the peer does not read its answers"));
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  HandoffConnection& connection = found->second;
  connection.answers.front().Fail(
      !why.ok()
          ? why
          : MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_EXCEEDED",
                      "the daemon's user has as many descriptors in unread messages as the kernel allows "
                      "(RLIMIT_NOFILE); end the processes that do not read theirs, and try again"));
  connection.held_since.reset();
  Flush(id);
}

// Fills in the answers that other threads have given.
void HandoffServer::Impl::TakeReplies() {
  for (HandoffReplies::Reply& reply : replies_->Take()) {
    auto found = connections_.find(reply.connection);
    if (found == connections_.end()) continue;
    for (HandoffAnswer& answer : found->second.answers) {
      if (answer.ticket != reply.ticket) continue;
      if (reply.root.ok()) {
        answer.response.mutable_attach_root()->set_root(*reply.root);
        answer.ready = true;
      } else {
        answer.Fail(reply.root.status());
      }
    }
    Flush(reply.connection);
  }
}

void HandoffServer::Impl::EndSession(HandoffConnection& connection, const std::string& why, bool goodbye) {
  if (!std::exchange(connection.open, false)) return;
  registry_->Close(connection.session.id);
  delegate_->SessionClosed({connection.session.id, why, goodbye, connection.keeper});
}

// Closes a connection and ends its session. If the peer has unread descriptors, its socket is kept as remains
// until they are read.
void HandoffServer::Impl::Drop(uint64_t id, const std::string& why) {
  auto found = connections_.find(id);
  if (found == connections_.end()) return;
  HandoffConnection connection =
      std::move(found->second);  // Closing its descriptors removes them from epoll.
  connections_.erase(found);
  held_.erase(id);
  EndSession(connection, why, false);
  if (connection.unread == 0) return;
  if (PeerHasReadAll(connection.socket.get())) return unread_.Add(connection, -connection.unread);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.socket.get(), nullptr);
  shutdown(connection.socket.get(), SHUT_RDWR);
  unread_.AddRemains({std::move(connection.socket), connection.peer.user.uid, connection.unread});
}

// Drop, with a line in the log, because the peer broke the protocol or a limit.
void HandoffServer::Impl::DropForFault(uint64_t id, const absl::Status& fault) {
  auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const Peer& peer = found->second.peer;
  log_(absl::StrCat("closed the hand-off connection of pid ", peer.pid, ", uid ", peer.user.uid, ": ",
                    std::string(fault.message())));
  Drop(id, std::string(fault.message()));
}

// ---- HandoffServer

HandoffServer::HandoffServer() = default;
HandoffServer::~HandoffServer() = default;

absl::StatusOr<std::unique_ptr<HandoffServer>> HandoffServer::Start(
    HandoffOptions options, SessionRegistry* registry, SegmentDirectory* directory, HandoffDelegate* delegate,
    std::function<void(const std::string&)> log) {
  std::unique_ptr<HandoffServer> server(new HandoffServer);
  server->impl_ = std::make_unique<Impl>(std::move(options), registry, directory, delegate, std::move(log));
  CKPTD_RETURN_IF_ERROR(server->impl_->Start());
  return server;
}

void HandoffServer::SetMostConnectionsPerUser(int connections) {
  impl_->SetMostConnectionsPerUser(connections);
}
int64_t HandoffServer::turns() const { return impl_->turns(); }

}  // namespace ckptd
