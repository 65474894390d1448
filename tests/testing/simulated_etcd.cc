#include "tests/testing/simulated_etcd.h"

#include <algorithm>
#include <string>
#include <utility>

#include "daemon/etcd/etcd_errors.h"
#include "storage/base/errors.h"
#include "tests/sim/random.h"

namespace ckptd {

using namespace etcdserverpb;

namespace {

constexpr Duration kTryTimeout = std::chrono::seconds(1);
constexpr Duration kCallTimeout = std::chrono::seconds(60);
constexpr Duration kShortestWay = std::chrono::microseconds(100);

// What decides whether anything reaches a client. Shared with the requests that are under way.
struct Link {
  bool cut = false;
  bool closed = false;  // The client is gone.
};

}  // namespace

// ---- what all clients share

class SimulatedEtcd::Server : public std::enable_shared_from_this<Server> {
 public:
  Server(After run_later, Clock* time, uint64_t seed, Faults chances)
      : after(std::move(run_later)), clock(time), random(seed), faults(chances) {}

  Duration Way() { return random.Spread(kShortestWay, faults.longest_way); }

  // Applies a request now, as etcd does when it arrives.
  template <typename Result>
  Result Apply(const std::function<Result(EtcdModel&)>& apply) {
    EndLeases();
    Result result = apply(model);
    Notify();
    return result;
  }
  void KeepLease(int64_t id, int64_t ttl_seconds) {
    const Duration life = std::chrono::seconds(ttl_seconds);
    Duration patience = Duration::zero();
    if (faults.lease_patience > Duration::zero()) {
      patience = Duration(random.Between(0, faults.lease_patience.count()));
    }
    lease_ends[id] = {clock->Now() + life + patience, ttl_seconds};
    after(life + patience, [self = shared_from_this()] {
      self->EndLeases();
      self->Notify();
    });
  }
  void EndLeases();
  void Notify();

  struct LeaseEnd {
    Instant at;
    int64_t ttl_seconds = 0;
  };
  const After after;
  Clock* const clock;
  sim::Random random;
  Faults faults;
  Duration event_delay = Duration::zero();
  EtcdModel model;
  bool full = false;
  int restores = 0;
  std::map<int64_t, LeaseEnd> lease_ends;
  std::vector<std::weak_ptr<WatchOf>> watches;
  std::function<void(const TxnRequest&)> before_transaction;
};

void SimulatedEtcd::Server::EndLeases() {
  for (auto lease = lease_ends.begin(); lease != lease_ends.end();) {
    if (clock->Now() < lease->second.at) {
      ++lease;
      continue;
    }
    LeaseRevokeRequest request;
    request.set_id(lease->first);
    model.RevokeLease(request).IgnoreError();
    lease = lease_ends.erase(lease);
  }
}

// ---- watches

class SimulatedEtcd::WatchOf : public std::enable_shared_from_this<WatchOf> {
 public:
  WatchOf(std::shared_ptr<Server> server, std::shared_ptr<Link> link, EtcdWatchSpec spec)
      : server_(std::move(server)),
        link_(std::move(link)),
        spec_(std::move(spec)),
        next_(spec_.from_revision) {}

  void Stop() { stopped_ = true; }
  // Reports soon what is there to report; a client that is cut off hears it when it no longer is.
  void Wake() {
    if (std::exchange(awake_, true)) return;
    const Duration delay =
        link_->cut
            ? kTryTimeout
            : server_->event_delay + server_->random.Spread(kShortestWay, server_->faults.latest_event);
    server_->after(delay, [self = shared_from_this()] {
      self->awake_ = false;
      if (self->stopped_ || self->link_->closed) return;
      if (self->link_->cut) return self->Wake();
      self->Report();
    });
  }

 private:
  void Report() {
    if (next_ < server_->model.compacted()) {
      stopped_ = true;
      return spec_.ended(Annotate(EtcdCompacted(server_->model.compacted()), spec_.purpose));
    }
    // One revision; what came after it is reported later still.
    std::vector<Event> events = server_->model.Events(spec_.key, spec_.range_end, next_);
    if (events.empty()) return;
    const int64_t revision = events.front().kv().mod_revision();
    std::erase_if(events, [&](const Event& event) { return event.kv().mod_revision() != revision; });
    next_ = revision + 1;
    Wake();
    spec_.changed(events);
  }

