#include "daemon/etcd/etcd_requests.h"

namespace ckptd {

using etcdserverpb::Compare;
using etcdserverpb::RequestOp;

// The smallest key above all keys with the prefix: increments the last byte below 0xff, and drops the bytes
// after it. etcd reads the single byte 0 as "no end".
std::string PrefixEnd(std::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && end.back() == '\xff') end.pop_back();
  if (end.empty()) return std::string(1, '\0');
  end.back() = static_cast<char>(static_cast<unsigned char>(end.back()) + 1);
  return end;
}

Compare LastChangedAt(const std::string& key, int64_t mod_revision) {
  Compare compare;
  compare.set_key(key);
  compare.set_target(Compare::MOD);
  compare.set_mod_revision(mod_revision);
  return compare;
}

Compare UnchangedSince(const std::string& key, int64_t revision) {
  Compare compare = LastChangedAt(key, revision + 1);
  compare.set_result(Compare::LESS);
  return compare;
}

Compare CreatedAt(const std::string& key, int64_t create_revision) {
  Compare compare;
  compare.set_key(key);
  compare.set_target(Compare::CREATE);
  compare.set_create_revision(create_revision);
  return compare;
}

Compare NoneBelow(const std::string& prefix) {
  Compare compare = CreatedAt(prefix, 0);
  compare.set_range_end(PrefixEnd(prefix));
  return compare;
}

Compare HasValue(const std::string& key, const std::string& value) {
  Compare compare;
  compare.set_key(key);
  compare.set_target(Compare::VALUE);
  compare.set_value(value);
  return compare;
}

RequestOp Get(const std::string& key) {
  RequestOp operation;
  operation.mutable_request_range()->set_key(key);
  return operation;
}

RequestOp Put(const std::string& key, const std::string& value, int64_t lease) {
  RequestOp operation;
  operation.mutable_request_put()->set_key(key);
  operation.mutable_request_put()->set_value(value);
  operation.mutable_request_put()->set_lease(lease);
  return operation;
}

RequestOp Delete(const std::string& key) {
  RequestOp operation;
  operation.mutable_request_delete_range()->set_key(key);
  return operation;
}

RequestOp DeleteBelow(const std::string& prefix) {
  RequestOp operation = Delete(prefix);
  operation.mutable_request_delete_range()->set_range_end(PrefixEnd(prefix));
  return operation;
}

const etcdserverpb::KeyValue* Found(const etcdserverpb::TxnResponse& response, int place) {
  if (place >= response.responses_size()) return nullptr;
  const etcdserverpb::RangeResponse& range = response.responses(place).response_range();
  return range.kvs_size() == 0 ? nullptr : &range.kvs(0);
}

}  // namespace ckptd
