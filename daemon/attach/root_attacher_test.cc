#include "daemon/attach/root_attacher.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "storage/base/errors.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;

class RootAttacherTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(folder_), nullptr);
    std::filesystem::create_directory(root());
    const auto now = [](absl::AnyInvocable<void()> work) { work(); };
    state_ = StateDirectory::Open(std::string(folder_) + "/state").value();
    attacher_ = std::make_unique<RootAttacher>(
        state_.get(),
        [this](RootToOpen root) {
          given_ = std::move(root);
          return RootAccess();
        },
        RootAttacher::Threads{.state = now, .engine = now});
  }
  // Calls `remember` as the engine does once it has opened the root.
  static void Remember(const RootAttachment& attachment) {
    absl::Status remembered = absl::UnknownError("no answer");
    attachment.remember(
        [&](absl::StatusOr<std::shared_ptr<const void>> known) { remembered = known.status(); });
    EXPECT_TRUE(remembered.ok()) << remembered;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string root() const { return std::string(folder_) + "/root"; }
  static ino_t InodeOf(const std::string& path) {
    struct stat info {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0);
    return info.st_ino;
  }

  char folder_[32] = "/tmp/ckptd.XXXXXX";
  const FileUser me_{.uid = ::geteuid(), .gid = ::getegid(), .groups = {}};
  std::unique_ptr<StateDirectory> state_;
  std::unique_ptr<RootAttacher> attacher_;
  RootToOpen given_;
};

