#include "daemon/cluster/node/upload_keys.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/state/found_messages.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

using ledger::v1::LastSequence;
using ledger::v1::UploadsOfLaunch;
using storage::v1::UploadRecord;
using Operations = std::vector<etcdserverpb::RequestOp>;

}  // namespace

UploadKeys::UploadKeys(Etcd* etcd, Clock* clock, Options options,
                       std::function<void(const absl::Status& why)> ended)
    : etcd_(etcd),
      clock_(clock),
      options_(std::move(options)),
      keys_(options_.prefix),
      ended_(std::move(ended)),
      calls_(clock, absl::StrCat("run ", options_.run), options_.why_unregistered) {}

void UploadKeys::SetNode(const NodeIdentity* node) {
  calls_.SetRegistered(false);
  mirror_ = nullptr;
  node_.reset();
  leadership_.reset();
  if (node == nullptr) return;
  node_ = *node;
  mirror_ = std::make_unique<EtcdMirror>(
      etcd_, keys_.Uploads(), absl::StrCat("following the uploads of run ", options_.run),
      [this](const std::vector<std::string>& changed) { OnKeys(changed); }, ended_);
  mirror_->Start();
  calls_.SetRegistered(true);
}

void UploadKeys::SetLeadership(const CompareAndSwap::Held* leadership) {
  leadership_.reset();
  if (leadership != nullptr) leadership_ = *leadership;
}

absl::Status UploadKeys::Take(const std::string& key, const std::string& value, Known* known) const {
  UploadsOfLaunch policy;
  ledger::v1::RunUploads record;
  if (key == keys_.UploadPolicy() && policy.ParseFromString(value)) {
    known->policy = std::move(policy);
  } else if (key == keys_.UploadRecord() && record.ParseFromString(value)) {
    known->record = std::move(record);
  } else if (key == keys_.UploadPolicy() || key == keys_.UploadRecord()) {
    return MakeError(
        absl::StatusCode::kDataLoss, "CORRUPT_KEY",
        absl::StrCat("etcd's key ", key, " is not what ckptd has written, so nothing of ", options_.run,
                     " is uploaded: restore etcd from a backup, or delete the key and start the job anew "
                     "(then what has waited is not uploaded, and what is in the bucket may stay there)"),
        {{"key", key}});
  }
  return absl::OkStatus();
}

// What cannot be read stays as it was shown before: the coordinator says why (Read).
void UploadKeys::OnKeys(const std::vector<std::string>&) {
  ++version_;
  const Known before = std::exchange(shown_, Known());
  if (const std::string* value = mirror_->Find(keys_.UploadPolicy())) {
    shown_.policy = before.policy;
    Take(keys_.UploadPolicy(), *value, &shown_).IgnoreError();
  }
  if (const std::string* value = mirror_->Find(keys_.UploadRecord())) {
    shown_.record = before.record;
    Take(keys_.UploadRecord(), *value, &shown_).IgnoreError();
  }
}

void UploadKeys::SetPolicy(int64_t attempt, const UploadRecord& policy, Done set) {
  // Most runs upload nothing, and need not ask. A launch that has set a policy just now is another one.
  if (policy.url().empty() && version_ > 0 && shown_.policy.attempt() == 0) return set(absl::OkStatus());
  calls_.Ask<absl::Status>(
      "to say what is uploaded of", clock_->Now() + options_.patience,
      [this, attempt, policy](LedgerCalls::Answer<absl::Status> done) {
        CompareAndSwap swap;
        swap.ranges = {{keys_.UploadPolicy()}};
        swap.held = {node_->Held()};
        swap.decide = [key = keys_.UploadPolicy(), attempt, policy](const CompareAndSwap::Found& found) {
          const auto known = FirstOf<UploadsOfLaunch>(found[0]);
          if (known.attempt() > attempt) return Operations();
          UploadsOfLaunch wanted;
          wanted.set_attempt(attempt);
          *wanted.mutable_policy() = policy;
          const std::string value = wanted.SerializeAsString();
          if (!found[0].empty() && found[0][0].value() == value) return Operations();
          return Operations{Put(key, value)};
        };
        swap.purpose = absl::StrCat("saying what is uploaded of run ", options_.run);
        SwapIn(etcd_, std::move(swap), std::move(done));
      },
      std::move(set));
}

void UploadKeys::Read(absl::AnyInvocable<void(absl::StatusOr<Known>)> read) {
  etcdserverpb::RangeRequest request;
  request.set_key(keys_.Uploads());
  request.set_range_end(PrefixEnd(keys_.Uploads()));
  etcd_->Range(request, absl::StrCat("reading the uploads of run ", options_.run),
               callbacks_.Guard([this, read = std::move(read)](
                                    const absl::StatusOr<etcdserverpb::RangeResponse>& found) mutable {
                 if (!found.ok()) return read(found.status());
                 Known known;
                 for (const etcdserverpb::KeyValue& pair : found->kvs()) {
                   if (absl::Status taken = Take(pair.key(), pair.value(), &known); !taken.ok())
                     return read(std::move(taken));
                 }
                 read(std::move(known));
               }));
}

// Only the coordinator writes the record, so what this node finds there while it coordinates is what it has written.
void UploadKeys::Write(const ledger::v1::RunUploads& record, int64_t sequences_above, Done written) {
  CompareAndSwap swap;
  swap.ranges = {{keys_.UploadRecord()}};
  if (sequences_above > 0) swap.ranges.push_back({keys_.Sequence()});
  swap.held = {*leadership_};
  swap.decide = [keys = keys_, value = record.SerializeAsString(),
                 sequences_above](const CompareAndSwap::Found& found) {
    Operations operations;
    if (found[0].empty() || found[0][0].value() != value)
      operations.push_back(Put(keys.UploadRecord(), value));
    if (sequences_above <= 0) return operations;
    auto last = FirstOf<LastSequence>(found[1]);
    if (last.sequence() >= sequences_above) return operations;
    last.set_sequence(sequences_above);
    operations.push_back(Put(keys.Sequence(), last.SerializeAsString()));
    return operations;
  };
  swap.purpose = absl::StrCat("writing the uploads of run ", options_.run);
  SwapIn(etcd_, std::move(swap), callbacks_.Guard(std::move(written)));
}

}  // namespace ckptd
