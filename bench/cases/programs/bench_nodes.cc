// bench_nodes NODES RANKS SAVES MEMBERS FOLDER: what etcd costs a save of a run that spans nodes.
//
// NODES nodes with RANKS ranks each save SAVES times, all in this process: everything of a daemon that talks
// to etcd (NodesRun and what it owns), each with a connection of its own, over Debian's etcd with MEMBERS
// members. The engine is left out: a node has room, seals, and has written its files as soon as it hears that
// it may, but none seals before all have heard that the save is admitted: on machines of their own, what one
// does next keeps no other from hearing. etcd's data and the root are in FOLDER. With more nodes than 8 the
// root is in memory: there a real one would have a thread for each.
//
// Prints one JSON object: milliseconds as [p50, p99], and counts.
#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/cluster/nodes_root_io.h"
#include "daemon/cluster/nodes_run.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/etcd/grpc/grpc_etcd.h"
#include "daemon/ledger/nodes/node_registration.h"
#include "daemon/root_io/threaded_root_io.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "tests/testing/counting_etcd.h"
#include "tests/testing/etcd_cluster.h"
#include "tests/testing/fake_shared_files.h"
#include "tests/testing/fake_shared_root.h"
#include "tests/testing/inbox.h"
#include "tests/testing/pausable_etcd.h"

namespace ckptd {
namespace {

using Decision = Authority::Decision;
using Milliseconds = std::chrono::duration<double, std::milli>;
constexpr int kMostRealNodes = 8;

[[noreturn]] void Die(const std::string& why) {
  std::cerr << "bench_nodes: " << why << std::endl;
  std::_Exit(1);
}

struct Node {
  std::string name;
  std::vector<int> ranks;
  std::unique_ptr<GrpcEtcd> grpc;
  std::unique_ptr<CountingEtcd> etcd;
  std::unique_ptr<NodeRegistration> registration;
  std::unique_ptr<ThreadedRootIoFactory> factory;
  Pause pause;
  std::unique_ptr<NodesRootIo> io;
  std::unique_ptr<NodesRun> run;
};

// When the nodes have heard what of a save.
struct Heard {
  Instant begun;
  std::vector<std::pair<Node*, Authority::Decision>> admitted;
  int committed = 0, durable = 0;
  Instant all_admitted, all_durable, all_committed;
};

std::vector<double> Percentiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t last = values.size() - 1;
  return {values[last / 2], values[last * 99 / 100]};
}

class Bench {
 public:
  Bench(int nodes, int ranks, int members, std::string folder)
      : folder_(std::move(folder)), ranks_per_node_(ranks), cluster_(members, {}, "http", folder_) {
    nodes_ = std::vector<Node>(static_cast<size_t>(nodes));
    for (size_t i = 0; i < nodes_.size(); ++i) Start(nodes_[i], static_cast<int>(i));
    join_seconds_ = Join(1);
    Activate(1);
    RunUntil(
        [&] {
          return std::any_of(nodes_.begin(), nodes_.end(),
                             [](const Node& node) { return node.run->coordinates(); });
        },
        "a coordinator");
  }
  ~Bench() {
    for (Node& node : nodes_) {
      node.run.reset();
      node.io.reset();
      if (node.factory != nullptr) node.factory->Close(std::chrono::seconds(5));
      node.registration.reset();
      node.etcd.reset();
    }
  }

  // A write of one key, as long as that of a vote, by each of the first `nodes` nodes at once, until all are
  // answered.
  double MeasureEtcd(size_t nodes) {
    size_t answered = 0;
    const Instant begin = SystemClock().Now();
    for (size_t i = 0; i < nodes; ++i) {
      etcdserverpb::TxnRequest request;
      *request.add_success() = Put(absl::StrCat("bench/", i), std::string(100, 'x'));
      nodes_[i].grpc->Txn(request, "measuring", [&](const absl::StatusOr<etcdserverpb::TxnResponse>& answer) {
        if (!answer.ok()) Die(answer.status().ToString());
        ++answered;
      });
    }
    RunUntil([&] { return answered == nodes; }, "etcd");
    return Milliseconds(SystemClock().Now() - begin).count();
  }

