#include "daemon/engine/upload/shared_fetches.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

bool IsSame(const SharedUploads::Restore& one, const SharedUploads::Restore& other) {
  return one.attempt == other.attempt && one.url == other.url;
}

SharedUploads::Newest NewestOf(const Run& run) {
  const auto& committed = run.catalog.committed();
  if (committed.empty()) return {};
  return {committed.rbegin()->second.summary.tag(), committed.rbegin()->first};
}

}  // namespace

// ---- ranks of this node

void SharedFetches::Ask(Run* run, int64_t attempt, const v1::UploadPolicy& policy) {
  State& state = states_.Of(run);
  if (!state.asking.empty())
    return;  // If that is for another attempt, the rank asks again when it has ended.
  state.asking = policy.url();
  run->authority->uploads()->BringBack(
      {attempt, policy.url(), run->ledger->record().run_id()},
      [this, run, attempt, url = policy.url()](const absl::StatusOr<Newest>& newest) {
        states_.Of(run).asking.clear();
        if (!newest.ok()) return hooks_.ended(run, newest.status(), /*is_new=*/false);
        hooks_.set_done(run, attempt, url);
        const bool is_new = newest->sequence != 0 && run->catalog.Find(newest->sequence) == nullptr;
        hooks_.ended(run, absl::OkStatus(), is_new);
      });
}

std::string SharedFetches::Describe(const Run& run) const {
  const State& state = states_.Of(&run);
  if (state.asking.empty()) return "";
  return absl::StrCat("the node that coordinates the run to fetch what ", state.asking, " has newer");
}

// ---- the coordinator

void SharedFetches::Serve(Run* run, const Restore& restore, Brought brought) {
  State& state = states_.Of(run);
  state.waiting.push_back({restore, std::move(brought)});
  if (state.stage == Stage::kIdle) ServeNext(run);
}

void SharedFetches::ServeNext(Run* run) {
  State& state = states_.Of(run);
  if (state.waiting.empty()) return;
  state.now = state.waiting.front().restore;
  state.leads = run->authority->uploads()->StillCoordinates();
  if (state.led != nullptr && state.led() && IsSame(state.now, state.served))
    return Answer(run, absl::OkStatus());
  state.stage = Stage::kSettling;
  run->authority->WhenSettled(state.now.attempt,
                              [this, run, number = ++state.number](const absl::StatusOr<bool>& settled) {
                                State& now = states_.Of(run);
                                if (now.number != number) return;
                                if (!settled.ok()) return Answer(run, settled.status());
                                now.stage = Stage::kScanning;
                                hooks_.scan(run);
                              });
}

void SharedFetches::OnScanned(Run* run) {
  State& state = states_.Of(run);
  if (state.stage == Stage::kShowing) return Answer(run, absl::OkStatus());
  if (state.stage != Stage::kScanning) return;
  state.stage = Stage::kLearning;
  Learn(run);
}

void SharedFetches::Learn(Run* run) {
  State& state = states_.Of(run);
  if (run->uploads == nullptr) {
    return Answer(run, MakeError(absl::StatusCode::kPermissionDenied, reason::kUploadNotAllowed,
                                 "its daemon has no bucket"));
  }
  const absl::StatusOr<int64_t> counted_through = hooks_.counted_through(*run);
  const int64_t term = run->authority->uploads()->Term();
  if (absl::IsUnavailable(counted_through.status()) || term == 0) return;  // OnTick looks again.
  if (!counted_through.ok()) return Answer(run, counted_through.status());
  state.stage = Stage::kFetching;
  BucketFetches::Order order{state.now.attempt, {}, state.now.run_id, *counted_through, {term, state.leads}};
  order.policy.set_url(state.now.url);
  hooks_.begin(run, std::move(order));
}

void SharedFetches::OnFetched(Run* run, const absl::Status& status, bool is_new) {
  if (!is_new) return Answer(run, status);
  states_.Of(run).stage = Stage::kShowing;
  hooks_.scan(run);
}

void SharedFetches::Answer(Run* run, const absl::Status& status) {
  State& state = states_.Of(run);
  state.stage = Stage::kIdle;
  if (status.ok()) {
    state.served = state.now;
    state.led = state.leads;
  }
  const absl::StatusOr<Newest> answer = status.ok() ? NewestOf(*run) : absl::StatusOr<Newest>(status);
  std::vector<Brought> ready;
  for (Waiting& waiting : std::exchange(state.waiting, {})) {
    if (IsSame(waiting.restore, state.now)) {
      ready.push_back(std::move(waiting.brought));
    } else {
      state.waiting.push_back(std::move(waiting));
    }
  }
  for (Brought& brought : ready) brought(answer);
  if (state.stage == Stage::kIdle) ServeNext(run);
}

void SharedFetches::OnTick(Run* run) {
  State& state = states_.Of(run);
  if (state.stage == Stage::kIdle) return;
  if (state.leads()) {
    if (state.stage == Stage::kLearning) Learn(run);
    return;
  }
  ++state.number;
  state.stage = Stage::kIdle;
  hooks_.drop(run);
  for (Waiting& waiting : std::exchange(state.waiting, {}))
    waiting.brought(absl::CancelledError("another node goes on with it"));
}

bool SharedFetches::IsActive(const Run& run) const {
  const State& state = states_.Of(&run);
  return !state.asking.empty() || state.stage != Stage::kIdle;
}

}  // namespace ckptd
