// Whole daemons that register as nodes in Debian's etcd: what operators see, and deaths of both sides.
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ckptd/v1/messages.pb.h"
#include "client/cpp/client.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "tests/integration/daemon_process.h"
#include "tests/testing/etcd_cluster.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A name that nobody gives up is taken for longer than any of these tests lasts.
constexpr int kLongLease = 600;

std::string ClusterBlock(const std::string& node, const std::vector<std::string>& endpoints,
                         int lease_seconds, const std::string& more = "") {
  std::string block = absl::StrCat("cluster { node_name: '", node, "' lease_seconds: ", lease_seconds, more);
  for (const std::string& endpoint : endpoints) {
    absl::StrAppend(&block, " etcd_endpoints: 'http://", endpoint, "'");
  }
  return block + " etcd_timeout_seconds: 2 }\n";
}

class ClusterTest : public ::testing::Test {
 protected:
  std::unique_ptr<DaemonProcess> Start(const std::string& node, int lease_seconds = kLongLease) {
    return StartWith(ClusterBlock(node, etcd_.endpoints(), lease_seconds));
  }
  static std::unique_ptr<DaemonProcess> StartWith(const std::string& block) {
    return std::make_unique<DaemonProcess>(int64_t{64} << 20, int64_t{2} << 20, block);
  }
  static ProgramResult Status(const DaemonProcess& daemon, const std::string& output) {
    return RunProgram({"client/ckptctl/ckptctl", "--endpoint=" + daemon.endpoint(), "status", output});
  }
  static v1::ClusterStatus Cluster(const DaemonProcess& daemon) {
    const ProgramResult result = Status(daemon, "--output=json");
    EXPECT_EQ(result.status, 0) << result.err;
    v1::Status status;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(result.out, &status).ok()) << result.out;
    return status.cluster();
  }
  // Returns the first status that `is_it`.
  static v1::ClusterStatus WaitFor(const DaemonProcess& daemon, const std::string& what,
                                   const std::function<bool(const v1::ClusterStatus&)>& is_it) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (true) {
      v1::ClusterStatus status = Cluster(daemon);
      if (is_it(status)) return status;
      if (std::chrono::steady_clock::now() > deadline) {
        ADD_FAILURE() << "waited in vain for " << what << ": " << status.ShortDebugString();
        return status;
      }
    }
  }
  static v1::ClusterStatus WaitUntilRegistered(const DaemonProcess& daemon) {
    return WaitFor(daemon, "the registration", [](const auto& status) { return status.registered(); });
  }
  // A launch of one rank, which has the name of the tag.
  static absl::Status Save(const DaemonProcess& daemon, const std::string& root, const std::string& tag) {
    CKPTD_ASSIGN_OR_RETURN(auto client, client::Client::Connect(daemon.endpoint()));
    CKPTD_ASSIGN_OR_RETURN(auto run, client.OpenRun(root, {.launch_id = tag}));
    const std::vector<std::byte> bytes(3000, std::byte{1});
    CKPTD_ASSIGN_OR_RETURN(auto save, run.Save({.tag = tag}, {{"model.bin", {bytes}}}));
    return save.Wait(client::Level::kCommitted, std::chrono::seconds(30));
  }
  // A run of one node.
  static void SaveInto(DaemonProcess& daemon, const std::string& root) {
    const absl::Status saved = Save(daemon, daemon.MakeRoot(root), "one");
    EXPECT_TRUE(saved.ok()) << saved;
  }
  std::unique_ptr<DaemonProcess> StartSharing(const std::string& node, const std::string& folder,
                                              int lease_seconds = kLongLease) {
    return StartWith(
        ClusterBlock(node, etcd_.endpoints(), lease_seconds, " shared_folders: '" + folder + "'"));
  }

  EtcdCluster etcd_;
};

