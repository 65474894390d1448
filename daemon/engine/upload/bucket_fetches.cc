#include "daemon/engine/upload/bucket_fetches.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

using storage::v1::ManifestSummary;

// More sequences than a lost root can have given to checkpoints that it has not uploaded. What is saved from
// now on is above these, so that it is the newer one should that root come back.
constexpr int64_t kNotUploaded = 1'000'000;
constexpr Duration kLogEvery = std::chrono::seconds(30);

std::string Megabytes(int64_t bytes) { return absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6); }

// The order of Begin. Sequences alone do not tell: a root that was lost has begun them anew.
bool IsOlder(const ManifestSummary& a, const ManifestSummary& b) {
  return std::pair(a.create_time_us(), a.sequence()) < std::pair(b.create_time_us(), b.sequence());
}

bool IsDamaged(const absl::Status& why) {
  const std::string reason = ReasonOf(why);
  return ProvesDamage(why) || reason == "NO_OBJECT" || reason == "SHORT_OBJECT" ||
         reason == reason::kNoCheckpoint;
}

// Whether the root has had a checkpoint of the run, as its record says. If not, nothing can have been removed
// from it on purpose, and its last sequence may be what is left free for another program's checkpoints.
bool HasHadAny(const Run& run) {
  const storage::v1::RunRecord& record = run.ledger->record();
  return run.catalog.NewestWithSuspects() != nullptr || record.uploads().fetched_sequence() != 0 ||
         std::any_of(record.outcomes().begin(), record.outcomes().end(),
                     [](const storage::v1::Outcome& outcome) { return outcome.level() == v1::COMMITTED; });
}

}  // namespace

// What is newer than all that the root has had, oldest first. The root's record knows every sequence that was
// given there: what it has removed since does not come back, and what is not uploaded yet is not passed over.
std::vector<ManifestSummary> BucketFetches::NewerThanRoot(const Run& run,
                                                          const UploadIo::Contents& contents) const {
  const bool has_any = run.catalog.NewestWithSuspects() != nullptr;
  int64_t last_sequence = 0;
  if (IsShared(run)) {
    last_sequence = states_.Of(&run).order.counted_through;
    if (!run.catalog.committed().empty())
      last_sequence = std::max(last_sequence, run.catalog.committed().rbegin()->first);
  } else if (HasHadAny(run)) {
    last_sequence = run.ledger->record().last_sequence();
  }
  std::vector<ManifestSummary> newer, suspect;
  for (const UploadIo::InBucket& found : contents.checkpoints) {
    if (found.summary.sequence() <= last_sequence) continue;
    (found.summary.suspect().empty() ? newer : suspect).push_back(found.summary);
  }
  // The ranks say whether they take a suspect one if there is no other.
  if (newer.empty() && !has_any) newer = std::move(suspect);
  std::sort(newer.begin(), newer.end(), IsOlder);
  return newer;
}

// Not OK: to fetch this one would perhaps replace the run's state by an older one, or by another run's.
absl::Status BucketFetches::CheckSameRun(const Run& run, const ManifestSummary& newest) const {
  const std::string& run_id = states_.Of(&run).order.run_id;
  if (!run_id.empty() && !newest.run_id().empty() && newest.run_id() != run_id) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, reason::kRunIdMismatch,
        absl::StrCat(newest.tag(), " there is of run \"", newest.run_id(), "\", and the root is of run \"",
                     run_id, "\": give each run a prefix of its own"));
  }
  for (const auto& [sequence, ours] : run.catalog.committed()) {
    if (IsOlder(ours.summary, newest)) continue;
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kRestoreFailed,
                     absl::StrCat(newest.tag(), " there has a higher sequence (", newest.sequence(),
                                  ") than ", ours.summary.tag(), " in the root (", sequence,
                                  "), but was begun before it by the clock: nobody can say which is newer; "
                                  "remove the wrong one, or give the run a prefix of its own"));
  }
  return absl::OkStatus();
}

void BucketFetches::OnJoined(const Run* run, int64_t attempt, const v1::JoinRunRequest& request) {
  State& state = states_.Of(run);
  std::erase_if(state.attempts, [run](const auto& entry) { return entry.first < run->active_attempt; });
  if (!request.has_upload()) return;
  Attempt& joined = state.attempts[attempt];
  joined.is_done &= joined.policy.url() == request.upload().url();
  joined.policy = request.upload();  // The process may have joined again with another one, after an error.
}

