// An Etcd whose owner's thread is the test's, and calls that wait for their answer.
#ifndef CKPTD_TESTS_TESTING_ETCD_CALLER_H_
#define CKPTD_TESTS_TESTING_ETCD_CALLER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/etcd/etcd_listing.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/etcd/grpc/grpc_etcd.h"
#include "gtest/gtest.h"
#include "storage/base/clock.h"
#include "tests/testing/inbox.h"

namespace ckptd {

class EtcdCaller {
 public:
  // Over gRPC.
  explicit EtcdCaller(const EtcdOptions& options) {
    auto inbox = NewInbox();
    auto made = GrpcEtcd::Make(options, &SystemClock(),
                               [inbox](absl::AnyInvocable<void()> work) { inbox->Post(std::move(work)); });
    EXPECT_TRUE(made.ok()) << made.status();
    if (!made.ok()) return;
    step_ = [this, inbox, grpc = made->get()] {
      if (auto work = inbox->Take(std::chrono::milliseconds(20))) work();
      if (etcd_ != nullptr) grpc->OnTick();
    };
    etcd_ = *std::move(made);
  }
  // `step` runs what happens next with `etcd`. Nobody waits longer than `patience` of this clock.
  EtcdCaller(std::unique_ptr<Etcd> etcd, std::function<void()> step, Clock* clock, Duration patience)
      : etcd_(std::move(etcd)), step_(std::move(step)), clock_(clock), patience_(patience) {}

  Etcd* etcd() { return etcd_.get(); }
  void Destroy() { etcd_.reset(); }

  // Runs callbacks and ticks until `done`; the test fails if that takes too long.
  void RunUntil(const std::function<bool()>& done) {
    const Instant deadline = clock_->Now() + patience_;
    while (!done()) {
      if (step_ == nullptr || clock_->Now() > deadline) {
        ADD_FAILURE() << "waited in vain";
        return;
      }
      step_();
      if (on_tick_) on_tick_();
    }
  }
  void OnTick(std::function<void()> on_tick) { on_tick_ = std::move(on_tick); }

  // Waits for the answer of `ask`, which gets a callback.
  template <typename T>
  absl::StatusOr<T> Await(const std::function<void(Etcd::Answer<T>)>& ask) {
    std::optional<absl::StatusOr<T>> result;
    ask([&result](absl::StatusOr<T> answer) { result = std::move(answer); });
    RunUntil([&] { return result.has_value(); });
    return result ? *std::move(result) : absl::StatusOr<T>(absl::UnknownError("no answer"));
  }

  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request) {
    return Await<etcdserverpb::TxnResponse>(
        [&](auto answer) { etcd_->Txn(request, "writing for a test", std::move(answer)); });
  }
  absl::StatusOr<etcdserverpb::TxnResponse> Write(const std::vector<etcdserverpb::RequestOp>& operations) {
    etcdserverpb::TxnRequest request;
    for (const etcdserverpb::RequestOp& operation : operations) *request.add_success() = operation;
    return Txn(request);
  }
  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request) {
    return Await<etcdserverpb::RangeResponse>(
        [&](auto answer) { etcd_->Range(request, "reading for a test", std::move(answer)); });
  }
  // The key's value; "(none)" if there is none.
  absl::StatusOr<std::string> Read(const std::string& key) {
    etcdserverpb::RangeRequest request;
    request.set_key(key);
    const absl::StatusOr<etcdserverpb::RangeResponse> found = Range(request);
    if (!found.ok()) return found.status();
    return found->kvs_size() == 0 ? "(none)" : found->kvs(0).value();
  }
  absl::StatusOr<EtcdListing> List(const std::string& prefix, int64_t keys_per_page) {
    return Await<EtcdListing>([&](auto answer) {
      ListPrefix(etcd_.get(), prefix, "listing for a test", std::move(answer), keys_per_page);
    });
  }

 private:
  // It stays until the process ends: gRPC's threads may post after the end of the test, and what they post
  // holds the calls, which hold the way to the inbox.
  static std::shared_ptr<Inbox> NewInbox() {
    static auto* const inboxes = new std::vector<std::shared_ptr<Inbox>>;
    inboxes->push_back(std::make_shared<Inbox>());
    return inboxes->back();
  }

  std::unique_ptr<Etcd> etcd_;
  std::function<void()> step_, on_tick_;
  Clock* clock_ = &SystemClock();
  Duration patience_ = std::chrono::minutes(1);
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_ETCD_CALLER_H_