TEST_F(RootAttacherTest, RemembersARootAtThePathThatThisProcessSees) {
  UniqueFd directory(::open(root().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  const auto attachment = attacher_->Attach(std::move(directory), "/as/the/container/says", me_);
  ASSERT_TRUE(attachment.ok()) << attachment.status();

  EXPECT_EQ(attachment->path, "/as/the/container/says");
  EXPECT_EQ(attachment->inode, InodeOf(root()));
  EXPECT_EQ(attachment->uid, me_.uid);
  EXPECT_TRUE(state_->roots().empty()) << "the engine may still refuse it";
  Remember(*attachment);
  ASSERT_EQ(state_->roots().size(), 1u);
  EXPECT_EQ(state_->roots()[0].path(), root());
  EXPECT_TRUE(state_->roots()[0].groups().empty());
  EXPECT_EQ(state_->roots()[0].inode(), InodeOf(root()));
}

TEST_F(RootAttacherTest, HandsTheDirectoryAndItsUserToTheEngine) {
  UniqueFd directory(::open(root().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  const auto attachment = attacher_->Attach(std::move(directory), root(), me_);
  ASSERT_TRUE(attachment.ok()) << attachment.status();
  EXPECT_TRUE(attachment->make_io().ok());
  struct stat info {};
  ASSERT_EQ(::fstat(given_.directory.get(), &info), 0);
  EXPECT_EQ(info.st_ino, InodeOf(root()));
  EXPECT_EQ(given_.user.uid, me_.uid);
}

TEST_F(RootAttacherTest, TellsWhereTheRootReallyIs) {
  const std::string link = std::string(folder_) + "/link";
  std::filesystem::create_symlink(root(), link);
  UniqueFd directory(::open(link.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  const auto attachment = attacher_->Attach(std::move(directory), link, me_);
  ASSERT_TRUE(attachment.ok() && attachment->make_io().ok());
  EXPECT_EQ(given_.path, link);
  EXPECT_EQ(given_.own_path, root());
  Remember(*attachment);
  const auto reopened = attacher_->Reopen(state_->roots().at(0));
  ASSERT_TRUE(reopened.ok() && reopened->make_io().ok());
  EXPECT_EQ(given_.path, root());
  EXPECT_EQ(given_.own_path, root());
}

TEST_F(RootAttacherTest, RootInABucketHasOneNameAndIsNotRemembered) {
  const auto attachment = attacher_->Attach(UniqueFd(), "s3://bucket/run/", me_);
  ASSERT_TRUE(attachment.ok()) << attachment.status();
  EXPECT_EQ(attachment->path, "s3://bucket/run");
  EXPECT_EQ(attachment->remember, nullptr) << "the next daemon would take it from one on another node";
  EXPECT_TRUE(attachment->make_io().ok());
  EXPECT_TRUE(given_.is_bucket);
  EXPECT_EQ(given_.path, "s3://bucket/run");
  const auto same = attacher_->Attach(UniqueFd(), "s3://bucket/run", me_);
  EXPECT_EQ(same->inode, attachment->inode);
  EXPECT_NE(attacher_->Attach(UniqueFd(), "s3://bucket/run2", me_)->inode, attachment->inode);
  EXPECT_TRUE(absl::IsInvalidArgument(attacher_->Attach(UniqueFd(), "s3://b", me_).status()));
}

TEST_F(RootAttacherTest, RefusesAndDoesNotRememberAFile) {
  UniqueFd file(::open((std::string(folder_) + "/file").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  EXPECT_EQ(ReasonOf(attacher_->Attach(std::move(file), "/file", me_).status()), "INVALID_PATH");
  EXPECT_TRUE(state_->roots().empty());
}

TEST_F(RootAttacherTest, DoesNotRememberAPathThatOnlyTheClientVouchesFor) {
  std::filesystem::create_directory(std::string(folder_) + "/victim");
  UniqueFd directory(::open(root().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  std::filesystem::remove(
      root());  // Now this process has no path to it, as if it were in another mount namespace.
  const auto attachment = attacher_->Attach(std::move(directory), std::string(folder_) + "/victim", me_);
  ASSERT_TRUE(attachment.ok()) << attachment.status();
  EXPECT_TRUE(attachment->remember == nullptr);
  EXPECT_TRUE(attachment->make_io().ok());
  EXPECT_EQ(given_.own_path, "") << "what the session calls it tells nothing of where it is";
}

TEST_F(RootAttacherTest, DoesNotFollowALinkThatReplacedAKnownRoot) {
  UniqueFd directory(::open(root().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  Remember(attacher_->Attach(std::move(directory), root(), me_).value());
  const std::string elsewhere = std::string(folder_) + "/elsewhere";
  std::filesystem::rename(root(), elsewhere);  // The inode stays the same.
  std::filesystem::create_symlink(elsewhere, root());
  const auto reopened = attacher_->Reopen(state_->roots().at(0));
  EXPECT_EQ(ReasonOf(reopened.status()), "ROOT_MOVED");
  EXPECT_THAT(std::string(reopened.status().message()), HasSubstr("leads to " + elsewhere));
}

TEST_F(RootAttacherTest, ReopensAKnownRoot) {
  UniqueFd directory(::open(root().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  Remember(attacher_->Attach(std::move(directory), root(), me_).value());
  const auto again = attacher_->Reopen(state_->roots()[0]);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->inode, InodeOf(root()));
}

TEST_F(RootAttacherTest, RefusesAnotherDirectoryAtAKnownPath) {
  UniqueFd directory(::open(root().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  Remember(attacher_->Attach(std::move(directory), root(), me_).value());
  std::filesystem::rename(root(), std::string(folder_) + "/elsewhere");
  EXPECT_EQ(ErrnoOf(attacher_->Reopen(state_->roots()[0]).status()), ENOENT);
  std::filesystem::create_directory(root());
  const auto reopened = attacher_->Reopen(state_->roots()[0]);
  EXPECT_EQ(ReasonOf(reopened.status()), "ROOT_MOVED");
  EXPECT_THAT(std::string(reopened.status().message()), HasSubstr("mount its file system"));
}

// A group that the user has left must not open the root again.
TEST_F(RootAttacherTest, ReopensWithTheCurrentGroupsOfTheUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  storage::v1::KnownRoot known;
  known.set_path(root());
  known.set_uid(61234);  // No user has this uid.
  known.set_gid(61234);
  known.add_groups(0);
  known.set_inode(InodeOf(root()));
  ASSERT_EQ(::chmod(folder_, 0755), 0);
  ASSERT_EQ(::chmod(root().c_str(), 0750), 0);
  EXPECT_EQ(ErrnoOf(attacher_->Reopen(known).status()), EACCES);
  ASSERT_EQ(::chown(root().c_str(), 61234, 61234), 0);
  const auto reopened = attacher_->Reopen(known);
  ASSERT_TRUE(reopened.ok()) << reopened.status();
  EXPECT_TRUE(reopened->make_io().ok());
  EXPECT_TRUE(given_.user.groups.empty());
}

TEST_F(RootAttacherTest, GivesFilesTheUmaskOfTheLastAttachedTrainer) {
  const auto attach = [&](std::optional<mode_t> umask) {
    FileUser user = me_;
    if (umask) user.umask = std::make_shared<std::atomic<mode_t>>(*umask);
    UniqueFd directory(::open(root().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    const auto attachment = attacher_->Attach(std::move(directory), root(), user);
    ASSERT_TRUE(attachment.ok()) << attachment.status();
    ASSERT_TRUE(attachment->make_io().ok());
  };
  attach(077);
  const FileUser first = given_.user;
  ASSERT_NE(first.umask, nullptr);
  EXPECT_EQ(first.umask->load(), mode_t{077});
  attach(027);  // The root is open: its RootIo stays the first one.
  EXPECT_EQ(first.umask->load(), mode_t{027});
  attach(std::nullopt);  // The daemon cannot read the umask of this process.
  EXPECT_EQ(first.umask->load(), mode_t{027});
}

TEST_F(RootAttacherTest, RecoversTheUmaskFromTheRootsRecords) {
  ASSERT_EQ(::mkdir((root() + "/.ckptd").c_str(), 0700), 0);
  UniqueFd directory(::open(root().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  Remember(attacher_->Attach(std::move(directory), root(), me_).value());
  const auto attachment = attacher_->Reopen(state_->roots().at(0));
  ASSERT_TRUE(attachment.ok()) << attachment.status();
  ASSERT_TRUE(attachment->make_io().ok());
  ASSERT_NE(given_.user.umask, nullptr);
  EXPECT_EQ(given_.user.umask->load(), mode_t{077});
}

}  // namespace
}  // namespace ckptd
