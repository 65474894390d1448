#include "storage/object/bucket_url.h"

#include "gtest/gtest.h"

namespace ckptd {
namespace {

TEST(BucketUrlTest, SplitsBucketAndPrefix) {
  EXPECT_EQ(ParseBucketUrl("s3://my-bucket/a/b/")->prefix, "a/b");
  EXPECT_EQ(ParseBucketUrl("s3://my-bucket/a/b/")->bucket, "my-bucket");
  EXPECT_EQ(ParseBucketUrl("s3://my-bucket")->prefix, "");
}

TEST(BucketUrlTest, RefusesWhatIsNone) {
  for (const char* text : {"/a", "s3:/bucket", "s3://", "s3://Bucket/a", "s3://b", "s3://bucket/a//b"})
    EXPECT_TRUE(absl::IsInvalidArgument(ParseBucketUrl(text).status())) << text;
}

}  // namespace
}  // namespace ckptd
