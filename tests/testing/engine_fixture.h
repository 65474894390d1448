// Fixture for tests of the engine: trainers as sessions, a root in memory, and a clock that the test moves.
#ifndef CKPTD_TESTS_TESTING_ENGINE_FIXTURE_H_
#define CKPTD_TESTS_TESTING_ENGINE_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/engine/engine.h"
#include "daemon/memory/populator.h"
#include "daemon/memory/segment_pool.h"
#include "daemon/succession/seal_journal.h"
#include "storage/base/errors.h"
#include "tests/testing/fake_root_io.h"
#include "tests/testing/inbox.h"

namespace ckptd {

inline constexpr int64_t kSegment = 2 << 20;

class TestClock : public Clock {
 public:
  Instant Now() override { return now; }
  int64_t UnixMicros() override { return unix_us; }
  int64_t unix_us = 1'700'000'000'000'000;
  Instant now = Instant() + std::chrono::hours(1);
};

class Observer : public EngineObserver {
 public:
  void OnSaveEnded(const SaveSummary& summary) override { ended.push_back(summary); }
  void OnWarning(const std::string& message) override { warnings.push_back(message); }
  void OnInfo(const std::string& message) override { infos.push_back(message); }
  void OnRootOpened(const std::string&, const std::string&, const ProbeResult&) override {}
  std::vector<SaveSummary> ended;
  std::vector<std::string> warnings, infos;
};

// A machine without the memory that the pool may take.
class NoMemory : public Populator {
 public:
  NoMemory(Inbox* inbox, Made made) : inbox_(inbox), made_(std::move(made)) {}
  void Make(SegmentId id) override {
    inbox_->Post([this, id] {
      made_({id, MakeError(absl::StatusCode::kResourceExhausted, "POOL_EXHAUSTED", "no memory"), {}});
    });
  }
  void Free(SegmentId, SegmentMemory) override {}
  void Forget(SegmentId, std::function<void(absl::Status)>) override {}

 private:
  Inbox* const inbox_;
  const Made made_;
};

// An answer that may be pending.
template <typename T>
struct Answer {
  std::shared_ptr<std::optional<absl::StatusOr<T>>> value =
      std::make_shared<std::optional<absl::StatusOr<T>>>();
  Reply<T> reply() {
    return [v = value](absl::StatusOr<T> answer) { *v = std::move(answer); };
  }
  bool has() const { return value->has_value(); }
  absl::Status status() const { return has() ? (*value)->status() : absl::UnknownError("no answer yet"); }
  std::string reason() const { return ReasonOf(status()); }
  const T& get() const { return (*value)->value(); }
};

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override { Start(16); }
  void TearDown() override {
    engine_.reset();
    pool_.reset();
  }

  void Start(int segments) {
    engine_.reset();
    pool_.reset();
    SegmentPoolOptions options;
    options.bytes = segments * kSegment;
    options.segment_bytes = kSegment;
    options.resident_bytes = resident_segments_ * kSegment;
    options.pages = PagePolicy::kPlain;
    pool_ = SegmentPool::Start(
        options, [this](absl::AnyInvocable<void()> work) { inbox_.Post(std::move(work)); },
        [this](std::string warning) { pool_warnings_.push_back(std::move(warning)); }, std::move(succession_),
        make_populator_);
    engine_options_.daemon_version = "test";
    engine_options_.daemon_instance = "instance";
    engine_ = std::make_unique<Engine>(engine_options_, &clock_, pool_.get(), &observer_, journal_.get());
    run_.clear();
  }

  // Runs everything queued. If `until` is given and false afterwards, waits up to 4 s for work of the pool's
  // thread.
  void RunQueued(std::function<bool()> until = nullptr) {
    for (int waits = 0; waits < 400;) {
      bool ran = false;
      while (!queue_.empty()) {
        auto work = std::move(queue_.front());
        queue_.pop_front();
        work();
        ran = true;
      }
      if (until != nullptr && until()) return;
      const auto wait = std::chrono::milliseconds(until == nullptr ? 0 : 10);
      if (auto work = inbox_.Take(wait)) {
        work();
        ran = true;
      }
      if (!ran && until == nullptr) return;
      if (!ran) ++waits;
    }
    FAIL() << "the condition did not become true within 4 s";
  }

  // Of the run in the root `inode`; null: it is of this node alone.
  virtual std::unique_ptr<Authority> MakeShared(uint64_t /*inode*/) { return nullptr; }
  // The buckets of runs; null: none uploads anything.
  virtual std::unique_ptr<UploadIo> MakeUploads() { return nullptr; }

