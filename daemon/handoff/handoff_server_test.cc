// Tests of HandoffServer over a real socket. One file of more than 500 lines, because all tests use the same
// fixture.
#include "daemon/handoff/handoff_server.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ckptd/v1/handoff.pb.h"
#include "daemon/handoff/packet_socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"

namespace ckptd {
namespace {

constexpr std::chrono::seconds kTimeout{20};
constexpr char kInstance[] = "0123456789abcdef0123456789abcdef";

// A delegate that records its calls. The test decides when a root is answered.
class FakeDelegate : public HandoffDelegate {
 public:
  struct Attach {
    SessionInfo session;
    UniqueFd root;
    std::string path;
    AttachReply reply;
  };

  void SessionOpened(const SessionInfo& session, const FileUser&) override {
    Add([&] { opened_.push_back(session); });
  }
  void SessionClosed(const SessionEnd& end) override {
    Add([&] { closed_.push_back(end); });
  }
  void AttachRoot(const SessionInfo& session, UniqueFd root, std::string path, AttachReply reply) override {
    Add([&] { attached_.push_back({session, std::move(root), path, std::move(reply)}); });
  }

  std::vector<SessionInfo> WaitOpened(size_t count) {
    MutexLock lock(mutex_);
    Wait([&] { return opened_.size() >= count; });
    return opened_;
  }
  std::vector<SessionEnd> WaitClosed(size_t count) {
    MutexLock lock(mutex_);
    Wait([&] { return closed_.size() >= count; });
    return closed_;
  }
  std::optional<Attach> WaitAttach() {
    {
      MutexLock lock(mutex_);
      Wait([&] { return !attached_.empty(); });
    }
    return TakeAttach();
  }
  std::optional<Attach> TakeAttach() {
    MutexLock lock(mutex_);
    if (attached_.empty()) return std::nullopt;
    Attach attach = std::move(attached_.front());
    attached_.erase(attached_.begin());
    return attach;
  }
  size_t closed() {
    MutexLock lock(mutex_);
    return closed_.size();
  }

 private:
  template <typename Change>
  void Add(Change change) {
    MutexLock lock(mutex_);
    change();
    changed_.SignalAll();
  }
  template <typename Condition>
  void Wait(Condition condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto deadline = std::chrono::steady_clock::now() + kTimeout;
    while (!condition() && std::chrono::steady_clock::now() < deadline) {
      changed_.WaitFor(mutex_, deadline - std::chrono::steady_clock::now());
    }
  }

  Mutex mutex_;
  CondVar changed_;
  // Guarded by mutex_, which the analysis cannot see in lambdas.
  std::vector<SessionInfo> opened_;
  std::vector<SessionEnd> closed_;
  std::vector<Attach> attached_;
};

// Lends segments 1 to 70 to session 1, and 101 to 170 to every other session.
class FakeDirectory : public SegmentDirectory {
 public:
  FakeDirectory() : memory_(memfd_create("test", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(memory_.get(), 4096), 0);
  }
  absl::StatusOr<Descriptor> Find(SessionId session, SegmentId id, SegmentAccess) override {
    if (!(session == 1 && id >= 1 && id <= 70) && !(session >= 2 && id >= 101 && id <= 170)) {
      return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_SEGMENT", "not lent to this session");
    }
    return Descriptor{fcntl(memory_.get(), F_DUPFD_CLOEXEC, 0), 4096, id == 2};
  }
  const UniqueFd memory_;
};

struct Received {
  v1::HandoffResponse response;
  std::vector<UniqueFd> descriptors;
};

class Client {
 public:
  explicit Client(const std::string& path) : socket_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    connected_ = connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }

  bool connected() const { return connected_; }
  absl::Status SendBytes(std::string bytes, std::vector<UniqueFd> descriptors = {}) {
    return SendPacket(socket_.get(), Packet{std::move(bytes), std::move(descriptors)});
  }
  void Send(const v1::HandoffRequest& request, std::vector<UniqueFd> descriptors = {}) {
    const absl::Status sent = SendBytes(request.SerializeAsString(), std::move(descriptors));
    EXPECT_TRUE(sent.ok()) << sent;
  }
  // Returns the next answer; nullopt if the server closed the connection.
  std::optional<Received> Receive() {
    pollfd readable{socket_.get(), POLLIN, 0};
    if (poll(&readable, 1, static_cast<int>(std::chrono::milliseconds(kTimeout).count())) != 1) {
      ADD_FAILURE() << "no answer";
      return std::nullopt;
    }
    absl::StatusOr<std::optional<Packet>> packet = ReceivePacket(socket_.get());
    if (!packet.ok() || !packet->has_value()) return std::nullopt;
    Received received;
    EXPECT_TRUE(received.response.ParseFromString((*packet)->bytes));
    received.descriptors = std::move((*packet)->descriptors);
    return received;
  }
  v1::HandoffResponse Ask(const v1::HandoffRequest& request, std::vector<UniqueFd> descriptors = {}) {
    Send(request, std::move(descriptors));
    std::optional<Received> received = Receive();
    if (!received) {
      ADD_FAILURE() << "the connection was closed instead of answering " << request.ShortDebugString();
      return v1::HandoffResponse();
    }
    EXPECT_EQ(received->response.id(), request.id());
    return received->response;
  }
  bool IsClosedByServer() { return !Receive().has_value(); }
  void Close() { socket_.reset(); }
  int fd() const { return socket_.get(); }

