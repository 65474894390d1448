#include "daemon/ledger/state/user_use.h"

#include <cstdint>
#include <string>
#include <vector>

#include "ckptd/ledger/v1/ledger.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

etcdserverpb::KeyValue UseOf(const std::string& run, int64_t keys, int64_t bytes) {
  ledger::v1::RunUse use;
  use.set_keys(keys);
  use.set_bytes(bytes);
  use.set_path("/shared/" + run);
  etcdserverpb::KeyValue pair;
  pair.set_key(UsesOf("/ckptd/", 1000) + run);
  pair.set_value(use.SerializeAsString());
  return pair;
}

TEST(UserUse, RunsOfAUserCountTogether) {
  const std::vector<etcdserverpb::KeyValue> uses = {UseOf("a", 100, 20'000), UseOf("b", 200, 30'000)};
  EXPECT_EQ(CheckUse(1000, uses, {.keys = 301, .bytes = 50'001}), absl::OkStatus());
  EXPECT_EQ(CheckUse(1000, uses, {}), absl::OkStatus()) << "no bound";
  const absl::Status keys = CheckUse(1000, uses, {.keys = 300, .bytes = 1 << 20});
  EXPECT_EQ(keys.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(keys), "LIMIT_EXCEEDED");
  EXPECT_THAT(
      std::string(keys.message()),
      AllOf(HasSubstr("the 2 runs of uid 1000 have 300 keys of 50000 bytes in etcd, and may have 300 keys "
                      "(limits.etcd_keys_per_uid)"),
            HasSubstr("that of /shared/b, run b, with 200 keys of 30000 bytes")));
  const absl::Status bytes = CheckUse(1000, uses, {.keys = 1000, .bytes = 50'000});
  EXPECT_THAT(std::string(bytes.message()), HasSubstr("may have 50000 bytes (limits.etcd_bytes_per_uid)"));
}

// Otherwise a user could have any number of runs that were not counted yet.
TEST(UserUse, RunThatWasNotCountedYetCountsForALittle) {
  const std::vector<etcdserverpb::KeyValue> uses = {UseOf("a", 0, 0), UseOf("b", 0, 0)};
  EXPECT_EQ(ReasonOf(CheckUse(1000, uses, {.keys = 2 * kLeastKeysOfRun, .bytes = 0})), "LIMIT_EXCEEDED");
  EXPECT_EQ(ReasonOf(CheckUse(1000, uses, {.keys = 0, .bytes = 2 * kLeastBytesOfRun})), "LIMIT_EXCEEDED");
  EXPECT_EQ(CheckUse(1000, uses, {.keys = 2 * kLeastKeysOfRun + 1, .bytes = 2 * kLeastBytesOfRun + 1}),
            absl::OkStatus());
}

}  // namespace
}  // namespace ckptd
