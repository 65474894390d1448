#include "daemon/ledger/state/checkpoint_readers.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/state/checkpoint_damage.h"
#include "daemon/ledger/state/found_messages.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {

using ledger::v1::CheckpointPin;
using ledger::v1::Evicting;
using ledger::v1::NodeReads;
using Operations = std::vector<etcdserverpb::RequestOp>;

namespace {

using Count = CheckpointReaders::Count;

bool MayHaveCounted(const Count& count, int64_t sequence) {
  const bool leaves = count.leaving != nullptr && count.leaving->contains(sequence);
  return count.listed != nullptr && count.listed->contains(sequence) && !leaves;
}

// The oldest checkpoint that may have been counted; 0: there is none.
int64_t OldestOf(const Count& count) {
  if (count.listed == nullptr) return 0;
  for (const int64_t sequence : *count.listed) {
    if (MayHaveCounted(count, sequence)) return sequence;
  }
  return 0;
}

// Checks that the count for the removal of a checkpoint is still right. `found`: as in Remove.
absl::Status CheckCount(int64_t sequence, const Count& count, const EndedRemovals* ended,
                        const CompareAndSwap::Found& found) {
  const std::string counted =
      absl::StrCat("it was decided to remove the checkpoint of sequence ", sequence, "; it is counted again");
  if (count.damaged != DamagedOf(found[2])) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, ledger_reason::kDamageFound,
        absl::StrCat("a node has found damage, or an operator has cleared some, since ", counted));
  }
  if (found.size() <= 4) return absl::OkStatus();
  for (const etcdserverpb::KeyValue& going : found[4]) {
    int64_t other = 0;
    if (!absl::SimpleAtoi(LastPartOf(going.key()), &other) || !MayHaveCounted(count, other)) continue;
    if (!IsBeingRemoved(ended, other, {going})) continue;
    return MakeError(
        absl::StatusCode::kFailedPrecondition, ledger_reason::kRemovalFound,
        absl::StrCat("the checkpoint of sequence ", other, " was being removed already when ", counted));
  }
  return absl::OkStatus();
}

}  // namespace

CheckpointReaders::CheckpointReaders(Etcd* etcd, Options options)
    : etcd_(etcd), options_(std::move(options)), keys_(options_.prefix) {}

void CheckpointReaders::Begin(int64_t sequence, Done begun) {
  Set(sequence, true, "beginning to read a checkpoint", std::move(begun));
}

void CheckpointReaders::End(int64_t sequence, Done ended) {
  Set(sequence, false, "ending to read a checkpoint", std::move(ended));
}

// The key is never deleted here: a late copy of the request that wrote it would bring the reader back.
void CheckpointReaders::Set(int64_t sequence, bool reading, const std::string& what, Done done) {
  auto refused = std::make_shared<absl::Status>();
  CompareAndSwap swap;
  const std::string key = keys_.Readers(sequence) + options_.node.name;
  swap.ranges = {{key}, {keys_.Evicting(sequence)}};
  swap.held = {options_.node.Held()};
  swap.decide = [=, lease = options_.node.lease,
                 ended = options_.ended_removals](const CompareAndSwap::Found& found) {
    *refused = absl::OkStatus();
    // The end is written even without a key: a late copy of the beginning may still arrive.
    const bool known = reading || !found[0].empty();
    if (known && FirstOf<NodeReads>(found[0]).reading() == reading) return Operations();
    if (reading && IsBeingRemoved(ended.get(), sequence, found[1])) {
      *refused = MakeError(absl::StatusCode::kUnavailable, ledger_reason::kBeingRemoved,
                           absl::StrCat("the checkpoint of sequence ", sequence,
                                        " is being removed, because there is a newer one; open that"));
      return Operations();
    }
    NodeReads reads;
    reads.set_reading(reading);
    return Operations{Put(key, reads.SerializeAsString(), lease)};
  };
  swap.purpose = absl::StrCat(what, " of run ", options_.run);
  Finish(std::move(swap), refused, std::move(done));
}

void CheckpointReaders::Evict(const Victim& victim, const Count& count,
                              const CompareAndSwap::Held& leadership, Done evicting) {
  Remove(victim, 0, count, leadership, std::move(evicting));
}

