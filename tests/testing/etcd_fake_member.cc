#include "tests/testing/etcd_fake_member.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "etcd/service.grpc.pb.h"
#include "storage/base/mutex.h"

namespace ckptd {

using namespace etcdserverpb;

namespace {

grpc::Status ToWire(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

struct Fault {
  grpc::Status status;
  bool apply = false, answer = true;
};

class WatchCall;

// What the services share.
struct Shared {
  Mutex mutex;
  EtcdModel model ABSL_GUARDED_BY(mutex);
  std::deque<Fault> faults ABSL_GUARDED_BY(mutex);
  std::vector<grpc::ServerUnaryReactor*> ignored ABSL_GUARDED_BY(mutex);
  std::set<WatchCall*> watches ABSL_GUARDED_BY(mutex);
  uint64_t cluster_id ABSL_GUARDED_BY(mutex) = 1;
  int64_t revision_back ABSL_GUARDED_BY(mutex) = 0;
  std::string user ABSL_GUARDED_BY(mutex), password ABSL_GUARDED_BY(mutex);
  int requests ABSL_GUARDED_BY(mutex) = 0, authentications ABSL_GUARDED_BY(mutex) = 0;
  int first_valid_token ABSL_GUARDED_BY(mutex) = 0, watches_to_break ABSL_GUARDED_BY(mutex) = 0;

  ResponseHeader Header() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    ResponseHeader header = model.Header();
    header.set_cluster_id(cluster_id);
    header.set_revision(header.revision() - revision_back);
    return header;
  }

  grpc::Status CheckToken(const grpc::CallbackServerContext& context) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (user.empty()) return grpc::Status::OK;
    const auto token = context.client_metadata().find("token");
    if (token == context.client_metadata().end())
      return {grpc::StatusCode::INVALID_ARGUMENT, "etcdserver: user name is empty"};
    if (std::stoi(std::string(token->second.data(), token->second.size())) < first_valid_token)
      return {grpc::StatusCode::UNAUTHENTICATED, "etcdserver: invalid auth token"};
    return grpc::Status::OK;
  }

  template <typename Response, typename Apply>
  grpc::ServerUnaryReactor* Serve(grpc::CallbackServerContext* context, Response* response, Apply apply)
      ABSL_LOCKS_EXCLUDED(mutex);
  // Sends what has happened to every watch.
  void NotifyWatches() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
};

// All but the constructor and the callbacks of gRPC: with the mutex held. (The analysis cannot know that
// shared_->mutex is the one that Shared itself holds.)
class WatchCall : public grpc::ServerBidiReactor<WatchRequest, WatchResponse> {
 public:
  explicit WatchCall(Shared* shared, grpc::Status refused) : shared_(shared), refused_(std::move(refused)) {
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    MutexLock lock(shared_->mutex);
    if (!ok) return FinishOnce(grpc::Status::OK);
    Create();
    Send();
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(shared_->mutex);
    writing_ = false;
    if (!ok) return FinishOnce(grpc::Status::OK);
    if (break_after_created_) return FinishOnce({grpc::StatusCode::UNAVAILABLE, "the stream is broken"});
    Send();
  }
  void OnCancel() override {
    MutexLock lock(shared_->mutex);
    FinishOnce(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

  void FinishOnce(const grpc::Status& status) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (std::exchange(finished_, true)) return;
    shared_->watches.erase(this);
    Finish(status);
  }

  // One response for each event, so that tests see what a client does with the parts of one revision.
  void AddEvents() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (!created_) return;
    for (Event& event : shared_->model.Events(key_, range_end_, next_revision_)) {
      const int64_t revision = event.kv().mod_revision();
      if (revision >= next_revision_) {
        responses_.emplace_back();
        *responses_.back().mutable_header() = shared_->Header();
        next_revision_ = revision + 1;
      } else {
        responses_.back().set_fragment(true);
        responses_.emplace_back();
        *responses_.back().mutable_header() = shared_->Header();
      }
      *responses_.back().add_events() = std::move(event);
    }
  }
  void Send() {
    if (writing_ || finished_ || responses_.empty()) return;
    writing_ = true;
    sending_ = std::move(responses_.front());
    responses_.pop_front();
    StartWrite(&sending_);
  }

