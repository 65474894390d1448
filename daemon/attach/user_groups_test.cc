#include "daemon/attach/user_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class UserGroupsTest : public ::testing::Test {
 protected:
  UserGroupsTest() {
    std::ofstream(passwd()) << "root:x:0:0:root:/root:/bin/bash\n"
                               "broken line\n"
                               "ana:x:1000:100:Ana:/home/ana:/bin/sh\n"
                               "an:x:1001:101::/home/an:/bin/sh\n";
    std::ofstream(groups()) << "users:x:100:\nteam:x:200:an,ana\nother:x:201:an\nbad:x:y:ana\nlast:x:202:ana";
  }
  std::string passwd() const { return dir_.path() + "/passwd"; }
  std::string groups() const { return dir_.path() + "/group"; }

  TempDir dir_;
};

TEST_F(UserGroupsTest, FindsTheGroupsThatNameTheUser) {
  const UserGroups found = FindGroups(1000, passwd(), groups());
  EXPECT_EQ(found.primary, 100u);
  EXPECT_THAT(found.supplementary, ElementsAre(200u, 202u));
}

TEST_F(UserGroupsTest, GivesNoGroupsToAnUnknownUser) {
  const UserGroups found = FindGroups(4242, passwd(), groups());
  EXPECT_FALSE(found.primary.has_value());
  EXPECT_THAT(found.supplementary, IsEmpty());
}

TEST_F(UserGroupsTest, GivesNoGroupsWithoutTheFiles) {
  EXPECT_FALSE(FindGroups(1000, "/nonexistent", groups()).primary.has_value());
  const UserGroups found = FindGroups(1000, passwd(), "/nonexistent");
  EXPECT_EQ(found.primary, 100u);
  EXPECT_THAT(found.supplementary, IsEmpty());
}

}  // namespace
}  // namespace ckptd
