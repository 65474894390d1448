#include "daemon/cluster/node/nodes_resume.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ckptd/ledger/v1/ledger.pb.h"
#include "daemon/etcd/etcd_requests.h"
#include "daemon/ledger/keys/compare_and_swap.h"
#include "daemon/ledger/save/save_end.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {

using ledger::v1::NodeResumed;

namespace {

// The damage is marked for all nodes, so their ranks resume from the next older checkpoint, as the ranks that
// have found it do.
absl::Status FailureOf(const std::string& node, const ledger::v1::SaveEnd& failure) {
  if (failure.reason() == reason::kCheckpointDamaged) {
    return MakeError(absl::StatusCode::kDataLoss, reason::kCheckpointDamaged,
                     absl::StrCat("on node ", node, ": ", failure.message()), {{"node", node}});
  }
  return MakeError(absl::StatusCode::kAborted, reason::kResumeFailed,
                   absl::StrCat("a rank on node ", node, " cannot go on: ", failure.message()),
                   {{"node", node}});
}

}  // namespace

NodesResume::NodesResume(Etcd* etcd, Clock* clock, Ledger* ledger, Options options)
    : etcd_(etcd),
      clock_(clock),
      ledger_(ledger),
      options_(std::move(options)),
      keys_(options_.prefix),
      calls_(clock, absl::StrCat("run ", options_.run), options_.why_unregistered) {}

void NodesResume::SetNode(const NodeIdentity* node) {
  calls_.SetRegistered(false);
  node_ = node == nullptr ? nullptr : std::make_unique<NodeIdentity>(*node);
  if (node != nullptr) name_ = node->name;
  calls_.SetRegistered(node_ != nullptr);
}

void NodesResume::OnTick() {
  calls_.OnTick();
  std::vector<int64_t> over;
  for (auto& [attempt, round] : rounds_) {
    if (clock_->Now() >= round.deadline) {
      over.push_back(attempt);
    } else if (!round.mirror_error.ok() || round.reports == nullptr) {
      Follow(round);
    }
  }
  for (const int64_t attempt : over) {
    const auto round = rounds_.find(attempt);
    if (round != rounds_.end()) End(attempt, NotInTime(round->second));
  }
}

void NodesResume::Finish(int64_t attempt, int64_t sequence, const absl::Status& mine, Instant deadline,
                         Done done) {
  if (rounds_.contains(attempt))
    End(attempt, mine.ok() ? absl::AbortedError("the ranks of this node have reported again") : mine);
  last_reports_.erase(last_reports_.begin(), last_reports_.lower_bound(attempt));
  Round& round = rounds_[attempt];
  round.attempt = attempt;
  round.sequence = sequence;
  round.number = ++last_round_;
  round.deadline = deadline;
  round.done = std::move(done);
  Follow(round);
  Report(round, mine);
}

bool NodesResume::IsUnderWay(int64_t attempt, int64_t number) const {
  const auto round = rounds_.find(attempt);
  return round != rounds_.end() && round->second.number == number;
}

// ---- this node's report

void NodesResume::Report(Round& round, const absl::Status& mine) {
  const int64_t attempt = round.attempt;
  NodeResumed report;
  report.set_sequence(round.sequence);
  if (!mine.ok()) *report.mutable_failure() = EndOf(mine);
  round.said = report.SerializeAsString();
  // If the request of an earlier report is repeated, it must not overwrite this report: it sends `last`, too.
  std::shared_ptr<std::string>& last = last_reports_[attempt];
  if (last == nullptr) last = std::make_shared<std::string>();
  *last = round.said;
  const auto write = [this, attempt, said = last](LedgerCalls::Answer<absl::Status> done) {
    const std::string key = keys_.ResumeReports(attempt) + node_->name;
    CompareAndSwap swap;
    swap.ranges = {{key}};
    swap.held = {node_->Held()};
    swap.decide = [key, said](const CompareAndSwap::Found& found) -> std::vector<etcdserverpb::RequestOp> {
      if (!found[0].empty() && found[0][0].value() == *said) return {};
      return {Put(key, *said)};
    };
    swap.purpose = absl::StrCat("reporting the resume of this node's ranks of run ", options_.run);
    SwapIn(etcd_, std::move(swap), std::move(done));
  };
  calls_.Ask<absl::Status>("to report the resume of this node's ranks in", round.deadline, write,
                           [this, attempt, number = round.number](absl::Status reported) {
                             if (!IsUnderWay(attempt, number)) return;
                             if (!reported.ok()) return End(attempt, reported);
                             Look(attempt);
                           });
}