 private:
  UniqueFd socket_;
  bool connected_ = false;
};

v1::HandoffRequest HelloRequest() {
  v1::HandoffRequest request;
  request.set_id(1);
  v1::Hello& hello = *request.mutable_hello();
  hello.set_min_version(1);
  hello.set_max_version(3);
  hello.set_client_instance(kInstance);
  hello.set_client_name("test/1");
  return request;
}

v1::HandoffRequest FetchRequest(const std::vector<int64_t>& ids) {
  v1::HandoffRequest request;
  request.set_id(2);
  request.mutable_fetch_segments()->mutable_ids()->Add(ids.begin(), ids.end());
  return request;
}

v1::HandoffRequest AttachRequest(const std::string& path) {
  v1::HandoffRequest request;
  request.set_id(3);
  request.mutable_attach_root()->set_path(path);
  return request;
}

v1::HandoffRequest GoodbyeRequest() {
  v1::HandoffRequest request;
  request.set_id(4);
  request.mutable_goodbye();
  return request;
}

std::vector<UniqueFd> Descriptors(std::initializer_list<int> fds) {
  std::vector<UniqueFd> descriptors;
  for (int fd : fds) descriptors.emplace_back(fd);
  return descriptors;
}

UniqueFd OpenPath(const std::string& path, int flags) {
  return UniqueFd(open(path.c_str(), flags | O_CLOEXEC));
}

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

class HandoffServerTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/handoff.XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    options_.socket_path = folder_ + "/s.handoff";
    options_.daemon_instance = "daemon";
    options_.daemon_version = "0.0.1";
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Start(int max_sessions = 100) {
    registry_ = std::make_unique<SessionRegistry>(max_sessions);
    auto server = HandoffServer::Start(options_, registry_.get(), &directory_, &delegate_,
                                       [this](const std::string& line) {
                                         MutexLock lock(log_mutex_);
                                         log_.push_back(line);
                                       });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  Client Connect() {
    Client client(options_.socket_path);
    EXPECT_TRUE(client.connected());
    return client;
  }
  Client ConnectAndGreet() {
    Client client = Connect();
    EXPECT_FALSE(client.Ask(HelloRequest()).has_error());
    return client;
  }
  // Waits for this many turns of the server's loop, after which it has read earlier packets.
  void WaitTurns(int count) {
    const int64_t turns = server_->turns();
    const auto deadline = std::chrono::steady_clock::now() + kTimeout;
    while (server_->turns() < turns + count && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
  }
  std::string Log() {
    MutexLock lock(log_mutex_);
    std::string all;
    for (const std::string& line : log_) all += line + "\n";
    return all;
  }

  std::string folder_;
  HandoffOptions options_;
  FakeDelegate delegate_;
  FakeDirectory directory_;
  std::unique_ptr<SessionRegistry> registry_;
  Mutex log_mutex_;
  std::vector<std::string> log_;
  std::unique_ptr<HandoffServer> server_;
};

TEST_F(HandoffServerTest, HelloOpensASessionForTheUserOfTheConnection) {
  Start();
  Client client = Connect();
  const v1::HandoffResponse response = client.Ask(HelloRequest());
  ASSERT_FALSE(response.has_error()) << response.error().message();
  EXPECT_EQ(response.hello().version(), 1);
  EXPECT_EQ(response.hello().daemon_instance(), "daemon");
  EXPECT_EQ(response.hello().daemon_version(), "0.0.1");
  auto found = registry_->Find(response.hello().token(), getuid());
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->pid, getpid());
  EXPECT_EQ(found->gid, getgid());
  EXPECT_EQ(found->client_instance, kInstance);
  EXPECT_TRUE(found->descriptors);
  const auto opened = delegate_.WaitOpened(1);
  ASSERT_EQ(opened.size(), 1u);
  EXPECT_EQ(opened[0].id, found->id);
}

TEST_F(HandoffServerTest, SendsSegmentsAsDescriptorsOfTheSameMemory) {
  Start();
  Client client = ConnectAndGreet();
  client.Send(FetchRequest({2, 1}));
  auto received = client.Receive();
  ASSERT_TRUE(received.has_value());
  ASSERT_EQ(received->response.fetch_segments().segments_size(), 2);
  EXPECT_EQ(received->response.fetch_segments().segments(0).id(), 2);
  EXPECT_TRUE(received->response.fetch_segments().segments(0).huge());
  EXPECT_EQ(received->response.fetch_segments().segments(1).size_bytes(), 4096);
  ASSERT_EQ(received->descriptors.size(), 2u);
  ASSERT_EQ(pwrite(received->descriptors[1].get(), "x", 1, 7), 1);
  char read = 0;
  ASSERT_EQ(pread(directory_.memory_.get(), &read, 1, 7), 1);
  EXPECT_EQ(read, 'x');
}

TEST_F(HandoffServerTest, FetchesAsManySegmentsAsFitIntoAPacket) {
  Start();
  Client client = ConnectAndGreet();
  std::vector<int64_t> ids;
  for (int64_t id = 1; id <= 64; ++id) ids.push_back(id);
  client.Send(FetchRequest(ids));
  auto received = client.Receive();
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->descriptors.size(), 64u);
  ids.push_back(65);
  EXPECT_EQ(client.Ask(FetchRequest(ids)).error().reason(), "INVALID_ARGUMENT");
  EXPECT_EQ(client.Ask(FetchRequest({})).error().reason(), "INVALID_ARGUMENT");
}

