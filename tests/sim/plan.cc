#include "tests/sim/plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ckptd::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Four of the largest saves: one being filled, two that are ending, one being read.
constexpr int kSegmentsPerUser = 4 * kMaxSegmentsOfSave;

constexpr const char* kNames[kOperationKinds] = {
    "launch",         "kill trainer", "kill launch", "lose session", "respawn rank",
    "respawn launch", "restart",      "drain",       "abort",        "operator abort",
    "open",           "pin",          "unpin",       "hang",         "no memory",
    "step date",      "repeat",       "prefetch",    "damage file",  "foreign",
    "adopt",          "undelete",     "move in",     "put back",     "remove .ckptd"};

// The kinds that an operation of the plan's list may have by chance; the others are added at the end of
// PlanOf.
constexpr int kChosenKinds = static_cast<int>(OperationKind::kAdopt) + 1;

// Random streams of features that were added later, so that the histories of other seeds stay the same.
constexpr uint64_t kChangesStream = 11, kModelsStream = 12, kUploadsStream = 13;

bool ByTime(const Operation& a, const Operation& b) { return a.at < b.at; }

// Changes that other programs make in a root. Only on large disks, because an admitted save has its room
// reserved.
void AddChangesOfOthers(Plan* plan) {
  Random models(Mix(plan->seed, kModelsStream));
  plan->models = models.Percent(15);
  Random random(Mix(plan->seed, kChangesStream));
  if (plan->small_disk || !random.Percent(30)) return;
  constexpr OperationKind kKinds[] = {OperationKind::kMoveIn, OperationKind::kPutBack,
                                      OperationKind::kRemoveOurs};
  for (int64_t i = random.Between(1, 6); i > 0; --i) {
    plan->operations.push_back({Duration(random.Below(plan->length.count())), kKinds[random.Below(3)],
                                random.Next(), random.Next()});
  }
  std::stable_sort(plan->operations.begin(), plan->operations.end(), ByTime);
}

void AddUploads(Plan* plan) {
  Random random(Mix(plan->seed, kUploadsStream));
  if (!random.Percent(35)) return;
  plan->uploads = UploadPlan::Some(random);
  plan->uploads.needs_room = plan->small_disk;
}

}  // namespace

std::string Operation::ToString() const {
  return absl::StrCat(at / milliseconds(1), " ms: ", kNames[static_cast<int>(kind)], " (", a % 1000, ", ",
                      b % 1000, ")");
}

std::string Plan::ToString() const {
  std::string words = absl::StrCat("seed ", seed, ": runs ", runs, ", segments ", segments, ", disk ",
                                   disk_bytes >> 20, " MiB, kept ", kept ? absl::StrCat(*kept) : "all");
  if (every_steps > 0) absl::StrAppend(&words, " and every ", every_steps, " steps");
  if (grace > Duration::zero()) absl::StrAppend(&words, ", trash for ", grace / milliseconds(1), " ms");
  if (suspect > 0) absl::StrAppend(&words, ", ", suspect, " % suspect");
  auto add = [&words](bool on, const char* name) {
    if (on) absl::StrAppend(&words, ", ", name);
  };
  add(shared, "one disk");
  add(users, "users");
  add(hostile, "a hostile user");
  add(growing, "growing");
  add(skip, "skip");
  add(supersede, "supersede");
  add(resaves, "re-saves");
  add(grpc_only, "grpc only");
  add(overlap, "overlap");
  add(conflicts, "conflicts");
  add(short_timeouts, "short timeouts");
  add(models, "several models");
  auto percent = [&words](int value, const char* name) {
    if (value > 0) absl::StrAppend(&words, ", ", name, " ", value, " %");
  };
  percent(faults.slow, "slow");
  percent(faults.write, "write");
  percent(faults.create, "create");
  percent(faults.publish, "publish");
  percent(faults.indeterminate, "indeterminate");
  percent(faults.discard, "discard");
  percent(faults.evict, "evict");
  percent(faults.trash, "trash");
  percent(faults.record, "record");
  percent(faults.pin, "pin");
  percent(faults.open, "open");
  percent(faults.rescan, "rescan");
  percent(faults.read, "read");
  percent(damage, "damage");
  percent(maps, "maps");
  if (foreign > 0) absl::StrAppend(&words, ", foreign ", foreign);
  absl::StrAppend(&words, uploads.ToString());
  return words;
}

