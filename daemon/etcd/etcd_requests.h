// Parts of requests to etcd.
#ifndef CKPTD_DAEMON_ETCD_ETCD_REQUESTS_H_
#define CKPTD_DAEMON_ETCD_ETCD_REQUESTS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "etcd/messages.pb.h"

namespace ckptd {

// The range_end of all keys that begin with `prefix`. Empty `prefix`: of all keys.
std::string PrefixEnd(std::string_view prefix);

// ---- comparisons

// The key exists, and was changed last at this revision. 0: it does not exist.
etcdserverpb::Compare LastChangedAt(const std::string& key, int64_t mod_revision);
inline etcdserverpb::Compare Absent(const std::string& key) { return LastChangedAt(key, 0); }
// The key has not been written since this revision, or does not exist. Does not detect a deletion.
etcdserverpb::Compare UnchangedSince(const std::string& key, int64_t revision);
// The key exists, and was created at this revision: it has existed since.
etcdserverpb::Compare CreatedAt(const std::string& key, int64_t create_revision);
// No key begins with `prefix`.
etcdserverpb::Compare NoneBelow(const std::string& prefix);
// The key exists and has this value.
etcdserverpb::Compare HasValue(const std::string& key, const std::string& value);

// ---- operations

etcdserverpb::RequestOp Get(const std::string& key);
// `lease` 0: the key stays until it is deleted.
etcdserverpb::RequestOp Put(const std::string& key, const std::string& value, int64_t lease = 0);
etcdserverpb::RequestOp Delete(const std::string& key);
// Deletes all keys that begin with `prefix`.
etcdserverpb::RequestOp DeleteBelow(const std::string& prefix);

// ---- answers

// The result of the Get at this index of a transaction's operations; null: the key does not exist.
const etcdserverpb::KeyValue* Found(const etcdserverpb::TxnResponse& response, int place);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ETCD_ETCD_REQUESTS_H_