TEST_F(ClusterTest, OperatorsSeeTheNodeItsEtcdAndTheOtherNodes) {
  const auto one = Start("gpu1"), two = Start("gpu2");
  WaitUntilRegistered(*two);
  WaitUntilRegistered(*one);
  const v1::ClusterStatus status =
      WaitFor(*one, "both nodes", [](const auto& cluster) { return cluster.nodes_size() == 2; });
  EXPECT_EQ(status.node(), "gpu1");
  EXPECT_TRUE(status.etcd_members(0).answers());
  EXPECT_EQ(status.nodes(1).name(), "gpu2");
  EXPECT_NE(status.nodes(1).host(), "");
  EXPECT_NE(status.nodes(1).daemon_version(), "");
  EXPECT_TRUE(status.nodes(1).has_register_time());
  EXPECT_THAT(Status(*one, "--output=text").out,
              AllOf(HasSubstr("\nnode gpu1, registered for "), HasSubstr(etcd_.endpoints()[0] + " answers\n"),
                    HasSubstr(" 2 registered\n")));
  EXPECT_THAT(Status(*one, "--verbose").out, HasSubstr("\n  gpu2  "));
  EXPECT_THAT(one->Log(), HasSubstr("registered as a node node=gpu1"));
}

TEST_F(ClusterTest, StatusHasNothingOfItWithoutTheBlock) {
  const auto daemon = StartWith("");
  EXPECT_EQ(Cluster(*daemon).ShortDebugString(), "");
  EXPECT_EQ(Status(*daemon, "--output=text").out.find("node"), std::string::npos);
}

TEST_F(ClusterTest, FindsEtcdByTheNameOfItsHost) {
  const std::string endpoint = etcd_.endpoints()[0];
  const auto daemon =
      StartWith(ClusterBlock("gpu1", {"localhost" + endpoint.substr(endpoint.rfind(':'))}, kLongLease));
  WaitUntilRegistered(*daemon);
}

TEST_F(ClusterTest, OrderlyStopFreesTheNameAtOnce) {
  const auto first = Start("gpu1");
  WaitUntilRegistered(*first);
  const auto second = Start("gpu1");  // With a state directory of its own.
  const v1::ClusterStatus refused =
      WaitFor(*second, "the refusal", [](const auto& status) { return status.has_error(); });
  EXPECT_EQ(refused.error().reason(), "NODE_NAME_TAKEN");
  EXPECT_THAT(refused.error().message(), HasSubstr("give each daemon a name of its own"));
  EXPECT_THAT(Status(*second, "--output=text").out,
              HasSubstr("\nnode gpu1, NOT REGISTERED: NODE_NAME_TAKEN: "));
  EXPECT_THAT(second->Log(), HasSubstr("not registered as a node"));
  SaveInto(*second, "root");
  first->Stop();
  EXPECT_THAT(first->Log(), HasSubstr("no longer registered as a node"));
  WaitUntilRegistered(*second);
}

TEST_F(ClusterTest, SuccessorOfAKilledDaemonHasTheNameAtOnce) {
  const auto daemon = Start("gpu1");
  WaitUntilRegistered(*daemon);
  daemon->Kill();
  daemon->Start();
  const v1::ClusterStatus status = WaitUntilRegistered(*daemon);
  EXPECT_EQ(status.lost_leases(), 0);
  EXPECT_EQ(daemon->Log().find("NODE_NAME_TAKEN"), std::string::npos);
}

TEST_F(ClusterTest, EtcdThatIsKilledCostsTheRegistrationAndNoSaves) {
  const auto daemon = Start("gpu1", /*lease_seconds=*/2);
  WaitUntilRegistered(*daemon);
  etcd_.Kill(0);
  const v1::ClusterStatus lost =
      WaitFor(*daemon, "the loss", [](const auto& status) { return status.lost_leases() == 1; });
  EXPECT_FALSE(lost.registered());
  EXPECT_NE(lost.error().message(), "");
  SaveInto(*daemon, "root");
  WaitFor(*daemon, "the member", [](const auto& status) { return !status.etcd_members(0).answers(); });
  etcd_.Start(0);
  const v1::ClusterStatus back = WaitUntilRegistered(*daemon);
  EXPECT_FALSE(back.has_error());
  EXPECT_THAT(daemon->Log(), HasSubstr("no longer registered as a node; it is tried again"));
}