 private:
  void Create() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const WatchCreateRequest& create = request_.create_request();
    key_ = create.key();
    range_end_ = create.range_end();
    WatchResponse response;
    *response.mutable_header() = shared_->Header();
    response.set_created(true);
    if (!refused_.ok()) {
      response.set_canceled(true);
      response.set_cancel_reason("rpc error: code = PermissionDenied desc = etcdserver: permission denied");
      responses_.push_back(response);
      return;
    }
    responses_.push_back(response);
    next_revision_ = create.start_revision();
    if (next_revision_ < shared_->model.compacted()) {
      response.set_created(false);
      response.set_canceled(true);
      response.set_compact_revision(shared_->model.compacted());
      responses_.push_back(response);
      return;
    }
    created_ = true;
    break_after_created_ = shared_->watches_to_break > 0;
    if (break_after_created_) --shared_->watches_to_break;
    AddEvents();
  }

  Shared* const shared_;  // Its mutex guards everything here, too.
  const grpc::Status refused_;
  WatchRequest request_;
  WatchResponse sending_;
  std::deque<WatchResponse> responses_;
  std::string key_, range_end_;
  int64_t next_revision_ = 0;
  bool created_ = false, break_after_created_ = false, writing_ = false, finished_ = false;
};

void Shared::NotifyWatches() {
  for (WatchCall* watch : watches) {
    watch->AddEvents();
    watch->Send();
  }
}

template <typename Response, typename Apply>
grpc::ServerUnaryReactor* Shared::Serve(grpc::CallbackServerContext* context, Response* response,
                                        Apply apply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  MutexLock lock(mutex);
  ++requests;
  Fault fault{grpc::Status::OK, /*apply=*/true};
  if (!faults.empty()) {
    fault = faults.front();
    faults.pop_front();
  }
  if (!fault.answer) {
    ignored.push_back(reactor);
    return reactor;
  }
  grpc::Status status = CheckToken(*context);
  if (status.ok() && fault.apply) {
    absl::StatusOr<Response> result = apply(model);
    status = ToWire(result.status());
    if (result.ok()) *response = *std::move(result);
    *response->mutable_header() = Header();
    NotifyWatches();
  }
  reactor->Finish(status.ok() ? fault.status : status);
  return reactor;
}

class KvService : public KV::CallbackService {
 public:
  explicit KvService(Shared* shared) : shared_(shared) {}
  grpc::ServerUnaryReactor* Range(grpc::CallbackServerContext* context, const RangeRequest* request,
                                  RangeResponse* response) override {
    return shared_->Serve(context, response, [request](EtcdModel& model) { return model.Range(*request); });
  }
  grpc::ServerUnaryReactor* Txn(grpc::CallbackServerContext* context, const TxnRequest* request,
                                TxnResponse* response) override {
    return shared_->Serve(context, response, [request](EtcdModel& model) { return model.Txn(*request); });
  }

 private:
  Shared* const shared_;
};

class LeaseService : public Lease::CallbackService {
 public:
  explicit LeaseService(Shared* shared) : shared_(shared) {}
  grpc::ServerUnaryReactor* LeaseGrant(grpc::CallbackServerContext* context, const LeaseGrantRequest* request,
                                       LeaseGrantResponse* response) override {
    return shared_->Serve(context, response, [request](EtcdModel& model) {
      return absl::StatusOr<LeaseGrantResponse>(model.GrantLease(*request));
    });
  }
  grpc::ServerUnaryReactor* LeaseKeepAlive(grpc::CallbackServerContext* context,
                                           const LeaseKeepAliveRequest* request,
                                           LeaseKeepAliveResponse* response) override {
    return shared_->Serve(context, response, [request](EtcdModel& model) {
      return absl::StatusOr<LeaseKeepAliveResponse>(model.KeepLeaseAlive(*request));
    });
  }
  grpc::ServerUnaryReactor* LeaseRevoke(grpc::CallbackServerContext* context,
                                        const LeaseRevokeRequest* request,
                                        LeaseRevokeResponse* response) override {
    return shared_->Serve(context, response,
                          [request](EtcdModel& model) { return model.RevokeLease(*request); });
  }

 private:
  Shared* const shared_;
};

class WatchService : public Watch::CallbackService {
 public:
  explicit WatchService(Shared* shared) : shared_(shared) {}
  grpc::ServerBidiReactor<WatchRequest, WatchResponse>* Watch(grpc::CallbackServerContext* context) override {
    MutexLock lock(shared_->mutex);
    auto* call = new WatchCall(shared_, shared_->CheckToken(*context));
    shared_->watches.insert(call);
    return call;
  }

 private:
  Shared* const shared_;
};