TEST_F(HandoffServerTest, RefusesASegmentOfAnotherSessionAndKeepsTheSession) {
  Start();
  Client client = ConnectAndGreet();
  client.Send(FetchRequest({1, 101}));
  auto refused = client.Receive();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->response.error().reason(), "UNKNOWN_SEGMENT");
  EXPECT_EQ(refused->response.error().code(), 5);  // NOT_FOUND.
  EXPECT_TRUE(refused->descriptors.empty());
  EXPECT_FALSE(refused->response.has_fetch_segments());
  EXPECT_FALSE(client.Ask(FetchRequest({1})).has_error());
}

TEST_F(HandoffServerTest, HandsARootOnAndAnswersFromAnotherThread) {
  Start();
  Client client = ConnectAndGreet();
  for (int flags : {O_RDONLY | O_DIRECTORY, O_PATH | O_DIRECTORY}) {
    client.Send(AttachRequest("/what/the/client/says"), Descriptors({OpenPath(folder_, flags).release()}));
    auto attach = delegate_.WaitAttach();
    ASSERT_TRUE(attach.has_value());
    EXPECT_EQ(attach->path, "/what/the/client/says");
    EXPECT_EQ(attach->session.pid, getpid());
    struct stat sent {
    }, handed{};
    ASSERT_EQ(stat(folder_.c_str(), &sent), 0);
    ASSERT_EQ(fstat(attach->root.get(), &handed), 0);
    EXPECT_EQ(sent.st_ino, handed.st_ino);
    std::thread([&] { attach->reply(std::string("root-1")); }).join();
    auto received = client.Receive();
    ASSERT_TRUE(received.has_value());
    EXPECT_EQ(received->response.attach_root().root(), "root-1");
  }
  client.Send(AttachRequest("/r"), Descriptors({OpenPath(folder_, O_RDONLY).release()}));
  auto attach = delegate_.WaitAttach();
  ASSERT_TRUE(attach.has_value());
  attach->reply(MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_LOCKED", "another daemon has it"));
  auto refused = client.Receive();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->response.error().reason(), "ROOT_LOCKED");
  EXPECT_EQ(refused->response.error().message(), "another daemon has it");
}

TEST_F(HandoffServerTest, HandsTheUrlOfABucketOnWithoutADescriptor) {
  Start();
  Client client = ConnectAndGreet();
  client.Send(AttachRequest("s3://bucket/run"), {});
  auto attach = delegate_.WaitAttach();
  ASSERT_TRUE(attach.has_value());
  EXPECT_EQ(attach->path, "s3://bucket/run");
  EXPECT_LT(attach->root.get(), 0);
  attach->reply(std::string("root"));
  EXPECT_EQ(client.Receive()->response.attach_root().root(), "root");
  const auto with_one =
      client.Ask(AttachRequest("s3://bucket/run"), Descriptors({OpenPath(folder_, O_RDONLY).release()}));
  EXPECT_EQ(with_one.error().reason(), "INVALID_ARGUMENT");
}

