#include "daemon/ledger/checkpoint_readers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/checkpoint_damage.h"
#include "daemon/ledger/found_messages.h"
#include "daemon/ledger/ledger_reasons.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {

using ledger::v1::NodeReads;
using Operations = std::vector<etcdserverpb::RequestOp>;

CheckpointReaders::CheckpointReaders(Etcd* etcd, Options options)
    : etcd_(etcd), options_(std::move(options)), keys_(options_.prefix) {}

void CheckpointReaders::Begin(int64_t sequence, Done begun) {
  Set(sequence, true, "beginning to read a checkpoint", std::move(begun));
}

void CheckpointReaders::End(int64_t sequence, Done ended) {
  Set(sequence, false, "ending to read a checkpoint", std::move(ended));
}

// The key stays: were it deleted, a late copy of the request that wrote it would bring the reader back.
void CheckpointReaders::Set(int64_t sequence, bool reading, const std::string& what, Done done) {
  auto refused = std::make_shared<absl::Status>();
  CompareAndSwap swap;
  const std::string key = keys_.Readers(sequence) + options_.node.name;
  swap.ranges = {{key}, {keys_.Evicting(sequence)}};
  swap.held = {options_.node.Held()};
  swap.decide = [=, lease = options_.node.lease](const CompareAndSwap::Found& found) {
    *refused = absl::OkStatus();
    if (FirstOf<NodeReads>(found[0]).reading() == reading) return Operations();
    if (reading && !found[1].empty()) {
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

void CheckpointReaders::Evict(int64_t sequence, const std::set<int64_t>& damaged,
                              const CompareAndSwap::Held& office, Done evicting) {
  Remove(sequence, 0, damaged, office, std::move(evicting));
}

void CheckpointReaders::Replace(int64_t sequence, int64_t replaced_by, const CompareAndSwap::Held& office,
                                Done evicting) {
  Remove(sequence, replaced_by, std::nullopt, office, std::move(evicting));
}

void CheckpointReaders::Remove(int64_t sequence, int64_t replaced_by,
                               const std::optional<std::set<int64_t>>& damaged,
                               const CompareAndSwap::Held& office, Done evicting) {
  auto refused = std::make_shared<absl::Status>();
  CompareAndSwap swap;
  swap.ranges = {{keys_.Readers(sequence), true}, {keys_.Evicting(sequence)}, {keys_.Damages(), true}};
  swap.held = {office};
  swap.decide = [=, keys = keys_](const CompareAndSwap::Found& found) {
    *refused = absl::OkStatus();
    if (!found[1].empty()) return Operations();
    if (damaged && *damaged != DamagedOf(found[2])) {
      *refused = MakeError(absl::StatusCode::kFailedPrecondition, ledger_reason::kDamageFound,
                           absl::StrCat("a node has found damage, or an operator has cleared some, since it "
                                        "was decided to remove the checkpoint of sequence ",
                                        sequence));
      return Operations();
    }
    const std::vector<std::string> readers = ReadersOf(found[0]);
    if (readers.empty()) return Operations{PutEvicting(keys, sequence, replaced_by)};
    *refused = MakeError(absl::StatusCode::kFailedPrecondition, ledger_reason::kBeingRead,
                         absl::StrCat("the checkpoint of sequence ", sequence, " is read on nodes ",
                                      absl::StrJoin(readers, ", ")));
    return Operations();
  };
  swap.purpose = absl::StrCat("removing a checkpoint of run ", options_.run);
  Finish(std::move(swap), refused, std::move(evicting));
}

void CheckpointReaders::Finish(CompareAndSwap swap, std::shared_ptr<absl::Status> refused, Done done) {
  SwapIn(etcd_, std::move(swap),
         [refused, alive = std::weak_ptr<bool>(alive_),
          done = std::move(done)](const absl::Status& written) mutable {
           if (alive.expired()) return;
           done(written.ok() ? *refused : written);
         });
}

std::vector<std::string> ReadersOf(const std::vector<etcdserverpb::KeyValue>& found) {
  std::vector<std::string> nodes;
  for (const auto& [node, reads] : ByLastPart<NodeReads>(found)) {
    if (reads.reading()) nodes.push_back(node);
  }
  return nodes;
}

etcdserverpb::RequestOp PutEvicting(const LedgerKeys& keys, int64_t sequence, int64_t replaced_by) {
  ledger::v1::Evicting evicting;
  evicting.set_replaced_by(replaced_by);
  return Put(keys.Evicting(sequence), evicting.SerializeAsString());
}

}  // namespace ckptd