bool BucketFetches::IsDone(const Run& run, int64_t attempt) const {
  const State& state = states_.Of(&run);
  const auto found = state.attempts.find(attempt);
  return run.uploads == nullptr || found == state.attempts.end() || found->second.is_done ||
         found->second.policy.no_restore();
}

void BucketFetches::Start(Run* run, int64_t attempt) {
  State& state = states_.Of(run);
  const v1::UploadPolicy& policy = state.attempts.at(attempt).policy;
  if (IsShared(*run)) return hooks_.ask(run, attempt, policy);
  if (state.is_busy) return;  // If it is another bucket's, the rank asks again when that has ended.
  Begin(run, {attempt, policy, run->ledger->record().run_id()});
}

void BucketFetches::SetDone(const Run* run, int64_t attempt, const std::string& url) {
  auto& attempts = states_.Of(run).attempts;
  const auto known = attempts.find(attempt);
  if (known != attempts.end()) known->second.is_done |= known->second.policy.url() == url;
}

void BucketFetches::Begin(Run* run, Order order) {
  State& state = states_.Of(run);
  state.is_busy = true;
  ++state.number;
  state.order = std::move(order);
  state.arrived = nullptr;
  state.begun = clock_->Now();
  run->uploads->List(state.order.policy.url(), WhileOrdered(run, &BucketFetches::Listed));
}

void BucketFetches::Drop(const Run* run) {
  State& state = states_.Of(run);
  state.is_busy = false;
  ++state.number;
  state.left.clear();
}

template <typename... Args>
absl::AnyInvocable<void(Args...)> BucketFetches::WhileOrdered(Run* run,
                                                              void (BucketFetches::*then)(Run*, Args...)) {
  return [this, run, then, number = states_.Of(run).number](Args... args) {
    if (states_.Of(run).number == number) (this->*then)(run, args...);
  };
}

void BucketFetches::Listed(Run* run, const absl::StatusOr<UploadIo::Contents>& contents) {
  State& state = states_.Of(run);
  if (!contents.ok()) return Fail(run, "what lies there is not known", contents.status());
  for (const std::string& damaged : contents->damaged)
    observer_->OnWarning(absl::StrCat("a checkpoint of the bucket is damaged and is not fetched: ", damaged));
  hooks_.listed(run, state.order.attempt, state.order.policy, *contents);
  state.highest_sequence = 0;
  for (const UploadIo::InBucket& found : contents->checkpoints)
    state.highest_sequence = std::max(state.highest_sequence, found.summary.sequence());
  state.left = NewerThanRoot(*run, *contents);
  if (state.left.empty() && !contents->damaged.empty() && run->catalog.NewestWithSuspects() == nullptr)
    return Fail(run, "nothing there is whole", absl::DataLossError(contents->damaged.front()));
  if (state.left.empty()) {
    observer_->OnInfo(absl::StrCat("resume in ", run->path, ": ", state.order.policy.url(),
                                   " has nothing newer (", contents->checkpoints.size(), " checkpoints)"));
    return End(run, absl::OkStatus(), /*is_new=*/false);
  }
  if (const absl::Status other = CheckSameRun(*run, state.left.back()); !other.ok())
    return Fail(run, "nothing is fetched", other);
  FetchNext(run);
}

void BucketFetches::FetchNext(Run* run) {
  State& state = states_.Of(run);
  state.fetching = std::move(state.left.back());
  state.left.pop_back();
  state.arrived = nullptr;
  if (!IsShared(*run)) return Fetch(run);
  hooks_.announce(run, state.fetching.sequence(), state.highest_sequence + kNotUploaded,
                  WhileOrdered(run, &BucketFetches::Fetch));
}

void BucketFetches::Fetch(Run* run) {
  State& state = states_.Of(run);
  state.arrived = std::make_shared<std::atomic<int64_t>>(0);
  state.next_log = clock_->Now() + kLogEvery;
  observer_->OnInfo(absl::StrCat("resume in ", run->path, ": fetching ", state.fetching.tag(), " from ",
                                 state.order.policy.url(), ", ", Megabytes(state.fetching.size_bytes())));
  run->uploads->Fetch(state.order.policy.url(), state.fetching.tag(), state.order.term, state.arrived,
                      WhileOrdered(run, &BucketFetches::Fetched));
}