  const std::shared_ptr<Server> server_;
  const std::shared_ptr<Link> link_;
  const EtcdWatchSpec spec_;
  int64_t next_;  // The first revision that was not reported.
  bool awake_ = false, stopped_ = false;
};

void SimulatedEtcd::Server::Notify() {
  std::erase_if(watches, [](const auto& watch) { return watch.expired(); });
  for (const auto& weak : watches) weak.lock()->Wake();
}

namespace {

template <typename WatchOf>
class Handle : public EtcdWatch {
 public:
  explicit Handle(std::shared_ptr<WatchOf> watch) : watch_(std::move(watch)) {}
  ~Handle() override { watch_->Stop(); }

 private:
  const std::shared_ptr<WatchOf> watch_;
};

}  // namespace

// ---- clients

namespace {

// As etcd's applierV3Capped: by what either branch of a transaction would store.
bool MayStore(const TxnRequest& request) {
  const auto stores = [](const RequestOp& operation) { return operation.has_request_put(); };
  return std::any_of(request.success().begin(), request.success().end(), stores) ||
         std::any_of(request.failure().begin(), request.failure().end(), stores);
}

absl::Status NoSpace() { return absl::ResourceExhaustedError("etcdserver: mvcc: database space exceeded"); }

}  // namespace

class SimulatedEtcd::ClientOf : public Client {
 public:
  explicit ClientOf(std::shared_ptr<Server> server) : server_(std::move(server)) {}
  ~ClientOf() override { link_->closed = true; }
  void CutOff(bool cut) override { link_->cut = cut; }

  void Range(const RangeRequest& request, const std::string& purpose, Answer<RangeResponse> answer) override {
    Ask<RangeResponse>(
        [request](Server& server) {
          return server.Apply<absl::StatusOr<RangeResponse>>(
              [&](EtcdModel& model) { return model.Range(request); });
        },
        purpose, std::move(answer));
  }
  void Txn(const TxnRequest& request, const std::string& purpose, Answer<TxnResponse> answer) override {
    Ask<TxnResponse>(
        [request](Server& server) {
          if (server.before_transaction != nullptr) server.before_transaction(request);
          if (server.full && MayStore(request)) return absl::StatusOr<TxnResponse>(NoSpace());
          return server.Apply<absl::StatusOr<TxnResponse>>(
              [&](EtcdModel& model) { return model.Txn(request); });
        },
        purpose, std::move(answer));
  }
  void GrantLease(const LeaseGrantRequest& request, const std::string& purpose,
                  Answer<LeaseGrantResponse> answer) override {
    Ask<LeaseGrantResponse>(
        [request](Server& server) {
          if (server.full) return absl::StatusOr<LeaseGrantResponse>(NoSpace());
          const auto granted =
              server.Apply<LeaseGrantResponse>([&](EtcdModel& model) { return model.GrantLease(request); });
          server.KeepLease(granted.id(), granted.ttl());
          return absl::StatusOr<LeaseGrantResponse>(granted);
        },
        purpose, std::move(answer));
  }
  void KeepLeaseAlive(const LeaseKeepAliveRequest& request, const std::string& purpose,
                      Answer<LeaseKeepAliveResponse> answer) override {
    Ask<LeaseKeepAliveResponse>(
        [request](Server& server) {
          const auto kept = server.Apply<LeaseKeepAliveResponse>(
              [&](EtcdModel& model) { return model.KeepLeaseAlive(request); });
          if (kept.ttl() > 0) server.KeepLease(kept.id(), kept.ttl());
          return absl::StatusOr<LeaseKeepAliveResponse>(kept);
        },
        purpose, std::move(answer));
  }
  void RevokeLease(const LeaseRevokeRequest& request, const std::string& purpose,
                   Answer<LeaseRevokeResponse> answer) override {
    Ask<LeaseRevokeResponse>(
        [request](Server& server) {
          server.lease_ends.erase(request.id());
          return server.Apply<absl::StatusOr<LeaseRevokeResponse>>(
              [&](EtcdModel& model) { return model.RevokeLease(request); });
        },
        purpose, std::move(answer));
  }

