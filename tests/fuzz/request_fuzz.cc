// Requests of trainers to the engine, as they arrive over gRPC: names of runs and checkpoints, sizes, keys,
// timeouts. The input is a history: for each step the call, the caller and the bytes of the request. The root
// is in memory, and the input moves the clock.
//
// Whatever is requested: each call is answered once, each answer and the run record can be parsed again (so
// their strings are UTF-8), and when the sessions have ended no memory is in use.
#include <chrono>
#include <memory>
#include <type_traits>
#include <utility>

#include "daemon/engine/engine.h"
#include "tests/fuzz/fuzz.h"
#include "tests/testing/fake_root_io.h"
#include "tests/testing/inbox.h"

namespace ckptd {
namespace {

constexpr int64_t kSegment = 2 << 20;
constexpr int kMaxSteps = 30;
constexpr int kMaxTurns = 100'000;
constexpr int kMemoryMillis = 20;
constexpr char kRun[] = "runs/0123456789abcdef";  // In an input, stands for the name of the run.
constexpr SessionId kSessions[] = {1, 2};

class StepClock : public Clock {
 public:
  Instant Now() override { return now; }
  int64_t UnixMicros() override { return 1'700'000'000'000'000; }
  Instant now = Instant() + std::chrono::hours(1);
};

class Nobody : public EngineObserver {
 public:
  void OnSaveEnded(const SaveSummary&) override {}
  void OnWarning(const std::string&) override {}
  void OnInfo(const std::string&) override {}
  void OnRootOpened(const std::string&, const std::string&, const ProbeResult&) override {}
};

class History {
 public:
  History() {
    SegmentPoolOptions options;
    options.bytes = 8 * kSegment;
    options.segment_bytes = kSegment;
    options.populate_ahead_bytes = 0;
    options.pages = PagePolicy::kPlain;
    pool_ = SegmentPool::Start(
        options, [this](absl::AnyInvocable<void()> work) { inbox_.Post(std::move(work)); },
        [](std::string) {});
    engine_ = std::make_unique<Engine>(
        EngineOptions{.daemon_version = "0", .daemon_instance = "fuzz", .limits = {}}, &clock_, pool_.get(),
        &nobody_);
    for (const SessionId session : kSessions) {
      SessionInfo info;
      info.id = session;
      info.uid = 1000;
      info.client_instance = std::to_string(session);
      engine_->SessionOpened(info);
      RootAttachment attachment;
      attachment.device = 1;
      attachment.inode = 1;
      attachment.path = "/root";
      attachment.uid = 1000;
      attachment.make_io = [this] { return RootAccess{std::make_unique<FakeRootIo>(disk_, &queue_)}; };
      engine_->AttachRoot(session, std::move(attachment),
                          [this](absl::StatusOr<std::string> run) { run_ = run.value(); });
      RunQueued();
    }
    FUZZ_CHECK(run_.size() == std::string_view(kRun).size());
  }

  void Step(uint8_t what, std::string bytes) {
    for (size_t at = 0; (at = bytes.find(kRun, at)) != std::string::npos;)
      bytes.replace(at, run_.size(), run_);
    const Caller caller{kSessions[what >> 7], 1000, false};
    switch (what & 15) {
      case 0:
        return Ask<v1::JoinRunRequest, v1::JoinRunResponse>(&Engine::JoinRun, caller, bytes);
      case 1:
        return Ask<v1::BeginRequest, v1::BeginResponse>(&Engine::Begin, caller, bytes);
      case 2:
        return Ask<v1::ExtendRequest, v1::ExtendResponse>(&Engine::Extend, caller, bytes);
      case 3:
        return Ask<v1::SealRequest, v1::SealResponse>(&Engine::Seal, caller, bytes);
      case 4:
        return Ask<v1::AbortRequest, v1::AbortResponse>(&Engine::Abort, caller, bytes);
      case 5:
        return Ask<v1::WaitRequest, v1::WaitResponse>(&Engine::Wait, caller, bytes);
      case 6:
        return Ask<v1::ResumeRequest, v1::ResumeResponse>(&Engine::Resume, caller, bytes);
      case 7:
        return Ask<v1::OpenCheckpointRequest, v1::OpenCheckpointResponse>(&Engine::OpenCheckpoint, caller,
                                                                          bytes);
      case 8:
        return Ask<v1::GetCheckpointRequest, v1::Checkpoint>(&Engine::GetCheckpoint, caller, bytes);
      case 9:
        return Ask<v1::ListCheckpointsRequest, v1::ListCheckpointsResponse>(&Engine::ListCheckpoints, caller,
                                                                            bytes);
      case 10: {
        v1::WriteFileHeader header;
        if (!header.ParseFromString(bytes)) return;
        auto target = engine_->BeginWrite(caller, header.key(), header.path(), [](const absl::Status&) {});
        if (!target.ok()) return CheckText(target.status());
        size_t room = 0;
        for (const std::span<std::byte> run : target->runs) {
          room += run.size();
          run.front() = run.back() = std::byte{1};  // Touches the memory: it must be mapped.
        }
        FUZZ_CHECK(room == static_cast<size_t>(target->size));
        if ((what & 64) != 0) engine_->EndWrite(target->id);  // Otherwise the write never ends.
        return;
      }
      case 11:
        return AdvanceClock(std::chrono::seconds(bytes.empty() ? 0 : static_cast<uint8_t>(bytes[0])));
      default:
        CheckReadable(engine_->GetStatus(caller));
    }
  }