TEST_F(ClusterTest, DaemonStartsServesAndStopsWithoutEtcd) {
  etcd_.Kill(0);
  const auto daemon = Start("gpu1");
  SaveInto(*daemon, "root");
  const v1::ClusterStatus status =
      WaitFor(*daemon, "the error", [](const auto& found) { return found.has_error(); });
  EXPECT_EQ(status.error().reason(), "LEDGER_UNAVAILABLE");
  EXPECT_THAT(daemon->Log(), HasSubstr("not registered as a node; it is tried again, and runs of one node"));
  daemon->Stop();
}

TEST_F(ClusterTest, StopDoesNotWaitForAnEtcdThatHangs) {
  const auto daemon = Start("gpu1");
  WaitUntilRegistered(*daemon);
  etcd_.Stop(0);
  daemon->Stop();
  EXPECT_THAT(daemon->Log(), HasSubstr("the name of this node stays taken until its lease has ended"));
  etcd_.Continue(0);
  daemon->Start();
  WaitUntilRegistered(*daemon);
}

TEST_F(ClusterTest, DaemonWithAUserRegistersBeneathItsPrefix) {
  const TempDir folder;
  const std::string password = folder.path() + "/password";
  std::ofstream(password) << "secret\n";
  std::filesystem::permissions(password, std::filesystem::perms::owner_read);
  etcd_.RequireUser("ckptd", "secret", "/jobs/");
  const std::string user = " etcd_user: 'ckptd' etcd_password_file: '" + password + "' ";
  const std::string endpoint =
      "cluster { node_name: 'gpu1' etcd_endpoints: 'http://" + etcd_.endpoints()[0] + "'";
  const auto daemon = StartWith(endpoint + user + "etcd_prefix: '/jobs/ckptd/' }\n");
  WaitUntilRegistered(*daemon);
  EXPECT_EQ(daemon->Log().find("secret"), std::string::npos);
  const auto elsewhere = StartWith(endpoint + user + "}\n");
  const v1::ClusterStatus refused = WaitFor(*elsewhere, "the refusals", [](const auto& status) {
    return status.has_error() && status.has_nodes_error();
  });
  EXPECT_EQ(refused.error().reason(), "LEDGER_REFUSED");
  EXPECT_THAT(refused.error().message(), HasSubstr("grant the user's role readwrite on all keys"));
}

// ---- shared roots. Jobs that span nodes: tests/e2e.

class SharedFolderTest : public ClusterTest {
 protected:
  std::string MakeRoot() {
    std::filesystem::create_directory(root_);
    return root_;
  }

  const TempDir shared_;
  const std::string folder_ = std::filesystem::canonical(shared_.path()).string(), root_ = folder_ + "/run";
};

// The lease of a node that is lost would last for the whole test.
TEST_F(SharedFolderTest, NodeThatEndsInOrderLeavesTheRunToAnother) {
  const auto first = StartSharing("gpu1", folder_);
  WaitUntilRegistered(*first);
  const absl::Status saved = Save(*first, MakeRoot(), "one");
  ASSERT_TRUE(saved.ok()) << saved;
  const v1::ClusterStatus status = Cluster(*first);
  ASSERT_EQ(status.shared_runs_size(), 1);
  EXPECT_EQ(status.shared_runs(0).root(), root_);
  EXPECT_EQ(status.shared_runs(0).coordinator(), "gpu1");
  EXPECT_THAT(Status(*first, "--output=text").out, HasSubstr("SHARED ROOT"));
  first->Stop();
  const auto second = StartSharing("gpu2", folder_);
  WaitUntilRegistered(*second);
  const absl::Status again = Save(*second, root_, "two");
  ASSERT_TRUE(again.ok()) << again;
  EXPECT_EQ(Cluster(*second).shared_runs(0).coordinator(), "gpu2");
  for (const char* tag : {"/one", "/two"})
    EXPECT_EQ(std::filesystem::file_size(root_ + tag + "/model.bin"), 3000u) << tag;
}

