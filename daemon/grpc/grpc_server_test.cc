// The services as a client sees them: a real socket and the real engine, on a root in memory. One file of
// more than 500 lines, because all tests use the same fixture.
#include "daemon/grpc/grpc_server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ckptd/v1/service.grpc.pb.h"
#include "daemon/attach/attach_queue.h"
#include "daemon/base/event_loop.h"
#include "daemon/base/loop_gate.h"
#include "daemon/base/unix_listener.h"
#include "daemon/base/worker_pool.h"
#include "daemon/engine/engine.h"
#include "daemon/grpc/base/call_limits.h"
#include "daemon/memory/segment_pool.h"
#include "daemon/sessions/call_authenticator.h"
#include "daemon/sessions/peer_table.h"
#include "daemon/sessions/session_registry.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"
#include "tests/testing/fake_root_io.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kChunkBytes = 4 << 20;

class NoObserver final : public EngineObserver {
 public:
  void OnSaveEnded(const SaveSummary&) override {}
  void OnWarning(const std::string&) override {}
  void OnInfo(const std::string&) override {}
  void OnRootOpened(const std::string&, const std::string&, const ProbeResult&) override {}
};

std::unique_ptr<grpc::ClientContext> ContextWithTimeout(seconds timeout = seconds(30)) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + timeout);
  return context;
}

std::string Pattern(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>((i * 2654435761u) >> 13);
  return bytes;
}

class GrpcServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(folder_), nullptr);
    path_ = std::string(folder_) + "/s";
    pool_ = SegmentPool::Start(
        {.bytes = 32 << 20, .segment_bytes = 2 << 20, .populate_ahead_bytes = 0, .pages = PagePolicy::kPlain},
        [this](absl::AnyInvocable<void()> work) { gate_.Post(std::move(work)); }, [](const std::string&) {});
    EngineOptions options;
    options.daemon_version = "0.0.0";
    options.daemon_instance = "instance";
    options.chunk_bytes = kChunkBytes;
    engine_ = std::make_unique<Engine>(options, &SystemClock(), pool_.get(), &observer_);
    loop_->Start([this] { Turn(); }, milliseconds(2));
    context_ = {.engine = engine_.get(),
                .loop = loop_.get(),
                .sessions = &sessions_,
                .authenticator = &authenticator_,
                .workers = workers_.get(),
                .attaches = &attaches_,
                .call_limits = nullptr,
                .make_attachment = [this](UniqueFd, const std::string& path,
                                          const FileUser& user) -> absl::StatusOr<RootAttachment> {
                  RootAttachment attachment;
                  attachment.device = 1;
                  attachment.inode = 2;
                  attachment.path = path;
                  attachment.uid = user.uid;
                  attachment.make_io = [this] {
                    auto io = std::make_unique<FakeRootIo>(disk_, &queue_);
                    io_ = io.get();
                    return RootAccess{std::move(io)};
                  };
                  return attachment;
                },
                .container_roots = {},
                .daemon_version = "0.0.0",
                .daemon_instance = "instance"};
    SetCallLimits(64, 256 << 20);
    Serve({});
    channel_ = grpc::CreateChannel("unix:" + path_, grpc::InsecureChannelCredentials());
    stub_ = v1::Checkpoints::NewStub(channel_);
  }

  void Serve(GrpcLimits limits) {
    server_.reset();
    auto listener =
        ListenUnix({.path = path_, .type = SOCK_STREAM, .mode = 0600, .group = {}, .timeout = {}});
    ASSERT_TRUE(listener.ok()) << listener.status();
    auto server = GrpcServer::Start(
        *std::move(listener), &peers_, &context_, [](const std::string&) {}, limits);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  // Call it while no call is in flight.
  CallLimits& SetCallLimits(int calls, int64_t memory) {
    call_limits_.push_back(std::make_unique<CallLimits>(calls, memory));
    context_.call_limits = call_limits_.back().get();
    return *call_limits_.back();
  }

  void TearDown() override {
    server_.reset();
    workers_.reset();
    attaches_.Close();
    gate_.Close();
    loop_.reset();
    engine_.reset();
    pool_.reset();
    ::unlink(path_.c_str());
    ::rmdir(folder_);
  }

  // Runs on the loop's thread.
  void Turn() {
    while (!queue_.empty()) {
      auto work = std::move(queue_.front());
      queue_.pop_front();
      work();
    }
    engine_->Tick();
  }

  // Opens a session without descriptors and joins a run.
  struct Trainer {
    std::unique_ptr<grpc::ClientContext> session_context;
    std::unique_ptr<grpc::ClientReader<v1::OpenSessionResponse>> session;
    std::string token;
    std::string run;

    std::unique_ptr<grpc::ClientContext> Call(seconds timeout = seconds(30)) const {
      auto context = ContextWithTimeout(timeout);
      context->AddMetadata("ckptd-token", token);
      return context;
    }
  };

  Trainer Join(int rank = 0, int world_size = 1) {
    Trainer trainer;
    trainer.session_context = ContextWithTimeout(seconds(120));
    v1::OpenSessionRequest open;
    open.set_min_version(1);
    open.set_max_version(3);
    open.set_client_instance(std::string(32, static_cast<char>('0' + rank)));
    trainer.session = stub_->OpenSession(trainer.session_context.get(), open);
    v1::OpenSessionResponse session;
    EXPECT_TRUE(trainer.session->Read(&session));
    EXPECT_EQ(session.daemon_instance(), "instance");
    trainer.token = session.token();

    v1::OpenRootRequest root_request;
    root_request.set_path(folder_);
    v1::OpenRootResponse root;
    Expect(stub_->OpenRoot(trainer.Call().get(), root_request, &root));
    v1::JoinRunRequest join;
    join.set_root(root.root());
    join.set_rank(rank);
    join.set_world_size(world_size);
    join.set_launch_id("launch");
    v1::JoinRunResponse joined;
    Expect(stub_->JoinRun(trainer.Call().get(), join, &joined));
    trainer.run = joined.run();
    return trainer;
  }

  static v1::SaveKey Key(const Trainer& trainer, const std::string& tag) {
    v1::SaveKey key;
    key.set_run(trainer.run);
    key.set_tag(tag);
    key.set_ordinal(1);
    return key;
  }

  void Begin(const Trainer& trainer, const std::string& tag, int64_t size) {
    v1::BeginRequest request;
    *request.mutable_key() = Key(trainer, tag);
    v1::FileSpec& file = *request.add_files();
    file.set_path("model.pt");
    file.set_size_bytes(size);
    v1::BeginResponse response;
    Expect(stub_->Begin(trainer.Call().get(), request, &response));
    EXPECT_EQ(response.level(), v1::OPEN);
  }

  // Returns the answer to a WriteFile of `pieces`.
  grpc::Status Write(const Trainer& trainer, const std::string& tag, const std::vector<std::string>& pieces,
                     v1::WriteFileResponse* response) {
    auto context = trainer.Call();
    auto writer = stub_->WriteFile(context.get(), response);
    v1::WriteFileRequest message;
    *message.mutable_header()->mutable_key() = Key(trainer, tag);
    message.mutable_header()->set_path("model.pt");
    writer->Write(message);
    for (const std::string& piece : pieces) {
      message.set_data(piece);
      if (!writer->Write(message)) break;
    }
    writer->WritesDone();
    return writer->Finish();
  }

  void Seal(const Trainer& trainer, const std::string& tag, int64_t size) {
    v1::SealRequest request;
    *request.mutable_key() = Key(trainer, tag);
    v1::FileSpec& file = *request.add_files();
    file.set_path("model.pt");
    file.set_size_bytes(size);
    v1::SealResponse response;
    Expect(stub_->Seal(trainer.Call().get(), request, &response));
  }

  v1::Level WaitCommitted(const Trainer& trainer, const std::string& tag) {
    v1::WaitRequest request;
    *request.mutable_key() = Key(trainer, tag);
    request.set_level(v1::COMMITTED);
    v1::WaitResponse response;
    Expect(stub_->Wait(trainer.Call().get(), request, &response));
    return response.checkpoint().level();
  }

  void Save(const Trainer& trainer, const std::string& tag, const std::string& bytes) {
    Begin(trainer, tag, static_cast<int64_t>(bytes.size()));
    v1::WriteFileResponse written;
    std::vector<std::string> pieces;
    for (size_t at = 0; at < bytes.size(); at += 1'500'001) pieces.push_back(bytes.substr(at, 1'500'001));
    Expect(Write(trainer, tag, pieces, &written));
    EXPECT_EQ(written.size_bytes(), static_cast<int64_t>(bytes.size()));
    Seal(trainer, tag, static_cast<int64_t>(bytes.size()));
    EXPECT_EQ(WaitCommitted(trainer, tag), v1::COMMITTED);
  }

  // Reads a file through a lease of `tag`; `status` gets the status of the last call.
  using Ranges = std::vector<std::pair<int64_t, int64_t>>;  // Offset, size.
  std::string Read(const Trainer& trainer, const std::string& tag, const std::string& path, int64_t offset,
                   int64_t limit, grpc::Status* status, const Ranges& ranges = {}) {
    v1::OpenCheckpointRequest open;
    open.set_name(trainer.run + "/checkpoints/" + tag);
    v1::OpenCheckpointResponse opened;
    Expect(stub_->OpenCheckpoint(trainer.Call().get(), open, &opened));
    v1::ReadFileRequest request;
    request.set_lease(opened.lease());
    request.set_path(path);
    request.set_offset(offset);
    request.set_limit(limit);
    for (const auto& [begin, size] : ranges) {
      v1::FileRange& range = *request.add_ranges();
      range.set_offset(begin);
      range.set_size_bytes(size);
    }
    auto context = trainer.Call();
    auto reader = stub_->ReadFile(context.get(), request);
    std::string bytes;
    for (v1::ReadFileResponse response; reader->Read(&response);) bytes += response.data();
    *status = reader->Finish();
    return bytes;
  }

  static void Expect(const grpc::Status& status) { EXPECT_TRUE(status.ok()) << status.error_message(); }

  // A health request has one string, field 1. Field 1 of its answer is the status: 1 is SERVING, 2
  // NOT_SERVING.
  int Health(const std::string& service) {
    const std::string request = std::string("\x0a", 1) + static_cast<char>(service.size()) + service;
    const grpc::Slice slice(request);
    grpc::ByteBuffer in(&slice, 1), out;
    auto context = ContextWithTimeout();
    std::promise<grpc::Status> done;
    grpc::GenericStub(channel_).UnaryCall(
        context.get(), "/grpc.health.v1.Health/Check", {}, &in, &out,
        [&done](grpc::Status result) { done.set_value(std::move(result)); });
    const grpc::Status status = done.get_future().get();
    grpc::Slice answer;
    if (!status.ok() || !out.DumpToSingleSlice(&answer).ok() || answer.size() != 2) return -1;
    return answer.begin()[1];
  }

  char folder_[32] = "/tmp/ckptd.XXXXXX";
  std::string path_;
  NoObserver observer_;
  std::shared_ptr<FakeDisk> disk_ = std::make_shared<FakeDisk>();
  FakeRootIo::Queue queue_;   // Used on the loop's thread only.
  FakeRootIo* io_ = nullptr;  // Used on the loop's thread only.
  std::unique_ptr<EventLoop> loop_ = std::make_unique<EventLoop>("test-engine");
  LoopGate gate_{loop_.get()};
  std::unique_ptr<SegmentPool> pool_;
  std::unique_ptr<Engine> engine_;
  SessionRegistry sessions_{16};
  PeerTable peers_;
  CallAuthenticator authenticator_{&peers_, &sessions_, ::geteuid(), OverflowUid()};
  AttachQueue attaches_{AttachLimits(), &SystemClock()};
  std::unique_ptr<WorkerPool> workers_ = std::make_unique<WorkerPool>(4);
  std::vector<std::unique_ptr<CallLimits>> call_limits_;
  ServiceContext context_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Checkpoints::Stub> stub_;
};

