// Tracks how long nodes have not been registered, as one coordinator sees it.
#ifndef CKPTD_DAEMON_CLUSTER_COORDINATOR_ABSENT_NODES_H_
#define CKPTD_DAEMON_CLUSTER_COORDINATOR_ABSENT_NODES_H_

#include <map>
#include <string>

#include "storage/base/clock.h"

namespace ckptd {

// A node that is absent for `grace` is overdue, until it is back.
class AbsentNodes {
 public:
  explicit AbsentNodes(Duration grace) : grace_(grace) {}

  // No-op if the node is already absent.
  void Absent(const std::string& node, Instant now) { nodes_.try_emplace(node, Absence{now}); }
  void Back(const std::string& node) { nodes_.erase(node); }
  // Returns whether a node has become overdue since the last call.
  bool Update(Instant now) {
    bool any = false;
    for (auto& [node, absence] : nodes_) {
      if (absence.overdue || now - absence.since < grace_) continue;
      absence.overdue = any = true;
    }
    return any;
  }
  bool IsOverdue(const std::string& node) const {
    const auto found = nodes_.find(node);
    return found != nodes_.end() && found->second.overdue;
  }

 private:
  struct Absence {
    Instant since;
    bool overdue = false;
  };
  const Duration grace_;
  std::map<std::string, Absence> nodes_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_CLUSTER_COORDINATOR_ABSENT_NODES_H_
