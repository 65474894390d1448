#include "daemon/cluster/node/reader_keys.h"

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "storage/base/errors.h"

namespace ckptd {

ReaderKeys::ReaderKeys(Etcd* etcd, Clock* clock, Options options)
    : etcd_(etcd),
      clock_(clock),
      options_(std::move(options)),
      calls_(clock, absl::StrCat("run ", options_.run), options_.why_unregistered) {}

void ReaderKeys::SetNode(const NodeIdentity* node) {
  calls_.SetRegistered(false);
  readers_ = nullptr;
  if (node == nullptr) return;
  readers_ = std::make_unique<CheckpointReaders>(
      etcd_, CheckpointReaders::Options{options_.prefix, *node, options_.run, options_.ended_removals});
  calls_.SetRegistered(true);
  // The keys of the earlier registration were removed with its lease.
  std::vector<int64_t> read;
  for (const auto& [sequence, reading] : reading_) {
    const bool asks = reading.key == Key::kBeginning || reading.key == Key::kEnding;
    if (!asks && reading.readers > 0) read.push_back(sequence);
  }
  for (const int64_t sequence : read) Begin(sequence, Instant::max());
}

void ReaderKeys::OnTick() { calls_.OnTick(); }

void ReaderKeys::Acquire(int64_t sequence, Done acquired) {
  reading_[sequence].waiting.push_back(std::move(acquired));
  Step(sequence);
}

// Changes nothing if the key exists. If it was removed with a registration, it is written again, unless a
// removal of the checkpoint was decided meanwhile.
void ReaderKeys::Confirm(int64_t sequence, Done confirmed) {
  calls_.Ask<absl::Status>(
      absl::StrCat("whether the checkpoint of sequence ", sequence, " is being removed from"),
      clock_->Now() + options_.patience,
      [this, sequence](LedgerCalls::Answer<absl::Status> done) {
        readers_->Begin(sequence, std::move(done));
      },
      std::move(confirmed));
}

void ReaderKeys::Release(int64_t sequence) {
  --reading_.at(sequence).readers;
  Step(sequence);
}

// Takes the next step for a checkpoint, if none is under way.
void ReaderKeys::Step(int64_t sequence) {
  Reading& reading = reading_.at(sequence);
  const bool waits = !reading.waiting.empty();
  // Without a registration there is no key any more. The next registration writes it again, unless a removal
  // of the checkpoint was decided meanwhile.
  if (waits && reading.key == Key::kHeld && readers_ != nullptr) return Begun(sequence, absl::OkStatus());
  if (waits && (reading.key == Key::kHeld || reading.key == Key::kNone))
    return Begin(sequence, clock_->Now() + options_.patience);
  if (reading.key == Key::kHeld && reading.readers == 0) return End(sequence, Instant::max());
  if (reading.key != Key::kNone || reading.readers > 0) return;
  // Bounded, because a reader that comes meanwhile waits for this.
  if (reading.unsure) return End(sequence, clock_->Now() + options_.patience);
  reading_.erase(sequence);
}

void ReaderKeys::Begin(int64_t sequence, Instant deadline) {
  reading_.at(sequence).key = Key::kBeginning;
  calls_.Ask<absl::Status>(
      absl::StrCat("to read the checkpoint of sequence ", sequence, " of"), deadline,
      [this, sequence](LedgerCalls::Answer<absl::Status> done) {
        readers_->Begin(sequence, std::move(done));
      },
      [this, sequence](const absl::Status& begun) { Begun(sequence, begun); });
}

void ReaderKeys::Begun(int64_t sequence, const absl::Status& begun) {
  Reading& reading = reading_.at(sequence);
  reading.key = begun.ok() ? Key::kHeld : Key::kNone;
  reading.unsure = !begun.ok() && ReasonOf(begun) != ledger_reason::kBeingRemoved;
  std::vector<Done> waiting = std::exchange(reading.waiting, {});
  if (begun.ok()) reading.readers += static_cast<int>(waiting.size());
  for (Done& acquired : waiting) acquired(begun);
  if (const auto left = reading_.find(sequence);
      left != reading_.end() && left->second.key != Key::kBeginning)
    Step(sequence);
}

// Until etcd has answered, it is not known whether the key still protects the checkpoint, so no reader gets
// OK meanwhile.
void ReaderKeys::End(int64_t sequence, Instant deadline) {
  reading_.at(sequence).key = Key::kEnding;
  calls_.Ask<absl::Status>(
      absl::StrCat("to say that this node no longer reads sequence ", sequence, " of"), deadline,
      [this, sequence](LedgerCalls::Answer<absl::Status> done) { readers_->End(sequence, std::move(done)); },
      [this, sequence](const absl::Status& ended) {
        Reading& reading = reading_.at(sequence);
        reading.key = Key::kNone;
        reading.unsure = reading.unsure && ReasonOf(ended) == ledger_reason::kUnavailable;
        Step(sequence);
      });
}

}  // namespace ckptd
