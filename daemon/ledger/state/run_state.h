// Turns the keys of a run in etcd into the record from which LocalLedger decides, and back.
#ifndef CKPTD_DAEMON_LEDGER_STATE_RUN_STATE_H_
#define CKPTD_DAEMON_LEDGER_STATE_RUN_STATE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ckptd/ledger/v1/ledger.pb.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/keys/keys.h"
#include "storage/ledger/local_ledger.h"

namespace ckptd {

// Has only the keys that were read: a decision names the ranges that it needs.
class RunState {
 public:
  using Living = std::map<std::string, ledger::v1::LivingProcesses::Process>;  // By instance.

  RunState(LedgerKeys keys, std::string node, const CompareAndSwap::Found& found);

  // Has no process for a rank whose block was not read, until NameProcesses adds one.
  const storage::v1::RunRecord& record() const { return record_; }
  // Adds processes for the ranks that were read from LedgerKeys::NodeRanks alone, which has none: the live
  // process of this attempt and rank, or else one that has ended. `here`: this node's live processes.
  void NameProcesses(const Living& here);
  // The node of a rank whose block was read; empty: no node has this rank of the attempt.
  std::string NodeOf(int64_t attempt, int rank) const;
  // The nodes that have ranks of the attempt, among those whose ranks were read.
  std::vector<std::string> NodesOf(int64_t attempt) const;
  // The processes of other nodes whose session is open.
  const Living& living_elsewhere() const { return living_elsewhere_; }
  int64_t active() const { return active_; }
  // The newest attempt that has saved a checkpoint of the root, the value of LedgerKeys::AttemptInRoot.
  int64_t in_root() const { return in_root_; }
  // Valid if the damage marks were read.
  bool IsDamaged(int64_t sequence) const { return damaged_.contains(sequence); }

  // What to write so that etcd holds `decided`, which was made from record(). Processes that are new in it
  // must be of this node, and for each attempt that gets some, this node's ranks and their blocks must have
  // been read.
  std::vector<etcdserverpb::RequestOp> Changes(const storage::v1::RunRecord& decided) const;
  // What to write so that `living` are this node's live processes in etcd; `rewrite`: even if they are
  // already.
  std::vector<etcdserverpb::RequestOp> LivingChanges(const Living& living, int64_t lease, bool rewrite) const;

 private:
  void Read(const etcdserverpb::KeyValue& pair);
  void ReadOfAttempt(const std::string& key, const std::string& value);
  void ReadBlock(int64_t attempt, const std::string& key, const std::string& value);
  storage::v1::Launch& LaunchOf(int64_t attempt);
  void AddChanges(const storage::v1::Launch& before, const storage::v1::Launch& after,
                  std::vector<etcdserverpb::RequestOp>* changes) const;

  const LedgerKeys keys_;
  const std::string node_;
  storage::v1::RunRecord record_;
  std::map<int64_t, ledger::v1::NodeRanks> ranks_here_;                         // By attempt.
  std::map<std::string, ledger::v1::BlockRanks> blocks_here_;                   // By key.
  std::map<std::pair<int64_t, int>, std::string> node_of_;                      // By attempt and rank.
  std::map<std::pair<int64_t, std::string>, std::vector<int>> ranks_of_nodes_;  // By attempt and node.
  Living living_here_, living_elsewhere_;
  std::set<int64_t> damaged_;  // Sequences.
  int64_t active_ = 0, in_root_ = 0;
};

// This ledger decides in memory, and answers at once. The caller writes its decisions to etcd.
LocalLedger LedgerFrom(const RunState& state);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_STATE_RUN_STATE_H_