// Polls until `condition` holds.
void WaitUntil(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + seconds(20);
  bool is_so = condition();
  while (!is_so && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
    is_so = condition();
  }
  EXPECT_TRUE(is_so);
}

TEST_F(GrpcServerTest, RefusesCallsAboveTheLimitOfAUser) {
  CallLimits& limits = SetCallLimits(2, 64 << 20);
  auto first = ContextWithTimeout(), second = ContextWithTimeout();
  auto watch = stub_->Watch(first.get(), v1::WatchRequest());
  auto other = stub_->Watch(second.get(), v1::WatchRequest());
  WaitUntil([&] { return limits.calls(::geteuid()) == 2; });
  v1::GetCheckpointRequest request;
  request.set_name("runs/0/checkpoints/a");
  v1::Checkpoint answer;
  const grpc::Status refused = stub_->GetCheckpoint(ContextWithTimeout().get(), request, &answer);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(refused.error_message().find("limits.calls_per_uid"), std::string::npos)
      << refused.error_message();
  auto third = ContextWithTimeout();
  EXPECT_EQ(stub_->Watch(third.get(), v1::WatchRequest())->Finish().error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  first->TryCancel();
  watch->Finish();
  WaitUntil([&] { return limits.calls(::geteuid()) == 1; });
  EXPECT_EQ(stub_->GetCheckpoint(ContextWithTimeout().get(), request, &answer).error_code(),
            grpc::StatusCode::NOT_FOUND);
  second->TryCancel();
  other->Finish();
}

TEST_F(GrpcServerTest, RefusesACallAboveTheMemoryLimitOfAUser) {
  const Trainer trainer = Join();
  SetCallLimits(10, 1 << 20);
  v1::BeginRequest request;
  *request.mutable_key() = Key(trainer, "step_1");
  for (int i = 0; i < 20'000; ++i) request.add_files()->set_path(std::to_string(i));
  v1::BeginResponse response;
  const grpc::Status refused = stub_->Begin(trainer.Call().get(), request, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(refused.error_message().find("limits.call_memory_bytes_per_uid"), std::string::npos)
      << refused.error_message();
  Begin(trainer, "step_2", 10);
}

TEST_F(GrpcServerTest, ReadWaitsForTheMemoryOfUnreadAnswers) {
  const Trainer trainer = Join();
  const std::string bytes = Pattern(19 << 20);
  Save(trainer, "step_1", bytes);
  CallLimits& limits = SetCallLimits(10, 5 << 20);  // A chunk has 4 MiB.
  const uid_t uid = ::geteuid();
  v1::OpenCheckpointRequest open;
  open.set_name(trainer.run + "/checkpoints/step_1");
  v1::OpenCheckpointResponse opened;
  Expect(stub_->OpenCheckpoint(trainer.Call().get(), open, &opened));
  v1::ReadFileRequest request;
  request.set_lease(opened.lease());
  request.set_path("model.pt");
  auto stalled = trainer.Call(), given_up = trainer.Call(), waiting = trainer.Call();
  auto first = stub_->ReadFile(stalled.get(), request);
  WaitUntil([&] { return limits.memory(uid) >= 4 << 20; });
  auto second = stub_->ReadFile(given_up.get(), request);
  WaitUntil([&] { return limits.calls(uid) == 2; });
  auto third = stub_->ReadFile(waiting.get(), request);
  WaitUntil([&] { return limits.calls(uid) == 3; });
  given_up->TryCancel();
  EXPECT_EQ(second->Finish().error_code(), grpc::StatusCode::CANCELLED);
  WaitUntil([&] { return limits.calls(uid) == 2; });
  EXPECT_LE(limits.memory(uid), 5 << 20);
  stalled->TryCancel();
  std::string read;
  for (v1::ReadFileResponse response; third->Read(&response);) read += response.data();
  Expect(third->Finish());
  EXPECT_TRUE(read == bytes);
  first->Finish();
  WaitUntil([&] { return limits.calls(uid) == 0 && limits.memory(uid) == 0; });
}

TEST_F(GrpcServerTest, RefusesConnectionsAboveTheLimitUntilOneCloses) {
  Serve({.max_connections = 100, .max_connections_per_uid = 2});
  // The server sends its settings on an accepted connection, and closes a refused one.
  const auto taken = [this](UniqueFd& socket) {
    socket.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    pollfd readable{socket.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&readable, 1, 20'000), 1);
    char byte = 0;
    return ::recv(socket.get(), &byte, 1, MSG_DONTWAIT) == 1;
  };
  UniqueFd first, second, third;
  EXPECT_TRUE(taken(first));
  EXPECT_TRUE(taken(second));
  EXPECT_FALSE(taken(third));
  server_->SetLimits({.max_connections = 100, .max_connections_per_uid = 3});
  EXPECT_TRUE(taken(third));
  UniqueFd fourth;
  EXPECT_FALSE(taken(fourth));
  first.reset();
  WaitUntil([&] { return taken(fourth); });
}

TEST_F(GrpcServerTest, SendsRangesOfAFileInOrder) {
  const Trainer trainer = Join();
  const std::string bytes = Pattern((19 << 20) + 123);
  Save(trainer, "step_1", bytes);
  const int64_t chunk = 8 << 20, size = std::ssize(bytes);
  // Two ranges in one chunk, one across a boundary, one of several chunks, and the last byte.
  const Ranges ranges = {{5, 10}, {100, 1}, {chunk - 7, 20}, {chunk + 13, 9 << 20}, {size - 1, 1}};
  std::string wanted;
  for (const auto& [begin, count] : ranges)
    wanted += bytes.substr(static_cast<size_t>(begin), static_cast<size_t>(count));
  grpc::Status status;
  EXPECT_TRUE(Read(trainer, "step_1", "model.pt", 0, 0, &status, ranges) == wanted);
  Expect(status);
  for (const Ranges& wrong : {Ranges{{0, 0}}, Ranges{{-1, 2}}, Ranges{{size, 1}}, Ranges{{size - 1, 2}},
                              Ranges{{10, 5}, {14, 1}}, Ranges{{1, INT64_MAX}}}) {
    EXPECT_EQ(Read(trainer, "step_1", "model.pt", 0, 0, &status, wrong), "");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  }
}

TEST_F(GrpcServerTest, SavesWithoutDescriptors) {
  const Trainer trainer = Join();
  const std::string bytes = Pattern((9 << 20) + 123);
  Save(trainer, "step_1", bytes);

  grpc::Status status;
  EXPECT_TRUE(Read(trainer, "latest", "model.pt", 0, 0, &status) == bytes);
  Expect(status);
}

TEST_F(GrpcServerTest, ReadsAFileFromAnyOffsetToAnyLimit) {
  const Trainer trainer = Join();
  const std::string bytes = Pattern(9 << 20);
  Save(trainer, "step_1", bytes);
  grpc::Status status;
  const int64_t start = kChunkBytes - 7;
  EXPECT_TRUE(Read(trainer, "step_1", "model.pt", start, 20, &status) == bytes.substr(start, 20));
  Expect(status);
  EXPECT_EQ(Read(trainer, "step_1", "model.pt", 9 << 20, 0, &status), "");
  Expect(status);
  EXPECT_EQ(Read(trainer, "step_1", "model.pt", (9 << 20) - 3, 1 << 30, &status).size(), 3u);
  Expect(status);
  Read(trainer, "step_1", "model.pt", (9 << 20) + 1, 0, &status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  Read(trainer, "step_1", "other.pt", 0, 0, &status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_details(), HasSubstr("UNKNOWN_FILE"));
}

TEST_F(GrpcServerTest, RefusesBytesBeyondThePlacedSize) {
  const Trainer trainer = Join();
  Begin(trainer, "step_1", 1000);
  v1::WriteFileResponse response;
  const grpc::Status status = Write(trainer, "step_1", {std::string(999, 'x'), "yz"}, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("999 + 2 bytes do not fit into the 1000"));
  // The save continues: the client may write the file again.
  Expect(Write(trainer, "step_1", {std::string(1000, 'y')}, &response));
  Seal(trainer, "step_1", 1000);
  EXPECT_EQ(WaitCommitted(trainer, "step_1"), v1::COMMITTED);
}

TEST_F(GrpcServerTest, RefusesAWriteWithoutAHeader) {
  const Trainer trainer = Join();
  auto context = trainer.Call();
  v1::WriteFileResponse response;
  auto writer = stub_->WriteFile(context.get(), &response);
  v1::WriteFileRequest message;
  message.set_data("bytes");
  writer->Write(message);
  writer->WritesDone();
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(GrpcServerTest, RefusesATooLargeMessageAndKeepsServing) {
  const Trainer trainer = Join();
  Begin(trainer, "step_1", 8 << 20);
  v1::WriteFileResponse response;
  EXPECT_EQ(Write(trainer, "step_1", {std::string(5 << 20, 'x')}, &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  Expect(Write(trainer, "step_1", {std::string(2 << 20, 'x')}, &response));
}

TEST_F(GrpcServerTest, SessionEndsWithItsStream) {
  Trainer trainer = Join();
  trainer.session_context->TryCancel();
  trainer.session->Finish();
  v1::ListCheckpointsRequest request;
  request.set_parent(trainer.run);
  grpc::Status status;
  const auto deadline = std::chrono::steady_clock::now() + seconds(20);
  do {  // The server notices a moment later.
    v1::ListCheckpointsResponse response;
    status = stub_->ListCheckpoints(trainer.Call().get(), request, &response);
  } while (status.ok() && std::chrono::steady_clock::now() < deadline);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(sessions_.sessions(), 0);
}

TEST_F(GrpcServerTest, RefusesAnotherProtocolVersion) {
  v1::OpenSessionRequest request;
  request.set_min_version(2);
  request.set_max_version(3);
  request.set_client_instance(std::string(32, 'a'));
  auto context = ContextWithTimeout();
  auto session = stub_->OpenSession(context.get(), request);
  v1::OpenSessionResponse response;
  EXPECT_FALSE(session->Read(&response));
  const grpc::Status status = session->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_details(), HasSubstr("VERSION_UNSUPPORTED"));
}

TEST_F(GrpcServerTest, RefusesASessionWithoutAnInstance) {
  v1::OpenSessionRequest request;
  request.set_min_version(1);
  request.set_max_version(1);
  request.set_client_instance("i");
  auto context = ContextWithTimeout();
  EXPECT_EQ(stub_->OpenSession(context.get(), request)->Finish().error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(sessions_.sessions(), 0);
}

TEST_F(GrpcServerTest, DropsTheReplyToACancelledCall) {
  const Trainer trainer = Join();
  Begin(trainer, "step_1", 1000);
  v1::WaitRequest request;
  *request.mutable_key() = Key(trainer, "step_1");
  request.set_level(v1::COMMITTED);
  request.mutable_timeout()->set_seconds(60);
  for (int i = 0; i < 20; ++i) {
    auto context = std::make_unique<grpc::ClientContext>();
    context->AddMetadata("ckptd-token", trainer.token);
    context->set_deadline(std::chrono::system_clock::now() + milliseconds(i));
    v1::WaitResponse response;
    EXPECT_EQ(stub_->Wait(context.get(), request, &response).error_code(),
              grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  // Now the engine answers all of them.
  Seal(trainer, "step_1", 1000);
  EXPECT_EQ(WaitCommitted(trainer, "step_1"), v1::COMMITTED);
}

TEST_F(GrpcServerTest, ReleasesALeaseWhoseAnswerNobodyReceived) {
  const Trainer trainer = Join();
  Save(trainer, "step_1", Pattern(1000));
  const auto on_loop = [this](const std::function<int()>& ask) {
    std::promise<int> answer;
    loop_->Post([&] { answer.set_value(ask()); });
    return answer.get_future().get();
  };
  const auto wait_for = [&](const std::function<int()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + seconds(20);
    while (on_loop(condition) == 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    return on_loop(condition) != 0;
  };
  for (const bool resume : {false, true}) {
    on_loop([&] { return io_->held.insert("OpenCheckpoint"), 0; });
    const int before = on_loop([&] { return io_->calls["OpenCheckpoint"]; });
    auto context = trainer.Call();
    std::promise<grpc::Status> ended;
    v1::OpenCheckpointRequest open;
    open.set_name(trainer.run + "/checkpoints/step_1");
    v1::OpenCheckpointResponse opened;
    v1::ResumeRequest resume_request;
    resume_request.set_run(trainer.run);
    v1::ResumeResponse resumed;
    const auto done = [&ended](grpc::Status status) { ended.set_value(std::move(status)); };
    if (resume) {
      stub_->async()->Resume(context.get(), &resume_request, &resumed, done);
    } else {
      stub_->async()->OpenCheckpoint(context.get(), &open, &opened, done);
    }
    ASSERT_TRUE(wait_for([&] { return io_->calls["OpenCheckpoint"] > before; }));
    context->TryCancel();
    EXPECT_EQ(ended.get_future().get().error_code(), grpc::StatusCode::CANCELLED);
    // The client's library reports the cancellation before the server has read it. The server answers later
    // calls of the same connection only after it has read it.
    for (int i = 0; i < 3; ++i) {
      v1::GetCheckpointRequest get;
      get.set_name(trainer.run + "/checkpoints/step_1");
      v1::Checkpoint checkpoint;
      Expect(stub_->GetCheckpoint(trainer.Call().get(), get, &checkpoint));
    }
    on_loop([&] { return io_->ReleaseHeld(), Turn(), 0; });  // Opened after the client left.
    EXPECT_TRUE(wait_for([&] { return disk_->readers.empty(); })) << (resume ? "resume" : "open");
  }
  v1::OpenCheckpointRequest open;  // A lease whose answer is received stays.
  open.set_name(trainer.run + "/checkpoints/step_1");
  v1::OpenCheckpointResponse opened;
  Expect(stub_->OpenCheckpoint(trainer.Call().get(), open, &opened));
  v1::GetCheckpointRequest get;
  get.set_name(open.name());
  v1::Checkpoint checkpoint;
  Expect(stub_->GetCheckpoint(trainer.Call().get(), get, &checkpoint));
  EXPECT_EQ(checkpoint.leases(), 1);
}

TEST_F(GrpcServerTest, WatcherSeesEveryLevel) {
  const Trainer trainer = Join();
  Begin(trainer, "step_1", 1000);
  auto context = trainer.Call();
  auto watch = stub_->Watch(context.get(), v1::WatchRequest());
  v1::WatchResponse event;
  ASSERT_TRUE(watch->Read(&event));  // The watch is active from now on.
  EXPECT_EQ(event.checkpoint().level(), v1::OPEN);
  EXPECT_THAT(event.checkpoint().missing_ranks(), ElementsAre(0));
  Seal(trainer, "step_1", 1000);
  std::vector<v1::Level> levels;
  while (levels.empty() || levels.back() != v1::COMMITTED) {
    ASSERT_TRUE(watch->Read(&event));
    levels.push_back(event.checkpoint().level());
  }
  EXPECT_THAT(levels, Contains(v1::SEALED));
  context->TryCancel();
  while (watch->Read(&event)) continue;
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GrpcServerTest, HealthFollowsServing) {
  for (const char* service : {"", "ckptd.v1.Checkpoints", "ckptd.v1.Admin"}) {
    EXPECT_EQ(Health(service), 2) << service;
    server_->SetServing(true);
    EXPECT_EQ(Health(service), 1) << service;
    server_->SetServing(false);
  }
}

TEST_F(GrpcServerTest, StopEndsWaitingCalls) {
  const Trainer trainer = Join();
  Begin(trainer, "step_1", 1000);
  v1::WaitRequest request;
  *request.mutable_key() = Key(trainer, "step_1");
  request.set_level(v1::COMMITTED);
  request.mutable_timeout()->set_seconds(60);
  auto context = trainer.Call(seconds(60));
  auto watch_context = trainer.Call(seconds(60));
  auto watch = stub_->Watch(watch_context.get(), v1::WatchRequest());
  std::promise<grpc::Status> answered;
  std::thread waiter([&] {
    v1::WaitResponse response;
    answered.set_value(stub_->Wait(context.get(), request, &response));
  });
  v1::WatchResponse event;
  watch->Read(&event);  // The watch is active; the wait may be, too.
  const auto start = std::chrono::steady_clock::now();
  server_->Stop(milliseconds(100));
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(20));
  auto answer = answered.get_future();
  ASSERT_EQ(answer.wait_for(seconds(20)), std::future_status::ready);
  EXPECT_FALSE(answer.get().ok());
  waiter.join();
  while (watch->Read(&event)) continue;
  EXPECT_FALSE(watch->Finish().ok());
}

TEST_F(GrpcServerTest, OnlyPrivilegedCallersSeeTheCluster) {
  v1::Status status;
  AddClusterStatus(context_, Caller{.privileged = true}, &status);
  EXPECT_FALSE(status.has_cluster()) << "the daemon is in none";
  context_.cluster_status = [] {
    v1::ClusterStatus cluster;
    cluster.set_node("gpu17");
    return cluster;
  };
  AddClusterStatus(context_, Caller{.uid = 1000}, &status);
  EXPECT_FALSE(status.has_cluster());
  AddClusterStatus(context_, Caller{.privileged = true}, &status);
  EXPECT_EQ(status.cluster().node(), "gpu17");
}

TEST_F(GrpcServerTest, GarbageEndsOnlyItsConnection) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(path_.begin(), path_.end(), address.sun_path);
  ASSERT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const std::string garbage = Pattern(100000);
  EXPECT_GT(::send(socket.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
  const timeval timeout{.tv_sec = 20, .tv_usec = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  char buffer[4096];
  ssize_t size = 0;
  while ((size = ::recv(socket.get(), buffer, sizeof(buffer), 0)) > 0) continue;
  EXPECT_TRUE(size == 0 || errno == ECONNRESET) << "the server should close it";
  EXPECT_NE(Health(""), -1);
}

}  // namespace
}  // namespace ckptd
