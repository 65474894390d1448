#include "daemon/ledger/keys/compare_and_swap.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/etcd/etcd_requests.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

using etcdserverpb::Compare;
using etcdserverpb::RequestOp;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

// In each round another writer has succeeded, so this many rounds are a sign of a bug.
constexpr int kMostRounds = 1000;

// The range_end for etcd; empty for a single key.
std::string EndOf(const CompareAndSwap::Range& range) {
  return range.is_prefix ? PrefixEnd(range.key) : range.end;
}

// That nothing was written in the range since the revision at which `found` was read, and that a single key was
// not deleted: a late copy of a request must not bring it back.
Compare Unchanged(const CompareAndSwap::Range& range, const std::vector<etcdserverpb::KeyValue>& found,
                  int64_t revision) {
  if (!found.empty() && EndOf(range).empty()) return LastChangedAt(range.key, found[0].mod_revision());
  Compare compare = UnchangedSince(range.key, revision);
  compare.set_range_end(EndOf(range));
  return compare;
}

class Swapper : public std::enable_shared_from_this<Swapper> {
 public:
  Swapper(Etcd* etcd, CompareAndSwap swap, absl::AnyInvocable<void(absl::Status)> done)
      : etcd_(etcd), swap_(std::move(swap)), done_(std::move(done)) {}

  void Start() {
    if (!swap_.guess) return Read();
    const std::vector<RequestOp> operations = swap_.decide(*swap_.guess);
    if (operations.empty()) return Read();
    std::vector<Compare> unchanged;
    for (size_t i = 0; i < swap_.ranges.size(); ++i)
      unchanged.push_back(UnchangedFrom(swap_.ranges[i], (*swap_.guess)[i]));
    Write(operations, unchanged);
  }

 private:
  using Responses = google::protobuf::RepeatedPtrField<etcdserverpb::ResponseOp>;

  void Read() {
    TxnRequest request;
    for (const RequestOp& operation : Reads()) *request.add_success() = operation;
    etcd_->Txn(request, swap_.purpose, [self = shared_from_this()](const absl::StatusOr<TxnResponse>& read) {
      if (!read.ok()) return self->done_(read.status());
      self->Decide(*read, read->responses());
    });
  }

  static RequestOp GetRange(const CompareAndSwap::Range& range) {
    RequestOp operation = Get(range.key);
    operation.mutable_request_range()->set_range_end(EndOf(range));
    return operation;
  }

  // Reads the ranges, and then the held keys.
  std::vector<RequestOp> Reads() const {
    std::vector<RequestOp> reads;
    for (const CompareAndSwap::Range& range : swap_.ranges) reads.push_back(GetRange(range));
    for (const CompareAndSwap::Held& held : swap_.held) reads.push_back(Get(held.key));
    return reads;
  }

  static bool Holds(const CompareAndSwap::Held& held, const etcdserverpb::KeyValue& key) {
    const bool same_key = held.create_revision == 0 || held.create_revision == key.create_revision();
    return same_key && held.value == key.value();
  }

  // Returns `lost` of a key that is no longer held. Removes the held keys from `found`.
  absl::Status CheckHeld(CompareAndSwap::Found* found) const {
    for (size_t i = 0; i < swap_.held.size(); ++i) {
      const auto& holder = (*found)[swap_.ranges.size() + i];
      if (holder.empty() || !Holds(swap_.held[i], holder[0])) return swap_.held[i].lost;
    }
    found->resize(swap_.ranges.size());
    return absl::OkStatus();
  }

  void Decide(const TxnResponse& read, const Responses& responses) {
    CompareAndSwap::Found found;
    for (const etcdserverpb::ResponseOp& response : responses) {
      const auto& kvs = response.response_range().kvs();
      found.emplace_back(kvs.begin(), kvs.end());
    }
    if (const absl::Status lost = CheckHeld(&found); !lost.ok()) return done_(lost);
    const std::vector<RequestOp> operations = swap_.decide(found);
    if (operations.empty()) return done_(absl::OkStatus());
    if (++rounds_ > kMostRounds) {
      return done_(MakeError(
          absl::StatusCode::kUnavailable, ledger_reason::kUnavailable,
          absl::StrCat("others have changed the same keys ", kMostRounds, " times while ", swap_.purpose)));
    }
    std::vector<Compare> unchanged;
    for (size_t i = 0; i < swap_.ranges.size(); ++i)
      unchanged.push_back(Unchanged(swap_.ranges[i], found[i], read.header().revision()));
    Write(operations, unchanged);
  }

  // A late copy of this request finds a newer change, at least that of the first copy, and writes nothing.
  void Write(const std::vector<RequestOp>& operations, const std::vector<Compare>& unchanged) {
    TxnRequest request;
    for (const Compare& compare : unchanged) *request.add_compare() = compare;
    for (const CompareAndSwap::Held& held : swap_.held) {
      *request.add_compare() = HasValue(held.key, held.value);
      if (held.create_revision != 0) *request.add_compare() = CreatedAt(held.key, held.create_revision);
    }
    for (const RequestOp& operation : Reads()) *request.add_failure() = operation;
    for (const RequestOp& operation : operations) *request.add_success() = operation;
    etcd_->Txn(request, swap_.purpose,
               [self = shared_from_this()](const absl::StatusOr<TxnResponse>& answer) {
                 if (!answer.ok()) return self->done_(answer.status());
                 if (answer->succeeded()) return self->done_(absl::OkStatus());
                 self->Decide(*answer, answer->responses());
               });
  }

  Etcd* const etcd_;
  const CompareAndSwap swap_;
  absl::AnyInvocable<void(absl::Status)> done_;
  int rounds_ = 0;
};

}  // namespace

Compare UnchangedFrom(const CompareAndSwap::Range& range, const std::vector<etcdserverpb::KeyValue>& keys) {
  int64_t last = 0;
  for (const etcdserverpb::KeyValue& key : keys) last = std::max(last, key.mod_revision());
  if (!keys.empty() && last == 0) return HasValue(range.key, keys[0].value());
  return Unchanged(range, keys, last);
}

void SwapIn(Etcd* etcd, CompareAndSwap swap, absl::AnyInvocable<void(absl::Status)> done) {
  std::make_shared<Swapper>(etcd, std::move(swap), std::move(done))->Start();
}

}  // namespace ckptd
