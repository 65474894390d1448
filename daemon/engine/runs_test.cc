// Attaching roots: who may, and when a root is remembered.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/engine/engine_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uid_t kOwner = 1000, kOther = 2000;

class RunsTest : public EngineTest {
 protected:
  // Queued, not turned. The list of known roots takes it as `remembers` says.
  Answer<std::string> AttachAs(uid_t uid, absl::Status opens = absl::OkStatus()) {
    RootAttachment attachment;
    attachment.device = 1;
    attachment.inode = 1;
    attachment.path = "/root1";
    attachment.uid = uid;
    attachment.make_io = [this, opens] {
      if (disks_[1] == nullptr) disks_[1] = std::make_shared<FakeDisk>();
      disks_[1]->open_error = opens;
      return std::make_unique<FakeRootIo>(disks_[1], &queue_);
    };
    attachment.remember = [this, uid](RootAttachment::Remembered done) {
      asked_.push_back(uid);
      remembering_.push_back(std::move(done));
    };
    Answer<std::string> root;
    engine_->AttachRoot(Trainer("t" + std::to_string(next_session_), uid), std::move(attachment), root.reply());
    return root;
  }
  void Remembered(const absl::Status& status = absl::OkStatus()) {
    for (auto& done : std::exchange(remembering_, {})) {
      if (status.ok()) {
        done(in_use_);
      } else {
        done(status);
      }
    }
    Turn();
  }
  void MakeOwned() {
    disks_[1] = std::make_shared<FakeDisk>();
    disks_[1]->run_record.set_format_version(1);
    disks_[1]->run_record.set_uid(kOwner);
  }

  std::vector<uid_t> asked_;
  std::vector<RootAttachment::Remembered> remembering_;
  std::shared_ptr<const void> in_use_ = std::make_shared<char>();
};

TEST_F(RunsTest, AnswersAnAttachWhenTheRootIsRemembered) {
  Answer<std::string> root = AttachAs(kOwner);
  Turn();
  EXPECT_THAT(asked_, ElementsAre(kOwner));
  EXPECT_FALSE(root.has());
  Remembered();
  ASSERT_TRUE(root.has());
  EXPECT_TRUE(root.status().ok()) << root.status();
  EXPECT_EQ(in_use_.use_count(), 2) << "the run keeps its entry in use";
}

TEST_F(RunsTest, FailsAnAttachThatCannotBeRemembered) {
  Answer<std::string> root = AttachAs(kOwner);
  Turn();
  Remembered(MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_EXCEEDED", "too many"));
  EXPECT_EQ(root.reason(), "LIMIT_EXCEEDED");
}

TEST_F(RunsTest, DoesNotRememberARootThatCannotBeOpened) {
  Answer<std::string> root = AttachAs(kOwner, absl::PermissionDeniedError("closed"));
  Turn();
  EXPECT_EQ(root.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(asked_, IsEmpty());
}

TEST_F(RunsTest, DoesNotRememberAnotherUsersRoot) {
  Answer<std::string> owner = AttachAs(kOwner);
  Turn();
  Remembered();
  ASSERT_TRUE(owner.status().ok());
  Answer<std::string> other = AttachAs(kOther);
  Turn();
  EXPECT_EQ(other.reason(), "WRONG_UID");
  EXPECT_THAT(asked_, ElementsAre(kOwner));
}

// The run's record names its owner: whoever opens it first must not have it, nor lend it his rights.
TEST_F(RunsTest, RefusesAUserWhoOpensAnotherUsersRootFirst) {
  MakeOwned();
  Answer<std::string> other = AttachAs(kOther);
  Turn();
  EXPECT_EQ(other.reason(), "WRONG_UID");
  EXPECT_THAT(asked_, IsEmpty());
  Answer<std::string> owner = AttachAs(kOwner);
  Turn();
  Remembered();
  EXPECT_TRUE(owner.status().ok()) << owner.status();
}

TEST_F(RunsTest, OpensTheRootForItsOwnerWhileAnotherUserTries) {
  MakeOwned();
  Answer<std::string> other = AttachAs(kOther);
  Answer<std::string> owner = AttachAs(kOwner);
  Turn();
  Remembered();
  EXPECT_EQ(other.reason(), "WRONG_UID");
  EXPECT_TRUE(owner.status().ok()) << owner.status();
}

TEST_F(RunsTest, OpensTheRootForAUserWhoMayAfterOneWhoMayNot) {
  Answer<std::string> other = AttachAs(kOther, absl::PermissionDeniedError("closed"));
  Answer<std::string> again = AttachAs(kOther);
  Answer<std::string> owner = AttachAs(kOwner);
  Turn();
  Remembered();
  EXPECT_EQ(other.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(again.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(owner.status().ok()) << owner.status();
  EXPECT_THAT(asked_, ElementsAre(kOwner));
}

}  // namespace
}  // namespace ckptd
