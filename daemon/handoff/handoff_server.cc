#include "daemon/handoff/handoff_server.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <set>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ckptd/v1/handoff.pb.h"
#include "daemon/base/unix_listener.h"
#include "daemon/handoff/handoff_connection.h"
#include "daemon/handoff/packet_socket.h"
#include "daemon/sessions/call_authenticator.h"
#include "daemon/sessions/peer_table.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr int kProtocolVersion = 1;
constexpr size_t kMaxUnanswered = 64;  // Of one connection.
constexpr int kPacketsPerTurn = 16;    // Of one connection, before others have their turn.
constexpr size_t kMaxNameLength = 100;
constexpr size_t kMaxPathLength = 4096;
constexpr Duration kLongestTurn = std::chrono::seconds(1);
constexpr Duration kAcceptPause = std::chrono::milliseconds(200);
constexpr Duration kHeldTurn = std::chrono::milliseconds(10);  // While answers wait for unread descriptors.

constexpr int kSoPeerPidfd = 77;  // SO_PEERPIDFD, Linux 6.5.

bool Printable(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

// The process at the other end; nothing when it cannot be watched (another pid namespace, an old kernel),
// NOT_FOUND when it has ended already.
absl::StatusOr<UniqueFd> PidfdOf(int socket, pid_t pid) {
  int fd = -1;
  socklen_t size = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &fd, &size) == 0) return UniqueFd(fd);
  if (pid <= 0) return UniqueFd();
  UniqueFd opened(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!opened && errno == ESRCH) return absl::NotFoundError("its process has ended");
  return opened;
}

// What an epoll event is of: the low bits say what, the rest which connection.
enum class Source : uint64_t { kListener, kWake, kSocket, kProcess };
uint64_t Key(Source source, uint64_t connection = 0) {
  return connection << 2 | static_cast<uint64_t>(source);
}

}  // namespace

class HandoffServer::Impl {
 public:
  Impl(HandoffOptions options, SessionRegistry* registry, SegmentDirectory* directory,
       HandoffDelegate* delegate, std::function<void(const std::string&)> log)
      : options_(std::move(options)),
        registry_(registry),
        directory_(directory),
        delegate_(delegate),
        log_(std::move(log)) {}

  ~Impl();
  absl::Status Start();
  int64_t turns() const { return turns_.load(std::memory_order_relaxed); }

 private:
  void Run();
  Duration UntilNextDeadline() const;
  void CheckDeadlines();
  absl::Status Watch(int fd, uint64_t key, uint32_t events, int operation = EPOLL_CTL_ADD);
  void Handle(uint64_t key);
  void Accept();
  void AddConnection(UniqueFd socket);
  void ReadFrom(uint64_t id);
  absl::Status HandlePacket(HandoffConnection& connection, Packet packet);
  absl::Status Hello(HandoffConnection& connection, const v1::Hello& hello, v1::HelloResponse& response);
  absl::Status AttachRoot(HandoffConnection& connection, const v1::AttachRoot& request,
                          std::vector<UniqueFd> descriptors, uint64_t ticket);
  static absl::Status FetchSegments(const v1::FetchSegments& request, HandoffAnswer& answer);
  void TakeReplies();
  void Flush(uint64_t id);
  absl::Status MayHaveDescriptors(HandoffConnection& connection, int count);
  void CountUnread(HandoffConnection& connection, int count);
  void LookAtUnread();
  void Hold(HandoffConnection& connection);
  void CheckHeld();
  void GiveUpHeld(uint64_t id, const absl::Status& why);
  absl::StatusOr<std::vector<UniqueFd>> FindSegments(HandoffConnection& connection, HandoffAnswer& answer);
  void EndSession(HandoffConnection& connection, const std::string& why, bool goodbye);
  void Drop(uint64_t id, const std::string& why);
  void DropForFault(uint64_t id, const absl::Status& fault);

  const HandoffOptions options_;
  SessionRegistry* const registry_;
  SegmentDirectory* const directory_;
  HandoffDelegate* const delegate_;
  const std::function<void(const std::string&)> log_;
  const uid_t overflow_uid_ = OverflowUid();

