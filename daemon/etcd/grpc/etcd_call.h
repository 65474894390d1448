// One request, until it is answered. Internal to daemon/etcd, because it includes gRPC's headers.
#ifndef CKPTD_DAEMON_ETCD_GRPC_ETCD_CALL_H_
#define CKPTD_DAEMON_ETCD_GRPC_ETCD_CALL_H_

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "daemon/etcd/etcd.h"
#include "daemon/etcd/grpc/etcd_members.h"
#include "storage/base/clock.h"

namespace ckptd {

// The tries of a call never overlap, so they share one response object. Used on the owner's thread; gRPC runs
// the `done` of Start on a thread of its own.
class EtcdCall {
 public:
  virtual ~EtcdCall() = default;
  virtual void Start(EtcdMember& member, std::function<void(grpc::Status)> done) = 0;
  virtual const etcdserverpb::ResponseHeader& header() const = 0;
  // Runs the caller's callback, with the response if the status is OK.
  virtual void Answer(const absl::Status& status) = 0;
  // Drops the caller's callback without running it.
  virtual void Drop() = 0;

  std::string purpose;
  // Whether the answer's revision must be at least `revision_before`.
  bool linearizable = false;
  bool writes = false;  // An etcd that is full refuses the call.
  bool with_token = true;

  // ---- used by EtcdConnection alone
  Instant started, deadline, next_try;
  bool under_way = false;  // A try is in flight, or the answer has been posted.
  int tries = 0, refused_tokens = 0;
  std::string last_error;                        // Of the last try.
  std::string token;                             // Of the last try.
  int64_t revision_before = 0;                   // The highest known revision when the last try was sent.
  std::unique_ptr<grpc::ClientContext> context;  // Of the try in flight.
};

template <typename Request, typename Response>
class EtcdCallOf final : public EtcdCall {
 public:
  using Method = std::function<void(EtcdMember& member, grpc::ClientContext* context, const Request* request,
                                    Response* response, std::function<void(grpc::Status)> done)>;
  EtcdCallOf(Request request, Method method, Etcd::Answer<Response> answer)
      : request_(std::move(request)), method_(std::move(method)), answer_(std::move(answer)) {}

  void Start(EtcdMember& member, std::function<void(grpc::Status)> done) override {
    response_.Clear();
    method_(member, context.get(), &request_, &response_, std::move(done));
  }
  const etcdserverpb::ResponseHeader& header() const override { return response_.header(); }
  void Answer(const absl::Status& status) override {
    auto answer = std::exchange(answer_, nullptr);
    if (!status.ok()) return answer(status);
    answer(std::move(response_));
  }
  void Drop() override { answer_ = nullptr; }

 private:
  const Request request_;
  const Method method_;
  Response response_;
  Etcd::Answer<Response> answer_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ETCD_GRPC_ETCD_CALL_H_
