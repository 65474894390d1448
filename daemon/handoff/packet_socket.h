// Sends and receives packets with descriptors over a non-blocking SOCK_SEQPACKET socket.
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

// Returns nullopt if no packet is there. OUT_OF_RANGE: the peer has closed the connection (an empty packet
// looks the same and counts as that). INVALID_ARGUMENT: the packet was larger than kMaxPacketBytes; it is
// dropped and its descriptors are closed.
absl::StatusOr<std::optional<Packet>> ReceivePacket(int socket);

// Sends the whole packet or nothing. UNAVAILABLE: the peer's buffer is full. RESOURCE_EXHAUSTED, reason
// ETOOMANYREFS: the kernel allows this user no more descriptors in unread messages.
absl::Status SendPacket(int socket, const Packet& packet);

// False while the peer has not read a packet that was sent on `socket`. True if the peer has closed its end.
bool PeerHasReadAll(int socket);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_HANDOFF_PACKET_SOCKET_H_
