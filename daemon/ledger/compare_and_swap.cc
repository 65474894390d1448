#include "daemon/ledger/compare_and_swap.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_errors.h"
#include "daemon/etcd/etcd_requests.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

using etcdserverpb::RequestOp;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

// In each round somebody else has succeeded, so this many is a sign of a mistake.
constexpr int kMostRounds = 1000;

class Swapper : public std::enable_shared_from_this<Swapper> {
 public:
  Swapper(Etcd* etcd, CompareAndSwap swap, absl::AnyInvocable<void(absl::Status)> done)
      : etcd_(etcd), swap_(std::move(swap)), done_(std::move(done)) {}

  void Read() {
    TxnRequest request;
    for (const CompareAndSwap::Range& range : swap_.ranges) *request.add_success() = GetRange(range);
    etcd_->Txn(request, swap_.purpose, [self = shared_from_this()](const absl::StatusOr<TxnResponse>& read) {
      if (!read.ok()) return self->done_(read.status());
      self->Decide(*read, read->responses());
    });
  }

 private:
  using Responses = google::protobuf::RepeatedPtrField<etcdserverpb::ResponseOp>;

  static RequestOp GetRange(const CompareAndSwap::Range& range) {
    RequestOp operation = Get(range.key);
    if (range.is_prefix) operation.mutable_request_range()->set_range_end(PrefixEnd(range.key));
    return operation;
  }

  void Decide(const TxnResponse& read, const Responses& responses) {
    CompareAndSwap::Found found;
    for (const etcdserverpb::ResponseOp& response : responses) {
      const auto& kvs = response.response_range().kvs();
      found.emplace_back(kvs.begin(), kvs.end());
    }
    const std::vector<RequestOp> operations = swap_.decide(found);
    if (operations.empty()) return done_(absl::OkStatus());
    if (++rounds_ > kMostRounds) {
      return done_(MakeError(
          absl::StatusCode::kUnavailable, ledger_reason::kUnavailable,
          absl::StrCat("others have changed the same keys ", kMostRounds, " times while ", swap_.purpose)));
    }
    Write(operations, read.header().revision());
  }

  // A copy of this that arrives late finds a newer change, if only its own, and does nothing.
  void Write(const std::vector<RequestOp>& operations, int64_t revision) {
    TxnRequest request;
    for (const CompareAndSwap::Range& range : swap_.ranges) {
      *request.add_compare() =
          range.is_prefix ? PrefixUnchangedSince(range.key, revision) : UnchangedSince(range.key, revision);
      *request.add_failure() = GetRange(range);
    }
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

void Run(Etcd* etcd, CompareAndSwap swap, absl::AnyInvocable<void(absl::Status)> done) {
  std::make_shared<Swapper>(etcd, std::move(swap), std::move(done))->Read();
}

}  // namespace ckptd