void BucketFetches::Fetched(Run* run, const absl::Status& fetched) {
  State& state = states_.Of(run);
  if (fetched.ok()) {
    const double seconds = std::chrono::duration<double>(clock_->Now() - state.begun).count();
    observer_->OnInfo(absl::StrCat("resume in ", run->path, ": ", state.fetching.tag(), " (sequence ",
                                   state.fetching.sequence(), ") is there, after ",
                                   absl::StrFormat("%.1f s", seconds)));
    hooks_.fetched(run, state.fetching);
    return End(run, absl::OkStatus(), /*is_new=*/true);
  }
  const std::string what = absl::StrCat(state.fetching.tag(), " could not be fetched");
  if (!IsDamaged(fetched)) return Fail(run, what, fetched);
  const bool has_any = run->catalog.NewestWithSuspects() != nullptr;
  if (state.left.empty() && !has_any)
    return Fail(run, absl::StrCat(what, ", and there is no older one"), fetched);
  observer_->OnWarning(
      absl::StrCat("the checkpoint ", state.order.policy.url(), "/", state.fetching.tag(),
                   " is damaged, and an older one takes its place: ", std::string(fetched.message())));
  // The next one may be older than the root's.
  const absl::Status other = state.left.empty() ? absl::OkStatus() : CheckSameRun(*run, state.left.back());
  if (!other.ok() && !has_any) return Fail(run, "nothing is fetched", other);
  if (!other.ok() || state.left.empty()) return End(run, absl::OkStatus(), /*is_new=*/false);
  FetchNext(run);
}

// To begin without the bucket's checkpoint would throw the job's work away, and nobody would notice.
void BucketFetches::Fail(Run* run, const std::string& what, const absl::Status& why) {
  const std::string message =
      absl::StrCat("the run resumes from the newest checkpoint of ", run->path, " and ",
                   states_.Of(run).order.policy.url(), ", but ", what, ": ", std::string(why.message()),
                   "; resume again when that is repaired, or resume from the root alone: ckptd.Upload(..., "
                   "restore=False)");
  observer_->OnWarning(message);
  End(run,
      MakeError(absl::StatusCode::kFailedPrecondition, reason::kRestoreFailed, message,
                {{"path", run->path}}),
      /*is_new=*/false);
}

void BucketFetches::End(Run* run, const absl::Status& status, bool is_new) {
  State& state = states_.Of(run);
  state.left.clear();
  // From now on no other checkpoint of the bucket is taken for a newer one.
  if (status.ok() && !is_new && IsShared(*run))
    return hooks_.announce(run, 0, state.highest_sequence, WhileOrdered(run, &BucketFetches::NothingNewer));
  state.is_busy = false;
  if (status.ok() && !IsShared(*run)) {
    run->ledger->RaiseSequence(state.highest_sequence + (is_new ? kNotUploaded : 0));
    for (auto& [attempt, known] : state.attempts)
      known.is_done |= known.policy.url() == state.order.policy.url();
  }
  hooks_.ended(run, status, is_new);
}

void BucketFetches::NothingNewer(Run* run) {
  states_.Of(run).is_busy = false;
  hooks_.ended(run, absl::OkStatus(), /*is_new=*/false);
}

// ---- looking

bool BucketFetches::IsActive(const Run& run) const { return states_.Of(&run).is_busy; }

std::string BucketFetches::Describe(const Run& run) const {
  const State& state = states_.Of(&run);
  if (state.arrived == nullptr)
    return absl::StrCat(state.order.policy.url(), " to say which checkpoints it has");
  return absl::StrCat("fetching ", state.fetching.tag(), " from ", state.order.policy.url(), ", ",
                      Megabytes(state.arrived->load(std::memory_order_relaxed)), " of ",
                      Megabytes(state.fetching.size_bytes()));
}

void BucketFetches::Describe(const Run& run, v1::Run* description) const {
  const State& state = states_.Of(&run);
  if (!state.is_busy) return;
  v1::BucketFetch& fetch = *description->mutable_uploads()->mutable_fetching();
  if (state.arrived == nullptr) return;
  fetch.set_tag(state.fetching.tag());
  fetch.set_size_bytes(state.fetching.size_bytes());
  fetch.set_fetched_bytes(state.arrived->load(std::memory_order_relaxed));
}

void BucketFetches::OnTick(const Run* run, Instant now) {
  State& state = states_.Of(run);
  if (!state.is_busy || state.arrived == nullptr || now < state.next_log) return;
  state.next_log = now + kLogEvery;
  observer_->OnInfo(absl::StrCat("resume in ", run->path, ": ", Describe(*run)));
}

}  // namespace ckptd