  std::unique_ptr<EtcdWatch> Watch(EtcdWatchSpec spec) override {
    auto watch = std::make_shared<WatchOf>(server_, link_, std::move(spec));
    server_->watches.push_back(watch);
    watch->Wake();
    return std::make_unique<Handle<WatchOf>>(std::move(watch));
  }

 private:
  // A call, which asks again while no answer comes.
  template <typename Response>
  struct Call : std::enable_shared_from_this<Call<Response>> {
    std::shared_ptr<Server> server;
    std::shared_ptr<Link> link;
    std::function<absl::StatusOr<Response>(Server&)> apply;
    std::string purpose;
    Answer<Response> answer;  // Null: it has been called.
    Instant deadline;

    void Try() {
      SendRequest();
      server->after(kTryTimeout, [self = this->shared_from_this()] {
        if (self->answer == nullptr || self->link->closed) return;
        if (self->server->clock->Now() < self->deadline) return self->Try();
        self->AnswerWith(NoAnswerFromEtcd("the simulated etcd", self->purpose, ""));
      });
    }
    void SendRequest() {
      sim::Random& random = server->random;
      const Faults& faults = server->faults;
      if (link->cut || random.Percent(faults.lost_requests)) return;
      const bool late = random.Percent(faults.late_requests);
      server->after(late ? random.Spread(kTryTimeout, faults.latest_request) : server->Way(),
                    [self = this->shared_from_this(), restores = server->restores] {
                      if (self->server->restores == restores) self->Arrive();
                    });
    }
    void Arrive() {
      absl::StatusOr<Response> result = apply(*server);
      if (link->cut || server->random.Percent(server->faults.lost_answers)) return;
      server->after(server->Way(), [self = this->shared_from_this(), result = std::move(result)]() mutable {
        if (self->answer == nullptr || self->link->closed || self->link->cut) return;
        self->Judge(std::move(result));
      });
    }
    void Judge(absl::StatusOr<Response> result) {
      if (result.ok()) return AnswerWith(std::move(result));
      const EtcdFailure failure =
          ExplainFailure(result.status().code(), std::string(result.status().message()));
      if (failure.next == NextTry::kNone) AnswerWith(Annotate(failure.error, purpose));
    }
    void AnswerWith(absl::StatusOr<Response> result) { std::exchange(answer, nullptr)(std::move(result)); }
  };

  template <typename Response>
  void Ask(std::function<absl::StatusOr<Response>(Server&)> apply, const std::string& purpose,
           Answer<Response> answer) {
    auto call = std::make_shared<Call<Response>>();
    call->server = server_;
    call->link = link_;
    call->apply = std::move(apply);
    call->purpose = purpose;
    call->answer = std::move(answer);
    call->deadline = server_->clock->Now() + kCallTimeout;
    call->Try();
  }

  const std::shared_ptr<Server> server_;
  const std::shared_ptr<Link> link_ = std::make_shared<Link>();
};

SimulatedEtcd::SimulatedEtcd(After after, Clock* clock, uint64_t seed, Faults faults)
    : server_(std::make_shared<Server>(std::move(after), clock, seed, faults)) {}
SimulatedEtcd::~SimulatedEtcd() = default;

std::unique_ptr<SimulatedEtcd::Client> SimulatedEtcd::Connect() {
  return std::make_unique<ClientOf>(server_);
}

void SimulatedEtcd::WithModel(const std::function<void(EtcdModel&)>& use) {
  use(server_->model);
  server_->Notify();
}

void SimulatedEtcd::EndFaults() { server_->faults = Faults(); }

void SimulatedEtcd::DelayEvents(Duration delay) { server_->event_delay = delay; }

void SimulatedEtcd::SetFull(bool full) { server_->full = full; }

void SimulatedEtcd::ChangeLeader() {
  for (const auto& [id, end] : std::map<int64_t, Server::LeaseEnd>(server_->lease_ends)) {
    server_->KeepLease(id, end.ttl_seconds);
  }
}

void SimulatedEtcd::Restore(int64_t revision) {
  ++server_->restores;
  server_->model.TakeBack(revision);
  server_->lease_ends.clear();
  for (const auto& [id, ttl_seconds] : server_->model.leases()) server_->KeepLease(id, ttl_seconds);
}

void SimulatedEtcd::BeforeTransaction(std::function<void(const TxnRequest&)> run) {
  server_->before_transaction = std::move(run);
}

}  // namespace ckptd
