// The keys of a run in etcd.
#ifndef CKPTD_DAEMON_LEDGER_KEYS_KEYS_H_
#define CKPTD_DAEMON_LEDGER_KEYS_KEYS_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace ckptd {

// Escapes the slashes of a text, so that it can be one part of a key: slashes separate the parts.
inline std::string KeyPart(const std::string& text) {
  return absl::StrReplaceAll(text, {{"%", "%25"}, {"/", "%2F"}});
}

// Values are messages of ckptd/ledger/v1/ledger.proto. Attempts and sequences are written with 16 digits, so
// that the keys sort by number.
class LedgerKeys {
 public:
  // `prefix`: of all keys of the run, with the slash at its end.
  explicit LedgerKeys(std::string prefix) : prefix_(std::move(prefix)) {}

  std::string Root() const { return prefix_ + "root"; }
  std::string Active() const { return prefix_ + "active"; }
  std::string Sequence() const { return prefix_ + "sequence"; }
  std::string Retained() const { return prefix_ + "retained"; }
  std::string Coordinator() const { return prefix_ + "coordinator"; }
  std::string Term() const { return prefix_ + "term"; }
  std::string AttemptInRoot() const { return prefix_ + "attempt_in_root"; }

  // The launches, for joins to read: few bytes, and keys that never change.
  std::string Heads() const { return prefix_ + "heads/"; }
  std::string Head(int64_t attempt) const { return Heads() + absl::StrFormat("%016d", attempt); }
  // The ranks of an attempt by node, for decisions that need all of them.
  std::string Attempts() const { return prefix_ + "attempts/"; }
  std::string AttemptsFrom(int64_t attempt) const { return Attempts() + absl::StrFormat("%016d/", attempt); }
  std::string AttemptRanks(int64_t attempt) const { return AttemptsFrom(attempt) + "nodes/"; }
  std::string NodeRanks(int64_t attempt, const std::string& node) const {
    return AttemptRanks(attempt) + node;
  }
  // The same ranks, with their processes, by blocks of ranks, for decisions that need a few ranks of all
  // attempts. The size of a block is a compromise: nodes of one rank each conflict within a block, and a node
  // with many ranks writes one key for each block. A transaction of etcd has 128 operations at most.
  static constexpr int kBlock = 16;
  static int BlockOf(int rank) { return rank / kBlock; }
  std::string Blocks() const { return prefix_ + "ranks/"; }
  std::string Block(int block) const { return Blocks() + absl::StrFormat("%05d/", block); }
  std::string BlockRanks(int block, int64_t attempt, const std::string& node) const {
    return Block(block) + absl::StrFormat("%016d/", attempt) + node;
  }

  // States and votes have different prefixes, so that a node can watch the states without the votes.
  std::string SaveIndex(int64_t attempt, const std::string& tag, int64_t ordinal) const {
    return prefix_ + absl::StrFormat("index/%016d/%s/%d", attempt, KeyPart(tag), ordinal);
  }
  std::string SaveStates() const { return prefix_ + "states/"; }
  std::string SaveState(int64_t sequence) const { return SaveStates() + absl::StrFormat("%016d", sequence); }
  std::string AllVotes() const { return prefix_ + "votes/"; }
  std::string Votes(int64_t sequence) const { return AllVotes() + absl::StrFormat("%016d/", sequence); }
  std::string Vote(int64_t sequence, const std::string& node) const { return Votes(sequence) + node; }

  std::string Publishing() const { return prefix_ + "publishing"; }
  // Damage marks and removals of committed checkpoints. No other key sorts between these two prefixes, so one
  // watch covers both.
  std::string Damages() const { return prefix_ + "damaged/"; }
  std::string Damaged(int64_t sequence) const { return Damages() + absl::StrFormat("%016d", sequence); }
  std::string Evictings() const { return prefix_ + "evicting/"; }
  std::string Evicting(int64_t sequence) const { return Evictings() + absl::StrFormat("%016d", sequence); }
  std::string Readers(int64_t sequence) const {
    return prefix_ + absl::StrFormat("readers/%016d/", sequence);
  }

  // What operators have set for the run.
  std::string Settings() const { return prefix_ + "settings/"; }
  std::string RetentionOverride() const { return Settings() + "retention"; }
  std::string Pins() const { return Settings() + "pinned/"; }
  std::string Pinned(int64_t sequence) const { return Pins() + absl::StrFormat("%016d", sequence); }

  // What the run uploads to a bucket. No other key begins so.
  std::string Uploads() const { return prefix_ + "uploads/"; }
  std::string UploadPolicy() const { return Uploads() + "policy"; }
  std::string UploadRecord() const { return Uploads() + "record"; }

  // What nodes ask of the coordinator in the name of operators.
  std::string Requests() const { return prefix_ + "requests/"; }
  std::string Requests(const std::string& node) const { return Requests() + node + "/"; }
  std::string Request(const std::string& node, int place) const {
    return Requests(node) + absl::StrFormat("%d", place);
  }

  std::string Living() const { return prefix_ + "living/"; }
  std::string Living(const std::string& node) const { return Living() + node; }
  std::string Resume(int64_t attempt) const { return Resumes() + absl::StrFormat("%016d", attempt); }
  // Each node's report on its ranks that resume.
  std::string ResumeReports(int64_t attempt) const {
    return prefix_ + absl::StrFormat("resumed/%016d/", attempt);
  }

  // The attempt in a key of Head, NodeRanks, BlockRanks or Resume; 0: `key` is none of these.
  int64_t AttemptOf(const std::string& key) const {
    const size_t block = Block(0).size() - Blocks().size();
    for (const auto& [folder, skip] : {std::pair(Heads(), size_t{0}), std::pair(Attempts(), size_t{0}),
                                       std::pair(Blocks(), block), std::pair(Resumes(), size_t{0})}) {
      const size_t place = folder.size() + skip;
      int64_t attempt = 0;
      if (absl::StartsWith(key, folder) && key.size() >= place + 16 &&
          absl::SimpleAtoi(key.substr(place, 16), &attempt))
        return attempt;
    }
    return 0;
  }

 private:
  std::string Resumes() const { return prefix_ + "resume/"; }
  const std::string prefix_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_KEYS_KEYS_H_
