#include "daemon/runtime/process/machine.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace ckptd {
namespace {

TEST(Machine, RaisesDescriptorsToTheHardLimit) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 256);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(static_cast<rlim_t>(RaiseDescriptorLimit()), limit.rlim_max);
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

TEST(Machine, MakesDistinct128BitIds) {
  const std::string id = RandomId().value();
  EXPECT_EQ(id.size(), 32u);
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(id, RandomId().value());
}

TEST(Machine, ReturnsTheSmallestLimitOfTheControlGroups) {
  char folder[] = "/tmp/ckptd.XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string top = folder;
  std::filesystem::create_directories(top + "/system.slice/ckptd.service");
  std::ofstream(top + "/proc") << "0::/system.slice/ckptd.service\n";
  EXPECT_EQ(ControlGroupMemoryLimit(top + "/proc", top), std::nullopt);
  std::ofstream(top + "/system.slice/ckptd.service/memory.max") << "max\n";
  EXPECT_EQ(ControlGroupMemoryLimit(top + "/proc", top), std::nullopt);
  std::ofstream(top + "/system.slice/memory.max") << "1073741824\n";
  EXPECT_EQ(ControlGroupMemoryLimit(top + "/proc", top), int64_t{1} << 30);
  std::filesystem::remove_all(top);
}

}  // namespace
}  // namespace ckptd
