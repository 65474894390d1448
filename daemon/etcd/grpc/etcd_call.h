// A request until its answer. Internal to daemon/etcd: it brings gRPC's headers along.
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

// Its tries follow one another, so gRPC fills one response at a time. Used on the owner's thread; `done` of
// Start runs on a thread of gRPC's.
class EtcdCall {
 public:
  virtual ~EtcdCall() = default;
  virtual void Start(EtcdMember& member, std::function<void(grpc::Status)> done) = 0;
  virtual const etcdserverpb::ResponseHeader& header() const = 0;
  // Runs the caller's callback, with the response if the status is OK.
  virtual void Answer(const absl::Status& status) = 0;
  // The callback will not run.
  virtual void Drop() = 0;

  std::string purpose;
  // Whether the answer must see all that was answered before.
  bool linearizable = false;
  bool writes = false;  // An etcd that is full refuses it.
  bool with_token = true;

  // ---- of EtcdConnection
  Instant started, deadline, next_try;
  bool under_way = false;  // A try is, or the answer is posted.
  int tries = 0, refused_tokens = 0;
  std::string last_error;                        // Of the last try.
  std::string token;                             // Of the last try.
  int64_t revision_before = 0;                   // The highest known one when the last try was sent.
  std::unique_ptr<grpc::ClientContext> context;  // Of the try that is under way.
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
