#include "client/convert/convert_paths.h"

#include <sched.h>
#include <sys/mount.h>

#include <filesystem>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

namespace fs = std::filesystem;

class ConvertPathsTest : public ::testing::Test {
 protected:
  ConvertPathsTest() { fs::create_directories(root_ / "tag/optim"); }
  std::string Refused(const fs::path& input, const fs::path& output) {
    return ReasonOf(ResolveConvertPaths(input, output).status());
  }

  TempDir dir_;
  const fs::path root_ = fs::canonical(dir_.path());
};

TEST_F(ConvertPathsTest, ResolvesTheOutputsParent) {
  fs::create_directory_symlink(root_, root_ / "link");
  for (const std::string output : {"out", "out/", "./out", "link/out"}) {
    const absl::StatusOr<ConvertPaths> paths = ResolveConvertPaths(root_ / "tag", root_ / output);
    ASSERT_TRUE(paths.ok()) << output << ": " << paths.status();
    EXPECT_EQ(paths->input, root_ / "tag");
    EXPECT_EQ(paths->parent, root_);
    EXPECT_EQ(paths->name, "out");
  }
}

TEST_F(ConvertPathsTest, FollowsALinkToAnExistingOutput) {
  fs::create_directory(root_ / "empty");
  fs::create_directory_symlink(root_ / "empty", root_ / "link");
  const absl::StatusOr<ConvertPaths> paths = ResolveConvertPaths(root_ / "tag", root_ / "link");
  ASSERT_TRUE(paths.ok()) << paths.status();
  EXPECT_EQ(paths->name, "empty");
}

TEST_F(ConvertPathsTest, RefusesTheInputAndAnythingInsideIt) {
  fs::create_directory_symlink(root_ / "tag", root_ / "link");
  for (const std::string output : {"tag", "tag/", "tag/.", "tag/out", "tag/optim", "tag/optim/out", "link",
                                   "link/out", "tag/optim/../out"}) {
    EXPECT_EQ(Refused(root_ / "tag", root_ / output), "OUTPUT_IS_INPUT") << output;
    EXPECT_EQ(Refused(root_ / "link", root_ / output), "OUTPUT_IS_INPUT") << output;
  }
}

TEST_F(ConvertPathsTest, ReportsMissingPaths) {
  EXPECT_EQ(Refused(root_ / "none", root_ / "out"), "ENOENT");
  EXPECT_EQ(Refused(root_ / "tag", root_ / "none/out"), "ENOENT");
  EXPECT_EQ(Refused("", root_ / "out"), "INVALID_ARGUMENT");
  EXPECT_EQ(Refused(root_ / "tag", ""), "INVALID_ARGUMENT");
  EXPECT_EQ(Refused(root_ / "tag", "/"), "INVALID_ARGUMENT");
}

// Bind mounts show the same directory under another name, without a link: the input, and a directory inside
// it.
TEST_F(ConvertPathsTest, RefusesABindMountOfTheInput) {
  fs::create_directory(root_ / "bound");
  fs::create_directory(root_ / "optim_bound");
  bool mounted = false;
  std::string whole, within, deep;
  std::thread([&] {  // In a mount namespace that ends with the thread.
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      return;
    mounted = ::mount((root_ / "tag").c_str(), (root_ / "bound").c_str(), nullptr, MS_BIND, nullptr) == 0 &&
              ::mount((root_ / "tag/optim").c_str(), (root_ / "optim_bound").c_str(), nullptr, MS_BIND,
                      nullptr) == 0;
    whole = Refused(root_ / "tag", root_ / "bound");
    within = Refused(root_ / "tag", root_ / "bound/out");
    deep = Refused(root_ / "tag", root_ / "optim_bound/out");
  })
      .join();
  if (!mounted) GTEST_SKIP() << "this user may not mount";
  EXPECT_EQ(whole, "OUTPUT_IS_INPUT");
  EXPECT_EQ(within, "OUTPUT_IS_INPUT");
  EXPECT_EQ(deep, "OUTPUT_IS_INPUT");
}

}  // namespace
}  // namespace ckptd
