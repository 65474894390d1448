// A daemon that violates the protocol: the client's end of the hand-off socket accepts any bytes, ends in
// time, and leaks no descriptor. The first byte selects the client's request; then follow packets: the number
// of descriptors, and the bytes.
#include <fcntl.h>
#include <sys/socket.h>

#include "client/cpp/session/handoff.h"
#include "storage/base/unique_fd.h"
#include "tests/fuzz/fuzz.h"

namespace ckptd {
namespace {

constexpr int kMaxPackets = 8;
constexpr int kMaxDescriptors = 70;  // More than the client has room for.

void SendPacketOf(int socket, std::string_view bytes, int descriptors, int descriptor) {
  iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (descriptors > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
    for (int i = 0; i < descriptors; ++i) reinterpret_cast<int*>(CMSG_DATA(header))[i] = descriptor;
  }
  ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// The kernel assigns the lowest free descriptor: a leaked one changes this number.
int LowestFree(int like) {
  const UniqueFd lowest(::fcntl(like, F_DUPFD_CLOEXEC, 0));
  FUZZ_CHECK(lowest.get() >= 0);
  return lowest.get();
}

template <typename T>
void CheckAnswer(const absl::StatusOr<T>& answer) {
  FUZZ_CHECK(answer.ok() || answer.status().code() != absl::StatusCode::kOk);
}

void Talk(FuzzInput input) {
  static const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int before = LowestFree(null);
  {
    int ends[2];
    FUZZ_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    const UniqueFd daemon(ends[0]);
    client::Handoff handoff{UniqueFd(ends[1])};
    const uint8_t question = input.Byte();
    for (int packet = 0; packet < kMaxPackets && !input.empty(); ++packet) {
      const int descriptors = input.Byte() % (kMaxDescriptors + 1);
      SendPacketOf(daemon.get(), input.Chunk(), descriptors, null);
    }
    ::shutdown(daemon.get(), SHUT_WR);  // A request after the last packet ends at once.
    const Duration timeout = std::chrono::seconds(10);
    switch (question % 4) {
      case 0:
        CheckAnswer(handoff.Hello({}, timeout));
        break;
      case 1:
        CheckAnswer(handoff.AttachRoot(null, "/root", timeout));
        break;
      case 2: {
        std::vector<int64_t> ids;
        for (int i = 0; i < question / 4 % 70; ++i) ids.push_back(i);
        const auto segments = handoff.FetchSegments(ids, timeout);
        if (!segments.ok()) break;
        FUZZ_CHECK(segments->size() == ids.size());
        for (size_t i = 0; i < ids.size(); ++i) {
          FUZZ_CHECK((*segments)[i].id == ids[i] && (*segments)[i].fd.get() >= 0);
        }
        break;
      }
      default:
        handoff.Goodbye(timeout).IgnoreError();
    }
  }
  FUZZ_CHECK(LowestFree(null) == before);
}

}  // namespace
}  // namespace ckptd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::Talk(ckptd::FuzzInput(data, size));
  return 0;
}
