#include "client/ckptctl/mounts/mount.h"

#include <gtest/gtest.h>

namespace ckptd::ctl {
namespace {

constexpr char kTable[] =
    "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    "40 22 0:50 / /shared rw,noatime shared:9 - nfs4 server:/export rw,vers=4.2,actimeo=3,lookupcache=all\n"
    "41 22 0:51 / /shared/my\\040data rw shared:9 - fuse.glusterfs n1:/gv0 "
    "rw,user_id=0,attribute-timeout=1\n";

TEST(MountTest, FindsTheMountThatHoldsAPath) {
  EXPECT_EQ(FindMount(kTable, "/shared/ckpts").type, "nfs4");
  EXPECT_EQ(FindMount(kTable, "/shared").source, "server:/export");
  EXPECT_EQ(FindMount(kTable, "/shared/my data/gpt").type, "fuse.glusterfs");
  EXPECT_EQ(FindMount(kTable, "/shared2").type, "ext4");
  EXPECT_EQ(FindMount("", "/shared").type, "");
}

TEST(MountTest, NamesTheOptionsThatSayHowLongIsCached) {
  EXPECT_EQ(CachingOptions(FindMount(kTable, "/shared/ckpts")), "actimeo=3,lookupcache=all");
  EXPECT_EQ(CachingOptions(FindMount(kTable, "/shared/my data/gpt")), "attribute-timeout=1");
  EXPECT_EQ(CachingOptions(FindMount(kTable, "/data")), "");
}

TEST(MountTest, KnowsFileSystemsOfOneMachine) {
  EXPECT_TRUE(IsLocal(FindMount(kTable, "/data")));
  EXPECT_FALSE(IsLocal(FindMount(kTable, "/shared")));
}

}  // namespace
}  // namespace ckptd::ctl