TEST_F(HandoffServerTest, AnswersInTheOrderOfTheRequests) {
  Start();
  Client client = ConnectAndGreet();
  client.Send(AttachRequest("/a"), Descriptors({OpenPath(folder_, O_RDONLY).release()}));
  client.Send(AttachRequest("/b"), Descriptors({OpenPath(folder_, O_RDONLY).release()}));
  client.Send(FetchRequest({1}));
  client.Send(GoodbyeRequest());
  auto first = delegate_.WaitAttach();
  auto second = delegate_.WaitAttach();
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_EQ(delegate_.WaitClosed(1).size(), 1u);  // The server read all four.
  second->reply(std::string("B"));
  first->reply(std::string("A"));
  auto a = client.Receive(), b = client.Receive(), segments = client.Receive(), goodbye = client.Receive();
  ASSERT_TRUE(a && b && segments && goodbye);
  EXPECT_EQ(a->response.attach_root().root(), "A");
  EXPECT_EQ(b->response.attach_root().root(), "B");
  EXPECT_EQ(segments->descriptors.size(), 1u);
  EXPECT_TRUE(goodbye->response.has_goodbye());
  EXPECT_TRUE(client.IsClosedByServer());
}

TEST_F(HandoffServerTest, RefusesAFileAsRootAndKeepsTheSession) {
  Start();
  Client client = ConnectAndGreet();
  const std::string file = folder_ + "/file";
  UniqueFd made(open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  UniqueFd other_end(pipes[1]);
  const auto reason = [&](const std::string& path, std::vector<UniqueFd> descriptors) {
    return client.Ask(AttachRequest(path), std::move(descriptors)).error().reason();
  };
  EXPECT_EQ(reason("/r", {}), "INVALID_ARGUMENT");
  EXPECT_EQ(reason("/r", Descriptors({OpenPath(file, O_RDONLY).release()})), "INVALID_ARGUMENT");
  EXPECT_EQ(reason("/r", Descriptors({OpenPath(file, O_PATH).release()})), "INVALID_ARGUMENT");
  EXPECT_EQ(reason("/r", Descriptors({pipes[0]})), "INVALID_ARGUMENT");
  EXPECT_EQ(reason("/r", Descriptors(
                             {OpenPath(folder_, O_RDONLY).release(), OpenPath(folder_, O_RDONLY).release()})),
            "INVALID_ARGUMENT");
  EXPECT_EQ(reason("", Descriptors({OpenPath(folder_, O_RDONLY).release()})), "INVALID_ARGUMENT");
  EXPECT_EQ(reason("relative", Descriptors({OpenPath(folder_, O_RDONLY).release()})), "INVALID_ARGUMENT");
  EXPECT_EQ(reason("/a\nb", Descriptors({OpenPath(folder_, O_RDONLY).release()})), "INVALID_ARGUMENT");
  EXPECT_EQ(reason("/" + std::string(5000, 'x'), Descriptors({OpenPath(folder_, O_RDONLY).release()})),
            "INVALID_ARGUMENT");
  EXPECT_FALSE(client.Ask(FetchRequest({1})).has_error());
}

TEST_F(HandoffServerTest, GoodbyeEndsTheSession) {
  Start();
  Client client = Connect();
  v1::HandoffRequest hello = HelloRequest();
  hello.mutable_hello()->set_keeper(true);
  const std::string token = client.Ask(hello).hello().token();
  EXPECT_EQ(registry_->keepers(), 1);
  EXPECT_TRUE(client.Ask(GoodbyeRequest()).has_goodbye());
  EXPECT_TRUE(client.IsClosedByServer());
  const auto closed = delegate_.WaitClosed(1);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_TRUE(closed[0].goodbye);
  EXPECT_TRUE(closed[0].keeper);
  EXPECT_EQ(registry_->keepers(), 0);
  EXPECT_EQ(ReasonOf(registry_->Find(token, getuid()).status()), "UNKNOWN_TOKEN");
  EXPECT_EQ(Log(), "");
}

TEST_F(HandoffServerTest, GoodbyeCountsWhenTheClientEndsBeforeItIsRead) {
  Start();
  Client client = ConnectAndGreet();
  client.Send(GoodbyeRequest());
  client.Close();
  const auto closed = delegate_.WaitClosed(1);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_TRUE(closed[0].goodbye);
}

TEST_F(HandoffServerTest, SessionEndsWithItsConnection) {
  Start();
  Client client = ConnectAndGreet();
  Client other = ConnectAndGreet();
  client.Close();
  const auto closed = delegate_.WaitClosed(1);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_FALSE(closed[0].goodbye);
  EXPECT_EQ(closed[0].why, "the connection was closed");
  EXPECT_FALSE(other.Ask(FetchRequest({101})).has_error());
  EXPECT_EQ(registry_->sessions(), 1);
}

// A trainer with DataLoader workers, which inherit its socket and outlive it.
TEST_F(HandoffServerTest, SessionEndsWithItsProcessWhileAForkedChildHoldsTheConnection) {
  Start();
  const std::string hello = HelloRequest().SerializeAsString();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, options_.socket_path.c_str(), sizeof(address.sun_path) - 1);
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  UniqueFd from_child(pipes[0]), to_parent(pipes[1]);
  const pid_t trainer = fork();
  if (trainer == 0) {
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) _exit(1);
    if (send(fd, hello.data(), hello.size(), 0) < 0) _exit(1);
    const pid_t worker = fork();
    if (worker == 0) {
      pause();
      _exit(0);
    }
    if (write(to_parent.get(), &worker, sizeof(worker)) != sizeof(worker)) _exit(1);
    pause();
    _exit(0);
  }
  ASSERT_GT(trainer, 0);
  const auto opened = delegate_.WaitOpened(1);
  ASSERT_EQ(opened.size(), 1u);
  EXPECT_EQ(opened[0].pid, trainer);
  pid_t worker = 0;
  ASSERT_EQ(read(from_child.get(), &worker, sizeof(worker)), static_cast<ssize_t>(sizeof(worker)));
  EXPECT_EQ(delegate_.closed(), 0u);
  ASSERT_EQ(kill(trainer, SIGKILL), 0);
  ASSERT_EQ(waitpid(trainer, nullptr, 0), trainer);
  const auto closed = delegate_.WaitClosed(1);
  EXPECT_EQ(kill(worker, 0), 0) << "the worker should have outlived the session";
  kill(worker, SIGKILL);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].why, "its process ended");
}

