#include "daemon/cluster/nodes_root_io.h"

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "tests/testing/fake_shared_files.h"

namespace ckptd {
namespace {

// Answers AcquireReader and ConfirmReader with `answers`, in turn.
class ReadingNodes : public NodesReading {
 public:
  void CheckRoot(const SharedFilesIo::RunOfRoot&, Callback<absl::Status> checked) override { checked(root); }
  void Opened(const SharedFilesIo::RunOfRoot&) override { ++opened; }
  void ApplyDecided(RootSnapshot*) override {}
  bool IsStale(const RootSnapshot&, Instant) override { return false; }
  Instant Now() const override { return Instant(); }
  void CallLater(absl::AnyInvocable<void()>) override {}
  void Post(absl::AnyInvocable<void()> answer) override { posted.push_back(std::move(answer)); }
  void AcquireReader(int64_t, Callback<absl::Status> acquired) override {
    acquired(answers.front());
    if (answers.front().ok()) ++readers;
    answers.pop_front();
  }
  void ConfirmReader(int64_t, Callback<absl::Status> confirmed) override {
    EXPECT_EQ(readers, 1) << "it is kept until then";
    confirmed(answers.front());
    answers.pop_front();
  }
  bool WasRemoved(int64_t) const override { return was_removed; }
  std::function<void()> ReleaserOf(int64_t) override {
    return [this] { --readers; };
  }
  void Evict(const std::string&, int64_t, Callback<absl::Status>) override {}

  std::deque<absl::Status> answers;
  std::deque<absl::AnyInvocable<void()>> posted;
  absl::Status root;  // What CheckRoot answers.
  int readers = 0, opened = 0;
  bool was_removed = false;
};

class NodesRootIoTest : public ::testing::Test {
 protected:
  NodesRootIoTest() { io_.Connect(&nodes_); }

  void RunEvents() {
    while (!events_.empty()) {
      auto event = std::move(events_.front());
      events_.pop_front();
      event();
    }
  }

  std::string Open() {
    std::string reason = "no answer";
    io_.OpenCheckpoint("step_1", 1, [&](const absl::StatusOr<std::shared_ptr<CheckpointReader>>& opened) {
      reason = opened.ok() ? "OK" : ReasonOf(opened.status());
    });
    RunEvents();
    return reason;
  }

  std::string OpenRoot() {
    std::string reason = "no answer";
    io_.Open([&](const absl::StatusOr<RootSnapshot>& root) {
      reason = root.ok() ? "OK" : ReasonOf(root.status());
    });
    RunEvents();
    return reason;
  }

  std::deque<absl::AnyInvocable<void()>> events_;
  const FakeSharedRoot::After after_ = [this](Duration, absl::AnyInvocable<void()> event) {
    events_.push_back(std::move(event));
  };
  FakeSharedRoot root_{after_, 1, std::chrono::milliseconds(1)};
  Pause pause_;
  ReadingNodes nodes_;
  NodesRootIo io_{std::make_unique<FakeSharedFiles>(&root_, &pause_, after_, "run")};
};

TEST_F(NodesRootIoTest, CopyOfARootIsRefusedBeforeTheRunTakesItUp) {
  nodes_.root = MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_COPIED", "a test");
  EXPECT_EQ(OpenRoot(), "ROOT_COPIED");
  EXPECT_EQ(nodes_.opened, 0);
  nodes_.root = absl::OkStatus();
  EXPECT_EQ(OpenRoot(), "OK");
  EXPECT_EQ(nodes_.opened, 1);
}

TEST_F(NodesRootIoTest, CheckpointThatIsMissingIsMissing) {
  nodes_.answers = {absl::OkStatus(), absl::OkStatus()};
  EXPECT_EQ(Open(), reason::kNoCheckpoint);
  EXPECT_EQ(nodes_.readers, 0);
  EXPECT_FALSE(io_.has_pending());
}

TEST_F(NodesRootIoTest, CheckpointThatWasRemovedMeanwhileIsNotDamaged) {
  nodes_.answers = {absl::OkStatus(), MakeError(absl::StatusCode::kUnavailable, "BEING_REMOVED", "a test")};
  EXPECT_EQ(Open(), "BEING_REMOVED");
  EXPECT_EQ(nodes_.readers, 0);
}

TEST_F(NodesRootIoTest, CheckpointThatWasRemovedBeforeIsNotDamaged) {
  nodes_.answers = {absl::OkStatus(), absl::OkStatus()};
  nodes_.was_removed = true;
  EXPECT_EQ(Open(), "BEING_REMOVED");
  EXPECT_EQ(nodes_.readers, 0);
}

TEST_F(NodesRootIoTest, ErrorProvesNothingWithoutEtcd) {
  nodes_.answers = {absl::OkStatus(),
                    MakeError(absl::StatusCode::kUnavailable, "LEDGER_UNAVAILABLE", "a test")};
  EXPECT_EQ(Open(), "LEDGER_UNAVAILABLE");
}

TEST_F(NodesRootIoTest, WhatItCannotDoYetIsSaidAfterTheCall) {
  std::vector<std::string> heard;
  io_.Undelete("step_1", 1, [&](const absl::StatusOr<Undeleted>& undeleted) {
    EXPECT_TRUE(absl::IsUnimplemented(undeleted.status()));
    heard.push_back(ReasonOf(undeleted.status()));
  });
  io_.Adopt({}, {}, [&](const PublishResult& adopted) {
    EXPECT_EQ(adopted.outcome, PublishOutcome::kFailed);
    heard.push_back(ReasonOf(adopted.status));
  });
  EXPECT_TRUE(heard.empty());
  for (auto& answer : nodes_.posted) answer();
  EXPECT_EQ(heard,
            (std::vector<std::string>{reason::kSharedRootUnsupported, reason::kSharedRootUnsupported}));
}

}  // namespace
}  // namespace ckptd