  void Save(int number) {
    const SaveId id{1, absl::StrCat("step_", number), 1};
    heard_ = Heard();
    saving_ = id;
    const int64_t writes = counts_.writes, reads = counts_.reads;
    heard_.begun = SystemClock().Now();
    for (Node& node : nodes_) node.run->Begin(id, heard_.begun + std::chrono::minutes(1), {});
    const int all = static_cast<int>(nodes_.size());
    RunUntil([&] { return heard_.committed == all; }, absl::StrCat("the save ", number));
    if (number == 0) return;  // It is proposed: the attempt has none before.
    begin_ms.push_back(Milliseconds(heard_.all_admitted - heard_.begun).count());
    commit_ms.push_back(Milliseconds(heard_.all_committed - heard_.all_durable).count());
    RunFor(std::chrono::milliseconds(100));  // What follows a commit; a job computes now.
    writes_per_save.push_back(static_cast<double>(counts_.writes - writes));
    reads_per_save.push_back(static_cast<double>(counts_.reads - reads));
  }

  double join_seconds() const { return join_seconds_; }
  // The same for the job's next launch, whose processes follow those of the first.
  double MeasureNextLaunch() {
    for (Node& node : nodes_) {
      for (const int rank : node.ranks)
        node.run->ledger()->ProcessEnded(absl::StrCat("process ", rank, " of launch 1"));
    }
    return Join(2);
  }
  std::vector<double> begin_ms, commit_ms, writes_per_save, reads_per_save;

 private:
  void Start(Node& node, int number) {
    node.name = absl::StrFormat("node%04d", number);
    for (int rank = 0; rank < ranks_per_node_; ++rank) node.ranks.push_back(number * ranks_per_node_ + rank);
    EtcdOptions options;
    options.endpoints = cluster_.endpoints();
    auto made = GrpcEtcd::Make(options, &SystemClock(), Poster());
    if (!made.ok()) Die(made.status().ToString());
    node.grpc = *std::move(made);
    node.etcd = std::make_unique<CountingEtcd>(node.grpc.get(), &counts_);
    Register(node);
    auto io = std::make_unique<NodesRootIo>(FilesOf(node));
    NodesRun::Options run;
    run.cluster_prefix = "ckptd/";
    run.path = folder_ + "/root";
    run.post = Poster();
    node.run = std::make_unique<NodesRun>(node.etcd.get(), &SystemClock(), io->files(), run);
    io->Connect(node.run.get());
    node.io = std::move(io);
    Await<absl::StatusOr<RootSnapshot>>([&](auto done) { node.io->Open(std::move(done)); }, "the root");
    node.run->Start(HooksOf(node));
    node.run->SetNode(&node.registration->identity());
  }

  void Register(Node& node) {
    NodeRegistration::Options options;
    options.prefix = "ckptd/";
    options.name = node.name;
    options.incarnation = node.name;
    options.lease_seconds = 60;
    node.registration = std::make_unique<NodeRegistration>(
        node.etcd.get(), &SystemClock(), options,
        [](const std::vector<std::string>&, NodeRegistration::Done done) { done(absl::OkStatus()); },
        [](const absl::Status& why) { Die(why.ToString()); });
    Await<absl::Status>([&](auto done) { node.registration->Register(std::move(done)); }, "the registration");
  }

  std::unique_ptr<SharedFilesIo> FilesOf(Node& node) {
    if (nodes_.size() > kMostRealNodes)
      return std::make_unique<FakeSharedFiles>(&root_, &node.pause, After(), "run");
    std::filesystem::create_directories(folder_ + "/root");
    ThreadedRootIoOptions options;
    node.factory = std::make_unique<ThreadedRootIoFactory>(options, &SystemClock(), Poster());
    auto files = node.factory->MakeShared(
        UniqueFd(open((folder_ + "/root").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)), std::nullopt,
        {.node = node.name, .incarnation = node.name});
    if (!files.ok()) Die(files.status().ToString());
    return *std::move(files);
  }

  Authority::Hooks HooksOf(Node& node) {
    Authority::Hooks hooks;
    hooks.changed = [this, &node](const SaveId& save, const Decision& decision) {
      if (save == saving_) OnChanged(node, decision);
    };
    hooks.failed = [](const SaveId& save, const absl::Status& why) { Die(save.tag + ": " + why.ToString()); };
    hooks.released = [](const SaveId&) {};
    hooks.removed = [](int64_t) {};
    hooks.newest_committed = [](int64_t, const auto&) {};
    hooks.noticed = [](const std::string&) {};
    hooks.root_changed = [] {};
    hooks.leadership_changed = [] {};
    hooks.lost = [](const absl::Status& why) { Die(why.ToString()); };
    return hooks;
  }

