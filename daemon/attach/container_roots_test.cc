#include "daemon/attach/container_roots.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

TEST(ContainerRoots, AcceptsOnlyPathsBeneathAnAllowedDirectory) {
  const std::vector<std::string> allowed = {"/shared/ckpts", "/scratch/"};
  EXPECT_EQ(ContainerRootOf(allowed, "/shared/ckpts"), "/shared/ckpts");
  EXPECT_EQ(ContainerRootOf(allowed, "/shared/ckpts/job/a"), "/shared/ckpts");
  EXPECT_EQ(ContainerRootOf(allowed, "/shared/ckpts/job/"), "/shared/ckpts");
  EXPECT_EQ(ContainerRootOf(allowed, "/scratch/x"), "/scratch/");
  for (const char* other : {"/shared/ckpts2", "/shared", "/", "", "shared/ckpts/x", "/shared/ckpts/../../etc",
                            "/shared/ckpts/./x", "/shared//ckpts/x", "/shared/ckpts/x/.."}) {
    EXPECT_EQ(ContainerRootOf(allowed, other), std::nullopt) << other;
  }
  EXPECT_EQ(ContainerRootOf({}, "/shared/ckpts"), std::nullopt);
  EXPECT_EQ(ContainerRootOf({"/"}, "/anything"), "/");
}

TEST(ContainerRoots, FollowsNoLinkBelowAnAllowedDirectory) {
  const TempDir dir;
  const std::string base = dir.path() + "/shared";
  std::filesystem::create_directories(base + "/job/a");
  std::filesystem::create_directory(dir.path() + "/secret");
  std::filesystem::create_symlink(dir.path() + "/secret", base + "/link");
  const FileUser self{.uid = ::geteuid(), .gid = ::getegid(), .groups = {}};
  for (const std::string& path : {base, base + "/job/a", base + "/job/"}) {
    const auto opened = OpenDirectoryBeneath(base, path, self);
    ASSERT_TRUE(opened.ok()) << path << ": " << opened.status();
    const UniqueFd fd(*opened);
    struct stat found {
    }, expected{};
    ASSERT_EQ(::fstat(fd.get(), &found), 0);
    ASSERT_EQ(::stat(path.c_str(), &expected), 0);
    EXPECT_EQ(found.st_ino, expected.st_ino);
  }
  EXPECT_EQ(ErrnoOf(OpenDirectoryBeneath(base, base + "/link", self).status()), ELOOP);
  EXPECT_EQ(ErrnoOf(OpenDirectoryBeneath(base, base + "/none", self).status()), ENOENT);
}

}  // namespace
}  // namespace ckptd