// ---- the reports of all

void NodesResume::Follow(Round& round) {
  round.mirror_error = absl::OkStatus();
  round.reports_known = round.ranks_known = false;
  round.reports = MirrorOf(round.attempt, keys_.ResumeReports(round.attempt), &Round::reports_known);
  round.ranks = MirrorOf(round.attempt, keys_.AttemptRanks(round.attempt), &Round::ranks_known);
  round.reports->Start();
  round.ranks->Start();
}

std::unique_ptr<EtcdMirror> NodesResume::MirrorOf(int64_t attempt, const std::string& prefix,
                                                  bool Round::*known) {
  return std::make_unique<EtcdMirror>(
      etcd_, prefix, absl::StrCat("following the resume of run ", options_.run),
      [this, attempt, known](const std::vector<std::string>&) {
        rounds_.at(attempt).*known = true;
        Look(attempt);
      },
      [this, attempt](const absl::Status& why) { rounds_.at(attempt).mirror_error = why; });
}

NodesResume::View NodesResume::ViewOf(const Round& round) const {
  View view;
  int world_size = 0;
  std::set<int> ranks;
  for (const auto& [key, value] : round.ranks->keys()) {
    ledger::v1::NodeRanks of_node;
    if (!of_node.ParseFromString(value.value()) || of_node.ranks().empty()) continue;
    const std::string node = key.substr(keys_.AttemptRanks(round.attempt).size());
    ranks.insert(of_node.ranks().begin(), of_node.ranks().end());
    NodeResumed report;
    const std::string* const said = round.reports->Find(keys_.ResumeReports(round.attempt) + node);
    const bool is_older = node == name_ && said != nullptr && *said != round.said;
    if (said == nullptr || is_older || !report.ParseFromString(*said) ||
        report.sequence() != round.sequence) {
      view.silent.push_back(node);
    } else if (report.has_failure() && view.failure.ok()) {
      view.failure = FailureOf(node, report.failure());
    }
  }
  for (const storage::v1::Launch& launch : ledger_->record().launches()) {
    if (launch.attempt() == round.attempt) world_size = launch.world_size();
  }
  view.missing_ranks = std::max(0, world_size - static_cast<int>(ranks.size()));
  return view;
}

void NodesResume::Look(int64_t attempt) {
  const auto found = rounds_.find(attempt);
  if (found == rounds_.end() || !found->second.reports_known || !found->second.ranks_known) return;
  if (name_.empty()) return;  // It is not known which report is this node's.
  Round& round = found->second;
  const View view = ViewOf(round);
  if (!view.failure.ok()) return End(attempt, view.failure);
  if (round.agreeing || !view.silent.empty() || view.missing_ranks > 0) return;
  round.agreeing = true;
  ledger_->AgreeResume(attempt, round.sequence,
                       callbacks_.Guard([this, attempt, number = round.number](absl::Status agreed) {
                         if (IsUnderWay(attempt, number)) End(attempt, agreed);
                       }));
}

absl::Status NodesResume::NotInTime(const Round& round) const {
  if (!round.reports_known || !round.ranks_known) {
    return absl::DeadlineExceededError(
        absl::StrCat("etcd has not said in time how far the other nodes are with the "
                     "resume of run ",
                     options_.run));
  }
  const View view = ViewOf(round);
  std::string missing;
  if (!view.silent.empty()) missing = absl::StrCat("those of nodes ", absl::StrJoin(view.silent, ", "));
  if (view.missing_ranks > 0)
    absl::StrAppend(&missing, missing.empty() ? "" : ", and ", view.missing_ranks,
                    " that have not joined on any node");
  if (missing.empty()) missing = "none; etcd has not written down that all have";
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kResumeIncomplete,
                   absl::StrCat("not all ranks have read their part of sequence ", round.sequence,
                                " in time; missing: ", missing),
                   {{"nodes", absl::StrJoin(view.silent, ",")}});
}

void NodesResume::End(int64_t attempt, const absl::Status& result) {
  const auto found = rounds_.find(attempt);
  if (found == rounds_.end()) return;
  // The caller may be a mirror of this round, so the round lives until this function returns.
  const auto round = std::make_shared<Round>(std::move(found->second));
  rounds_.erase(found);
  round->done(result);
}

}  // namespace ckptd
