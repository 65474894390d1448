#include "tests/testing/any_etcd.h"

#include "absl/strings/str_cat.h"
#include "storage/base/boot_clock.h"

namespace ckptd {
namespace {

// Daemons tick several times a second; it also makes time pass while nothing is under way.
constexpr Duration kBetweenTicks = std::chrono::milliseconds(100);
constexpr Duration kSimulatedPatience = std::chrono::minutes(10);

std::unique_ptr<EtcdCluster>& TheCluster() {
  static auto* cluster = new std::unique_ptr<EtcdCluster>;
  return *cluster;
}

SimulatedEtcd::Faults FaultsOf(uint64_t seed) {
  SimulatedEtcd::Faults faults;
  faults.longest_way = std::chrono::milliseconds(50);
  faults.lost_requests = 5;
  faults.lost_answers = 15;
  faults.late_requests = 15;
  faults.latest_event = std::chrono::seconds(seed % 2 == 0 ? 5 : 1);
  faults.lease_patience = std::chrono::seconds(seed % 3);
  return faults;
}

}  // namespace

std::string EtcdKind::name() const {
  const char* const names[] = {"simulated", "faulty", "model", "model_that_loses_answers", "etcd"};
  return way == kFaulty ? absl::StrCat("faulty_", seed) : names[way];
}

std::vector<EtcdKind> SimulatedEtcds(int seeds) {
  std::vector<EtcdKind> kinds = {{EtcdKind::kSimulated}};
  for (int seed = 0; seed < seeds; ++seed) kinds.push_back({EtcdKind::kFaulty, static_cast<uint64_t>(seed)});
  return kinds;
}

std::vector<EtcdKind> AllEtcds(int seeds) {
  std::vector<EtcdKind> kinds = SimulatedEtcds(seeds);
  for (const auto way : {EtcdKind::kModel, EtcdKind::kModelThatLosesAnswers, EtcdKind::kReal}) {
    kinds.push_back({way});
  }
  return kinds;
}

AnyEtcd::AnyEtcd(EtcdKind kind) {
  if (kind.simulated()) {
    StartSimulation(kind);
  } else {
    Connect(kind);
  }
}

AnyEtcd::~AnyEtcd() = default;

void AnyEtcd::StartSimulation(EtcdKind kind) {
  simulation_ = std::make_unique<SimulatedEtcd>(
      [this](Duration delay, absl::AnyInvocable<void()> event) { schedule_.After(delay, std::move(event)); },
      &schedule_.clock(), kind.seed,
      kind.way == EtcdKind::kFaulty ? FaultsOf(kind.seed) : SimulatedEtcd::Faults());
  caller_ = std::make_unique<EtcdCaller>(
      simulation_->Connect(), [this] { schedule_.RunNext(); }, &schedule_.clock(), kSimulatedPatience);
  Tick();
}

void AnyEtcd::Tick() {
  schedule_.After(kBetweenTicks, [this] { Tick(); });
}

void AnyEtcd::Connect(EtcdKind kind) {
  EtcdOptions options;
  options.call_timeout = std::chrono::seconds(60);
  if (kind.way == EtcdKind::kReal) {
    options.endpoints = {Cluster().endpoints()[0]};
  } else {
    StartMember(kind.way == EtcdKind::kModelThatLosesAnswers, &options);
  }
  caller_ = std::make_unique<EtcdCaller>(options);
}

void AnyEtcd::StartMember(bool loses_answers, EtcdOptions* options) {
  member_ = std::make_unique<EtcdFakeMember>();
  options->endpoints = {member_->endpoint()};
  if (!loses_answers) return;
  // Each request is applied, its answer lost, and the request asked again and applied again, at once, because
  // there seem to be two members.
  options->endpoints.push_back(member_->endpoint());
  for (int i = 0; i < 500; ++i) {
    member_->LoseNextAnswer();
    member_->AnswerNext();
  }
}

Clock* AnyEtcd::clock() { return simulation_ != nullptr ? &schedule_.clock() : &BootClock(); }

Etcd* AnyEtcd::NewClient() {
  if (simulation_ == nullptr) return caller_->etcd();
  clients_.push_back(simulation_->Connect());
  return clients_.back().get();
}

void AnyEtcd::WithModel(const std::function<void(EtcdModel&)>& use) {
  if (simulation_ != nullptr) return simulation_->WithModel(use);
  member_->WithModel(use);
}

void AnyEtcd::EndLeaseOfModel(int64_t id) {
  if (member_ != nullptr) member_->EndLease(id);
}

EtcdCluster& AnyEtcd::Cluster() {
  if (TheCluster() == nullptr) TheCluster() = std::make_unique<EtcdCluster>();
  return *TheCluster();
}

void AnyEtcd::StopCluster() { TheCluster() = nullptr; }

}  // namespace ckptd
