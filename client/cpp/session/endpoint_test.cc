#include "client/cpp/session/endpoint.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"
#include "storage/base/errors.h"

namespace ckptd::client {
namespace {

TEST(Endpoint, HasThePathsOfBothSockets) {
  absl::StatusOr<Endpoint> endpoint = ParseEndpoint("unix:/tmp/x/ckptd.sock");
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  EXPECT_EQ(endpoint->socket_path, "/tmp/x/ckptd.sock");
  EXPECT_EQ(endpoint->handoff_path, "/tmp/x/ckptd.sock.handoff");
}

TEST(Endpoint, IsTakenFromTheEnvironmentOrTheDefault) {
  setenv("CKPTD_ENDPOINT", "unix:/tmp/from_env.sock", 1);
  EXPECT_EQ(ParseEndpoint("")->text, "unix:/tmp/from_env.sock");
  EXPECT_EQ(ParseEndpoint("unix:/tmp/given.sock")->text, "unix:/tmp/given.sock");
  unsetenv("CKPTD_ENDPOINT");
  EXPECT_EQ(ParseEndpoint("")->text, kDefaultEndpoint);
}

TEST(Endpoint, RefusesAnythingButAnAbsoluteSocketPath) {
  for (const std::string& bad : {std::string("/run/ckptd.sock"), std::string("unix:relative.sock"),
                                 std::string("localhost:1234"), "unix:/" + std::string(99, 'x')}) {
    absl::StatusOr<Endpoint> endpoint = ParseEndpoint(bad);
    ASSERT_FALSE(endpoint.ok()) << bad;
    EXPECT_EQ(ReasonOf(endpoint.status()), "INVALID_ARGUMENT");
    EXPECT_NE(endpoint.status().message().find("unix:/path"), absl::string_view::npos);
  }
  EXPECT_TRUE(ParseEndpoint("unix:/" + std::string(98, 'x')).ok());
}

TEST(CheckServer, RefusesASocketThatAnotherUserHasMadeUnlessTheDirectoryIsThatUsers) {
  if (getuid() != 0) GTEST_SKIP() << "only root can give a socket away";
  constexpr uid_t kOther = 12345;
  std::string folder = "/tmp/endpoint_test_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/d.sock";
  EXPECT_TRUE(CheckServer(path).ok()) << "connecting says that there is none";
  std::ofstream(path).put('x');  // Only its owner counts.
  EXPECT_TRUE(CheckServer(path).ok());
  EXPECT_EQ(chown(path.c_str(), kOther, static_cast<gid_t>(-1)), 0);
  const absl::Status refused = CheckServer(path);
  EXPECT_EQ(ReasonOf(refused), "WRONG_UID");
  EXPECT_NE(refused.message().find(path + " belongs to uid 12345"), absl::string_view::npos) << refused;
  EXPECT_TRUE(CheckServer(path, 0).ok()) << "root listens there";
  EXPECT_EQ(chown(folder.c_str(), kOther, static_cast<gid_t>(-1)), 0);
  EXPECT_TRUE(CheckServer(path).ok());
  std::filesystem::remove_all(folder);
}

TEST(LaunchId, IsTheSameForAllChildrenOfOneParent) {
  EXPECT_EQ(LaunchIdOfParent(), LaunchIdOfParent());
  EXPECT_GT(LaunchIdOfParent().size(), 40u);  // It contains the boot id.
}

TEST(RandomHex128, HasThirtyTwoDigitsAndDiffersEachTime) {
  EXPECT_EQ(RandomHex128().size(), 32u);
  EXPECT_EQ(RandomHex128().find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(RandomHex128(), RandomHex128());
}

}  // namespace
}  // namespace ckptd::client
