// Daemons that register as nodes in an etcd of a test.
#ifndef CKPTD_TESTS_TESTING_REGISTERED_NODES_H_
#define CKPTD_TESTS_TESTING_REGISTERED_NODES_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/ledger/nodes/node_registration.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "tests/testing/any_etcd.h"

namespace ckptd {

// All keys of a test begin with its name: the real etcd serves all tests of a process.
class RegisteredNodes {
 public:
  using StateDirectory = std::vector<std::string>;

  // `etcd` must outlive it.
  explicit RegisteredNodes(AnyEtcd* etcd) : etcd_(*etcd) {
    etcd_.caller().OnTick([this] {
      for (const auto& [daemon, client] : living_) {
        if (!frozen_.contains(daemon)) daemon->OnTick();
      }
      if (on_tick_) on_tick_();
    });
  }
  ~RegisteredNodes() { etcd_.caller().OnTick(nullptr); }

  // Runs when the daemons tick.
  void OnTick(std::function<void()> on_tick) { on_tick_ = std::move(on_tick); }

  const std::string& prefix() const { return prefix_; }
  // Of registrations that were lost: the node's name and the reason.
  const std::vector<std::string>& lost() const { return lost_; }

  // A daemon that has not registered yet. Its lease is 2 s, and longer where a lost request may end it.
  std::unique_ptr<NodeRegistration> New(const std::string& name, StateDirectory* state_directory) {
    NodeRegistration::Options options;
    options.prefix = prefix_;
    options.name = name;
    options.host = "host of " + name;
    options.incarnation = prefix_ + std::to_string(++daemons_);
    options.predecessors = *state_directory;
    options.lease_seconds = etcd_.simulated() ? 60 : 2;
    Etcd* const client = etcd_.NewClient();
    auto daemon = std::make_unique<NodeRegistration>(
        client, etcd_.clock(), options,
        [state_directory](const std::vector<std::string>& incarnations, NodeRegistration::Done remembered) {
          *state_directory = incarnations;
          remembered(absl::OkStatus());
        },
        [this, name](const absl::Status& why) { lost_.push_back(name + " " + ReasonOf(why)); });
    living_[daemon.get()] = client;
    return daemon;
  }
  // One that has, with the state directory of its name.
  std::unique_ptr<NodeRegistration> Start(const std::string& name) {
    auto daemon = New(name, &state_directories_[name]);
    const absl::Status registered = Register(*daemon);
    EXPECT_TRUE(registered.ok()) << registered;
    return daemon;
  }
  absl::Status Register(NodeRegistration& daemon) {
    return Await([&](NodeRegistration::Done done) { daemon.Register(std::move(done)); });
  }
  void Release(NodeRegistration& daemon) {
    const absl::Status released =
        Await([&](NodeRegistration::Done done) { daemon.Release(std::move(done)); });
    EXPECT_TRUE(released.ok()) << released;
  }
  // It ends without a word.
  void Kill(std::unique_ptr<NodeRegistration>& daemon) {
    living_.erase(daemon.get());
    frozen_.erase(daemon.get());
    daemon = nullptr;
  }
  // A daemon that is frozen does not tick.
  void Freeze(NodeRegistration& daemon, bool frozen) {
    if (frozen) {
      frozen_.insert(&daemon);
    } else {
      frozen_.erase(&daemon);
    }
  }
  // As if it hung: it no longer ticks.
  void WaitForTheEndOf(NodeRegistration& daemon) {
    living_.erase(&daemon);
    etcd_.EndLeaseOfModel(daemon.identity().lease);
    etcd_.caller().RunUntil([&] { return Read(daemon.identity().key) == "(none)"; });
  }
  // The daemon's connection to etcd; it must live.
  Etcd* ClientOf(NodeRegistration& daemon) const { return living_.at(&daemon); }

  // From the model itself where there is one: a request would take a fault that is meant for another one.
  std::string Read(const std::string& key) {
    if (!etcd_.has_model()) return etcd_.caller().Read(key).value_or("(error)");
    etcdserverpb::RangeRequest request;
    request.set_key(key);
    std::string value = "(none)";
    etcd_.WithModel([&](EtcdModel& model) {
      const auto found = model.Range(request);
      if (found.ok() && found->kvs_size() > 0) value = found->kvs(0).value();
    });
    return value;
  }
  absl::Status Await(const std::function<void(NodeRegistration::Done)>& ask) {
    std::optional<absl::Status> result;
    ask([&result](absl::Status answer) { result = std::move(answer); });
    etcd_.caller().RunUntil([&] { return result.has_value(); });
    return result.value_or(absl::UnknownError("no answer"));
  }

  // What is still under way of a request that was asked again arrives now, and must change nothing.
  void DeliverLateCopies() {
    if (!etcd_.has_model()) return;
    etcd_.WithModel([](EtcdModel& model) {
      const int64_t before = model.revision();
      model.ReplayTransactions();
      EXPECT_EQ(model.revision(), before) << "a late copy of a transaction was applied";
    });
  }

 private:
  AnyEtcd& etcd_;
  const std::string prefix_ =
      std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) + "/";
  int daemons_ = 0;
  std::map<NodeRegistration*, Etcd*> living_;  // Those that tick.
  std::set<NodeRegistration*> frozen_;         // But for these.
  std::function<void()> on_tick_;
  std::map<std::string, StateDirectory> state_directories_;
  std::vector<std::string> lost_;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_REGISTERED_NODES_H_
