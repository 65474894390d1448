// GrpcEtcd with real members of etcd: their deaths, TLS, users, a restored backup.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/etcd/etcd_errors.h"
#include "daemon/etcd/etcd_lease.h"
#include "daemon/etcd/etcd_requests.h"
#include "storage/base/boot_clock.h"
#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"
#include "tests/testing/child_process.h"
#include "tests/testing/etcd_caller.h"
#include "tests/testing/etcd_cluster.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using etcdserverpb::Event;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

EtcdOptions OptionsFor(const EtcdCluster& cluster) {
  EtcdOptions options;
  options.endpoints = cluster.endpoints();
  options.call_timeout = std::chrono::seconds(60);
  return options;
}

// Adds one to the number at `key`. Whether an answer was lost does not matter: the transaction compares what
// the caller has read, and names its writer.
class Counter {
 public:
  Counter(EtcdCaller* caller, std::string key) : caller_(caller), key_(std::move(key)) {}

  absl::Status Add() {
    const std::string next = std::to_string(count_ + 1);
    TxnRequest request;
    *request.add_compare() = LastChangedAt(key_, revision_);
    *request.add_success() = Put(key_, next);
    *request.add_failure() = Get(key_);
    const absl::StatusOr<TxnResponse> answer = caller_->Txn(request);
    if (!answer.ok()) return answer.status();
    if (!answer->succeeded()) {
      const etcdserverpb::KeyValue* found = Found(*answer, 0);
      if (found == nullptr || found->value() != next) return absl::InternalError("somebody else has written");
      revision_ = found->mod_revision();
    } else {
      revision_ = answer->header().revision();
    }
    ++count_;
    return absl::OkStatus();
  }
  int count() const { return count_; }

 private:
  EtcdCaller* const caller_;
  const std::string key_;
  int64_t revision_ = 0;
  int count_ = 0;
};

TEST(EtcdMembersTest, LeaderThatIsKilledOrFrozenCostsNoWriteAndNoEventAndNoLease) {
  EtcdCluster cluster(3);
  EtcdCaller caller(OptionsFor(cluster));
  bool lost = false;
  EtcdLease lease(caller.etcd(), &BootClock(), 60, "living", [&](const absl::Status&) { lost = true; });
  ASSERT_TRUE(caller.Await<int64_t>([&](auto answer) { lease.Acquire(std::move(answer)); }).ok());
  caller.OnTick([&] { lease.OnTick(); });
  int last_event = 0;
  const auto watch = caller.etcd()->Watch({"n", "", 1, "watching",
                                           [&](const std::vector<Event>& events) {
                                             for (const Event& event : events) {
                                               EXPECT_EQ(event.kv().value(), std::to_string(++last_event));
                                             }
                                           },
                                           [](const absl::Status& why) { ADD_FAILURE() << why; }});
  Counter counter(&caller, "n");
  const auto add_ten = [&] {
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(counter.Add().ok());
  };
  add_ten();

  const int killed = cluster.Leader();
  cluster.Kill(killed);
  add_ten();
  cluster.Start(killed);
  cluster.WaitUntilServing(killed);

  const int frozen = cluster.Leader();
  cluster.Stop(frozen);  // Connections stay open: only time tells that nobody is there.
  add_ten();
  cluster.Continue(frozen);
  cluster.WaitUntilServing(frozen);
  add_ten();

  caller.RunUntil([&] { return last_event == counter.count(); });
  EXPECT_EQ(caller.Read("n").value(), "40");
  EXPECT_FALSE(lost);
}

TEST(EtcdMembersTest, WithoutAMajorityNothingIsAnsweredAndTheMessageSaysSo) {
  EtcdCluster cluster(3);
  EtcdOptions options = OptionsFor(cluster);
  options.call_timeout = std::chrono::seconds(3);
  options.try_timeout = std::chrono::seconds(1);
  cluster.Kill(0);
  cluster.Kill(1);
  EtcdCaller caller(options);
  const absl::Status error = caller.Read("a").status();
  EXPECT_EQ(ReasonOf(error), ledger_reason::kUnavailable);
  EXPECT_THAT(std::string(error.message()), HasSubstr("check that most of its members run"));
}

