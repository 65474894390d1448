#include "daemon/etcd/etcd_errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckptd {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(MemberErrorTest, IsTheCauseOfAConnectionThatCouldNotBeMade) {
  EXPECT_EQ(
      MemberError("failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:2379: Failed to "
                  "connect to remote host: Connection refused"),
      "Connection refused");
  EXPECT_EQ(MemberError(
                "failed to connect to all addresses; last error: UNKNOWN: ipv6:%5Bfd00::1%5D:2379: Failed to "
                "connect to remote host: No route to host"),
            "No route to host");
  EXPECT_EQ(
      MemberError("failed to connect to all addresses; last error: UNAVAILABLE: ipv4:10.0.0.1:2379: Socket "
                  "closed"),
      "Socket closed");
}

TEST(MemberErrorTest, NamesTheSettingOfACertificateThatIsNotTrusted) {
  const std::string error = MemberError(
      "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:2379: Ssl handshake failed: "
      "SSL_ERROR_SSL: error:0A000086:SSL routines::certificate verify failed");
  EXPECT_THAT(error, StartsWith("Ssl handshake failed"));
  EXPECT_THAT(error, HasSubstr("no authority in cluster.etcd_ca_file has signed it"));
}

TEST(MemberErrorTest, SaysWhatToDoWhereTheMachineHasNoAuthorities) {
  EXPECT_THAT(MemberError("empty address list"),
              HasSubstr("set cluster.etcd_ca_file, or install ca-certificates"));
}

TEST(MemberErrorTest, KeepsWhatEtcdSays) {
  EXPECT_EQ(MemberError("etcdserver: no leader"), "etcdserver: no leader");
  EXPECT_EQ(MemberError("last error: something"), "last error: something");
  EXPECT_EQ(MemberError(""), "");
}

}  // namespace
}  // namespace ckptd
