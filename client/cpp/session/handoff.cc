#include "client/cpp/session/handoff.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/session/endpoint.h"
#include "client/cpp/session/wire_errors.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd::client {
namespace {

constexpr size_t kMaxFrameBytes = 64 << 10;
constexpr int kMaxDescriptors = 64;  // In one packet.

absl::Status Disconnected(const std::string& what) { return absl::UnavailableError(what); }

absl::Status SocketError(int error, const char* what) {
  if (error == EPIPE || error == ECONNRESET || error == ENOTCONN || error == ECONNREFUSED) {
    return Disconnected(absl::StrCat(what, ": the daemon has closed the hand-off socket"));
  }
  return ErrnoError(error, what);
}

absl::Status ProtocolError(const std::string& what) {
  return absl::InternalError(absl::StrCat("invalid answer of the daemon on the hand-off socket: it ", what));
}

std::vector<UniqueFd> TakeDescriptors(msghdr* header) {
  std::vector<UniqueFd> descriptors;
  for (cmsghdr* control = CMSG_FIRSTHDR(header); control != nullptr; control = CMSG_NXTHDR(header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof fd, sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
  return descriptors;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Handoff>> Handoff::Connect(const std::string& socket_path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof address.sun_path) {
    return InvalidArgument(
        absl::StrCat("socket path ", socket_path, " is longer than ", sizeof address.sun_path - 1, " bytes"));
  }
  std::memcpy(address.sun_path, socket_path.data(), socket_path.size());
  // Non-blocking: a full backlog is an error at once, and every wait is a poll with a deadline.
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return ErrnoError(errno, "making a socket");
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    const int error = errno;
    const std::string what = absl::StrCat("connecting to ", socket_path);
    if (error == ENOENT || error == ECONNREFUSED || error == EAGAIN || error == ECONNRESET) {
      return Disconnected(absl::StrCat(what, ": ", std::strerror(error)));
    }
    return ErrnoError(error, what);
  }
  ucred server = {};
  socklen_t size = sizeof server;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &server, &size) != 0)
    return ErrnoError(errno, absl::StrCat("asking who serves ", socket_path));
  CKPTD_RETURN_IF_ERROR(CheckServer(socket_path, server.uid));
  return std::make_unique<Handoff>(std::move(socket));
}

Handoff::Handoff(UniqueFd socket) : socket_(std::move(socket)) {}

bool Handoff::alive() const {
  pollfd poll_socket = {socket_.get(), POLLRDHUP, 0};
  return poll(&poll_socket, 1, 0) == 0 || (poll_socket.revents & (POLLHUP | POLLRDHUP | POLLERR)) == 0;
}

absl::Status Handoff::WaitFor(short events, Instant deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SystemClock().Now());
    pollfd poll_socket = {socket_.get(), events, 0};
    const int ready = poll(&poll_socket, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30)));
    if (ready > 0) return absl::OkStatus();
    if (ready == 0)
      return absl::DeadlineExceededError(
          "the daemon did not answer on the hand-off socket within the timeout");
    if (errno != EINTR) return ErrnoError(errno, "poll of the hand-off socket");
  }
}

absl::Status Handoff::Send(const v1::HandoffRequest& request, int descriptor, Instant deadline) {
  std::string frame = request.SerializeAsString();
  if (frame.size() > kMaxFrameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a hand-off frame has ", frame.size(), " bytes; at most ",
                                                   kMaxFrameBytes, " are allowed"));
  }
  iovec piece = {frame.data(), frame.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  if (descriptor >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  }
  while (sendmsg(socket_.get(), &header, MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return SocketError(errno, "sending to the daemon");
    CKPTD_RETURN_IF_ERROR(WaitFor(POLLOUT, deadline));
  }
  return absl::OkStatus();
}

absl::StatusOr<Handoff::Answer> Handoff::Receive(Instant deadline) {
  std::vector<char> buffer(kMaxFrameBytes);
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  iovec piece = {buffer.data(), buffer.size()};
  msghdr header = {};
  ssize_t size;
  for (;;) {
    CKPTD_RETURN_IF_ERROR(WaitFor(POLLIN, deadline));
    header = {};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    size = recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
    if (size >= 0) break;
    if (errno != EINTR && errno != EAGAIN) return SocketError(errno, "receiving from the daemon");
  }
  Answer answer;
  answer.descriptors = TakeDescriptors(&header);  // Take ownership first, whatever the frame holds.
  if (size == 0) return Disconnected("the daemon has ended the session");
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "EMFILE",
        "the daemon's descriptors exceed this process's limit of open files: raise it (ulimit -n)");
  }
  if ((header.msg_flags & MSG_TRUNC) != 0)
    return ProtocolError(absl::StrCat("is longer than ", kMaxFrameBytes, " bytes"));
  if (!answer.message.ParseFromArray(buffer.data(), static_cast<int>(size)))
    return ProtocolError("is not a HandoffResponse");
  return answer;
}