  UniqueFd listener_;
  UniqueFd epoll_;
  struct stat socket_file_ {};
  const std::shared_ptr<HandoffReplies> replies_ = std::make_shared<HandoffReplies>();
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> turns_{0};

  // Of the server's thread.
  std::map<uint64_t, HandoffConnection> connections_;
  uint64_t last_connection_ = 0;
  uint64_t last_ticket_ = 0;
  std::optional<Instant> accept_again_;  // Set while the listener is not watched.
  bool full_reported_ = false;
  std::set<uid_t> full_uids_reported_;
  int max_unread_ = 0, max_unread_of_uid_ = 0;
  int unread_ = 0;  // Descriptors that nobody has read, as last looked: never fewer than there are.
  std::map<uid_t, int> unread_of_uid_;
  std::vector<UnreadRemains> remains_;
  std::set<uint64_t> held_;  // Connections whose first answer waits for unread descriptors.

  std::thread thread_;
};

absl::Status HandoffServer::Impl::Start() {
  CKPTD_ASSIGN_OR_RETURN(listener_, ListenUnix({.path = options_.socket_path,
                                                .type = SOCK_SEQPACKET,
                                                .mode = options_.mode,
                                                .group = options_.group,
                                                .patience = options_.listen_patience}));
  lstat(options_.socket_path.c_str(), &socket_file_);
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_ || replies_->wake_fd() < 0) return ErrnoError(errno, "epoll_create or eventfd");
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const auto half = static_cast<int>(std::min<rlim_t>(files.rlim_cur, 1 << 20) / 2);
  const int packet = static_cast<int>(kMaxPacketDescriptors);
  max_unread_ =
      options_.max_unread_descriptors > 0 ? options_.max_unread_descriptors : std::max(half, packet);
  max_unread_of_uid_ = options_.max_unread_descriptors_per_uid > 0 ? options_.max_unread_descriptors_per_uid
                                                                   : std::max(max_unread_ / 4, packet);
  CKPTD_RETURN_IF_ERROR(Watch(listener_.get(), Key(Source::kListener), EPOLLIN));
  CKPTD_RETURN_IF_ERROR(Watch(replies_->wake_fd(), Key(Source::kWake), EPOLLIN));
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "ckptd-handoff");
  return absl::OkStatus();
}

HandoffServer::Impl::~Impl() {
  if (thread_.joinable()) {
    // Not by shutting the listener down: a service manager may hold the same socket.
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
  if (!remains_.empty()) LookAtUnread();
  std::vector<uint64_t> late;
  for (const auto& [id, connection] : connections_) {
    if (!connection.greeted && now >= connection.hello_deadline) late.push_back(id);
  }
  for (uint64_t id : late) DropForFault(id, absl::DeadlineExceededError("it never said Hello"));
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
      ReadFrom(id);  // What it said before it ended counts.
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
    // No descriptors are left, most likely. The listener stays readable: look away for a while.
    log_(absl::StrCat("cannot accept a hand-off connection: ",
                      std::string(ErrnoError(errno, "accept").message())));
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
    accept_again_ = SystemClock().Now() + kAcceptPause;
    return;
  }
}

