// A real daemon with a root, and ranks that use it as trainers do.
#ifndef CKPTD_TESTS_INTEGRATION_CLIENT_FIXTURE_H_
#define CKPTD_TESTS_INTEGRATION_CLIENT_FIXTURE_H_

#include <cstddef>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/client.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon_process.h"

namespace ckptd::client {

using Job = Run;  // In a fixture, Run would be testing::Test's method.

inline std::vector<std::byte> RandomBytes(size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  std::mt19937_64 random(seed);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

inline std::vector<std::byte> FileBytes(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string bytes = text.str();
  const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
  return {begin, begin + bytes.size()};
}

class ClientTest : public testing::Test {
 protected:
  // Opens a run as a separate process, as far as the daemon can tell: with another client instance.
  Job OpenRun(int rank = 0, int world_size = 1, const std::string& launch = "launch-1") {
    absl::StatusOr<Client> client = Client::Connect(daemon_.endpoint());
    EXPECT_TRUE(client.ok()) << client.status();
    absl::StatusOr<Job> run = client->OpenRun(
        root_, {.rank = rank, .world_size = world_size, .launch_id = launch, .copy_threads = 2});
    EXPECT_TRUE(run.ok()) << run.status();
    return *std::move(run);
  }

  void ExpectOnDisk(const std::string& tag, const std::string& path, const std::vector<std::byte>& bytes) {
    EXPECT_TRUE(FileBytes(root_ + "/" + tag + "/" + path) == bytes) << tag << "/" << path;
  }

  DaemonProcess daemon_;
  const std::string root_ = daemon_.MakeRoot();
};

}  // namespace ckptd::client
#endif  // CKPTD_TESTS_INTEGRATION_CLIENT_FIXTURE_H_
