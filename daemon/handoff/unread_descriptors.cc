#include "daemon/handoff/unread_descriptors.h"

#include <sys/resource.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/handoff/packet_socket.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

constexpr int kPacket = static_cast<int>(kMaxPacketDescriptors);

int DefaultMax() {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const auto half = static_cast<int>(std::min<rlim_t>(files.rlim_cur, 1 << 20) / 2);
  return std::max(half, kPacket);
}

}  // namespace

UnreadDescriptors::UnreadDescriptors(Connections* connections, int max, int max_per_uid)
    : connections_(connections),
      max_(max > 0 ? max : DefaultMax()),
      max_per_uid_(max_per_uid > 0 ? max_per_uid : std::max(max_ / 4, kPacket)) {}

absl::Status UnreadDescriptors::CheckRoom(HandoffConnection& connection, int count) {
  const uid_t uid = connection.peer.user.uid;
  const auto exceeded = [&](const std::string& whose, int most) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "LIMIT_EXCEEDED",
        absl::StrCat(whose, " would have more than ", most,
                     " unread descriptors of segments; read the answers to FetchSegments, and end processes "
                     "that do not"));
  };
  const auto fits = [&] { return total_ + count <= max_ && !ExceedsUidLimit(uid, count); };
  if (connection.unread > 0 || !fits()) Refresh();
  if (connection.unread > 0) return exceeded("this connection", kPacket);
  if (ExceedsUidLimit(uid, count)) return exceeded(absl::StrCat("uid ", uid), max_per_uid_);
  if (!fits()) return exceeded("all clients together", max_);
  return absl::OkStatus();
}

bool UnreadDescriptors::ExceedsUidLimit(uid_t uid, int count) { return of_uid_[uid] + count > max_per_uid_; }

void UnreadDescriptors::Add(HandoffConnection& connection, int count) {
  if (count == 0) return;
  if (count > 0 && connection.unread == 0) connection.unread_since = SystemClock().Now();
  connection.unread += count;
  total_ += count;
  of_uid_[connection.peer.user.uid] += count;
}

void UnreadDescriptors::Refresh() {
  for (auto& [id, connection] : *connections_) {
    if (connection.unread > 0 && PeerHasReadAll(connection.socket.get())) Add(connection, -connection.unread);
  }
  std::erase_if(remains_, [this](const UnreadRemains& remains) {
    if (!PeerHasReadAll(remains.socket.get())) return false;
    total_ -= remains.unread;
    of_uid_[remains.uid] -= remains.unread;
    return true;
  });
  std::erase_if(of_uid_, [](const auto& entry) { return entry.second == 0; });
}

int UnreadDescriptors::num_remains(uid_t uid) const {
  return static_cast<int>(std::count_if(remains_.begin(), remains_.end(),
                                        [uid](const UnreadRemains& remains) { return remains.uid == uid; }));
}

}  // namespace ckptd