  // The phases may be heard in one step.
  void OnChanged(Node& node, const Decision& decision) {
    const int all = static_cast<int>(nodes_.size());
    switch (decision.phase) {
      case Decision::kProposed:
        if (decision.sequence != 0) node.run->Accept(saving_, std::nullopt);
        return;
      case Decision::kAdmitted:
        heard_.admitted.emplace_back(&node, decision);
        if (static_cast<int>(heard_.admitted.size()) < all) return;
        heard_.all_admitted = SystemClock().Now();
        for (const auto& [each, admitted] : heard_.admitted) Seal(*each, admitted);
        return;
      case Decision::kSealed:
      case Decision::kPublishing:
        return;
      case Decision::kCommitted:
        if (++heard_.committed == all) heard_.all_committed = SystemClock().Now();
        return;
      case Decision::kEnded:
      case Decision::kUnknown:
        Die(decision.end.ToString());
    }
  }

  // Its files are none: what they cost is measured elsewhere.
  void Seal(Node& node, const Decision& decision) {
    const InflightId64 part = ++parts_;
    node.run->OpenPart(part, saving_.tag, decision.sequence, decision.inflight, /*manifest_bytes=*/0,
                       [this, &node, part, decision](const absl::Status& opened) {
                         if (!opened.ok()) Die(opened.ToString());
                         node.run->Sealed(saving_);
                         WriteParts(node, part, decision, {});
                       });
  }
  void WriteParts(Node& node, InflightId64 part, const Decision& decision,
                  std::vector<storage::v1::PartRecord> written) {
    if (written.size() == node.ranks.size()) return FinishPart(node, part, std::move(written));
    storage::v1::PartRecord record;
    record.set_format_version(1);
    record.set_rank(node.ranks[written.size()]);
    record.set_sequence(decision.sequence);
    storage::v1::ManifestSummary& checkpoint = *record.mutable_checkpoint();
    checkpoint.set_format_version(1);
    checkpoint.set_run_id("run");
    checkpoint.set_tag(saving_.tag);
    checkpoint.set_sequence(decision.sequence);
    checkpoint.set_attempt(1);
    checkpoint.set_ordinal(1);
    checkpoint.set_chunk_bytes(1 << 20);
    checkpoint.set_world_size(static_cast<int>(nodes_.size()) * ranks_per_node_);
    node.io->WritePart(part, std::move(record), {}, nullptr, std::make_shared<std::atomic<int64_t>>(0),
                       [this, &node, part, decision,
                        written = std::move(written)](absl::StatusOr<storage::v1::PartRecord> done) mutable {
                         if (!done.ok()) Die(done.status().ToString());
                         written.push_back(*std::move(done));
                         WriteParts(node, part, decision, std::move(written));
                       });
  }
  void FinishPart(Node& node, InflightId64 part, std::vector<storage::v1::PartRecord> written) {
    node.run->FinishPart(part, std::move(written), [this, &node](const absl::StatusOr<std::string>& digest) {
      if (!digest.ok()) Die(digest.status().ToString());
      if (++heard_.durable == static_cast<int>(nodes_.size())) heard_.all_durable = SystemClock().Now();
      node.run->Durable(saving_, *digest);
    });
  }

  // All ranks of all nodes at once, in a launch of their own; the seconds until all have joined.
  double Join(int64_t attempt) {
    const Instant begin = SystemClock().Now();
    size_t joined = 0;
    for (Node& node : nodes_) {
      for (const int rank : node.ranks) {
        Ledger::JoinSpec spec;
        spec.rank = rank;
        spec.world_size = static_cast<int>(nodes_.size()) * ranks_per_node_;
        spec.launch_id = absl::StrCat("launch ", attempt);
        spec.instance = absl::StrCat("process ", rank, " of launch ", attempt);
        spec.process = spec.instance;
        spec.job = "job";
        node.run->ledger()->Join(spec, [&joined, attempt](const absl::StatusOr<int64_t>& given) {
          if (!given.ok()) Die(given.status().ToString());
          if (*given != attempt) Die(absl::StrCat("joined attempt ", *given, " and not ", attempt));
          ++joined;
        });
      }
    }
    RunUntil([&] { return joined == nodes_.size() * static_cast<size_t>(ranks_per_node_); }, "the joins");
    return std::chrono::duration<double>(SystemClock().Now() - begin).count();
  }
  void Activate(int64_t attempt) {
    Await<absl::Status>([&](auto done) { nodes_[0].run->ledger()->Activate(attempt, std::move(done)); },
                        "the attempt");
  }