void CheckpointReaders::EndEviction(const Victim& victim, const CompareAndSwap::Held& leadership,
                                    Done ended) {
  CompareAndSwap swap;
  const std::string key = keys_.Evicting(victim.sequence);
  swap.ranges = {{key}};
  swap.held = {leadership};
  swap.decide = [key, inode = victim.inode](const CompareAndSwap::Found& found) {
    Evicting decision = FirstOf<Evicting>(found[0]);
    if (found[0].empty() || decision.ended() || decision.replaced_by() != 0 || decision.inode() != inode)
      return Operations();
    decision.set_ended(true);
    return Operations{Put(key, decision.SerializeAsString())};
  };
  swap.purpose = absl::StrCat("ending the removal of a checkpoint of run ", options_.run);
  Finish(std::move(swap), std::make_shared<absl::Status>(), std::move(ended));
}

void CheckpointReaders::Replace(int64_t sequence, int64_t replaced_by, const CompareAndSwap::Held& leadership,
                                Done evicting) {
  Remove({.sequence = sequence}, replaced_by, std::nullopt, leadership, std::move(evicting));
}

void CheckpointReaders::Remove(const Victim& victim, int64_t replaced_by, const std::optional<Count>& count,
                               const CompareAndSwap::Held& leadership, Done evicting) {
  const int64_t sequence = victim.sequence;
  auto refused = std::make_shared<absl::Status>();
  CompareAndSwap swap;
  swap.ranges = {{keys_.Readers(sequence), true},
                 {keys_.Evicting(sequence)},
                 {keys_.Damages(), true},
                 {keys_.Pinned(sequence)}};
  // The decisions from the oldest counted checkpoint on: older checkpoints are gone, but their keys stay.
  if (const int64_t oldest = count ? OldestOf(*count) : 0; oldest != 0)
    swap.ranges.push_back({.key = keys_.Evicting(oldest), .end = PrefixEnd(keys_.Evictings())});
  swap.held = {leadership};
  swap.decide = [=, keys = keys_, ended = options_.ended_removals](const CompareAndSwap::Found& found) {
    *refused = absl::OkStatus();
    // A decision on another directory is over, or will be: that directory is not at the tag any more.
    const Evicting earlier = FirstOf<Evicting>(found[1]);
    const bool same = replaced_by != 0
                          ? earlier.replaced_by() == replaced_by
                          : victim.inode == 0 || earlier.inode() == 0 || earlier.inode() == victim.inode;
    if (same && IsBeingRemoved(ended.get(), sequence, found[1])) return Operations();
    if (FirstOf<CheckpointPin>(found[3]).pinned()) {
      *refused =
          MakeError(absl::StatusCode::kFailedPrecondition, reason::kPinned,
                    absl::StrCat("the checkpoint of sequence ", sequence, " is pinned; unpin it first"));
      return Operations();
    }
    if (count) *refused = CheckCount(sequence, *count, ended.get(), found);
    if (!refused->ok()) return Operations();
    const std::vector<std::string> readers = ReadersOf(found[0]);
    if (readers.empty()) {
      Evicting decision;
      decision.set_replaced_by(replaced_by);
      decision.set_tag(victim.tag);
      decision.set_inode(victim.inode);
      decision.set_number(earlier.number() + 1);
      return Operations{Put(keys.Evicting(sequence), decision.SerializeAsString())};
    }
    *refused = MakeError(absl::StatusCode::kFailedPrecondition, reason::kBeingRead,
                         absl::StrCat("the checkpoint of sequence ", sequence, " is read on nodes ",
                                      absl::StrJoin(readers, ", ")));
    return Operations();
  };
  swap.purpose = absl::StrCat("removing a checkpoint of run ", options_.run);
  Finish(std::move(swap), refused, std::move(evicting));
}

void CheckpointReaders::Finish(CompareAndSwap swap, std::shared_ptr<absl::Status> refused, Done done) {
  SwapIn(etcd_, std::move(swap),
         callbacks_.Guard([refused, done = std::move(done)](const absl::Status& written) mutable {
           done(written.ok() ? *refused : written);
         }));
}

std::vector<std::string> ReadersOf(const std::vector<etcdserverpb::KeyValue>& found) {
  std::vector<std::string> nodes;
  for (const auto& [node, reads] : ByLastPart<NodeReads>(found)) {
    if (reads.reading()) nodes.push_back(node);
  }
  return nodes;
}

etcdserverpb::RequestOp PutEvicting(const LedgerKeys& keys, int64_t sequence, int64_t replaced_by) {
  Evicting evicting;
  evicting.set_replaced_by(replaced_by);
  return Put(keys.Evicting(sequence), evicting.SerializeAsString());
}

}  // namespace ckptd
