#include "daemon/cluster/evictions.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/ledger/ledger_reasons.h"
#include "storage/base/errors.h"

namespace ckptd {

absl::Status NotCoordinator(const std::string& what, const std::string& run) {
  return MakeError(absl::StatusCode::kFailedPrecondition, ledger_reason::kNotCoordinator,
                   absl::StrCat("this node does not coordinate run ", run, ", and does not ", what,
                                "; ask the node that does (ckptctl status)"));
}

Evictions::Evictions(Etcd* etcd, Clock* clock, SharedRootIo* root, CheckpointReaders::Options options,
                     CompareAndSwap::Held office)
    : clock_(clock),
      root_(root),
      run_(options.run),
      office_(std::move(office)),
      readers_(etcd, std::move(options)) {}

Evictions::~Evictions() {
  alive_ = nullptr;
  for (auto& [sequence, eviction] : std::exchange(evictions_, {}))
    eviction.done(NotCoordinator("remove its checkpoints any more", run_));
}

void Evictions::Evict(const std::string& tag, int64_t sequence, std::set<int64_t> damaged,
                      std::shared_ptr<const std::set<int64_t>> listed, Done done) {
  if (listed != nullptr) {
    // A removal that the list already lacks need not be taken from its count any more.
    if (evictions_.empty()) std::erase_if(*leaving_, [&](int64_t gone) { return !listed->contains(gone); });
    leaving_->insert(sequence);
  }
  Eviction& eviction = evictions_[sequence];
  eviction.tag = tag;
  eviction.count = {std::move(damaged), std::move(listed), leaving_};
  eviction.done = std::move(done);
  Step(sequence);
}

void Evictions::OnTick() {
  std::vector<int64_t> sequences;
  for (const auto& [sequence, eviction] : evictions_) sequences.push_back(sequence);
  for (const int64_t sequence : sequences) Step(sequence);
}

void Evictions::Step(int64_t sequence) {
  const auto found = evictions_.find(sequence);
  if (found == evictions_.end() || found->second.asking || !found->second.backoff.IsOver(clock_->Now()))
    return;
  if (!found->second.decided && deciding_) return;  // OnTick, or the end of that decision.
  found->second.asking = true;
  if (!found->second.decided) {
    deciding_ = true;
    return readers_.Evict(sequence, found->second.count, office_,
                          [this, sequence, alive = std::weak_ptr<bool>(alive_)](const absl::Status& decided) {
                            deciding_ = false;
                            Decided(sequence, decided);
                            if (!alive.expired()) OnTick();  // The next one.
                          });
  }
  root_->Remove(found->second.tag, sequence,
                [this, sequence, alive = std::weak_ptr<bool>(alive_)](const absl::StatusOr<bool>& gone) {
                  if (!alive.expired()) Removed(sequence, gone);
                });
}

void Evictions::Decided(int64_t sequence, const absl::Status& decided) {
  Eviction& eviction = evictions_.at(sequence);
  eviction.asking = false;
  if (decided.ok()) {
    eviction.decided = true;
    eviction.backoff.Succeeded();
    return Step(sequence);
  }
  const std::string reason = ReasonOf(decided);
  const bool again = reason == ledger_reason::kBeingRead || reason == ledger_reason::kUnavailable ||
                     reason == ledger_reason::kFull;
  if (!again) return End(sequence, decided);
  Retry(eviction);
}

void Evictions::Removed(int64_t sequence, const absl::StatusOr<bool>& gone) {
  Eviction& eviction = evictions_.at(sequence);
  eviction.asking = false;
  if (!gone.ok())
    return Retry(eviction);  // It is decided: nobody opens it, and the next coordinator goes on.
  if (*gone) return End(sequence, absl::OkStatus());
  Step(sequence);
}

void Evictions::Retry(Eviction& eviction) { eviction.backoff.Failed(clock_->Now()); }

void Evictions::End(int64_t sequence, const absl::Status& result) {
  Done done = std::move(evictions_.at(sequence).done);
  evictions_.erase(sequence);
  if (!result.ok()) leaving_->erase(sequence);
  done(result);
}

}  // namespace ckptd