TEST(EtcdBackupTest, RestoredBackupIsNoticed) {
  EtcdCluster cluster;
  const TempDir backup;
  EtcdCaller caller(OptionsFor(cluster));
  ASSERT_TRUE(caller.Write({Put("a", "1")}).ok());
  cluster.Kill(0);
  cluster.CopyData(0, backup.path() + "/data");
  cluster.Start(0);
  ASSERT_TRUE(caller.Write({Put("a", "2")}).ok());
  std::string ended;
  const auto watch = caller.etcd()->Watch({"a", "", 1000, "watching", [](const auto&) {},
                                           [&](const absl::Status& why) { ended = ReasonOf(why); }});
  cluster.Kill(0);
  cluster.RestoreData(0, backup.path() + "/data");
  cluster.Start(0);
  EXPECT_EQ(ReasonOf(caller.Read("a").status()), ledger_reason::kRestored);
  EXPECT_EQ(ReasonOf(caller.Write({Put("a", "3")}).status()), ledger_reason::kRestored);
  caller.RunUntil([&] { return !ended.empty(); });
  EXPECT_EQ(ended, ledger_reason::kRestored);
}

// ---- TLS and users

// A certificate authority and two certificates of it.
class Certificates {
 public:
  Certificates() {
    Run({"ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", Path("ca.key")});
    Run({"req", "-x509", "-new", "-key", Path("ca.key"), "-subj", "/CN=test-ca", "-days", "2", "-out",
         Path("ca.crt")});
    std::ofstream(Path("ext")) << "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n";
    for (const std::string name : {"server", "client"}) Sign(name);
  }
  std::string Path(const std::string& file) const { return folder_.path() + "/" + file; }

 private:
  void Sign(const std::string& name) {
    Run({"ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", Path(name + ".key")});
    Run({"req", "-new", "-key", Path(name + ".key"), "-subj", "/CN=" + name, "-out", Path(name + ".csr")});
    Run({"x509", "-req", "-in", Path(name + ".csr"), "-CA", Path("ca.crt"), "-CAkey", Path("ca.key"),
         "-CAcreateserial", "-days", "2", "-extfile", Path("ext"), "-out", Path(name + ".crt")});
  }
  void Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "/usr/bin/openssl");
    UniqueFd output(open(Path("openssl.log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    ASSERT_EQ(WaitForEnd(StartProgram(arguments, output.get(), output.get())), 0) << arguments[1];
  }
  TempDir folder_;
};

TEST(EtcdTlsTest, ConnectsWithACertificateAndSaysWhyItCannotWithout) {
  const Certificates pem;
  EtcdCluster cluster(1,
                      {"--cert-file=" + pem.Path("server.crt"), "--key-file=" + pem.Path("server.key"),
                       "--client-cert-auth", "--trusted-ca-file=" + pem.Path("ca.crt")},
                      "https");
  EtcdOptions options = OptionsFor(cluster);
  options.tls = EtcdTls{pem.Path("ca.crt"), pem.Path("client.crt"), pem.Path("client.key")};
  EtcdCaller caller(options);
  EXPECT_TRUE(caller.Write({Put("a", "1")}).ok());

  options.call_timeout = std::chrono::seconds(2);
  options.tls->certificate_file = options.tls->key_file = "";
  EXPECT_EQ(ReasonOf(EtcdCaller(options).Read("a").status()), ledger_reason::kUnavailable);
  options.tls->ca_file = "";  // The machine's authorities, of which ours is none.
  const absl::Status unknown = EtcdCaller(options).Read("a").status();
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("certificate verify failed"));

  options.tls->ca_file = pem.Path("none.crt");
  const auto missing = GrpcEtcd::Make(options, &SystemClock(), [](auto) {});
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("none.crt"));
}

TEST(EtcdUserTest, UserMayOnlyWhatItsRoleGrants) {
  EtcdCluster cluster;
  cluster.RequireUser("job", "secret", "/job/");
  EtcdOptions options = OptionsFor(cluster);
  options.user = "job";
  options.password = "secret";
  EtcdCaller caller(options);
  EXPECT_TRUE(caller.Write({Put("/job/a", "1")}).ok());
  const absl::Status denied = caller.Write({Put("/other/a", "1")}).status();
  EXPECT_EQ(ReasonOf(denied), ledger_reason::kRefused);
  EXPECT_THAT(std::string(denied.message()), HasSubstr("grant the user's role"));
  std::string ended;
  const auto watch = caller.etcd()->Watch({"/other/a", "", 1, "watching", [](const auto&) {},
                                           [&](const absl::Status& why) { ended = ReasonOf(why); }});
  caller.RunUntil([&] { return !ended.empty(); });
  EXPECT_EQ(ended, ledger_reason::kRefused);

  options.user = options.password = "";
  const absl::Status nobody = EtcdCaller(options).Read("/job/a").status();
  EXPECT_THAT(std::string(nobody.message()), HasSubstr("configure a user"));
}

}  // namespace
}  // namespace ckptd
