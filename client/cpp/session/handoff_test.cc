// Tests the client's end of the hand-off against a scripted daemon at the other end of a socket pair.
#include "client/cpp/session/handoff.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "gtest/gtest.h"
#include "storage/base/errors.h"

namespace ckptd::client {
namespace {

using std::chrono::seconds;

class HandoffTest : public testing::Test {
 protected:
  HandoffTest() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    EXPECT_EQ(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    handoff_ = std::make_unique<Handoff>(UniqueFd(ends[0]));
    daemon_.reset(ends[1]);
  }

  // Receives one request at the daemon's end; its descriptor, if any, goes to `received_`.
  v1::HandoffRequest Take() {
    char buffer[65536];
    char control[CMSG_SPACE(sizeof(int))];
    iovec piece = {buffer, sizeof buffer};
    msghdr header = {};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    const ssize_t size = recvmsg(daemon_.get(), &header, MSG_CMSG_CLOEXEC);
    EXPECT_GT(size, 0);
    if (cmsghdr* rights = CMSG_FIRSTHDR(&header)) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
      received_.reset(fd);
    }
    v1::HandoffRequest request;
    EXPECT_TRUE(request.ParseFromArray(buffer, static_cast<int>(size)));
    return request;
  }

  void Answer(const v1::HandoffResponse& response, const std::vector<int>& descriptors = {}) {
    std::string frame = response.SerializeAsString();
    iovec piece = {frame.data(), frame.size()};
    std::vector<char> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
    msghdr header = {};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    if (!descriptors.empty()) {
      header.msg_control = control.data();
      header.msg_controllen = control.size();
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
      std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size() * sizeof(int));
    }
    EXPECT_EQ(sendmsg(daemon_.get(), &header, 0), static_cast<ssize_t>(frame.size()));
  }

  // Answers FetchSegments with a memfd for each id, or with `count` of them if that is given.
  void ServeSegments(int count = -1) {
    const v1::HandoffRequest request = Take();
    v1::HandoffResponse response;
    response.set_id(request.id());
    response.mutable_fetch_segments();
    std::vector<UniqueFd> owned;
    std::vector<int> descriptors;
    for (const int64_t id : request.fetch_segments().ids()) {
      if (count >= 0 && static_cast<int>(owned.size()) == count) break;
      owned.emplace_back(memfd_create("segment", MFD_CLOEXEC));
      EXPECT_EQ(ftruncate(owned.back().get(), id * 4096), 0);
      descriptors.push_back(owned.back().get());
      v1::HandoffSegment& segment = *response.mutable_fetch_segments()->add_segments();
      segment.set_id(id);
      segment.set_size_bytes(id * 4096);
    }
    Answer(response, descriptors);
  }

  std::unique_ptr<Handoff> handoff_;
  UniqueFd daemon_, received_;
};

TEST_F(HandoffTest, HelloReturnsTheToken) {
  std::thread daemon([this] {
    v1::HandoffResponse response;
    response.set_id(Take().id());
    response.mutable_hello()->set_token("t");
    Answer(response);
  });
  absl::StatusOr<v1::HelloResponse> hello = handoff_->Hello(v1::Hello(), seconds(10));
  daemon.join();
  ASSERT_TRUE(hello.ok()) << hello.status();
  EXPECT_EQ(hello->token(), "t");
}