  template <typename T>
  void Await(const std::function<void(absl::AnyInvocable<void(T)>)>& ask, const std::string& what) {
    bool done = false;
    ask([&](const T& answer) {
      if (!Succeeded(answer)) Die(absl::StrCat(what, " failed"));
      done = true;
    });
    RunUntil([&] { return done; }, what);
  }
  static bool Succeeded(const absl::Status& status) { return status.ok(); }
  template <typename T>
  static bool Succeeded(const absl::StatusOr<T>& result) {
    return result.ok();
  }

  std::function<void(absl::AnyInvocable<void()>)> Poster() {
    return [inbox = inbox_](absl::AnyInvocable<void()> work) { inbox->Post(std::move(work)); };
  }
  FakeSharedRoot::After After() {
    return [this](Duration, absl::AnyInvocable<void()> event) { inbox_->Post(std::move(event)); };
  }
  void Step() {
    if (auto work = inbox_->Take(std::chrono::milliseconds(10))) work();
    const Instant now = SystemClock().Now();
    if (now - ticked_ < std::chrono::milliseconds(100)) return;
    ticked_ = now;
    for (Node& node : nodes_) {
      if (node.grpc != nullptr) node.grpc->OnTick();
      if (node.registration != nullptr) node.registration->OnTick();
      if (node.run != nullptr) node.run->OnTick();
    }
  }
  void RunUntil(const std::function<bool()>& done, const std::string& what) {
    const Instant deadline = SystemClock().Now() + std::chrono::minutes(5);
    while (!done()) {
      if (SystemClock().Now() > deadline) Die("waited for " + what + " for 5 minutes");
      Step();
    }
  }
  void RunFor(Duration time) {
    const Instant end = SystemClock().Now() + time;
    RunUntil([&] { return SystemClock().Now() >= end; }, "a pause");
  }

  const std::string folder_;
  const int ranks_per_node_;
  EtcdCluster cluster_;
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  FakeSharedRoot root_{After(), 1, std::chrono::milliseconds(1)};
  EtcdCounts counts_;
  Instant ticked_{};
  std::vector<Node> nodes_;
  double join_seconds_ = 0;
  InflightId64 parts_ = 0;
  SaveId saving_{};
  Heard heard_;
};

std::string Pair(const std::vector<double>& values) {
  const std::vector<double> percentiles = Percentiles(values);
  return absl::StrFormat("[%.3f, %.3f]", percentiles[0], percentiles[1]);
}

int Main(const std::vector<int>& numbers, const std::string& folder) {
  Bench bench(numbers[0], numbers[1], numbers[3], folder);
  std::vector<double> one_ms, all_ms;
  // In turns, so that all meet the same disk.
  for (int save = 0; save <= numbers[2]; ++save) {
    bench.Save(save);
    for (int i = 0; i < 5; ++i) one_ms.push_back(bench.MeasureEtcd(1));
    for (int i = 0; i < 5; ++i) all_ms.push_back(bench.MeasureEtcd(static_cast<size_t>(numbers[0])));
  }
  absl::PrintF(
      "{\"etcd_ms\": %s, \"etcd_all_ms\": %s, \"begin_ms\": %s, \"commit_ms\": %s, \"writes\": %s, "
      "\"reads\": %s, "
      "\"join_seconds\": %.2f, \"next_join_seconds\": %.2f}\n",
      Pair(one_ms), Pair(all_ms), Pair(bench.begin_ms), Pair(bench.commit_ms), Pair(bench.writes_per_save),
      Pair(bench.reads_per_save), bench.join_seconds(), bench.MeasureNextLaunch());
  return 0;
}

}  // namespace
}  // namespace ckptd

int main(int argc, char** argv) {
  std::vector<int> numbers(4);
  bool good = argc == 6;
  for (size_t i = 0; good && i < numbers.size(); ++i)
    good = absl::SimpleAtoi(argv[i + 1], &numbers[i]) && numbers[i] > 0;
  if (!good) {
    std::cerr << "usage: bench_nodes NODES RANKS SAVES MEMBERS FOLDER" << std::endl;
    return 2;
  }
  return ckptd::Main(numbers, argv[5]);
}
