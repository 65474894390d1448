#include "daemon/config/trusted_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;

class TrustedFileTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& content, mode_t mode) {
    const std::string path = dir_.path() + "/file";
    std::ofstream(path) << content;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  static std::string Refusal(const std::string& path, FileAccess access) {
    const absl::StatusOr<std::string> text = ReadTrustedFile(path, access);
    EXPECT_FALSE(text.ok());
    return std::string(text.status().message());
  }

  TempDir dir_;
};

TEST_F(TrustedFileTest, ReadsAFileThatOnlyItsOwnerMayChange) {
  EXPECT_EQ(*ReadTrustedFile(Write("public", 0644), FileAccess::kPublic), "public");
  EXPECT_EQ(*ReadTrustedFile(Write("secret", 0640), FileAccess::kSecret), "secret");
}

TEST_F(TrustedFileTest, RefusesASecretThatOthersMayRead) {
  EXPECT_THAT(Refusal(Write("secret", 0604), FileAccess::kSecret), HasSubstr("run `chmod 600 "));
}

TEST_F(TrustedFileTest, RefusesAFileThatOthersMayChange) {
  EXPECT_THAT(Refusal(Write("public", 0646), FileAccess::kPublic), HasSubstr("run `chmod o-w "));
  EXPECT_THAT(Refusal(Write("secret", 0602), FileAccess::kSecret), HasSubstr("run `chmod 600 "));
}

TEST_F(TrustedFileTest, RefusesAFileOfAnotherUser) {
  const std::string path = Write("secret", 0600);
  const absl::StatusOr<std::string> text = ReadTrustedFile(path, FileAccess::kSecret, {::geteuid() + 1});
  EXPECT_THAT(std::string(text.status().message()), HasSubstr(absl::StrCat("belongs to uid ", ::geteuid())));
}

TEST_F(TrustedFileTest, RefusesAFifoAtOnce) {
  const std::string path = dir_.path() + "/fifo";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(Refusal(path, FileAccess::kSecret), HasSubstr("not a regular file"));
}

TEST_F(TrustedFileTest, RefusesAFileThatIsTooLarge) {
  EXPECT_THAT(Refusal(Write(std::string((1 << 20) + 1, 'x'), 0600), FileAccess::kSecret),
              HasSubstr("has more than 1048576 bytes"));
}

TEST_F(TrustedFileTest, ReportsAMissingFile) {
  EXPECT_EQ(ErrnoOf(ReadTrustedFile(dir_.path() + "/none", FileAccess::kPublic).status()), ENOENT);
}

}  // namespace
}  // namespace ckptd
