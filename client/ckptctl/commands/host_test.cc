#include "client/ckptctl/commands/host.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::ctl {
namespace {

using testing::HasSubstr;

// Fakes a machine's /proc and /sys.
class HostTest : public testing::Test {
 protected:
  void SetUp() override {
    prefix_ = testing::TempDir() + "/host_" + testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(prefix_ + path).parent_path());
    std::ofstream(prefix_ + path) << text;
  }
  Finding Find(const std::string& subject, const absl::Status& uring = absl::OkStatus()) {
    HostFacts facts = ReadHostFacts(prefix_);
    facts.makes_huge_pages = makes_huge_pages_;
    for (const Finding& finding : JudgeHost(facts, uring)) {
      if (finding.subject == subject) return finding;
    }
    ADD_FAILURE() << "there is no finding about " << subject;
    return {};
  }
  std::string prefix_;
  bool makes_huge_pages_ = false;
};

TEST_F(HostTest, ReservedHugePagesAreOk) {
  Write("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512\n");
  Write("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "256\n");
  EXPECT_EQ(Find("huge pages").verdict, Verdict::kOk);
  EXPECT_THAT(Find("huge pages").what, HasSubstr("512 MiB reserved and free, of 1.0 GiB"));
}

TEST_F(HostTest, TransparentHugePagesAreOk) {
  Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "always within_size [advise] never deny force\n");
  EXPECT_EQ(Find("huge pages").verdict, Verdict::kOk);
  EXPECT_THAT(Find("huge pages").what, HasSubstr("advise"));
}

TEST_F(HostTest, HugePagesOnRequestAreOk) {
  makes_huge_pages_ = true;
  Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "always within_size advise [never] deny force\n");
  EXPECT_EQ(Find("huge pages").verdict, Verdict::kOk);
  EXPECT_THAT(Find("huge pages").what, HasSubstr("on request"));
}

TEST_F(HostTest, WarnsWithAdviceWithoutHugePages) {
  Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "always within_size advise [never] deny force\n");
  const Finding finding = Find("huge pages");
  EXPECT_EQ(finding.verdict, Verdict::kWarning);
  EXPECT_THAT(finding.what, HasSubstr("off (never)"));
  EXPECT_THAT(finding.advice, HasSubstr("echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"));
}

TEST_F(HostTest, NamesTheSettingThatForbidsIoUring) {
  const absl::Status no = absl::UnavailableError("EPERM");
  EXPECT_EQ(Find("io_uring").verdict, Verdict::kOk);
  EXPECT_EQ(Find("io_uring", no).verdict, Verdict::kWarning);
  EXPECT_THAT(Find("io_uring", no).advice, HasSubstr("seccomp"));
  Write("/proc/sys/kernel/io_uring_disabled", "2\n");
  EXPECT_THAT(Find("io_uring", no).advice, HasSubstr("kernel.io_uring_disabled=0"));
}

TEST_F(HostTest, ReadsTheMachinesMemory) {
  Write("/proc/meminfo", "MemTotal:       8388608 kB\nMemFree: 1 kB\nMemAvailable:   1048576 kB\n");
  EXPECT_THAT(Find("memory").what, HasSubstr("1.0 GiB available of 8.0 GiB"));
}

TEST(JudgeRoot, RootThatCannotBeUsedIsAFailure) {
  const std::vector<Finding> findings =
      JudgeRoot(absl::PermissionDeniedError("writing into the root: EACCES"));
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].verdict, Verdict::kFailure);
  EXPECT_THAT(findings[0].what, HasSubstr("EACCES"));
}

TEST(JudgeRoot, FreeSpaceThatNothingLimitsIsUnknown) {
  ProbeResult probe;
  probe.total_bytes = int64_t{1} << 50;
  probe.free_bytes = probe.total_bytes - 4096;
  EXPECT_EQ(JudgeRoot(probe)[1].subject, "free space");
  EXPECT_THAT(JudgeRoot(probe)[1].what, HasSubstr("unknown"));
  probe.total_bytes += 4096;  // A large disk.
  EXPECT_EQ(JudgeRoot(probe)[1].what, "1.0 PiB");
}

TEST(JudgeRoot, WarnsOfEachMissingAbilityThatHasAFallback) {
  ProbeResult probe;
  probe.free_bytes = 5;
  probe.warnings = {"tmpfs forgets everything"};
  int warnings = 0;
  for (const Finding& finding : JudgeRoot(probe)) warnings += finding.verdict == Verdict::kWarning;
  EXPECT_EQ(warnings, 5);  // Space, direct I/O, fallocate, exchange, the probe's own.
  probe.direct_io = probe.fallocate = probe.rename_exchange = true;
  probe.free_bytes = int64_t{1} << 40;
  probe.warnings.clear();
  for (const Finding& finding : JudgeRoot(probe)) EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.subject;
}

}  // namespace
}  // namespace ckptd::ctl
