#include "client/ckptctl/debug/sections.h"

#include <gtest/gtest.h>

namespace ckptd::ctl {
namespace {

TEST(WithoutCommentsTest, KeepsFieldsAndStrings) {
  EXPECT_EQ(WithoutComments("# the password is x\na: 1  # x\nb: \"#\\\"#\" c: '#' # x"),
            "a: 1\nb: \"#\\\"#\" c: '#'");
}

TEST(WithoutCommentsTest, AStringEndsWithItsLine) {
  EXPECT_EQ(WithoutComments("a: \"open\n# x\nb: 2\n"), "a: \"open\nb: 2\n");
}

TEST(ShowEnvironmentTest, ShowsValuesThatAreKnownToBeNoSecrets) {
  EXPECT_EQ(
      ShowEnvironment({"PASS=x", "CKPTD_NEW=x", "AWS_REGION=eu", "AWS_SECRET_ACCESS_KEY=x", "https_proxy=p"}),
      "AWS_REGION=eu\nAWS_SECRET_ACCESS_KEY=(left out)\nCKPTD_NEW=(left out)\nhttps_proxy=p\n"
      "(1 others are left out, with their names)\n");
}

}  // namespace
}  // namespace ckptd::ctl
