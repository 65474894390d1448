#include "tests/testing/etcd_model.h"

#include <algorithm>
#include <utility>

namespace ckptd {

using namespace etcdserverpb;

namespace {

constexpr int kMostOperations = 128;
constexpr int64_t kShortestTtl = 2;

bool Fits(Compare::CompareResult result, int order) {
  switch (result) {
    case Compare::EQUAL:
      return order == 0;
    case Compare::GREATER:
      return order > 0;
    case Compare::LESS:
      return order < 0;
    default:
      return order != 0;
  }
}

template <typename T>
int Order(const T& a, const T& b) {
  return a < b ? -1 : b < a ? 1 : 0;
}

int OrderOf(const KeyValue& key, const Compare& compare) {
  switch (compare.target()) {
    case Compare::VERSION:
      return Order(key.version(), compare.version());
    case Compare::CREATE:
      return Order(key.create_revision(), compare.create_revision());
    case Compare::MOD:
      return Order(key.mod_revision(), compare.mod_revision());
    case Compare::VALUE:
      return Order(key.value(), compare.value());
    default:
      return Order(key.lease(), compare.lease());
  }
}

}  // namespace

ResponseHeader EtcdModel::Header() const {
  ResponseHeader header;
  header.set_cluster_id(1);
  header.set_member_id(1);
  header.set_revision(revision_);
  return header;
}

bool EtcdModel::Contains(const std::string& key, const std::string& range_end, const std::string& candidate) {
  if (range_end.empty()) return candidate == key;
  return candidate >= key && (range_end == std::string(1, '\0') || candidate < range_end);
}

const KeyValue* EtcdModel::At(const std::string& key, int64_t revision) const {
  const Versions& versions = keys_.at(key);
  auto after = versions.upper_bound(revision);
  if (after == versions.begin()) return nullptr;
  const KeyValue& last = std::prev(after)->second;
  return last.version() == 0 ? nullptr : &last;
}

std::vector<const KeyValue*> EtcdModel::InRange(const std::string& key, const std::string& range_end,
                                                int64_t revision) const {
  std::vector<const KeyValue*> found;
  for (const auto& [name, versions] : keys_) {
    if (!Contains(key, range_end, name)) continue;
    if (const KeyValue* value = At(name, revision)) found.push_back(value);
  }
  return found;
}

absl::StatusOr<RangeResponse> EtcdModel::Range(const RangeRequest& request) const {
  if (request.revision() > revision_)
    return absl::OutOfRangeError("etcdserver: mvcc: required revision is a future revision");
  if (request.revision() != 0 && request.revision() < compacted_)
    return absl::OutOfRangeError("etcdserver: mvcc: required revision has been compacted");
  const auto found =
      InRange(request.key(), request.range_end(), request.revision() == 0 ? revision_ : request.revision());
  RangeResponse response;
  *response.mutable_header() = Header();
  response.set_count(static_cast<int64_t>(found.size()));
  for (const KeyValue* value : found) {
    if (request.count_only()) break;
    if (request.limit() > 0 && response.kvs_size() == request.limit()) {
      response.set_more(true);
      break;
    }
    *response.add_kvs() = *value;
    if (request.keys_only()) response.mutable_kvs(response.kvs_size() - 1)->clear_value();
  }
  return response;
}

// A key that does not exist has revisions, version and lease 0, and no value.
bool EtcdModel::Holds(const Compare& compare) const {
  const auto found = InRange(compare.key(), compare.range_end(), revision_);
  if (found.empty()) {
    return compare.target() != Compare::VALUE && Fits(compare.result(), OrderOf(KeyValue(), compare));
  }
  return std::all_of(found.begin(), found.end(),
                     [&](const KeyValue* key) { return Fits(compare.result(), OrderOf(*key, compare)); });
}

absl::Status EtcdModel::Check(const TxnRequest& request) const {
  if (request.compare_size() > kMostOperations || request.success_size() > kMostOperations ||
      request.failure_size() > kMostOperations) {
    return absl::InvalidArgumentError("etcdserver: too many operations in txn request");
  }
  for (const auto* operations : {&request.success(), &request.failure()}) {
    std::set<std::string> written;
    for (const RequestOp& operation : *operations) {
      if (operation.has_request_txn()) {
        if (absl::Status wrong = Check(operation.request_txn()); !wrong.ok()) return wrong;
        continue;
      }
      if (!operation.has_request_put()) continue;
      if (!written.insert(operation.request_put().key()).second)
        return absl::InvalidArgumentError("etcdserver: duplicate key given in txn request");
    }
  }
  return absl::OkStatus();
}

void EtcdModel::Put(const PutRequest& request, int64_t revision) {
  keys_[request.key()];
  const KeyValue* before = At(request.key(), revision);
  KeyValue value;
  value.set_key(request.key());
  value.set_value(request.value());
  value.set_lease(request.lease());
  value.set_create_revision(before == nullptr ? revision : before->create_revision());
  value.set_mod_revision(revision);
  value.set_version(before == nullptr ? 1 : before->version() + 1);
  keys_[request.key()][revision] = std::move(value);
}

int64_t EtcdModel::DeleteRange(const std::string& key, const std::string& range_end, int64_t revision) {
  const auto found = InRange(key, range_end, revision);
  for (const KeyValue* value : found) {
    KeyValue tombstone;
    tombstone.set_key(value->key());
    tombstone.set_mod_revision(revision);
    keys_[tombstone.key()][revision] = tombstone;
  }
  return static_cast<int64_t>(found.size());
}

void EtcdModel::ReplayTransactions() {
  for (const TxnRequest& request : std::exchange(transactions_, {})) Txn(request).IgnoreError();
}

absl::StatusOr<TxnResponse> EtcdModel::Txn(const TxnRequest& request) {
  transactions_.push_back(request);
  if (absl::Status wrong = Check(request); !wrong.ok()) return wrong;
  return Apply(request, revision_ + 1);
}

// All of it, with the transactions in it, has one revision. etcd compares everything before it writes
// anything, and looks for the leases of what it would write: write nothing before an inner transaction.
absl::StatusOr<TxnResponse> EtcdModel::Apply(const TxnRequest& request, int64_t next) {
  TxnResponse response;
  response.set_succeeded(std::all_of(request.compare().begin(), request.compare().end(),
                                     [this](const Compare& c) { return Holds(c); }));
  const auto& operations = response.succeeded() ? request.success() : request.failure();
  for (const RequestOp& operation : operations) {
    const int64_t lease = operation.has_request_put() ? operation.request_put().lease() : 0;
    if (lease != 0 && FindLease(lease) == nullptr)
      return absl::NotFoundError("etcdserver: requested lease not found");
  }
  for (const RequestOp& operation : operations) {
    ResponseOp& result = *response.add_responses();
    if (operation.has_request_put()) {
      Put(operation.request_put(), next);
      revision_ = next;
      result.mutable_response_put();
    } else if (operation.has_request_txn()) {
      absl::StatusOr<TxnResponse> inner = Apply(operation.request_txn(), next);
      if (!inner.ok()) return inner.status();
      *result.mutable_response_txn() = *std::move(inner);
    } else if (operation.has_request_delete_range()) {
      const auto& range = operation.request_delete_range();
      const int64_t deleted = DeleteRange(range.key(), range.range_end(), next);
      if (deleted > 0) revision_ = next;
      result.mutable_response_delete_range()->set_deleted(deleted);
    } else {
      absl::StatusOr<RangeResponse> range = Range(operation.request_range());
      if (!range.ok()) return range.status();
      *result.mutable_response_range() = *std::move(range);
    }
  }
  *response.mutable_header() = Header();
  return response;
}

const EtcdModel::Lease* EtcdModel::FindLease(int64_t id) const {
  const auto lease = leases_.find(id);
  return lease == leases_.end() || lease->second.ended_at != 0 ? nullptr : &lease->second;
}

std::map<int64_t, int64_t> EtcdModel::leases() const {
  std::map<int64_t, int64_t> living;
  for (const auto& [id, lease] : leases_) {
    if (lease.ended_at == 0) living[id] = lease.ttl_seconds;
  }
  return living;
}

void EtcdModel::TakeBack(int64_t revision) {
  for (auto& [key, versions] : keys_) versions.erase(versions.upper_bound(revision), versions.end());
  std::erase_if(leases_, [revision](const auto& lease) { return lease.second.granted_at > revision; });
  for (auto& [id, lease] : leases_) {
    if (lease.ended_at >= revision) lease.ended_at = 0;
  }
  transactions_.clear();
  revision_ = std::min(revision_, revision);
  compacted_ = std::min(compacted_, revision_);
}

LeaseGrantResponse EtcdModel::GrantLease(const LeaseGrantRequest& request) {
  LeaseGrantResponse response;
  *response.mutable_header() = Header();
  response.set_id(next_lease_++);
  response.set_ttl(std::max(request.ttl(), kShortestTtl));
  leases_[response.id()] = {response.ttl(), revision_, 0};
  return response;
}

LeaseKeepAliveResponse EtcdModel::KeepLeaseAlive(const LeaseKeepAliveRequest& request) const {
  LeaseKeepAliveResponse response;
  *response.mutable_header() = Header();
  response.set_id(request.id());
  const Lease* lease = FindLease(request.id());
  response.set_ttl(lease == nullptr ? 0 : lease->ttl_seconds);
  return response;
}

absl::StatusOr<LeaseRevokeResponse> EtcdModel::RevokeLease(const LeaseRevokeRequest& request) {
  if (FindLease(request.id()) == nullptr) return absl::NotFoundError("etcdserver: requested lease not found");
  leases_.at(request.id()).ended_at = revision_;
  const int64_t next = revision_ + 1;
  for (const KeyValue* value : InRange(std::string(1, '\0'), std::string(1, '\0'), revision_)) {
    if (value->lease() == request.id())
      revision_ = DeleteRange(value->key(), "", next) > 0 ? next : revision_;
  }
  LeaseRevokeResponse response;
  *response.mutable_header() = Header();
  return response;
}

std::vector<Event> EtcdModel::Events(const std::string& key, const std::string& range_end,
                                     int64_t from) const {
  std::vector<Event> events;
  for (const auto& [name, versions] : keys_) {
    if (!Contains(key, range_end, name)) continue;
    for (auto version = versions.lower_bound(from); version != versions.end(); ++version) {
      Event event;
      event.set_type(version->second.version() == 0 ? Event::DELETE : Event::PUT);
      *event.mutable_kv() = version->second;
      events.push_back(std::move(event));
    }
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.kv().mod_revision() < b.kv().mod_revision();
  });
  return events;
}

}  // namespace ckptd
