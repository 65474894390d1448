#include "tests/sim_nodes/plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/random.h"

namespace ckptd::sim_nodes {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kNames[kOperationKinds] = {"launch",
                                                 "respawn",
                                                 "kill rank",
                                                 "kill launch",
                                                 "lose session",
                                                 "kill daemon",
                                                 "kill coordinator",
                                                 "stop daemon",
                                                 "pause",
                                                 "pause coordinator",
                                                 "cut off",
                                                 "change leader",
                                                 "compact",
                                                 "hang",
                                                 "open",
                                                 "foreign",
                                                 "read",
                                                 "damage",
                                                 "full",
                                                 "register anew",
                                                 "hang node",
                                                 "restore etcd",
                                                 "put back",
                                                 "abort",
                                                 "pin"};

// Random streams of features that were added later, so that the histories of other seeds stay the same. They
// leave out the seeds that have failed once (nodes_simulation_test.cc).
constexpr uint64_t kDamageStream = 21, kReadersStream = 50, kFollowedDamageStream = 809, kConflictStream = 70,
                   kFullStream = 909, kRegisterAnewStream = 1091, kHangNodeStream = 1261,
                   kSuspectStream = 2603, kRestoreStream = 1653, kPutBackStream = 1703,
                   kPointersStream = 2997, kAbortStream = 3301, kPinStream = 3407, kForgetsStream = 3511,
                   kUploadsStream = 342993, kClocksStream = 575345;

void AddReaders(Plan* plan) {
  sim::Random random(sim::Mix(plan->seed, kReadersStream));
  if (!random.Percent(30)) return;
  plan->readers = true;
  for (int64_t i = random.Between(10, 60); i > 0; --i) {
    plan->operations.push_back(
        {Duration(random.Below(plan->length.count())), OperationKind::kRead, random.Next(), random.Next()});
  }
}

// Adds saves whose parts make no checkpoint.
void AddConflicts(Plan* plan) {
  sim::Random random(sim::Mix(plan->seed, kConflictStream));
  if (random.Percent(20)) plan->disk.conflict = static_cast<int>(random.Between(1, 30));
}

// Adds times in which etcd takes no writes.
void AddFull(Plan* plan) {
  sim::Random random(sim::Mix(plan->seed, kFullStream));
  if (!random.Percent(15)) return;
  for (int64_t i = random.Between(1, 4); i > 0; --i) {
    plan->operations.push_back(
        {Duration(random.Below(plan->length.count())), OperationKind::kFull, random.Next(), random.Next()});
  }
}

// Adds times at which a run cannot go on under the registration of its node.
void AddRegistrations(Plan* plan) {
  sim::Random random(sim::Mix(plan->seed, kRegisterAnewStream));
  if (!random.Percent(20)) return;
  for (int64_t i = random.Between(1, 6); i > 0; --i) {
    plan->operations.push_back({Duration(random.Below(plan->length.count())), OperationKind::kRegisterAnew,
                                random.Next(), random.Next()});
  }
}

// Adds times in which the file system of one node hangs for so long that a coordinator may step down.
void AddNodeHangs(Plan* plan) {
  sim::Random random(sim::Mix(plan->seed, kHangNodeStream));
  if (!random.Percent(20)) return;
  plan->disk.shows_hangs = true;
  for (int64_t i = random.Between(1, 3); i > 0; --i) {
    plan->operations.push_back({Duration(random.Below(plan->length.count())), OperationKind::kHangNode,
                                random.Next(), random.Next()});
  }
}

void AddSuspects(Plan* plan) {
  sim::Random random(sim::Mix(plan->seed, kSuspectStream));
  if (random.Percent(25)) plan->suspect = static_cast<int>(random.Between(3, 50));
}

// Adds restores of etcd. A launch follows each, as soon as the daemons may live again, or later.
void AddRestores(Plan* plan) {
  sim::Random random(sim::Mix(plan->seed, kRestoreStream));
  if (!random.Percent(20)) return;
  plan->disk.has_records = true;
  for (int64_t i = random.Between(1, 2); i > 0; --i) {
    const Duration at(random.Below(plan->length.count()));
    plan->operations.push_back({at, OperationKind::kRestoreEtcd, random.Next(), random.Next()});
    plan->operations.push_back(
        {at + seconds(random.Between(5, 40)), OperationKind::kLaunch, random.Next(), random.Next()});
  }
}

// Adds checkpoints that are put back. A coordinator that begins meanwhile finds the decisions of earlier
// ones.
void AddPutBacks(Plan* plan) {
  sim::Random random(sim::Mix(plan->seed, kPutBackStream));
  if (!random.Percent(20)) return;
  for (int64_t i = random.Between(1, 6); i > 0; --i) {
    const Duration at(random.Below(plan->length.count()));
    plan->operations.push_back({at, OperationKind::kPutBack, random.Next(), random.Next()});
    if (!random.Percent(40)) continue;
    plan->operations.push_back({at + random.Spread(milliseconds(1), seconds(2)),
                                OperationKind::kKillCoordinator, random.Next(), random.Next()});
  }
}

void AddAborts(Plan* plan) {
  sim::Random random(sim::Mix(plan->seed, kAbortStream));
  if (!random.Percent(25)) return;
  for (int64_t i = random.Between(5, 40); i > 0; --i) {
    plan->operations.push_back(
        {Duration(random.Below(plan->length.count())), OperationKind::kAbort, random.Next(), random.Next()});
  }
}

// Adds pins. Most are taken back later: a pinned tag takes no re-save.
void AddPins(Plan* plan) {
  sim::Random random(sim::Mix(plan->seed, kPinStream));
  if (!random.Percent(25)) return;
  for (int64_t i = random.Between(5, 40); i > 0; --i) {
    plan->operations.push_back(
        {Duration(random.Below(plan->length.count())), OperationKind::kPin, random.Next(), random.Next()});
  }
}

// Etcd forgets saves while ranks may still ask for them.
void AddForgetting(Plan* plan) {
  sim::Random random(sim::Mix(plan->seed, kForgetsStream));
  plan->forgets = random.Percent(40);
}

// Adds a bucket.
void AddUploads(Plan* plan) {
  sim::Random random(sim::Mix(plan->seed, kUploadsStream));
  if (random.Percent(30)) plan->uploads = sim::UploadPlan::Some(random);
}

void AddClocks(Plan* plan) {
  sim::Random random(sim::Mix(plan->seed, kClocksStream));
  plan->clocks_apart = random.Percent(30);
}

void AddPointers(Plan* plan) {
  sim::Random random(sim::Mix(plan->seed, kPointersStream));
  if (!random.Percent(25)) return;
  plan->pointers = plan->resaves = true;
}

// Adds changes of bytes. `fewest` to `most` launches follow each, to read them, or on nodes that may not know
// yet that other nodes have found the damage.
void AddDamage(Plan* plan, sim::Random& random, int64_t fewest, int64_t most) {
  plan->damage = true;
  for (int64_t i = random.Between(1, 4); i > 0; --i) {
    const Duration at(random.Below(plan->length.count()));
    plan->operations.push_back({at, OperationKind::kDamage, random.Next(), random.Next()});
    for (int64_t launches = random.Between(fewest, most); launches > 0; --launches) {
      const bool again = random.Percent(50);
      plan->operations.push_back({at + random.Spread(milliseconds(1), seconds(10)),
                                  again ? OperationKind::kRespawn : OperationKind::kLaunch, random.Next(),
                                  random.Next()});
    }
  }
  // The reader key of a checkpoint ends with the registration of its node, long before the reader does.
  for (int64_t i = random.Below(4); i > 0; --i) {
    const Duration at(random.Below(plan->length.count()));
    const uint64_t time = 4 * static_cast<uint64_t>(random.Between(6'000, 30'000));
    plan->operations.push_back({at, OperationKind::kOpen, random.Next(), random.Next()});
    plan->operations.push_back(
        {at + random.Spread(milliseconds(1), seconds(3)), OperationKind::kCutOff, random.Next(), time});
  }
}

// Comes after all older features of a plan. A damaged checkpoint counts as kept until a reader finds the
// damage, so if only one is kept, no whole checkpoint may be left.
void AddDamage(Plan* plan) {
  sim::Random some(sim::Mix(plan->seed, kDamageStream)), more(sim::Mix(plan->seed, kFollowedDamageStream));
  if (plan->kept == 1) return;
  if (some.Percent(20)) return AddDamage(plan, some, 0, 2);
  if (more.Percent(25)) AddDamage(plan, more, 1, 4);
}

}  // namespace

