#include "client/ckptctl/text/names.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/format/run_name.h"

namespace ckptd::ctl {
namespace {

class NamesTest : public testing::Test {
 protected:
  void Add(const std::string& id, const std::string& path) {
    v1::Run& run = *runs_.add_runs();
    run.set_name("runs/" + id);
    run.set_path(path);
  }
  // Adds the run of an existing directory.
  std::string AddAt(const std::string& directory, const std::string& path) {
    struct stat info {};
    EXPECT_EQ(stat(directory.c_str(), &info), 0);
    v1::Run& run = *runs_.add_runs();
    run.set_name("runs/of-a-shared-folder");
    run.set_device(info.st_dev);
    run.set_inode(info.st_ino);
    run.set_path(path);
    return run.name();
  }
  v1::ListRunsResponse runs_;
};

TEST_F(NamesTest, FindsARunByItsNameAndByItsPath) {
  Add("1", "/data/a");
  Add("2", "/data/b");
  EXPECT_EQ(FindRun(runs_, "runs/2")->name(), "runs/2");
  EXPECT_EQ(FindRun(runs_, "/data/a")->name(), "runs/1");
  const absl::Status missing = FindRun(runs_, "/data/c").status();
  EXPECT_EQ(ReasonOf(missing), "UNKNOWN_RUN");
  EXPECT_NE(missing.message().find("/data/b"), absl::string_view::npos);  // It says what there is.
  EXPECT_EQ(missing.message().find('\n'), absl::string_view::npos);
}

TEST_F(NamesTest, FindsARunByAnyPathToItsRoot) {
  char folder[] = "/tmp/ckptctl_names_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string link = std::string(folder) + ".link";
  ASSERT_EQ(symlink(folder, link.c_str()), 0);
  Add("1", "/elsewhere");
  const std::string name = AddAt(folder, "/as/its/container/says");
  EXPECT_EQ(FindRun(runs_, link)->name(), name);
  EXPECT_EQ(FindRun(runs_, std::string(folder) + "/.")->name(), name);
  EXPECT_EQ(*CheckpointName(runs_, link + "/step_1"), name + "/checkpoints/step_1");
  unlink(link.c_str());
  rmdir(folder);
}

TEST_F(NamesTest, FindsTheRunOfAnOlderDaemonByTheNameThatItsDirectoryHas) {
  struct stat info {};
  ASSERT_EQ(stat("/tmp", &info), 0);
  v1::Run& run = *runs_.add_runs();
  run.set_name(RunName(info.st_dev, info.st_ino));
  run.set_path("/as/its/container/says");
  EXPECT_EQ(FindRun(runs_, "/tmp")->name(), run.name());
}

TEST_F(NamesTest, FindsTheRunOfTheDirectoryWhenAnotherRunClaimsItsPath) {
  char folder[] = "/tmp/ckptctl_names_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  Add("1", folder);
  runs_.mutable_runs(0)->set_uid(1666);
  const absl::Status refused = FindRun(runs_, folder).status();
  EXPECT_EQ(ReasonOf(refused), "UNKNOWN_RUN");
  EXPECT_NE(refused.message().find("runs/1 (uid 1666) calls its root so"), absl::string_view::npos)
      << refused;
  EXPECT_EQ(FindRun(runs_, "runs/1")->name(), "runs/1");
  const std::string name = AddAt(folder, folder);
  EXPECT_EQ(FindRun(runs_, folder)->name(), name);
  rmdir(folder);
}

TEST_F(NamesTest, RefusesAnUnreadablePathThatTwoRunsClaim) {
  Add("1", "/data/a");
  EXPECT_EQ(FindRun(runs_, "/data/a")->name(), "runs/1");
  Add("2", "/data/a");
  const absl::Status refused = FindRun(runs_, "/data/a").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("runs/1 (uid 0) and runs/2 (uid 0)"), absl::string_view::npos) << refused;
}

TEST_F(NamesTest, FindsACheckpointByNameByPathAndByTag) {
  Add("1", "/data/a");
  EXPECT_EQ(*CheckpointName(runs_, "runs/7/checkpoints/x"), "runs/7/checkpoints/x");
  EXPECT_EQ(*CheckpointName(runs_, "/data/a/step_1"), "runs/1/checkpoints/step_1");
  EXPECT_EQ(*CheckpointName(runs_, "/data/a/step_1/"), "runs/1/checkpoints/step_1");
  EXPECT_EQ(*CheckpointName(runs_, "runs/1/step_1"), "runs/1/checkpoints/step_1");
  EXPECT_EQ(*CheckpointName(runs_, "step_1"), "runs/1/checkpoints/step_1");
}

TEST_F(NamesTest, RefusesATagWithoutRootWhenThereAreTwoRuns) {
  EXPECT_EQ(CheckpointName(runs_, "step_1").status().code(), absl::StatusCode::kNotFound);
  Add("1", "/data/a");
  Add("2", "/data/b");
  EXPECT_EQ(CheckpointName(runs_, "step_1").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckpointName(runs_, "/data/a/").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ckptd::ctl
