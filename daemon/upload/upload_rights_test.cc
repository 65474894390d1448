#include "daemon/upload/upload_rights.h"

#include <gtest/gtest.h>

#include <string>

#include "storage/base/errors.h"

namespace ckptd {
namespace {

std::string Reason(const UploadRights& rights, const std::string& url) {
  return ReasonOf(CheckUpload(rights, 1000, url));
}

TEST(UploadRightsTest, NothingIsAllowedByDefault) {
  EXPECT_EQ(Reason({}, "s3://bucket/run"), "UPLOAD_NOT_ALLOWED");
}

TEST(UploadRightsTest, AllowsWhatIsBeneathAPrefix) {
  const UploadRights rights{.prefixes = {"s3://bucket/ckpts"}};
  EXPECT_EQ(CheckUpload(rights, 1000, "s3://bucket/ckpts"), absl::OkStatus());
  EXPECT_EQ(CheckUpload(rights, 1000, "s3://bucket/ckpts/run"), absl::OkStatus());
  for (const char* url : {"s3://bucket", "s3://bucket/ckpts2", "s3://bucket/other", "s3://bucket2/ckpts"})
    EXPECT_EQ(Reason(rights, url), "UPLOAD_NOT_ALLOWED") << url;
}

TEST(UploadRightsTest, RefusesNamesThatLeaveThePrefix) {
  const UploadRights rights{.allows_all = true};
  for (const char* url : {"s3://bucket/ckpts/../other", "s3://bucket/./x", "s3://bucket/.."})
    EXPECT_TRUE(absl::IsInvalidArgument(CheckUpload(rights, 1000, url))) << url;
}

TEST(UploadRightsTest, UidInAPrefixIsThatOfTheUser) {
  const UploadRights rights{.prefixes = {"s3://bucket/{uid}/ckpts"}};
  EXPECT_EQ(CheckUpload(rights, 1000, "s3://bucket/1000/ckpts/run"), absl::OkStatus());
  EXPECT_EQ(Reason(rights, "s3://bucket/1001/ckpts/run"), "UPLOAD_NOT_ALLOWED");
  EXPECT_EQ(Reason(rights, "s3://bucket/{uid}/ckpts/run"), "UPLOAD_NOT_ALLOWED");
}

TEST(UploadRightsTest, ADaemonOfTheJobAllowsEveryBucket) {
  EXPECT_EQ(CheckUpload({.allows_all = true}, 1000, "s3://any/where"), absl::OkStatus());
  EXPECT_TRUE(absl::IsInvalidArgument(CheckUpload({.allows_all = true}, 1000, "/data/run")));
}

}  // namespace
}  // namespace ckptd