std::string Operation::ToString() const {
  return absl::StrCat(at / milliseconds(1), " ms: ", kNames[static_cast<int>(kind)], " (", a % 1000, ", ",
                      b % 1000, ")");
}

std::string Plan::ToString() const {
  std::string words = absl::StrCat("seed ", seed, ": nodes ", nodes, ", segments ", segments, ", kept ",
                                   kept ? absl::StrCat(*kept) : "all");
  const auto add = [&words](bool on, const char* name) {
    if (on) absl::StrAppend(&words, ", ", name);
  };
  add(resaves, "re-saves");
  add(overlap, "overlap");
  add(subsets, "subsets");
  add(skip, "skip");
  add(short_timeouts, "short timeouts");
  add(readers, "readers");
  add(damage, "damage");
  const auto percent = [&words](int value, const char* name) {
    if (value > 0) absl::StrAppend(&words, ", ", name, " ", value, " %");
  };
  add(pointers, "pointers");
  add(forgets, "forgets");
  add(clocks_apart, "clocks apart");
  percent(suspect, "suspect");
  percent(etcd.lost_requests, "lost requests");
  percent(etcd.lost_answers, "lost answers");
  percent(etcd.late_requests, "late requests");
  percent(disk.slow, "slow");
  percent(disk.stale, "stale");
  percent(disk.write, "write");
  percent(disk.make, "make");
  percent(disk.publish, "publish");
  percent(disk.lost_publish, "lost publish");
  percent(disk.scan, "scan");
  percent(disk.open, "open");
  percent(disk.remove, "remove");
  percent(disk.conflict, "conflict");
  add(disk.shows_hangs, "hangs of one node");
  add(disk.has_records, "records");
  return absl::StrCat(words, uploads.ToString());
}

