#include "daemon/ledger/nodes/node_summaries.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

constexpr size_t kLongestDrain = 200;
constexpr int64_t kMostNodes = 10000;

void SetTime(int64_t unix_us, google::protobuf::Timestamp* time) {
  time->set_seconds(unix_us / 1'000'000);
  time->set_nanos(static_cast<int32_t>(unix_us % 1'000'000 * 1000));
}

}  // namespace

v1::NodeSummary SummaryOf(const v1::Status& status) {
  v1::NodeSummary summary;
  summary.set_state(status.state());
  summary.set_pool_total_bytes(status.pool().total_bytes());
  summary.set_pool_used_bytes(status.pool().used_bytes());
  summary.set_sessions(status.sessions());
  summary.set_runs(status.runs_size());
  for (const v1::Run& run : status.runs()) {
    summary.set_damaged_checkpoints(summary.damaged_checkpoints() + run.damaged_size());
    if (run.degraded() || run.read_only()) summary.set_roots_in_trouble(summary.roots_in_trouble() + 1);
    summary.set_saves_in_flight(summary.saves_in_flight() + run.in_flight_size());
    for (const v1::Checkpoint& save : run.in_flight()) {
      google::protobuf::Timestamp& oldest = *summary.mutable_oldest_save_time();
      const auto key = [](const auto& time) { return std::pair(time.seconds(), time.nanos()); };
      if (oldest.seconds() == 0 || key(save.create_time()) < key(oldest)) oldest = save.create_time();
    }
  }
  if (status.has_drain()) {
    summary.set_drain(
        FirstBytes(absl::StrCat("by uid ", status.drain().uid(), status.drain().message().empty() ? "" : ": ",
                                status.drain().message()),
                   kLongestDrain));
  }
  return summary;
}

NodeSummaries::NodeSummaries(Etcd* etcd, Clock* clock, std::string prefix)
    : etcd_(etcd), clock_(clock), prefix_(absl::StrCat(std::move(prefix), "summaries/")) {}

void NodeSummaries::OnTick(const NodeIdentity* node, const Status& status) {
  if (node == nullptr || writing_ || clock_->Now() < next_) return;
  if (std::exchange(registration_, node->value) != node->value) written_.clear();
  v1::NodeSummary summary = SummaryOf(status());
  const std::string now = summary.SerializeAsString();
  next_ = clock_->Now() + kShortestPause / 10;  // To look again, while nothing changes.
  if (now == written_) return;
  next_ = clock_->Now() + kShortestPause;
  SetTime(clock_->UnixMicros(), summary.mutable_time());
  CompareAndSwap swap;
  swap.ranges = {{prefix_ + node->name}};
  swap.held = {node->Held()};
  swap.decide = [key = prefix_ + node->name, value = summary.SerializeAsString(), lease = node->lease](
                    const CompareAndSwap::Found& found) -> std::vector<etcdserverpb::RequestOp> {
    if (!found[0].empty() && found[0].front().value() == value) return {};
    return {Put(key, value, lease)};
  };
  swap.purpose = "writing how this node is";
  writing_ = true;
  SwapIn(etcd_, std::move(swap), callbacks_.Guard([this, now](const absl::Status& written) {
    writing_ = false;
    if (written.ok()) written_ = now;
  }));
}

void NodeSummaries::Read(absl::AnyInvocable<void(absl::StatusOr<ByNode>)> done) {
  etcdserverpb::RangeRequest request;
  request.set_key(prefix_);
  request.set_range_end(PrefixEnd(prefix_));
  request.set_limit(kMostNodes);
  etcd_->Range(request, "reading how the nodes are",
               callbacks_.Guard([this, done = std::move(done)](
                                    const absl::StatusOr<etcdserverpb::RangeResponse>& found) mutable {
                 if (!found.ok()) return done(found.status());
                 ByNode nodes;
                 for (const etcdserverpb::KeyValue& pair : found->kvs())
                   nodes[pair.key().substr(prefix_.size())].ParseFromString(pair.value());
                 done(std::move(nodes));
               }));
}

}  // namespace ckptd