class AuthService : public Auth::CallbackService {
 public:
  explicit AuthService(Shared* shared) : shared_(shared) {}
  grpc::ServerUnaryReactor* Authenticate(grpc::CallbackServerContext* context,
                                         const AuthenticateRequest* request,
                                         AuthenticateResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    MutexLock lock(shared_->mutex);
    const int token = ++shared_->authentications;
    if (shared_->user.empty()) {
      reactor->Finish({grpc::StatusCode::FAILED_PRECONDITION, "etcdserver: authentication is not enabled"});
    } else if (request->name() != shared_->user || request->password() != shared_->password) {
      reactor->Finish({grpc::StatusCode::INVALID_ARGUMENT,
                       "etcdserver: authentication failed, invalid user ID or password"});
    } else {
      response->set_token(absl::StrCat(token));
      reactor->Finish(grpc::Status::OK);
    }
    return reactor;
  }

 private:
  Shared* const shared_;
};

}  // namespace

class EtcdFakeMember::Impl {
 public:
  Impl() : kv_(&shared), lease_(&shared), watch_(&shared), auth_(&shared) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    for (grpc::Service* service : std::initializer_list<grpc::Service*>{&kv_, &lease_, &watch_, &auth_}) {
      builder.RegisterService(service);
    }
    server_ = builder.BuildAndStart();
  }
  ~Impl() {
    {
      MutexLock lock(shared.mutex);
      for (grpc::ServerUnaryReactor* reactor : shared.ignored) reactor->Finish(grpc::Status::CANCELLED);
      for (WatchCall* watch : std::set<WatchCall*>(shared.watches))
        watch->FinishOnce(grpc::Status::CANCELLED);
    }
    server_->Shutdown();
  }

  int port() const { return port_; }
  Shared shared;

 private:
  KvService kv_;
  LeaseService lease_;
  WatchService watch_;
  AuthService auth_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

EtcdFakeMember::EtcdFakeMember() : impl_(std::make_unique<Impl>()) {}
EtcdFakeMember::~EtcdFakeMember() = default;

std::string EtcdFakeMember::endpoint() const { return absl::StrCat("127.0.0.1:", impl_->port()); }

void EtcdFakeMember::WithModel(const std::function<void(EtcdModel&)>& use) {
  MutexLock lock(impl_->shared.mutex);
  use(impl_->shared.model);
  impl_->shared.NotifyWatches();
}

void EtcdFakeMember::EndLease(int64_t id) {
  LeaseRevokeRequest request;
  request.set_id(id);
  WithModel([&](EtcdModel& model) { model.RevokeLease(request).IgnoreError(); });
}

void EtcdFakeMember::AnswerNext() {
  MutexLock lock(impl_->shared.mutex);
  impl_->shared.faults.push_back({grpc::Status::OK, /*apply=*/true});
}

void EtcdFakeMember::FailNext(grpc::Status status) {
  MutexLock lock(impl_->shared.mutex);
  impl_->shared.faults.push_back({std::move(status), /*apply=*/false, /*answer=*/true});
}

void EtcdFakeMember::LoseNextAnswer() {
  MutexLock lock(impl_->shared.mutex);
  impl_->shared.faults.push_back({{grpc::StatusCode::UNAVAILABLE, "the answer is lost"}, /*apply=*/true});
}

void EtcdFakeMember::IgnoreNext() {
  MutexLock lock(impl_->shared.mutex);
  impl_->shared.faults.push_back({{}, /*apply=*/false, /*answer=*/false});
}

void EtcdFakeMember::BreakWatches(int streams) {
  MutexLock lock(impl_->shared.mutex);
  impl_->shared.watches_to_break = streams;
  for (WatchCall* watch : std::set<WatchCall*>(impl_->shared.watches)) {
    watch->FinishOnce({grpc::StatusCode::UNAVAILABLE, "the stream is broken"});
  }
}

void EtcdFakeMember::SetClusterId(uint64_t id) {
  MutexLock lock(impl_->shared.mutex);
  impl_->shared.cluster_id = id;
}

void EtcdFakeMember::SetRevisionBack(int64_t by) {
  MutexLock lock(impl_->shared.mutex);
  impl_->shared.revision_back = by;
}

void EtcdFakeMember::RequireUser(const std::string& user, const std::string& password) {
  MutexLock lock(impl_->shared.mutex);
  impl_->shared.user = user;
  impl_->shared.password = password;
  impl_->shared.first_valid_token = impl_->shared.authentications + 1;
}

int EtcdFakeMember::requests() const {
  MutexLock lock(impl_->shared.mutex);
  return impl_->shared.requests;
}

int EtcdFakeMember::authentications() const {
  MutexLock lock(impl_->shared.mutex);
  return impl_->shared.authentications;
}

}  // namespace ckptd