  SessionId Trainer(const std::string& instance, uid_t uid = 1000) {
    SessionInfo info;
    info.id = next_session_++;
    info.uid = uid;
    info.client_instance = instance;
    engine_->SessionOpened(info);
    return info.id;
  }
  static Caller As(SessionId session, uid_t uid = 1000) { return Caller{session, uid, false}; }

  Answer<std::string> AttachLater(SessionId session, uint64_t inode = 1, uid_t uid = 1000) {
    RootAttachment attachment;
    attachment.device = inode < 100 ? 1 : 2;
    attachment.inode = inode;
    attachment.path = "/root" + std::to_string(inode);
    attachment.uid = uid;
    attachment.make_io = [this, inode] {
      if (disks_[inode] == nullptr) disks_[inode] = std::make_shared<FakeDisk>();
      auto io = std::make_unique<FakeRootIo>(disks_[inode], &queue_);
      ios_[inode] = io.get();
      auto shared = MakeShared(inode);
      RootAccess access =
          shared == nullptr ? RootAccess(std::move(io)) : RootAccess(std::move(io), std::move(shared));
      access.uploads = MakeUploads();
      return access;
    };
    Answer<std::string> root;
    engine_->AttachRoot(session, std::move(attachment), root.reply());
    RunQueued();
    return root;
  }
  std::string Attach(SessionId session, uint64_t inode = 1, uid_t uid = 1000) {
    Answer<std::string> root = AttachLater(session, inode, uid);
    EXPECT_TRUE(root.has());
    if (!root.status().ok()) return std::string(root.status().message());
    run_ = root.get();
    return run_;
  }

  Answer<v1::JoinRunResponse> Join(SessionId session, int rank, int world, const std::string& launch,
                                   std::vector<v1::SaveKey> orphaned = {}) {
    v1::JoinRunRequest request;
    request.set_root(Attach(session));
    request.set_rank(rank);
    request.set_world_size(world);
    request.set_launch_id(launch);
    for (const v1::SaveKey& key : orphaned) *request.add_orphaned() = key;
    Answer<v1::JoinRunResponse> answer;
    engine_->JoinRun(As(session), request, answer.reply());
    RunQueued();
    return answer;
  }

  // Returns the sessions of a launch's ranks.
  std::vector<SessionId> Launch(const std::string& launch, int world) {
    std::vector<SessionId> sessions;
    for (int rank = 0; rank < world; ++rank) {
      sessions.push_back(Trainer(launch + "/" + std::to_string(rank)));
      auto joined = Join(sessions.back(), rank, world, launch);
      EXPECT_TRUE(joined.status().ok()) << joined.status();
    }
    return sessions;
  }

  v1::SaveKey Key(int rank, const std::string& tag, int64_t ordinal = 1) {
    v1::SaveKey key;
    key.set_run(run_);
    key.set_rank(rank);
    key.set_tag(tag);
    key.set_ordinal(ordinal);
    return key;
  }
  v1::BeginRequest BeginOf(int rank, const std::string& tag, int64_t step, int64_t bytes,
                           const std::string& path = "") {
    v1::BeginRequest request;
    *request.mutable_key() = Key(rank, tag);
    request.set_step(step);
    v1::FileSpec& file = *request.add_files();
    file.set_path(path.empty() ? "rank" + std::to_string(rank) + ".pt" : path);
    file.set_size_bytes(bytes);
    return request;
  }
  // Of a part of rank 0 to which files are added with Extend.
  v1::BeginRequest GrowingBeginOf(const std::string& tag) {
    v1::BeginRequest request;
    *request.mutable_key() = Key(0, tag);
    request.set_growing(true);
    return request;
  }
  static v1::ExtendRequest ExtendOf(const v1::BeginRequest& begun, int64_t bytes) {
    v1::ExtendRequest request;
    *request.mutable_key() = begun.key();
    v1::FileSpec& file = *request.add_files();
    file.set_path("f");
    file.set_size_bytes(bytes);
    return request;
  }
  Answer<v1::BeginResponse> Begin(SessionId session, const v1::BeginRequest& request) {
    Answer<v1::BeginResponse> answer;
    engine_->Begin(As(session), request, answer.reply());
    RunQueued();
    return answer;
  }
  Answer<v1::SealResponse> Seal(SessionId session, const v1::BeginRequest& begun) {
    v1::SealRequest request;
    *request.mutable_key() = begun.key();
    *request.mutable_files() = begun.files();
    Answer<v1::SealResponse> answer;
    engine_->Seal(As(session), request, answer.reply());
    RunQueued();
    return answer;
  }
  Answer<v1::WaitResponse> Wait(SessionId session, const v1::SaveKey& key, v1::Level level = v1::COMMITTED) {
    v1::WaitRequest request;
    *request.mutable_key() = key;
    request.set_level(level);
    request.mutable_timeout()->set_seconds(1000);
    Answer<v1::WaitResponse> answer;
    engine_->Wait(As(session), request, answer.reply());
    RunQueued();
    return answer;
  }
  Answer<v1::ResumeResponse> Resume(SessionId session, int rank) {
    v1::ResumeRequest request;
    request.set_run(run_);
    request.set_rank(rank);
    request.mutable_timeout()->set_seconds(60);
    Answer<v1::ResumeResponse> answer;
    engine_->Resume(As(session), request, answer.reply());
    RunQueued();
    return answer;
  }

