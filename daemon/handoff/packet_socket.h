// Packets with descriptors over a non-blocking SOCK_SEQPACKET socket.
#ifndef CKPTD_DAEMON_HANDOFF_PACKET_SOCKET_H_
#define CKPTD_DAEMON_HANDOFF_PACKET_SOCKET_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace ckptd {

inline constexpr size_t kMaxPacketBytes = 64 << 10;
inline constexpr size_t kMaxPacketDescriptors = 64;

struct Packet {
  std::string bytes;
  std::vector<UniqueFd> descriptors;  // Close-on-exec.
};

// nullopt: nothing has come yet. OUT_OF_RANGE: the peer has closed the connection. INVALID_ARGUMENT: the
// packet was too large and is lost, its descriptors are closed. An empty packet looks like the end, and is
// taken for it.
absl::StatusOr<std::optional<Packet>> ReceivePacket(int socket);

// The whole packet or nothing. UNAVAILABLE: the peer's buffer is full. RESOURCE_EXHAUSTED, reason
// ETOOMANYREFS: the kernel lets this user have no more descriptors in messages that nobody has read.
absl::Status SendPacket(int socket, const Packet& packet);

// False while a packet that was sent here has not been read by the peer. A peer that has closed its end has
// read everything.
bool PeerHasReadAll(int socket);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_HANDOFF_PACKET_SOCKET_H_