uid_t Plan::UidOf(int run) const {
  constexpr uid_t kFirst = 1000, kHostile = 6666;
  if (run >= runs) return kHostile;
  return users ? kFirst + static_cast<uid_t>(run) : kFirst;
}

Plan PlanOf(uint64_t seed) {
  Random random(seed);
  Plan plan;
  plan.seed = seed;
  plan.runs = static_cast<int>(random.Between(1, 3));
  plan.segments = static_cast<int>(random.Percent(50) ? random.Between(4, 8) : random.Between(9, 40));
  plan.small_disk = random.Percent(35);
  plan.disk_bytes = plan.small_disk ? random.Between(24, 80) << 20 : int64_t{1} << 40;
  if (!random.Percent(15)) plan.kept = static_cast<int>(random.Between(1, 4));
  plan.growing = random.Percent(40);
  plan.skip = random.Percent(30);
  plan.supersede = random.Percent(30);
  plan.resaves = random.Percent(50);
  plan.grpc_only = random.Percent(25);
  plan.overlap = random.Percent(50);
  plan.conflicts = random.Percent(10);
  plan.short_timeouts = random.Percent(30);
  // A third of the seeds has disks without faults. For the others, each fault is on with probability 35 %.
  if (!random.Percent(33)) {
    auto some = [&random](int most) {
      return random.Percent(35) ? static_cast<int>(random.Between(1, most)) : 0;
    };
    plan.faults = {.slow = some(30),
                   .write = some(10),
                   .create = some(10),
                   .publish = some(10),
                   .indeterminate = some(15),
                   .discard = some(40),
                   .evict = some(30),
                   .trash = some(20),
                   .record = some(15),
                   .pin = some(40),
                   .open = some(15),
                   .rescan = some(60)};
  }
  if (random.Percent(40)) plan.damage = static_cast<int>(random.Between(1, 30));
  plan.length = seconds(random.Between(10, 60));

  // Swarm testing: each kind of operation is common, rare or absent.
  int weights[kChosenKinds];
  for (int& weight : weights) weight = random.Percent(40) ? 0 : static_cast<int>(random.Between(1, 10));
  weights[static_cast<int>(OperationKind::kLaunch)] = static_cast<int>(random.Between(1, 4));
  int total = 0;
  for (int weight : weights) total += weight;
  for (int run = 0; run < plan.runs; ++run) {
    plan.operations.push_back({milliseconds(random.Between(0, 500)), OperationKind::kLaunch,
                               static_cast<uint64_t>(run), random.Next()});
  }
  const int64_t count = random.Between(5, 60);
  for (int64_t i = 0; i < count; ++i) {
    int64_t at = random.Below(total);
    int kind = 0;
    while (at >= weights[kind]) at -= weights[kind++];
    plan.operations.push_back({Duration(random.Below(plan.length.count())), static_cast<OperationKind>(kind),
                               random.Next(), random.Next()});
  }
  std::stable_sort(plan.operations.begin(), plan.operations.end(), ByTime);
  if (random.Percent(60)) plan.maps = static_cast<int>(random.Between(10, 100));
  if (random.Percent(30)) plan.foreign = static_cast<int>(random.Between(1, 4));
  plan.shared = random.Percent(35);
  plan.users = random.Percent(40);
  if (random.Percent(50)) plan.faults.read = random.Percent(35) ? static_cast<int>(random.Between(1, 30)) : 0;
  plan.hostile = random.Percent(15);
  if (plan.hostile) {
    // The promises to the other users hold when the pool has a share for each of them and the disks have
    // room.
    plan.users = true;
    plan.segments = kSegmentsPerUser * (plan.runs + 1);
    plan.small_disk = plan.short_timeouts = plan.overlap = false;
    plan.disk_bytes = int64_t{1} << 40;
  }
  // Only where the disk has room for the kept checkpoints.
  if (plan.kept && !plan.small_disk && random.Percent(40)) plan.every_steps = random.Between(2, 8);
  if (random.Percent(30)) plan.suspect = static_cast<int>(random.Between(5, 60));
  if (random.Percent(50)) {
    plan.grace = milliseconds(random.Between(200, 20'000));
    for (int64_t more = random.Between(0, 8); more > 0; --more) {
      plan.operations.push_back({Duration(random.Below(plan.length.count())), OperationKind::kUndelete,
                                 random.Next(), random.Next()});
    }
    std::stable_sort(plan.operations.begin(), plan.operations.end(), ByTime);
  }
  AddChangesOfOthers(&plan);
  AddUploads(&plan);
  return plan;
}

}  // namespace ckptd::sim
