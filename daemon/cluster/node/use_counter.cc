#include "daemon/cluster/node/use_counter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_requests.h"

namespace ckptd {
namespace {

constexpr Duration kShortestPause = std::chrono::seconds(30);
constexpr int kPausePerCount = 100;  // The pause is at least this many times as long as the count took.
constexpr int64_t kKeysPerPage = 500;

}  // namespace

UseCounter::UseCounter(Etcd* etcd, Clock* clock, Options options)
    : etcd_(etcd), clock_(clock), options_(std::move(options)) {}

void UseCounter::OnTick() {
  if (counting_ || clock_->Now() < next_) return;
  counting_ = true;
  begun_ = clock_->Now();
  counted_.Clear();
  counted_.set_path(options_.path);
  ReadPage(options_.prefix);
}

// The pages may show different revisions: the count need not be exact.
void UseCounter::ReadPage(const std::string& from) {
  etcdserverpb::RangeRequest request;
  request.set_key(from);
  request.set_range_end(PrefixEnd(options_.prefix));
  request.set_limit(kKeysPerPage);
  etcd_->Range(
      request, absl::StrCat("counting the keys of run ", options_.path),
      callbacks_.Guard([this](const absl::StatusOr<etcdserverpb::RangeResponse>& page) { OnPage(page); }));
}

void UseCounter::OnPage(const absl::StatusOr<etcdserverpb::RangeResponse>& page) {
  if (!page.ok()) return Ended();
  for (const etcdserverpb::KeyValue& pair : page->kvs()) {
    counted_.set_keys(counted_.keys() + 1);
    counted_.set_bytes(counted_.bytes() + static_cast<int64_t>(pair.key().size() + pair.value().size()));
  }
  if (!page->more() || page->kvs().empty()) return Write();
  ReadPage(page->kvs(page->kvs_size() - 1).key() + std::string(1, '\0'));
}

void UseCounter::Write() {
  CompareAndSwap swap;
  swap.ranges = {{options_.key}};
  swap.held = {options_.leadership};
  swap.decide = [key = options_.key, value = counted_.SerializeAsString()](
                    const CompareAndSwap::Found& found) -> std::vector<etcdserverpb::RequestOp> {
    if (!found[0].empty() && found[0][0].value() == value) return {};
    return {Put(key, value)};
  };
  swap.purpose = absl::StrCat("writing how many keys run ", options_.path, " has");
  SwapIn(etcd_, std::move(swap), callbacks_.Guard([this](const absl::Status&) { Ended(); }));
}

void UseCounter::Ended() {
  counting_ = false;
  const Instant now = clock_->Now();
  next_ = now + std::max<Duration>(kShortestPause, kPausePerCount * (now - begun_));
}

}  // namespace ckptd
