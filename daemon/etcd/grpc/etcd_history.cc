#include "daemon/etcd/grpc/etcd_history.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/etcd/etcd_errors.h"

namespace ckptd {

void EtcdHistory::Observe(int64_t revision) { highest_ = std::max(highest_, revision); }

absl::Status EtcdHistory::Check(const etcdserverpb::ResponseHeader& header, int64_t at_least) {
  if (cluster_id_ == 0) cluster_id_ = header.cluster_id();
  if (header.cluster_id() != 0 && header.cluster_id() != cluster_id_) {
    SetLost(EtcdRestored(absl::StrCat("its cluster id was ", absl::Hex(cluster_id_), ", and is ",
                                      absl::Hex(header.cluster_id()))));
  } else if (header.revision() < at_least) {
    SetLost(EtcdRestored(absl::StrCat("it was at revision ", at_least, ", and is at ", header.revision())));
  }
  Observe(header.revision());
  return lost_;
}

}  // namespace ckptd