TEST_F(HandoffServerTest, RequiresHelloFirstAndOnlyOnce) {
  Start();
  Client client = Connect();
  EXPECT_EQ(client.Ask(FetchRequest({1})).error().reason(), "INVALID_ARGUMENT");
  EXPECT_EQ(client.Ask(GoodbyeRequest()).error().reason(), "INVALID_ARGUMENT");
  EXPECT_EQ(
      client.Ask(AttachRequest("/r"), Descriptors({OpenPath(folder_, O_RDONLY).release()})).error().reason(),
      "INVALID_ARGUMENT");
  v1::HandoffRequest nothing;
  nothing.set_id(9);
  EXPECT_EQ(client.Ask(nothing).error().reason(), "INVALID_ARGUMENT");
  EXPECT_FALSE(client.Ask(HelloRequest()).has_error());
  EXPECT_EQ(client.Ask(HelloRequest()).error().reason(), "INVALID_ARGUMENT");
  EXPECT_EQ(client.Ask(nothing).error().reason(), "INVALID_ARGUMENT");
  EXPECT_FALSE(client.Ask(FetchRequest({1})).has_error());
  EXPECT_EQ(registry_->sessions(), 1);
}

TEST_F(HandoffServerTest, RefusesABadHelloWithTheReasonAndAllowsAnother) {
  Start();
  Client client = Connect();
  const auto refused = [&](const std::function<void(v1::Hello&)>& spoil) {
    v1::HandoffRequest request = HelloRequest();
    spoil(*request.mutable_hello());
    return client.Ask(request).error();
  };
  const v1::HandoffError newer = refused([](v1::Hello& h) { h.set_min_version(2); });
  EXPECT_EQ(newer.reason(), "VERSION_UNSUPPORTED");
  EXPECT_EQ(newer.code(), 9);  // FAILED_PRECONDITION.
  EXPECT_THAT(newer.message(), testing::HasSubstr("versions 2 to 3"));
  EXPECT_EQ(refused([](v1::Hello& h) { h.set_max_version(0); }).reason(), "VERSION_UNSUPPORTED");
  for (const char* instance :
       {"", "short", "0123456789abcdef0123456789abcdeg", "0123456789abcdef0123456789abcdef0"}) {
    EXPECT_EQ(refused([&](v1::Hello& h) { h.set_client_instance(instance); }).reason(), "INVALID_ARGUMENT")
        << instance;
  }
  EXPECT_EQ(refused([](v1::Hello& h) { h.set_client_name(std::string(101, 'n')); }).reason(),
            "INVALID_ARGUMENT");
  EXPECT_EQ(refused([](v1::Hello& h) { h.set_client_name("two\nlines"); }).reason(), "INVALID_ARGUMENT");
  EXPECT_EQ(registry_->sessions(), 0);
  EXPECT_FALSE(client.Ask(HelloRequest()).has_error());
}

TEST_F(HandoffServerTest, RefusesSessionsAboveTheLimitUntilOneEnds) {
  Start(1);
  Client first = ConnectAndGreet();
  Client second = Connect();
  const v1::HandoffError refused = second.Ask(HelloRequest()).error();
  EXPECT_EQ(refused.reason(), "TOO_MANY_SESSIONS");
  EXPECT_EQ(refused.code(), 8);  // RESOURCE_EXHAUSTED.
  first.Close();
  EXPECT_EQ(delegate_.WaitClosed(1).size(), 1u);
  EXPECT_FALSE(second.Ask(HelloRequest()).has_error());
}