void HandoffServer::Impl::AddConnection(UniqueFd socket) {
  const int open = static_cast<int>(connections_.size() + remains_.size());
  if (open >= options_.max_connections) {
    if (!std::exchange(full_reported_, true)) {
      log_(absl::StrCat("refused a hand-off connection: there are ", open, " already"));
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
                      std::count_if(remains_.begin(), remains_.end(),
                                    [uid](const auto& remains) { return remains.uid == uid; });
  if (of_uid >= options_.max_connections_per_uid) {
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
      // Only its end is watched for; but it may still wait for the answer to its goodbye.
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

// Sends the answers whose turn it is.
void HandoffServer::Impl::Flush(uint64_t id) {
  auto found = connections_.find(id);
  if (found == connections_.end()) return;
  HandoffConnection& connection = found->second;
  while (!connection.answers.empty() && connection.answers.front().ready) {
    HandoffAnswer& answer = connection.answers.front();
    const int descriptors = static_cast<int>(answer.segments.size());
    if (descriptors > 0 && !MayHaveDescriptors(connection, descriptors).ok()) return Hold(connection);
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
    // The budget of the kernel may be used up by other processes of this user, too.
    if (absl::IsResourceExhausted(sent)) return Hold(connection);
    if (!sent.ok()) return DropForFault(id, sent);
    CountUnread(connection, static_cast<int>(packet.descriptors.size()));
    connection.held_since.reset();
    connection.answers.pop_front();
  }
  held_.erase(id);
  if (connection.leaving && connection.answers.empty()) Drop(id, "said goodbye");
}

// ---- descriptors that nobody has read

// Whether an answer with so many descriptors may be sent now. Else RESOURCE_EXHAUSTED, reason LIMIT_EXCEEDED.
absl::Status HandoffServer::Impl::MayHaveDescriptors(HandoffConnection& connection, int count) {
  const uid_t uid = connection.peer.user.uid;
  const auto exceeded = [&](const std::string& whose, int most) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "LIMIT_EXCEEDED",
        absl::StrCat(whose, " has not read ", most,
                     " descriptors of segments or nearly so, which is the most; read the answers "
                     "to FetchSegments, and end processes that do not"));
  };
  const auto fits = [&] {
    return unread_ + count <= max_unread_ && unread_of_uid_[uid] + count <= max_unread_of_uid_;
  };
  if (connection.unread > 0 || !fits()) LookAtUnread();
  if (connection.unread > 0) return exceeded("this connection", static_cast<int>(kMaxPacketDescriptors));
  if (unread_of_uid_[uid] + count > max_unread_of_uid_)
    return exceeded(absl::StrCat("uid ", uid), max_unread_of_uid_);
  if (!fits()) return exceeded("all clients together", max_unread_);
  return absl::OkStatus();
}

void HandoffServer::Impl::CountUnread(HandoffConnection& connection, int count) {
  if (count == 0) return;
  if (count > 0 && connection.unread == 0) connection.unread_since = SystemClock().Now();
  connection.unread += count;
  unread_ += count;
  unread_of_uid_[connection.peer.user.uid] += count;
}

// What was read since counts no more.
void HandoffServer::Impl::LookAtUnread() {
  for (auto& [id, connection] : connections_) {
    if (connection.unread > 0 && PeerHasReadAll(connection.socket.get()))
      CountUnread(connection, -connection.unread);
  }
  std::erase_if(remains_, [this](const UnreadRemains& remains) {
    if (!PeerHasReadAll(remains.socket.get())) return false;
    unread_ -= remains.unread;
    unread_of_uid_[remains.uid] -= remains.unread;
    return true;
  });
  std::erase_if(unread_of_uid_, [](const auto& entry) { return entry.second == 0; });
}

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
    if (SystemClock().Now() - *connection.held_since < options_.read_patience) continue;
    GiveUpHeld(id,
               MayHaveDescriptors(connection, static_cast<int>(connection.answers.front().segments.size())));
  }
}

// The answer has waited long enough. Closes the connections that have not read what they were sent, and
// answers with an error where the fault is not the connection's own.
void HandoffServer::Impl::GiveUpHeld(uint64_t id, const absl::Status& why) {
  const Instant now = SystemClock().Now();
  const HandoffConnection& waiting = connections_.at(id);
  const uid_t uid = waiting.peer.user.uid;
  const bool only_its_uid =
      unread_of_uid_[uid] + static_cast<int>(waiting.answers.front().segments.size()) > max_unread_of_uid_;
  const bool own_fault = waiting.unread > 0;
  std::vector<uint64_t> idle;
  for (const auto& [other, connection] : connections_) {
    const bool to_blame = own_fault ? other == id : !only_its_uid || connection.peer.user.uid == uid;
    if (to_blame && connection.unread > 0 && now - connection.unread_since >= options_.read_patience)
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
                      "the daemon's user has as many descriptors in messages that nobody has read as the "
                      "kernel allows (RLIMIT_NOFILE); end the processes that do not read, and try again"));
  connection.held_since.reset();
  Flush(id);
}

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

