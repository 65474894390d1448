// A root that one node has used alone and is shared now, and the other way round, through the stores that
// open it.
#include "storage/commit/steps/root_sharing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "storage/commit/local/root_store.h"
#include "storage/commit/shared/shared_root_store.h"
#include "storage/fs/file_system.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/root_store_fixture.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

absl::StatusOr<std::unique_ptr<SharedRootStore>> OpenShared(TemporaryRoot& root, FileSystem& fs) {
  return SharedRootStore::Open(&fs, root.handle(), &SystemClock(),
                               {.node = "a", .io_backend = IoBackend::kThreads});
}
absl::StatusOr<std::unique_ptr<SharedRootStore>> OpenShared(TemporaryRoot& root) {
  return OpenShared(root, root.fs());
}

class RootSharingTest : public ::testing::Test {
 protected:
  // As a daemon does when the first process joins a run.
  void UseAlone() {
    const std::unique_ptr<RootStore> store = root_.Open();
    ASSERT_NE(store, nullptr);
    ASSERT_EQ(Save(root_.fs(), *store, {.tag = "step_1", .sequence = 7}), SaveVerdict::kCommitted);
    storage::v1::RunRecord record;
    record.set_format_version(1);
    ASSERT_TRUE(store->SaveRunRecord(record).ok());
  }
  void Share() {
    const auto store = OpenShared(root_);
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->RunId().ok());
  }

  TemporaryRoot root_{TemporaryRoot::On::kMemory};
};

TEST_F(RootSharingTest, RootOfOneNodeIsNotOpenedAsAShared) {
  UseAlone();
  const absl::Status opened = OpenShared(root_).status();
  EXPECT_EQ(opened.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(opened), "ROOT_SHARING_CHANGED");
  EXPECT_THAT(std::string(opened.message()),
              AllOf(HasSubstr(".ckptd/nodes/local/run is there"), HasSubstr("take another directory"),
                    HasSubstr("cluster.shared_folders")));
  EXPECT_FALSE(std::filesystem::exists(root_.path(".ckptd/shared"))) << "nothing was changed";
  EXPECT_NE(root_.Open(), nullptr) << "and its node goes on";
}

TEST_F(RootSharingTest, SharedRootIsNotOpenedByANodeForItself) {
  Share();
  const absl::Status opened = root_.TryOpen(root_.fs()).status();
  EXPECT_EQ(opened.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(opened), "ROOT_SHARING_CHANGED");
  EXPECT_THAT(std::string(opened.message()),
              AllOf(HasSubstr(".ckptd/shared/run is there"), HasSubstr("shared_folders")));
  EXPECT_FALSE(std::filesystem::exists(root_.path(".ckptd/nodes"))) << "nothing was changed";
  EXPECT_TRUE(OpenShared(root_).ok());
}

// A job whose ranks span nodes is refused where the configuration names no folder, and has opened the root by
// then.
TEST_F(RootSharingTest, RootThatWasOnlyOpenedMayBeShared) {
  ASSERT_NE(root_.Open(), nullptr);
  ASSERT_TRUE(std::filesystem::exists(root_.node("lock")));
  Share();
}

TEST_F(RootSharingTest, RootThatOneNodeHasOpenIsNotShared) {
  const std::unique_ptr<RootStore> store = root_.Open();
  const absl::Status opened = OpenShared(root_).status();
  EXPECT_EQ(ReasonOf(opened), "ROOT_LOCKED");
  EXPECT_THAT(std::string(opened.message()),
              AllOf(HasSubstr(".ckptd/nodes/local/lock"), HasSubstr("restart that daemon")));
}

TEST_F(RootSharingTest, SharedRootThatHasNoRunYetMayBeOfOneNode) {
  ASSERT_TRUE(OpenShared(root_).ok());
  UseAlone();
}

TEST_F(RootSharingTest, CheckpointsThatWereMovedToASharedRootAreFound) {
  UseAlone();
  TemporaryRoot shared(TemporaryRoot::On::kMemory);
  std::filesystem::rename(root_.path("step_1"), shared.path("step_1"));
  const auto store = OpenShared(shared);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto scan = (*store)->Scan();
  ASSERT_TRUE(scan.ok()) << scan.status();
  ASSERT_THAT(scan->checkpoints, SizeIs(1));
  EXPECT_EQ(scan->checkpoints.at(7).summary.tag(), "step_1");
  EXPECT_EQ(scan->highest_sequence, 7);
  EXPECT_TRUE((*store)->OpenCheckpoint("step_1", 7).ok());
}

// What cannot be looked at is not taken for what is not there.
TEST_F(RootSharingTest, ErrorsOfTheDiskAreNoAnswer) {
  UseAlone();
  FaultyFileSystem faulty(&root_.fs());
  faulty.Fail({.op = FsOp::kStat, .nth = FsFault::kEvery, .error = EIO});
  EXPECT_EQ(ErrnoOf(CheckNotOfOneNode(faulty, root_.handle())), EIO);
  EXPECT_EQ(ErrnoOf(CheckNotShared(faulty, root_.handle())), EIO);
}

}  // namespace
}  // namespace ckptd
