// Reads all keys of a range, page by page.
#ifndef CKPTD_DAEMON_ETCD_ETCD_LISTING_H_
#define CKPTD_DAEMON_ETCD_ETCD_LISTING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/etcd/etcd.h"

namespace ckptd {

struct EtcdListing {
  std::vector<etcdserverpb::KeyValue> keys;  // Sorted.
  int64_t revision = 0;                      // Of the listing; a watch continues at the next one.
};

// All pages show the same revision. If etcd is compacted between two pages, the listing starts over, three
// times at most; then LEDGER_COMPACTED. If `etcd` is destroyed before the answer, it must drop it.
void ListPrefix(Etcd* etcd, const std::string& prefix, const std::string& purpose,
                Etcd::Answer<EtcdListing> answer, int64_t keys_per_page = 500);
// The keys from `first`, which is not empty, up to but without `range_end` (as in etcdserverpb.RangeRequest).
void ListRange(Etcd* etcd, const std::string& first, const std::string& range_end, const std::string& purpose,
               Etcd::Answer<EtcdListing> answer, int64_t keys_per_page = 500);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ETCD_ETCD_LISTING_H_