void HandoffServer::Impl::Drop(uint64_t id, const std::string& why) {
  auto found = connections_.find(id);
  if (found == connections_.end()) return;
  HandoffConnection connection = std::move(found->second);  // Closing its descriptors ends the watch on them.
  connections_.erase(found);
  held_.erase(id);
  EndSession(connection, why, false);
  if (connection.unread == 0) return;
  if (PeerHasReadAll(connection.socket.get())) return CountUnread(connection, -connection.unread);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.socket.get(), nullptr);
  shutdown(connection.socket.get(), SHUT_RDWR);
  remains_.push_back({std::move(connection.socket), connection.peer.user.uid, connection.unread});
}

void HandoffServer::Impl::DropForFault(uint64_t id, const absl::Status& fault) {
  auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const Peer& peer = found->second.peer;
  log_(absl::StrCat("closed the hand-off connection of pid ", peer.pid, ", uid ", peer.user.uid, ": ",
                    std::string(fault.message())));
  Drop(id, std::string(fault.message()));
}

// ---- frames

// An error closes the connection; what the peer may try again is answered with an error.
absl::Status HandoffServer::Impl::HandlePacket(HandoffConnection& connection, Packet packet) {
  v1::HandoffRequest request;
  if (!request.ParseFromString(packet.bytes)) return InvalidArgument("a packet that is not a HandoffRequest");
  if (connection.answers.size() >= kMaxUnanswered)
    return InvalidArgument("too many requests without waiting for an answer");
  HandoffAnswer& answer = connection.answers.emplace_back();
  answer.ticket = ++last_ticket_;
  answer.response.set_id(request.id());
  absl::Status status;
  bool later = false;
  const bool takes_descriptors = request.kind_case() == v1::HandoffRequest::kAttachRoot;
  if (!takes_descriptors && !packet.descriptors.empty()) {
    status = InvalidArgument("only AttachRoot takes a descriptor");
  } else if (request.kind_case() == v1::HandoffRequest::kHello) {
    status = Hello(connection, request.hello(), *answer.response.mutable_hello());
  } else if (request.kind_case() == v1::HandoffRequest::KIND_NOT_SET) {
    status = InvalidArgument("a request of no kind that this daemon knows");
  } else if (!connection.open) {
    status = InvalidArgument("the first request must be Hello");
  } else if (request.kind_case() == v1::HandoffRequest::kAttachRoot) {
    status = AttachRoot(connection, request.attach_root(), std::move(packet.descriptors), answer.ticket);
    later = status.ok();
  } else if (request.kind_case() == v1::HandoffRequest::kFetchSegments) {
    status = FetchSegments(request.fetch_segments(), answer);
  } else {
    answer.response.mutable_goodbye();
    connection.leaving = true;
    EndSession(connection, "said goodbye", true);
    // Only the end is of interest now.
    CKPTD_RETURN_IF_ERROR(
        Watch(connection.socket.get(), Key(Source::kSocket, connection.id), 0, EPOLL_CTL_MOD));
  }
  answer.ready = !later;
  if (!status.ok()) answer.Fail(status);
  return absl::OkStatus();
}

absl::Status HandoffServer::Impl::Hello(HandoffConnection& connection, const v1::Hello& hello,
                                        v1::HelloResponse& response) {
  if (connection.greeted) return InvalidArgument("Hello was said already on this connection");
  if (hello.min_version() > kProtocolVersion || hello.max_version() < kProtocolVersion) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "VERSION_UNSUPPORTED",
                     absl::StrCat("the client speaks versions ", hello.min_version(), " to ",
                                  hello.max_version(), ", this daemon (", options_.daemon_version,
                                  ") speaks ", kProtocolVersion, "; upgrade the older of the two"));
  }
  const std::string& instance = hello.client_instance();
  if (instance.size() != 32 || instance.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
    return InvalidArgument("client_instance must be 32 hexadecimal digits");
  }
  if (hello.client_name().size() > kMaxNameLength || !Printable(hello.client_name())) {
    return InvalidArgument(
        absl::StrCat("client_name must be at most ", kMaxNameLength, " printable characters"));
  }
  const uid_t uid = connection.peer.user.uid;
  if (uid == overflow_uid_ && uid != geteuid()) {
    return MakeError(absl::StatusCode::kPermissionDenied, "WRONG_UID",
                     absl::StrCat("uid ", uid,
                                  " stands for users of other user namespaces and can have no session; map "
                                  "the container's user to one of this machine"));
  }
  SessionRequest request;
  request.user = connection.peer.user;
  request.pid = connection.peer.pid;
  request.client_instance = instance;
  request.client_name = hello.client_name();
  request.keeper = hello.keeper();
  request.tenant = connection.peer.namespaces.tenant;
  CKPTD_ASSIGN_OR_RETURN(SessionRegistry::Opened opened, registry_->Open(request));
  connection.greeted = true;
  connection.open = true;
  connection.keeper = hello.keeper();
  connection.session = opened.info;
  delegate_->SessionOpened(opened.info, request.user);
  response.set_version(kProtocolVersion);
  response.set_token(opened.token);
  response.set_daemon_instance(options_.daemon_instance);
  response.set_daemon_version(options_.daemon_version);
  return absl::OkStatus();
}

