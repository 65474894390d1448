#include "client/ckptctl/text/retention_text.h"

#include <google/protobuf/text_format.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"

namespace ckptd::ctl {
namespace {

using testing::HasSubstr;

TEST(RetentionText, IsReadAndWrittenTheSameWay) {
  for (const char* text :
       {"all", "last=3", "best=2:loss:min", "last=1,best=5:accuracy:max,every=1000,newer_than=7d",
        "newer_than=90m", "newer_than=3601s", "newer_than=5h"}) {
    const absl::StatusOr<v1::RetentionPolicy> policy = ParseRetention(text);
    ASSERT_TRUE(policy.ok()) << policy.status();
    EXPECT_EQ(RetentionText(*policy), text);
  }
}

TEST(RetentionText, TakesTheLowestMetricAsTheBestUnlessToldOtherwise) {
  EXPECT_EQ(RetentionText(*ParseRetention("best=2:loss")), "best=2:loss:min");
}

TEST(RetentionText, NamesThePartThatIsWrong) {
  for (const char* part :
       {"last", "last=", "last=0", "last=-1", "last=x", "last=99999999999", "best=2",
        "best=2:", "best=2:loss:least", "best=x:loss", "every=0", "newer_than=7", "newer_than=d",
        "newer_than=7w", "newer_than=9223372036854775807d", "first=3", "", "all"}) {
    const absl::Status status = ParseRetention(std::string("last=1,") + part).status();
    EXPECT_EQ(ReasonOf(status), "INVALID_ARGUMENT") << part;
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"" + std::string(part) + "\""));
  }
}

TEST(RetentionText, ShowsWhatKeepsEachCheckpoint) {
  v1::ExplainRetentionResponse explained;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"pb(
        policy { last: 1 every_steps: 1000 }
        decisions { tag: "c" sequence: 3 step: 2500 kept_by: "last 1" }
        decisions { tag: "b" sequence: 2 step: 2000 kept_by: "every 1000 steps" kept_by: "pinned" }
        decisions { tag: "a" sequence: 1 }
      )pb",
      &explained));
  EXPECT_EQ(RenderRetention(explained),
            "policy: last=1,every=1000\n"
            "TAG  STEP  KEPT BY\n"
            "c    2500  last 1\n"
            "b    2000  every 1000 steps, pinned\n"
            "a    -     nothing: goes at the next commit\n");
}

}  // namespace
}  // namespace ckptd::ctl