TEST_F(SharedFolderTest, JobWaitsForTheRegistrationOfItsNode) {
  etcd_.Kill(0);
  const auto daemon = StartSharing("gpu1", folder_, /*lease_seconds=*/4);
  auto saved = std::async(std::launch::async, [&, root = MakeRoot()] { return Save(*daemon, root, "one"); });
  WaitFor(*daemon, "the open root", [](const auto& status) { return status.shared_runs_size() == 1; });
  etcd_.Start(0);
  const absl::Status status = saved.get();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(SharedFolderTest, SharedRootIsRefusedByADaemonThatDoesNotShareIt) {
  const auto sharing = StartSharing("gpu1", folder_);
  const auto other = StartWith("");
  const absl::Status alone = Save(*other, MakeRoot(), "one");
  ASSERT_TRUE(alone.ok()) << alone;
  const absl::Status refused = Save(*sharing, root_, "two");
  EXPECT_EQ(ReasonOf(refused), "ROOT_SHARING_CHANGED");
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr(root_), HasSubstr("take another directory")));
}

TEST_F(SharedFolderTest, LinkInThePathOfAFolderIsNoted) {
  std::filesystem::create_directory(folder_ + "/real");
  std::filesystem::create_symlink("real", folder_ + "/link");
  const auto daemon = StartSharing("gpu1", folder_ + "/link");
  WaitUntilRegistered(*daemon);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (daemon->Log().find("a shared folder cannot be used") == std::string::npos)
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the folder was never looked at";
  EXPECT_THAT(daemon->Log(), HasSubstr("write \\\"" + folder_ + "/real"));
}

// ---- the configuration

TEST(ClusterConfigTest, CheckReadsTheFilesOfTheBlock) {
  const TempDir folder;
  const std::string password = folder.path() + "/password", config = folder.path() + "/ckptd.txtpb";
  std::ofstream(password) << "secret\n";
  std::ofstream(config) << "cluster { node_name: 'n' etcd_endpoints: 'https://10.0.0.1:2379' "
                        << "etcd_ca_file: '/none/ca.pem' etcd_user: 'u' etcd_password_file: '" << password
                        << "' }\n";
  using std::filesystem::perms;
  std::filesystem::permissions(password, perms::owner_read | perms::others_read);
  for (const std::string& flag : {std::string("--check_config"), std::string("--private")}) {
    const ProgramResult refused = RunProgram({"daemon/runtime/ckptd", "--config=" + config, flag});
    EXPECT_EQ(refused.status, 2);
    EXPECT_THAT(refused.err,
                AllOf(HasSubstr("ckptd: cluster.etcd_ca_file: cannot read /none/ca.pem"),
                      HasSubstr("ckptd: cluster.etcd_password_file: " + password + " has mode 0404")));
  }
}

// It may be mounted later.
TEST(ClusterConfigTest, CheckNotesASharedFolderThatIsNotThere) {
  const TempDir folder;
  const std::string config = folder.path() + "/ckptd.txtpb";
  std::ofstream(config)
      << "cluster { node_name: 'n' etcd_endpoints: 'https://10.0.0.1:2379' shared_folders: '" << folder.path()
      << "/gone' }\n";
  const ProgramResult checked = RunProgram({"daemon/runtime/ckptd", "--config=" + config, "--check_config"});
  EXPECT_EQ(checked.status, 0);
  EXPECT_EQ(checked.out, "ok\n");
  EXPECT_THAT(checked.err, AllOf(HasSubstr("note: cluster.shared_folders: \"" + folder.path() + "/gone\""),
                                 HasSubstr("mount its file system there")));
}

}  // namespace
}  // namespace ckptd