TEST_F(HandoffServerTest, ClosesAConnectionThatNeverSendsHello) {
  options_.hello_timeout = std::chrono::milliseconds(200);
  Start();
  Client greeted = ConnectAndGreet();
  Client silent = Connect();
  Client wrong = Connect();
  EXPECT_TRUE(wrong.Ask(FetchRequest({1})).has_error());
  EXPECT_TRUE(silent.IsClosedByServer());
  EXPECT_TRUE(wrong.IsClosedByServer());
  EXPECT_THAT(Log(), testing::HasSubstr("it did not say Hello in time"));
  EXPECT_FALSE(greeted.Ask(FetchRequest({1})).has_error());
  EXPECT_EQ(delegate_.closed(), 0u);
}

TEST_F(HandoffServerTest, ClosesConnectionsAboveTheLimitUntilOneEnds) {
  options_.max_connections = 2;
  Start();
  Client one = ConnectAndGreet();
  Client two = ConnectAndGreet();
  Client three = Connect();
  EXPECT_TRUE(three.IsClosedByServer());
  one.Close();
  EXPECT_EQ(delegate_.WaitClosed(1).size(), 1u);
  Client four = ConnectAndGreet();
  EXPECT_FALSE(two.Ask(FetchRequest({101})).has_error());
}

TEST_F(HandoffServerTest, LimitsConnectionsOfEachUser) {
  options_.max_connections_per_uid = 1;
  Start();
  Client one = ConnectAndGreet();
  Client two = Connect();
  EXPECT_TRUE(two.IsClosedByServer());
  EXPECT_THAT(Log(), testing::HasSubstr("limits.connections_per_uid"));
  one.Close();
  EXPECT_EQ(delegate_.WaitClosed(1).size(), 1u);
  ConnectAndGreet();
}

TEST_F(HandoffServerTest, ANewLimitOnConnectionsCountsAtOnce) {
  options_.max_connections_per_uid = 1;
  Start();
  Client one = ConnectAndGreet();
  server_->SetMostConnectionsPerUser(2);
  Client two = ConnectAndGreet();
  Client three = Connect();
  EXPECT_TRUE(three.IsClosedByServer());
}

TEST_F(HandoffServerTest, GarbageClosesOnlyItsConnection) {
  Start();
  Client healthy = ConnectAndGreet();
  const int before = OpenDescriptors();
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    Client client = Connect();
    if (random() % 2 == 0) client.Send(HelloRequest());
    std::string bytes(random() % 300, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    // Half of the packets begin like a request.
    if (random() % 2 == 0) bytes = AttachRequest("/r").SerializeAsString() + bytes;
    std::vector<UniqueFd> descriptors;
    for (unsigned n = random() % 4; n > 0; --n) descriptors.push_back(OpenPath(folder_, O_RDONLY));
    client.SendBytes(bytes, std::move(descriptors)).IgnoreError();
    shutdown(client.fd(), SHUT_WR);
    while (client.Receive()) {
    }
  }
  while (auto attach = delegate_.TakeAttach()) attach->root.reset();
  // The server closed all descriptors that came along.
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_FALSE(healthy.Ask(FetchRequest({1})).has_error());
  EXPECT_EQ(registry_->sessions(), 1);
}

TEST_F(HandoffServerTest, TooLargePacketClosesOnlyItsConnection) {
  Start();
  Client healthy = ConnectAndGreet();
  Client client = ConnectAndGreet();
  ASSERT_TRUE(client.SendBytes(std::string(kMaxPacketBytes + 1, 'x')).ok());
  EXPECT_TRUE(client.IsClosedByServer());
  EXPECT_THAT(Log(), testing::HasSubstr("more than 65536 bytes"));
  Client largest = ConnectAndGreet();
  EXPECT_EQ(largest.Ask(AttachRequest("/" + std::string(kMaxPacketBytes - 64, 'x'))).error().reason(),
            "INVALID_ARGUMENT");
  EXPECT_FALSE(healthy.Ask(FetchRequest({1})).has_error());
}

TEST_F(HandoffServerTest, RefusesAndClosesUnexpectedDescriptors) {
  Start();
  Client client = Connect();
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  UniqueFd read_end(pipes[0]);
  EXPECT_EQ(client.Ask(HelloRequest(), Descriptors({pipes[1]})).error().reason(), "INVALID_ARGUMENT");
  char byte = 0;
  EXPECT_EQ(read(read_end.get(), &byte, 1), 0);  // No writer is left.
  EXPECT_FALSE(client.Ask(HelloRequest()).has_error());
}

// ---- descriptors that nobody reads

v1::HandoffRequest FetchRange(int64_t first, int count) {
  std::vector<int64_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(first + i);
  return FetchRequest(ids);
}

// Bytes in the socket in unread packets.
int UnreadBytes(int socket) {
  int bytes = -1;
  EXPECT_EQ(ioctl(socket, FIONREAD, &bytes), 0);
  return bytes;
}