Plan PlanOf(uint64_t seed) {
  sim::Random random(seed);
  Plan plan;
  plan.seed = seed;
  plan.nodes = static_cast<int>(random.Between(2, 4));
  plan.segments = static_cast<int>(random.Percent(70) ? random.Between(12, 40) : random.Between(5, 11));
  if (!random.Percent(20)) plan.kept = static_cast<int>(random.Between(1, 4));
  plan.resaves = random.Percent(40);
  plan.overlap = random.Percent(40);
  plan.subsets = random.Percent(40);
  plan.skip = random.Percent(20);
  plan.short_timeouts = random.Percent(20);
  // A third of the seeds has an etcd and a file system without faults, which are only slow.
  const auto some = [&random](int most) {
    return random.Percent(40) ? static_cast<int>(random.Between(1, most)) : 0;
  };
  if (!random.Percent(33)) {
    plan.etcd.longest_way = milliseconds(random.Percent(50) ? 2 : random.Between(2, 200));
    plan.etcd.latest_event = milliseconds(random.Percent(50) ? 2 : random.Between(2, 5000));
    plan.etcd.lost_requests = some(20);
    plan.etcd.lost_answers = some(20);
    plan.etcd.late_requests = some(15);
    plan.etcd.lease_patience = milliseconds(random.Percent(50) ? 0 : random.Between(0, 3000));
    plan.disk = {.slow = some(20),
                 .stale = some(60),
                 .write = some(6),
                 .make = some(10),
                 .publish = some(20),
                 .lost_publish = some(30),
                 .scan = some(10),
                 .open = some(10),
                 .remove = some(20)};
  }
  plan.length = seconds(random.Between(20, 120));

  // Swarm testing: each kind of operation is common, rare or absent.
  int weights[kSwarmKinds];
  for (int& weight : weights) weight = random.Percent(50) ? 0 : static_cast<int>(random.Between(1, 10));
  weights[static_cast<int>(OperationKind::kLaunch)] = static_cast<int>(random.Between(1, 4));
  int total = 0;
  for (int weight : weights) total += weight;
  plan.operations.push_back({milliseconds(random.Between(0, 500)), OperationKind::kLaunch, random.Next(), 0});
  for (int64_t i = random.Between(3, 30); i > 0; --i) {
    int64_t at = random.Below(total);
    int kind = 0;
    while (at >= weights[kind]) at -= weights[kind++];
    plan.operations.push_back({Duration(random.Below(plan.length.count())), static_cast<OperationKind>(kind),
                               random.Next(), random.Next()});
  }
  AddDamage(&plan);
  AddReaders(&plan);
  AddConflicts(&plan);
  AddFull(&plan);
  AddRegistrations(&plan);
  AddNodeHangs(&plan);
  AddSuspects(&plan);
  AddRestores(&plan);
  AddPutBacks(&plan);
  AddAborts(&plan);
  AddPointers(&plan);
  AddPins(&plan);
  AddForgetting(&plan);
  AddUploads(&plan);
  AddClocks(&plan);
  std::stable_sort(plan.operations.begin(), plan.operations.end(),
                   [](const Operation& x, const Operation& y) { return x.at < y.at; });
  return plan;
}

}  // namespace ckptd::sim_nodes