absl::StatusOr<Handoff::Answer> Handoff::Call(v1::HandoffRequest request, int descriptor, Duration timeout) {
  const Instant deadline = SystemClock().Now() + timeout;
  MutexLock lock(mutex_);
  request.set_id(next_id_++);
  CKPTD_RETURN_IF_ERROR(Send(request, descriptor, deadline));
  for (;;) {
    CKPTD_ASSIGN_OR_RETURN(Answer answer, Receive(deadline));
    if (answer.message.id() < request.id()) continue;  // The answer to an earlier request that timed out.
    if (answer.message.id() > request.id())
      return ProtocolError(absl::StrCat("has id ", answer.message.id()));
    if (answer.message.has_error()) return FromWire(answer.message.error());
    return answer;
  }
}

absl::StatusOr<v1::HelloResponse> Handoff::Hello(const v1::Hello& hello, Duration timeout) {
  v1::HandoffRequest request;
  *request.mutable_hello() = hello;
  CKPTD_ASSIGN_OR_RETURN(Answer answer, Call(std::move(request), -1, timeout));
  if (!answer.message.has_hello()) return ProtocolError("does not answer Hello");
  return std::move(*answer.message.mutable_hello());
}

absl::StatusOr<std::string> Handoff::AttachRoot(int directory, const std::string& path, Duration timeout) {
  v1::HandoffRequest request;
  request.mutable_attach_root()->set_path(path);
  CKPTD_ASSIGN_OR_RETURN(Answer answer, Call(std::move(request), directory, timeout));
  if (!answer.message.has_attach_root()) return ProtocolError("does not answer AttachRoot");
  return answer.message.attach_root().root();
}

absl::StatusOr<std::vector<ReceivedSegment>> Handoff::FetchSegments(const std::vector<int64_t>& ids,
                                                                    Duration timeout, bool read_only) {
  std::vector<ReceivedSegment> segments;
  for (size_t begin = 0; begin < ids.size(); begin += kMaxDescriptors) {
    const size_t end = std::min(ids.size(), begin + kMaxDescriptors);
    v1::HandoffRequest request;
    *request.mutable_fetch_segments()->mutable_ids() = {ids.begin() + begin, ids.begin() + end};
    request.mutable_fetch_segments()->set_read_only(read_only);
    CKPTD_ASSIGN_OR_RETURN(Answer answer, Call(std::move(request), -1, timeout));
    const v1::FetchSegmentsResponse& fetched = answer.message.fetch_segments();
    if (static_cast<size_t>(fetched.segments_size()) != end - begin ||
        answer.descriptors.size() != end - begin) {
      return ProtocolError(absl::StrCat("has ", fetched.segments_size(), " segments and ",
                                        answer.descriptors.size(), " descriptors for ", end - begin,
                                        " requested segments"));
    }
    for (int i = 0; i < fetched.segments_size(); ++i) {
      const v1::HandoffSegment& segment = fetched.segments(i);
      if (segment.id() != ids[begin + i])
        return ProtocolError("has the segments in another order than requested");
      segments.push_back(
          {segment.id(), segment.size_bytes(), segment.huge(), std::move(answer.descriptors[i])});
    }
  }
  return segments;
}

absl::Status Handoff::Goodbye(Duration timeout) {
  v1::HandoffRequest request;
  request.mutable_goodbye();
  return Call(std::move(request), -1, timeout).status();
}

}  // namespace ckptd::client