  Answer<v1::OpenCheckpointResponse> Open(SessionId session, const std::string& tag, bool strict = false) {
    v1::OpenCheckpointRequest request;
    request.set_name(run_ + "/checkpoints/" + tag);
    request.set_strict(strict);
    Answer<v1::OpenCheckpointResponse> answer;
    engine_->OpenCheckpoint(As(session), request, answer.reply());
    RunQueued();
    return answer;
  }
  void Close(SessionId session, const std::string& lease) {
    v1::CloseCheckpointRequest request;
    request.set_lease(lease);
    Answer<v1::CloseCheckpointResponse> answer;
    engine_->CloseCheckpoint(As(session), request, answer.reply());
    RunQueued();
    EXPECT_TRUE(answer.status().ok()) << answer.status();
  }

  void SaveAll(const std::vector<SessionId>& sessions, const std::string& tag, int64_t step,
               std::optional<int> keep = std::nullopt) {
    std::vector<Answer<v1::BeginResponse>> begun;
    std::vector<v1::BeginRequest> requests;
    for (int rank = 0; rank < static_cast<int>(sessions.size()); ++rank) {
      requests.push_back(BeginOf(rank, tag, step, 100));
      if (keep) requests.back().set_num_kept_ckpts(*keep);
      begun.push_back(Begin(sessions[rank], requests.back()));
    }
    RunQueued([&] { return std::all_of(begun.begin(), begun.end(), [](const auto& b) { return b.has(); }); });
    for (int rank = 0; rank < static_cast<int>(sessions.size()); ++rank) {
      ASSERT_TRUE(begun[rank].status().ok()) << begun[rank].status();
      auto sealed = Seal(sessions[rank], requests[rank]);
      ASSERT_TRUE(sealed.status().ok()) << sealed.status();
    }
  }

  std::vector<std::string> Tags() {
    v1::ListCheckpointsRequest request;
    request.set_parent(run_);
    Answer<v1::ListCheckpointsResponse> answer;
    engine_->ListCheckpoints(Caller{0, 0, true}, request, answer.reply());
    std::vector<std::string> tags;
    for (const auto& checkpoint : answer.get().checkpoints()) tags.push_back(checkpoint.tag());
    return tags;
  }

  // The failed saves that a list with show_all has: "{tag} {reason}", newest first.
  std::vector<std::string> Failures() {
    v1::ListCheckpointsRequest request;
    request.set_parent(run_);
    request.set_show_all(true);
    Answer<v1::ListCheckpointsResponse> answer;
    engine_->ListCheckpoints(Caller{0, 0, true}, request, answer.reply());
    std::vector<std::string> failures;
    for (const auto& checkpoint : answer.get().checkpoints()) {
      if (checkpoint.level() == v1::FAILED)
        failures.push_back(checkpoint.tag() + " " + checkpoint.error().reason());
    }
    return failures;
  }

  void AdvanceClock(Duration time) {
    clock_.now += time;
    engine_->Tick();
    RunQueued();
  }

  TestClock clock_;
  Observer observer_;
  Inbox inbox_;
  FakeRootIo::Queue queue_;
  std::map<uint64_t, std::shared_ptr<FakeDisk>> disks_;
  std::map<uint64_t, FakeRootIo*> ios_;
  std::vector<std::string> pool_warnings_;
  EngineOptions engine_options_;          // For the next Start.
  int resident_segments_ = 0;             // For the next Start.
  PoolSuccession succession_;             // For the next Start.
  MakePopulator make_populator_;          // For the next Start; null: the real one.
  std::unique_ptr<SealJournal> journal_;  // Null except in SuccessionTest.
  std::unique_ptr<SegmentPool> pool_;
  std::unique_ptr<Engine> engine_;
  SessionId next_session_ = 1;
  std::string run_;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_ENGINE_FIXTURE_H_