absl::Status HandoffServer::Impl::AttachRoot(HandoffConnection& connection, const v1::AttachRoot& request,
                                             std::vector<UniqueFd> descriptors, uint64_t ticket) {
  if (descriptors.size() != 1) {
    return InvalidArgument(absl::StrCat("AttachRoot takes one descriptor, ", descriptors.size(), " came"));
  }
  const std::string& path = request.path();
  if (path.empty() || path.front() != '/' || path.size() > kMaxPathLength || !Printable(path)) {
    return InvalidArgument(absl::StrCat("AttachRoot needs an absolute path of at most ", kMaxPathLength,
                                        " printable characters, to call the root by"));
  }
  // Without asking a server that may be gone.
  struct statx info {};
  if (statx(descriptors[0].get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &info) != 0) {
    return ErrnoError(errno, "statx of the root's descriptor");
  }
  if (!S_ISDIR(info.stx_mode)) return InvalidArgument("the descriptor of AttachRoot is not a directory");
  delegate_->AttachRoot(connection.session, std::move(descriptors[0]), path,
                        [replies = replies_, id = connection.id, ticket](absl::StatusOr<std::string> root) {
                          replies->Push({id, ticket, std::move(root)});
                        });
  return absl::OkStatus();
}

absl::Status HandoffServer::Impl::FetchSegments(const v1::FetchSegments& request, HandoffAnswer& answer) {
  if (request.ids().empty() || request.ids_size() > static_cast<int>(kMaxPacketDescriptors)) {
    return InvalidArgument(absl::StrCat("FetchSegments takes 1 to ", kMaxPacketDescriptors, " ids, ",
                                        request.ids_size(), " came"));
  }
  std::vector<SegmentId> ids(request.ids().begin(), request.ids().end());
  std::sort(ids.begin(), ids.end());
  if (const auto twice = std::adjacent_find(ids.begin(), ids.end()); twice != ids.end())
    return InvalidArgument(absl::StrCat("FetchSegments names segment ", *twice, " twice; name each once"));
  answer.segments.assign(request.ids().begin(), request.ids().end());
  answer.access = request.read_only() ? SegmentAccess::kRead : SegmentAccess::kWrite;
  return absl::OkStatus();
}

// When the answer is about to be sent.
absl::StatusOr<std::vector<UniqueFd>> HandoffServer::Impl::FindSegments(HandoffConnection& connection,
                                                                        HandoffAnswer& answer) {
  std::vector<UniqueFd> descriptors;
  v1::FetchSegmentsResponse& response = *answer.response.mutable_fetch_segments();
  response.clear_segments();
  for (SegmentId id : answer.segments) {
    CKPTD_ASSIGN_OR_RETURN(SegmentDirectory::Descriptor found,
                           directory_->Find(connection.session.id, id, answer.access));
    descriptors.emplace_back(found.fd);
    v1::HandoffSegment& segment = *response.add_segments();
    segment.set_id(id);
    segment.set_size_bytes(found.size);
    segment.set_huge(found.huge);
  }
  return descriptors;
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

int64_t HandoffServer::turns() const { return impl_->turns(); }

}  // namespace ckptd