TEST_F(HandoffTest, AttachRootSendsTheDirectorysDescriptor) {
  UniqueFd root(open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  std::thread daemon([this] {
    const v1::HandoffRequest request = Take();
    EXPECT_EQ(request.attach_root().path(), "/tmp");
    v1::HandoffResponse response;
    response.set_id(request.id());
    response.mutable_attach_root()->set_root("roots/1");
    Answer(response);
  });
  absl::StatusOr<std::string> attached = handoff_->AttachRoot(root.get(), "/tmp", seconds(10));
  daemon.join();
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ(*attached, "roots/1");
  EXPECT_TRUE(received_);
  EXPECT_NE(fcntl(received_.get(), F_GETFD), -1);
}

TEST_F(HandoffTest, FetchesMoreSegmentsThanFitIntoOnePacket) {
  std::vector<int64_t> ids;
  for (int64_t id = 1; id <= 70; ++id) ids.push_back(id);
  std::thread daemon([this] {
    ServeSegments();
    ServeSegments();
  });
  absl::StatusOr<std::vector<ReceivedSegment>> segments = handoff_->FetchSegments(ids, seconds(10));
  daemon.join();
  ASSERT_TRUE(segments.ok()) << segments.status();
  ASSERT_EQ(segments->size(), 70u);
  for (int64_t id = 1; id <= 70; ++id) {
    const ReceivedSegment& segment = (*segments)[id - 1];
    EXPECT_EQ(segment.id, id);
    EXPECT_EQ(segment.size, id * 4096);
    EXPECT_EQ(lseek(segment.fd.get(), 0, SEEK_END), id * 4096);            // The segment of that id.
    EXPECT_EQ(fcntl(segment.fd.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);  // A child does not inherit it.
  }
}

TEST_F(HandoffTest, FailsWhenDescriptorsAreMissing) {
  std::thread daemon([this] { ServeSegments(2); });
  absl::StatusOr<std::vector<ReceivedSegment>> segments = handoff_->FetchSegments({1, 2, 3}, seconds(10));
  daemon.join();
  EXPECT_EQ(segments.status().code(), absl::StatusCode::kInternal);
}

TEST_F(HandoffTest, KeepsTheReasonOfARefusal) {
  std::thread daemon([this] {
    v1::HandoffResponse response;
    response.set_id(Take().id());
    response.mutable_error()->set_code(9);
    response.mutable_error()->set_reason("ROOT_LOCKED");
    response.mutable_error()->set_message("another daemon has it");
    Answer(response);
  });
  const absl::Status status = handoff_->AttachRoot(daemon_.get(), "/x", seconds(10)).status();
  daemon.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), "ROOT_LOCKED");
}

TEST_F(HandoffTest, IgnoresAnAnswerToARequestThatTimedOut) {
  EXPECT_EQ(handoff_->Hello(v1::Hello(), std::chrono::milliseconds(20)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  std::thread daemon([this] {
    for (int i = 0; i < 2; ++i) {
      v1::HandoffResponse response;
      response.set_id(Take().id());
      response.mutable_hello()->set_token(i == 0 ? "late" : "mine");
      Answer(response);
    }
  });
  absl::StatusOr<v1::HelloResponse> hello = handoff_->Hello(v1::Hello(), seconds(10));
  daemon.join();
  ASSERT_TRUE(hello.ok()) << hello.status();
  EXPECT_EQ(hello->token(), "mine");
}

TEST_F(HandoffTest, FailsOnGarbageWithoutCrashing) {
  std::thread daemon([this] {
    Take();
    const char garbage[] = "\xff\xff\xff\xff";
    EXPECT_GT(send(daemon_.get(), garbage, sizeof garbage, 0), 0);
  });
  EXPECT_EQ(handoff_->Hello(v1::Hello(), seconds(10)).status().code(), absl::StatusCode::kInternal);
  daemon.join();
}

TEST_F(HandoffTest, NoticesThatTheDaemonHasGoneWithoutAsking) {
  EXPECT_TRUE(handoff_->alive());
  daemon_.reset();
  EXPECT_FALSE(handoff_->alive());
  EXPECT_EQ(handoff_->Hello(v1::Hello(), seconds(10)).status().code(), absl::StatusCode::kUnavailable);
}

// As in the temporary directory, where everybody may make the socket first.
TEST(HandoffConnect, RefusesAProcessOfAnotherUserUnlessTheDirectoryIsThatUsers) {
  if (getuid() != 0) GTEST_SKIP() << "only root can become another user";
  constexpr uid_t kOther = 12345;
  std::string folder = "/tmp/handoff_test_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  ASSERT_EQ(chmod(folder.c_str(), 01777), 0);
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  const std::string path = folder + "/d.sock.handoff";
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  int listening[2];
  ASSERT_EQ(pipe(listening), 0);
  const pid_t server = fork();
  if (server == 0) {
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
    const bool listens = setuid(kOther) == 0 &&
                         bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                         listen(socket, 5) == 0;
    if (!listens || write(listening[1], "1", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte;
  close(listening[1]);
  EXPECT_EQ(read(listening[0], &byte, 1), 1);
  EXPECT_EQ(ReasonOf(Handoff::Connect(path).status()), "WRONG_UID");
  EXPECT_EQ(chown(folder.c_str(), kOther, static_cast<gid_t>(-1)), 0);
  EXPECT_TRUE(Handoff::Connect(path).ok());
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  close(listening[0]);
  std::filesystem::remove_all(folder);
}

TEST(HandoffConnect, IsUnavailableAtOnceWhenNobodyListens) {
  EXPECT_EQ(Handoff::Connect("/tmp/there_is_no_such_socket.handoff").status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(Handoff::Connect("/" + std::string(200, 'x')).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ckptd::client
