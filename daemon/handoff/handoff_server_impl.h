// The state of HandoffServer and the declarations of its steps. Private to this folder. handoff_server.cc has
// the loop, the connections and their answers; handoff_requests.cc has what each frame asks for.
#ifndef CKPTD_DAEMON_HANDOFF_HANDOFF_SERVER_IMPL_H_
#define CKPTD_DAEMON_HANDOFF_HANDOFF_SERVER_IMPL_H_

#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/v1/handoff.pb.h"
#include "daemon/handoff/handoff_connection.h"
#include "daemon/handoff/handoff_server.h"
#include "daemon/handoff/packet_socket.h"
#include "daemon/handoff/unread_descriptors.h"
#include "daemon/sessions/call_authenticator.h"
#include "storage/base/clock.h"
#include "storage/base/unique_fd.h"

namespace ckptd {

// The key of an epoll event: the low two bits say what kind of descriptor it is, the others which connection.
enum class Source : uint64_t { kListener, kWake, kSocket, kProcess };
inline uint64_t Key(Source source, uint64_t connection = 0) {
  return connection << 2 | static_cast<uint64_t>(source);
}

class HandoffServer::Impl {
 public:
  Impl(HandoffOptions options, SessionRegistry* registry, SegmentDirectory* directory,
       HandoffDelegate* delegate, std::function<void(const std::string&)> log)
      : options_(std::move(options)),
        registry_(registry),
        directory_(directory),
        delegate_(delegate),
        log_(std::move(log)),
        most_of_uid_(options_.max_connections_per_uid),
        unread_(&connections_, options_.max_unread_descriptors, options_.max_unread_descriptors_per_uid) {}

  ~Impl();
  absl::Status Start();
  void SetMostConnectionsPerUser(int connections) { most_of_uid_ = connections; }
  int64_t turns() const { return turns_.load(std::memory_order_relaxed); }

 private:
  // handoff_server.cc: the loop, connections, answers
  void Run();
  Duration UntilNextDeadline() const;
  void CheckDeadlines();
  absl::Status Watch(int fd, uint64_t key, uint32_t events, int operation = EPOLL_CTL_ADD);
  void Handle(uint64_t key);
  void Accept();
  void AddConnection(UniqueFd socket);
  void ReadFrom(uint64_t id);
  void TakeReplies();
  void Flush(uint64_t id);
  void Hold(HandoffConnection& connection);
  void CheckHeld();
  void GiveUpHeld(uint64_t id, const absl::Status& why);
  void EndSession(HandoffConnection& connection, const std::string& why, bool goodbye);
  void Drop(uint64_t id, const std::string& why);
  void DropForFault(uint64_t id, const absl::Status& fault);

  // handoff_requests.cc: what each frame asks for
  absl::Status HandlePacket(HandoffConnection& connection, Packet packet);
  absl::Status Hello(HandoffConnection& connection, const v1::Hello& hello, v1::HelloResponse& response);
  absl::Status AttachRoot(HandoffConnection& connection, const v1::AttachRoot& request,
                          std::vector<UniqueFd> descriptors, uint64_t ticket);
  static absl::Status FetchSegments(const v1::FetchSegments& request, HandoffAnswer& answer);
  absl::StatusOr<std::vector<UniqueFd>> FindSegments(HandoffConnection& connection, HandoffAnswer& answer);

  const HandoffOptions options_;
  SessionRegistry* const registry_;
  SegmentDirectory* const directory_;
  HandoffDelegate* const delegate_;
  const std::function<void(const std::string&)> log_;
  std::atomic<int> most_of_uid_;  // Connections.
  const uid_t overflow_uid_ = OverflowUid();

  UniqueFd listener_;
  UniqueFd epoll_;
  struct stat socket_file_ {};
  const std::shared_ptr<HandoffReplies> replies_ = std::make_shared<HandoffReplies>();
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> turns_{0};

  // Used on the server's thread only.
  std::map<uint64_t, HandoffConnection> connections_;
  uint64_t last_connection_ = 0;
  uint64_t last_ticket_ = 0;
  std::optional<Instant> accept_again_;  // When to watch the listener again; set while it is not watched.
  bool full_reported_ = false;           // The log says once that max_connections is reached.
  std::set<uid_t> full_uids_reported_;   // The same for each uid.
  UnreadDescriptors unread_;
  std::set<uint64_t> held_;  // Connections whose first answer waits until descriptors are read.

  std::thread thread_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_HANDOFF_HANDOFF_SERVER_IMPL_H_