TEST_F(HandoffServerTest, RefusesASegmentThatIsNamedTwice) {
  Start();
  Client client = ConnectAndGreet();
  const v1::HandoffError refused = client.Ask(FetchRequest({3, 1, 3})).error();
  EXPECT_EQ(refused.reason(), "INVALID_ARGUMENT");
  EXPECT_THAT(refused.message(), testing::HasSubstr("segment 3 twice"));
  EXPECT_FALSE(client.Ask(FetchRequest({3, 1})).has_error());
}

TEST_F(HandoffServerTest, SendsDescriptorsOnlyWhenEarlierOnesWereRead) {
  Start();
  Client other = ConnectAndGreet();
  Client client = ConnectAndGreet();
  client.Send(FetchRange(101, 64));
  auto one = client.Receive();
  ASSERT_TRUE(one.has_value());
  const int size_of_one = static_cast<int>(one->response.ByteSizeLong());
  constexpr int kFetches = 20;
  for (int i = 0; i < kFetches; ++i) client.Send(FetchRange(101, 64));
  // The server reads at most 16 packets of a connection in one turn, so after four answers it has read all.
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(other.Ask(FetchRequest({1})).has_error());
  EXPECT_EQ(UnreadBytes(client.fd()), size_of_one);
  for (int i = 0; i < kFetches; ++i) {
    auto answer = client.Receive();
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->descriptors.size(), 64u);
  }
  EXPECT_EQ(delegate_.closed(), 0u);
}

TEST_F(HandoffServerTest, HoldsNoDescriptorsForWaitingAnswers) {
  Start();
  Client client = ConnectAndGreet();
  client.Send(AttachRequest("/slow"), Descriptors({OpenPath(folder_, O_RDONLY).release()}));
  auto attach = delegate_.WaitAttach();
  ASSERT_TRUE(attach.has_value());
  const int before = OpenDescriptors();
  for (int i = 0; i < 30; ++i) client.Send(FetchRange(1, 64));
  client.Send(GoodbyeRequest());
  EXPECT_EQ(delegate_.WaitClosed(1).size(), 1u);  // The server read all.
  EXPECT_EQ(OpenDescriptors(), before);
  attach->reply(std::string("root"));
  EXPECT_EQ(client.Receive()->response.attach_root().root(), "root");
  EXPECT_EQ(client.Receive()->descriptors.size(), 64u);
}

TEST_F(HandoffServerTest, DropsAClientThatDoesNotReadItsAnswers) {
  options_.read_timeout = std::chrono::milliseconds(100);
  Start();
  Client healthy = ConnectAndGreet();
  Client client = ConnectAndGreet();
  client.Send(FetchRequest({101}));
  client.Send(FetchRequest({101}));
  const auto closed = delegate_.WaitClosed(1);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].why, "the peer does not read its answers");
  EXPECT_FALSE(healthy.Ask(FetchRequest({1})).has_error());
}

TEST_F(HandoffServerTest, DropsAClientThatSendsRequestsWithoutReading) {
  Start();
  Client healthy = ConnectAndGreet();
  Client client = ConnectAndGreet();
  for (int i = 0; i < 66; ++i) client.SendBytes(FetchRequest({101}).SerializeAsString()).IgnoreError();
  const auto closed = delegate_.WaitClosed(1);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_THAT(closed[0].why, testing::HasSubstr("requests without reading an answer"));
  EXPECT_FALSE(healthy.Ask(FetchRequest({1})).has_error());
}

TEST_F(HandoffServerTest, WaitsUntilOtherClientsHaveReadTheirDescriptors) {
  options_.max_unread_descriptors_per_uid = 100;
  Start();
  Client first = ConnectAndGreet();
  Client second = ConnectAndGreet();
  first.Send(FetchRange(1, 64));
  pollfd readable{first.fd(), POLLIN, 0};
  ASSERT_EQ(poll(&readable, 1, static_cast<int>(std::chrono::milliseconds(kTimeout).count())), 1);
  second.Send(FetchRange(101, 64));
  WaitTurns(3);
  EXPECT_EQ(UnreadBytes(second.fd()), 0);
  ASSERT_TRUE(first.Receive().has_value());
  auto answer = second.Receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->descriptors.size(), 64u);
}

