// A client that violates the protocol, against the real hand-off server. The first byte says whether it sends
// a valid Hello first; then follow packets: the number and kind of descriptors, and the bytes.
//
// Whatever the client does: answers are frames in the order of the requests, only a directory is ever passed
// on, the session ends with the connection, and no descriptor leaks.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "ckptd/v1/handoff.pb.h"
#include "daemon/handoff/handoff_server.h"
#include "daemon/handoff/packet_socket.h"
#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"
#include "tests/fuzz/fuzz.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

constexpr int kMaxPackets = 20;
constexpr int kTimeoutMillis = 20'000;

// Answers roots at once, with success or an error.
class Delegate : public HandoffDelegate {
 public:
  void SessionOpened(const SessionInfo&, const FileUser&) override {}
  void SessionClosed(const SessionEnd&) override {}
  void AttachRoot(const SessionInfo&, UniqueFd root, std::string path, AttachReply reply) override {
    struct stat info {};
    FUZZ_CHECK(::fstat(root.get(), &info) == 0 && S_ISDIR(info.st_mode));
    FUZZ_CHECK(path.starts_with('/') && path.find('\n') == std::string::npos);
    if (path.size() % 2 == 0) return reply("runs/0");
    reply(MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_LOCKED", path));
  }
};

// Every session may use segments 0 to 99.
class Directory : public SegmentDirectory {
 public:
  absl::StatusOr<Descriptor> Find(SessionId, SegmentId id, SegmentAccess) override {
    if (id < 0 || id >= 100) return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_SEGMENT", "no such");
    return Descriptor{::fcntl(memory_.get(), F_DUPFD_CLOEXEC, 0), 4096, false};
  }

 private:
  const UniqueFd memory_{::memfd_create("fuzz", MFD_CLOEXEC)};
};

struct World {
  World() {
    HandoffOptions options;
    // Short: a socket path has room for 107 bytes.
    options.socket_path = "/proc/self/fd/" + std::to_string(dir.fd()) + "/s.handoff";
    options.daemon_instance = "instance";
    options.daemon_version = "0";
    auto started = HandoffServer::Start(options, &registry, &directory, &delegate, [](const std::string&) {});
    FUZZ_CHECK(started.ok());
    server = *std::move(started);
    path = options.socket_path;
  }
  TempDir dir;
  SessionRegistry registry{4};
  Directory directory;
  Delegate delegate;
  std::unique_ptr<HandoffServer> server;
  std::string path;
  // Descriptors that a hostile client may send.
  const std::vector<std::shared_ptr<UniqueFd>> wares = {
      std::make_shared<UniqueFd>(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
      std::make_shared<UniqueFd>(::open("/", O_PATH | O_CLOEXEC)),
      std::make_shared<UniqueFd>(::open("/dev/zero", O_RDONLY | O_CLOEXEC)),
      std::make_shared<UniqueFd>(::memfd_create("ware", MFD_CLOEXEC))};
};

UniqueFd Connect(const World& world) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, world.path.c_str(), sizeof(address.sun_path) - 1);
  FUZZ_CHECK(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  return socket;
}

// Reads answers until the server closes the connection: their ids are those of requests, in order.
void Drain(int socket, const std::vector<uint64_t>& asked) {
  size_t next = 0;
  while (true) {
    pollfd readable{socket, POLLIN, 0};
    int ready = -1;
    do {
      ready = ::poll(&readable, 1, kTimeoutMillis);
    } while (ready < 0 && errno == EINTR);  // Interrupted by libFuzzer's alarm.
    FUZZ_CHECK(ready == 1);
    absl::StatusOr<std::optional<Packet>> packet = ReceivePacket(socket);
    if (!packet.ok()) return;
    if (!packet->has_value()) continue;
    v1::HandoffResponse response;
    FUZZ_CHECK(response.ParseFromString((*packet)->bytes));
    FUZZ_CHECK(response.has_error() == (response.kind_case() == v1::HandoffResponse::KIND_NOT_SET));
    FUZZ_CHECK(next < asked.size() && response.id() == asked[next++]);
    const auto segments = static_cast<size_t>(response.fetch_segments().segments_size());
    FUZZ_CHECK((*packet)->descriptors.size() == segments);
  }
}

void Talk(FuzzInput input) {
  static World& world = *new World;
  const UniqueFd socket = Connect(world);
  std::vector<uint64_t> asked;
  if (input.Byte() % 2 == 1) {
    v1::HandoffRequest hello;
    hello.set_id(7);
    hello.mutable_hello()->set_min_version(1);
    hello.mutable_hello()->set_max_version(1);
    hello.mutable_hello()->set_client_instance("0123456789abcdef0123456789abcdef");
    FUZZ_CHECK(SendPacket(socket.get(), {hello.SerializeAsString(), {}}).ok());
    asked.push_back(7);
  }
  for (int i = 0; i < kMaxPackets && !input.empty(); ++i) {
    const uint8_t wares = input.Byte();
    Packet packet{std::string(input.Chunk()), {}};
    for (int count = wares / 4; count > 0; --count) {
      const UniqueFd& ware = *world.wares[wares % 4];
      packet.descriptors.emplace_back(::fcntl(ware.get(), F_DUPFD_CLOEXEC, 0));
    }
    v1::HandoffRequest request;
    if (request.ParseFromString(packet.bytes)) asked.push_back(request.id());
    if (!SendPacket(socket.get(), packet).ok()) break;  // The server has closed the connection.
  }
  ::shutdown(socket.get(), SHUT_WR);
  Drain(socket.get(), asked);
  FUZZ_CHECK(world.registry.sessions() == 0);
}

}  // namespace
}  // namespace ckptd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::Talk(ckptd::FuzzInput(data, size));
  return 0;
}