  // Ends the sessions: nothing that they requested may remain.
  void End() {
    for (const SessionId session : kSessions) engine_->SessionClosed(session, "the history is over");
    AdvanceClock(std::chrono::hours(24 * 8));
    FUZZ_CHECK(pool_->usage().used_bytes == 0);
    FUZZ_CHECK(answered_ == asked_);
    CheckReadable(disk_->run_record);
    engine_.reset();
    pool_.reset();
  }

 private:
  template <typename Request, typename Response>
  void Ask(void (Engine::*method)(const Caller&, const Request&, Reply<Response>), const Caller& caller,
           const std::string& bytes) {
    Request request;
    if (!request.ParseFromString(bytes)) return;  // Like gRPC.
    ++asked_;
    (engine_.get()->*method)(caller, request, [this, once = false](absl::StatusOr<Response> answer) mutable {
      FUZZ_CHECK(!std::exchange(once, true));
      ++answered_;
      if (answer.ok()) {
        CheckReadable(*answer);
      } else {
        CheckText(answer.status());
      }
    });
    RunQueued(std::is_same_v<Request, v1::BeginRequest> || std::is_same_v<Request, v1::ExtendRequest>);
  }

  template <typename Message>
  static void CheckReadable(const Message& message) {
    FUZZ_CHECK(Message().ParseFromString(message.SerializeAsString()));
  }
  static void CheckText(const absl::Status& status) { FUZZ_CHECK(!status.message().empty()); }

  void AdvanceClock(Duration time) {
    clock_.now += time;
    engine_->Tick();
    RunQueued();
  }

  // Runs everything queued. A call that waits for memory gets it from the pool's thread, a little later; one
  // that waits for other ranks is not answered.
  void RunQueued(bool may_wait_for_memory = false) {
    const auto timeout = std::chrono::milliseconds(may_wait_for_memory ? kMemoryMillis : 0);
    for (int turns = 0; turns < kMaxTurns; ++turns) {
      while (!queue_.empty()) {
        auto work = std::move(queue_.front());
        queue_.pop_front();
        work();
      }
      auto work = inbox_.Take(answered_ < asked_ ? timeout : std::chrono::milliseconds(0));
      if (work) {
        work();
      } else if (queue_.empty()) {
        return;
      }
    }
    FUZZ_CHECK(false && "the engine did not become idle");
  }

  StepClock clock_;
  Nobody nobody_;
  Inbox inbox_;
  FakeRootIo::Queue queue_;
  const std::shared_ptr<FakeDisk> disk_ = std::make_shared<FakeDisk>();
  std::string run_;
  int asked_ = 0, answered_ = 0;
  std::unique_ptr<SegmentPool> pool_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace
}  // namespace ckptd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::FuzzInput input(data, size);
  ckptd::History history;
  for (int step = 0; step < ckptd::kMaxSteps && !input.empty(); ++step) {
    const uint8_t what = input.Byte();
    history.Step(what, std::string(input.Chunk()));
  }
  history.End();
  return 0;
}