TEST_F(HandoffServerTest, ClosesClientsThatLeaveDescriptorsUnreadWhenOthersWait) {
  options_.max_unread_descriptors = 100;
  options_.max_unread_descriptors_per_uid = 100;
  options_.read_timeout = std::chrono::milliseconds(100);
  Start();
  Client hog = ConnectAndGreet();
  Client other = ConnectAndGreet();
  hog.Send(FetchRange(1, 64));
  pollfd readable{hog.fd(), POLLIN, 0};
  ASSERT_EQ(poll(&readable, 1, static_cast<int>(std::chrono::milliseconds(kTimeout).count())), 1);
  // The unread descriptors still count after the connection is closed, as in the kernel.
  const v1::HandoffError refused = other.Ask(FetchRange(101, 64)).error();
  EXPECT_EQ(refused.reason(), "LIMIT_EXCEEDED");
  EXPECT_EQ(refused.code(), 8);  // RESOURCE_EXHAUSTED.
  const auto closed = delegate_.WaitClosed(1);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].session, 1);
  EXPECT_EQ(closed[0].why, "the peer does not read its answers");
  EXPECT_EQ(other.Ask(FetchRange(101, 64)).error().reason(), "LIMIT_EXCEEDED");
  hog.Close();
  EXPECT_FALSE(other.Ask(FetchRange(101, 64)).has_error());
}

// Without these capabilities the kernel applies the limit to root, too.
void SetResourceCapabilities(bool on) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  ASSERT_EQ(syscall(SYS_capget, &header, data), 0);
  const uint32_t bits = (1u << CAP_SYS_RESOURCE) | (1u << CAP_SYS_ADMIN);
  data[0].effective = on ? data[0].effective | (data[0].permitted & bits) : data[0].effective & ~bits;
  ASSERT_EQ(syscall(SYS_capset, &header, data), 0);
}

TEST_F(HandoffServerTest, KeepsSessionsWhenTheKernelTakesNoMoreDescriptors) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  SetResourceCapabilities(false);
  Start();  // Its thread has the capabilities of this one.
  Client client = ConnectAndGreet();
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd from(ends[0]), to(ends[1]);
  for (int i = 0; i < 8; ++i) {
    Packet packet{"x", {}};
    for (int n = 0; n < 64; ++n) packet.descriptors.push_back(OpenPath(folder_, O_RDONLY));
    ASSERT_TRUE(SendPacket(from.get(), packet).ok());
  }
  rlimit low = before;
  low.rlim_cur = 256;  // Fewer than are in the socket pair now.
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(ReasonOf(SendPacket(from.get(), {"x", Descriptors({OpenPath(folder_, O_RDONLY).release()})})),
            "ETOOMANYREFS");
  client.Send(FetchRequest({1}));
  WaitTurns(3);
  EXPECT_EQ(UnreadBytes(client.fd()), 0);
  EXPECT_EQ(delegate_.closed(), 0u);
  while (ReceivePacket(to.get())->has_value()) {
  }
  auto answer = client.Receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->descriptors.size(), 1u);
  setrlimit(RLIMIT_NOFILE, &before);
  SetResourceCapabilities(true);
}

TEST_F(HandoffServerTest, DropsAClientThatDoesNotWaitForItsRoots) {
  Start();
  Client client = ConnectAndGreet();
  for (int i = 0; i < 65; ++i) {
    client.Send(AttachRequest("/r"), Descriptors({OpenPath(folder_, O_RDONLY).release()}));
  }
  const auto closed = delegate_.WaitClosed(1);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_THAT(closed[0].why, testing::HasSubstr("requests without reading an answer"));
}

TEST_F(HandoffServerTest, RefusesASocketInUseAndReplacesAStaleOne) {
  Start();
  auto second =
      HandoffServer::Start(options_, registry_.get(), &directory_, &delegate_, [](const std::string&) {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition) << second.status();
  Client client = ConnectAndGreet();  // The first server still serves.

  server_.reset();
  EXPECT_NE(access(options_.socket_path.c_str(), F_OK), 0);
  EXPECT_TRUE(client.IsClosedByServer());

  // A killed daemon leaves its socket behind.
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, options_.socket_path.c_str(), sizeof(address.sun_path) - 1);
  UniqueFd dead(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  dead.reset();
  Start();
  ConnectAndGreet();
}

TEST_F(HandoffServerTest, GivesTheSocketTheConfiguredMode) {
  options_.mode = 0600;
  Start();
  struct stat info {};
  ASSERT_EQ(stat(options_.socket_path.c_str(), &info), 0);
  EXPECT_TRUE(S_ISSOCK(info.st_mode));
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(HandoffServerTest, EndsWithClientsAttachedAndIgnoresALateReply) {
  Start();
  Client client = ConnectAndGreet();
  client.Send(AttachRequest("/r"), Descriptors({OpenPath(folder_, O_RDONLY).release()}));
  auto attach = delegate_.WaitAttach();
  ASSERT_TRUE(attach.has_value());
  server_.reset();
  attach->reply(std::string("late"));
  EXPECT_TRUE(client.IsClosedByServer());
  EXPECT_EQ(delegate_.closed(), 0u);
}

TEST_F(HandoffServerTest, TurnsWhileIdle) {
  Start();
  const int64_t before = server_->turns();
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  while (server_->turns() == before && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_GT(server_->turns(), before);
}

}  // namespace
}  // namespace ckptd
