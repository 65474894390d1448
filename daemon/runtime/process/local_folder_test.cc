#include "daemon/runtime/process/local_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "daemon/config/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class LocalFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/ckptd_local_XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(LocalFolderTest, MakesFolderForThisUserAloneAndTakesItAgain) {
  const std::string path = folder_ + "/a/b";
  ASSERT_TRUE(MakeLocalFolder(path).ok());
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  EXPECT_TRUE(MakeLocalFolder(path).ok());
}

TEST_F(LocalFolderTest, RefusesFolderThatOthersMayWriteTo) {
  ASSERT_EQ(chmod(folder_.c_str(), 0770), 0);
  const absl::Status refused = MakeLocalFolder(folder_);
  EXPECT_EQ(ReasonOf(refused), "WRONG_UID");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("mode 0770"));
}

TEST_F(LocalFolderTest, RefusesLinkAndFile) {
  ASSERT_EQ(symlink(folder_.c_str(), (folder_ + "/link").c_str()), 0);
  EXPECT_EQ(ReasonOf(MakeLocalFolder(folder_ + "/link")), "WRONG_UID");
  std::ofstream(folder_ + "/file") << "";
  EXPECT_EQ(ReasonOf(MakeLocalFolder(folder_ + "/file")), "WRONG_UID");
  EXPECT_FALSE(MakeLocalFolder(folder_ + "/file/below").ok());
}

TEST(LocalConfigTest, IsValidAndServesThisUserAlone) {
  const ConfigOverrides paths = {.socket_path = "/a/ckptd.sock",
                                 .state_directory = "/a/state",
                                 .pool_bytes = {},
                                 .metrics_port = {},
                                 .io_backend = {},
                                 .log_level = {}};
  const LoadedConfig loaded = LoadConfig(kLocalConfig, "--local", paths, int64_t{4} << 30);
  EXPECT_THAT(loaded.problems, IsEmpty());
  EXPECT_EQ(loaded.config.socket_mode(), "0600");
  EXPECT_EQ(loaded.config.metrics().port(), -1);
}

TEST(LocalGreetingTest, QuotesPathForShell) {
  EXPECT_THAT(LocalGreeting("/a b'c/ckptd.sock"),
              StartsWith("export CKPTD_ENDPOINT='unix:/a b'\\''c/ckptd.sock'\n"));
}

}  // namespace
}  // namespace ckptd
