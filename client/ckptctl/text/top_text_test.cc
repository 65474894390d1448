#include "client/ckptctl/text/top_text.h"

#include <google/protobuf/text_format.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::ctl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TopSample Sample(int64_t unix_us, const std::string& status, const std::string& sessions = "") {
  TopSample sample;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(status, &sample.status));
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(sessions, &sample.sessions));
  sample.unix_us = unix_us;
  return sample;
}

constexpr char kBefore[] = R"(
    daemon_instance: "a" written_bytes: 1048576
    runs { name: "runs/1" path: "/data/gpt" in_flight { tag: "step_2" sequence: 2 written_bytes: 1048576 size_bytes: 8388608 } })";

TEST(RenderTop, ShowsRatesBetweenTheSamplesAndWhatSavesWaitFor) {
  const TopSample before = Sample(100'000'000, kBefore);
  const TopSample now = Sample(102'000'000, R"(
    daemon_version: "0.2.0" daemon_instance: "a" state: "SERVING" sessions: 1 written_bytes: 5242880
    pool { total_bytes: 16777216 used_bytes: 8388608 ready_bytes: 1048576 }
    runs { name: "runs/0" path: "/data/idle" uid: 7 }
    runs {
      name: "runs/1" path: "/data/gpt" uid: 1000 pool_bytes: 8388608
      in_flight { tag: "step_2" sequence: 2 level: SEALED written_bytes: 5242880 size_bytes: 8388608 create_time { seconds: 99 } }
      in_flight { tag: "step_3" sequence: 3 level: OPEN size_bytes: 8388608 create_time { seconds: 101 } waits_for: "memory: 8 MiB" }
    })",
                               R"(sessions { pid: 7 uid: 1000 client_name: "python" pool_bytes: 4194304
                                             memberships { rank: 0 path: "/data/gpt" } memberships { rank: 1 path: "/data/gpt" } })");
  const std::string text = RenderTop(before, now, 10);
  EXPECT_THAT(text, AllOf(HasSubstr("ckptd 0.2.0, SERVING, 1 session; saves write 2.0 MiB/s\n"),
                          HasSubstr("pool 16.0 MiB: 8.0 MiB used (50 %)")));
  EXPECT_THAT(text, AllOf(HasSubstr("/data/gpt  1000  8.0 MiB  50 %  2      1     0\n"),
                          Not(HasSubstr("/data/idle"))));
  EXPECT_THAT(text, HasSubstr("/data/gpt/step_2  SEALED  5.0 MiB  8.0 MiB  62 %  2.0 MiB/s  1.5 s  3 s"));
  EXPECT_THAT(text, HasSubstr("memory: 8 MiB\n"));
  EXPECT_THAT(text, HasSubstr("7    1000  python  4.0 MiB  0      0,1    /data/gpt\n"));
}

TEST(RenderTop, ShowsNoRateAcrossARestartAndSaysHowManyRowsItLeavesOut) {
  const TopSample before = Sample(100'000'000, kBefore);
  const TopSample now = Sample(102'000'000, R"(
    daemon_instance: "b" state: "SERVING" written_bytes: 5242880
    runs { name: "runs/1" path: "/a" leases: 1 } runs { name: "runs/2" path: "/b" leases: 1 })");
  const std::string text = RenderTop(before, now, 1);
  EXPECT_THAT(text,
              AllOf(HasSubstr("saves write -\n"), HasSubstr("/a"), Not(HasSubstr("/b")),
                    HasSubstr("and 1 more\n"), HasSubstr("no save in flight\n"), HasSubstr("no sessions\n")));
}

}  // namespace
}  // namespace ckptd::ctl
