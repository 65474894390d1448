#include "daemon/handoff/packet_socket.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

constexpr size_t kKernelMaxDescriptors = 253;  // SCM_MAX_FD: what a peer may send, whatever our limit is.

void TakeDescriptors(msghdr& message, std::vector<UniqueFd>& into) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      into.emplace_back(fd);
    }
  }
}

}  // namespace

absl::StatusOr<std::optional<Packet>> ReceivePacket(int socket) {
  Packet packet;
  packet.bytes.resize(kMaxPacketBytes);
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kKernelMaxDescriptors * sizeof(int))> control;
  iovec bytes{packet.bytes.data(), packet.bytes.size()};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t size = -1;
  do {
    size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (size < 0 && errno == EINTR);
  if (size < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::nullopt;
    if (errno == ECONNRESET) return absl::OutOfRangeError("the connection was reset");
    return ErrnoError(errno, "recvmsg");
  }
  TakeDescriptors(message, packet.descriptors);
  if (size == 0) return absl::OutOfRangeError("the connection was closed");
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
                     absl::StrCat("the peer sent a packet of more than ", kMaxPacketBytes, " bytes"));
  }
  packet.bytes.resize(size);
  return packet;
}

absl::Status SendPacket(int socket, const Packet& packet) {
  iovec bytes{const_cast<char*>(packet.bytes.data()), packet.bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxPacketDescriptors * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (const size_t count = packet.descriptors.size(); count > 0) {
    if (count > kMaxPacketDescriptors) return absl::InternalError("a packet holds at most 64 descriptors");
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    for (size_t i = 0; i < count; ++i) {
      const int fd = packet.descriptors[i].get();
      std::memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof(int));
    }
  }
  ssize_t sent = -1;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return absl::OkStatus();
  if (errno == EAGAIN || errno == EWOULDBLOCK)
    return absl::UnavailableError("the peer does not read its answers");
  if (errno == ETOOMANYREFS) {
    return MakeError(absl::StatusCode::kResourceExhausted, "ETOOMANYREFS",
                     "the daemon's user has too many descriptors in unread messages");
  }
  return ErrnoError(errno, "sendmsg");
}

bool PeerHasReadAll(int socket) {
  int queued = 0;
  return ioctl(socket, SIOCOUTQ, &queued) != 0 || queued == 0;
}

}  // namespace ckptd
