#include "daemon/etcd/etcd_listing.h"

#include <memory>
#include <utility>

#include "daemon/etcd/etcd_errors.h"
#include "daemon/etcd/etcd_requests.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

constexpr int kMaxRestarts = 4;

struct Lister : std::enable_shared_from_this<Lister> {
  Etcd* etcd = nullptr;
  std::string first, range_end, purpose;
  int64_t keys_per_page = 0;
  Etcd::Answer<EtcdListing> answer;
  EtcdListing found;
  int restarts = 1;

  void NextPage() {
    etcdserverpb::RangeRequest request;
    // The direct successor of a key is the key with a byte 0 appended.
    request.set_key(found.keys.empty() ? first : found.keys.back().key() + '\0');
    request.set_range_end(range_end);
    request.set_limit(keys_per_page);
    request.set_revision(found.revision);
    etcd->Range(request, purpose,
                [self = shared_from_this()](absl::StatusOr<etcdserverpb::RangeResponse> page) {
                  self->OnPage(std::move(page));
                });
  }

  void OnPage(absl::StatusOr<etcdserverpb::RangeResponse> page) {
    if (ReasonOf(page.status()) == ledger_reason::kCompacted && restarts++ < kMaxRestarts) {
      found = {};
      return NextPage();
    }
    if (!page.ok()) return answer(page.status());
    if (found.revision == 0) found.revision = page->header().revision();
    for (etcdserverpb::KeyValue& key : *page->mutable_kvs()) found.keys.push_back(std::move(key));
    if (page->more() && page->kvs_size() > 0) return NextPage();
    answer(std::move(found));
  }
};

}  // namespace

void ListPrefix(Etcd* etcd, const std::string& prefix, const std::string& purpose,
                Etcd::Answer<EtcdListing> answer, int64_t keys_per_page) {
  // etcd refuses an empty key.
  const std::string first = prefix.empty() ? std::string(1, '\0') : prefix;
  ListRange(etcd, first, PrefixEnd(prefix), purpose, std::move(answer), keys_per_page);
}

void ListRange(Etcd* etcd, const std::string& first, const std::string& range_end, const std::string& purpose,
               Etcd::Answer<EtcdListing> answer, int64_t keys_per_page) {
  auto lister = std::make_shared<Lister>();
  lister->etcd = etcd;
  lister->first = first;
  lister->range_end = range_end;
  lister->purpose = purpose;
  lister->keys_per_page = keys_per_page;
  lister->answer = std::move(answer);
  lister->NextPage();
}

}  // namespace ckptd
