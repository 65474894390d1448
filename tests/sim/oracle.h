// What the promises allow, from what went over the wire and what the disk did. It knows nothing of the
// engine's state. The first thing that breaks a promise is kept and ends the case.
#ifndef CKPTD_TESTS_SIM_ORACLE_H_
#define CKPTD_TESTS_SIM_ORACLE_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ckptd/storage/v1/storage.pb.h"
#include "ckptd/v1/types.pb.h"

namespace ckptd::sim {

// A save, over all daemons.
struct SaveName {
  int run = 0;
  int64_t attempt = 0;
  std::string tag;
  int64_t ordinal = 0;
  auto operator<=>(const SaveName&) const = default;
  std::string Words() const;
};

using Contents = std::map<std::string, uint64_t>;  // Path -> what its bytes come to.

class Oracle {
 public:
  const std::string& violation() const { return violation_; }
  void Violated(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }

  // ---- the daemon
  void DaemonStarted();
  void DaemonGone();

  // ---- memory
  // The session is shown segments for its part of a save.
  void Granted(const SaveName& save, int rank, int64_t sequence, int64_t session,
               const std::vector<int64_t>& segments);
  // A reader maps them for good: no session gets them again from this daemon.
  void Mapped(const std::vector<int64_t>& segments) { mapped_.insert(segments.begin(), segments.end()); }
  void EndStep();
  void SaveOver(int run, int64_t sequence, bool committed);  // As the daemon said.
  // An I/O (or a WriteFile) uses this memory, until EndUse. Freeing it meanwhile breaks a promise.
  int64_t BeginUse(std::vector<std::span<const std::byte>> memory, int run = -1, int64_t sequence = 0,
                   int rank = -1);
  void EndUse(int64_t use);
  bool InUse(const std::byte* data, int64_t size) const;

  // ---- attempts
  // What was known when a request was sent: whoever was fenced off then stays so.
  struct Before {
    int64_t acted = 0;
    int64_t told_fenced = 0;
  };
  Before Now(int run) { return {runs_[run].acted, runs_[run].told_fenced}; }
  void AsksToAct(int run, int64_t attempt);  // A Begin or Resume was sent.
  void ActedOk(int run, int64_t attempt, const Before& before, const std::string& by);
  void ToldFenced(int run, int64_t attempt);
  // It resumes at least from what anybody had heard is committed when it first asked.
  void AsksResume(int run, int64_t attempt);
  void Resumed(int run, int64_t attempt, int64_t sequence, const std::string& tag);
  // A rank says that it is damaged; and hears that all ranks have read theirs.
  void Damaged(int run, int64_t sequence) { runs_[run].damaged.insert(sequence); }
  void Agreed(int run, int64_t attempt, int64_t sequence);
  // A read found a wrong checksum, which the engine hears in this step; and what it then has to have marked:
  // unless the root waits for a scan, when nobody knows what is where.
  struct Found {
    int run;
    std::string tag;
    int64_t sequence;
  };
  void DamageFound(int run, const std::string& tag, int64_t sequence, bool waits_for_scan) {
    Damaged(run, sequence);
    if (!waits_for_scan) found_.push_back({run, tag, sequence});
  }
  std::vector<Found> TakeFound() { return std::exchange(found_, {}); }
  // It is marked as damaged: only what somebody has found to be.
  void Condemned(int run, int64_t sequence);

  // ---- saves
  void SealSent(const SaveName& save, int rank, int world_size, Contents contents);
  // `repeated`: it had been answered before.
  void SealOk(const SaveName& save, int rank, const Before& before, bool repeated, v1::Level level);
  void Excuse(const SaveName& save);  // A fault hit it, or somebody aborted it: it need not be committed.
  void Excuse(int run, int64_t sequence) { excused_.emplace(run, sequence); }
  void Heard(const SaveName& save, int rank, v1::Level level, const std::string& reason, int64_t sequence);

  // ---- the disk
  // A save's part goes to disk: is it what was sealed?
  void PartOnDisk(const SaveName& save, int rank, const Contents& contents);
  void Published(int run, const storage::v1::ManifestSummary& summary,
                 const std::map<int, Contents>& contents);
  // A checkpoint of another program becomes ours. `beside`: what was committed when its place was found.
  void Adopted(int run, const storage::v1::ManifestSummary& summary, const Contents& contents,
               const std::vector<storage::v1::ManifestSummary>& beside);
  // Recovery published a newer one of its tag over it, or the disk did not take the history that says how it
  // ended. When the daemon was killed before it said that this one is committed, it may be called lost. (Who
  // heard that it is committed is believed all the same.)
  void Unheard(int run, int64_t sequence) { unheard_.emplace(run, sequence); }
  void SetKept(int run, std::optional<int> kept) { runs_[run].kept = kept; }
  // `left`: of those that are not damaged.
  void Evicted(int run, int64_t sequence, const std::vector<int64_t>& left, bool pinned);
  void TrashRemoved(int run, int64_t sequence);
  void LeaseOpen(int run, int64_t sequence, const std::string& lease) { runs_[run].leases[lease] = sequence; }
  void LeasesOver();  // All sessions end: the daemon does.
  void LeaseOver(int run, const std::string& lease) { runs_[run].leases.erase(lease); }
  // Checkpoints that somebody has a lease on.
  int64_t CountRead(int run);
  // What a reader saw of one rank's files in the daemon's memory.
  void ReadFromMemory(int run, int64_t sequence, int rank, const Contents& contents);
  void Latest(int run, int64_t sequence);  // 0: nothing is committed.

  // Ranks that heard COMMITTED.
  int64_t commits() const { return commits_; }

 private:
  struct Run {
    int64_t acted = 0, asked = 0, told_fenced = 0;
    int64_t latest = 0;
    std::map<std::string, int64_t> newest_of_tag;  // Published, with a higher sequence than any other of it.
    int64_t newest_heard = 0;                      // Newest sequence that somebody heard is COMMITTED.
    std::map<int64_t, int64_t> resume_at_least;
    std::map<int64_t, std::set<int64_t>> resumed;  // Attempt -> what its ranks were to resume from,
    std::map<int64_t, int64_t> agreed;             // and what they agreed on.
    std::set<int64_t> damaged;
    std::set<int64_t> published;
    std::set<int64_t> begun;              // Sequences that ranks heard of from this daemon.
    std::map<int64_t, Contents> adopted;  // By sequence.
    std::map<std::string, int64_t> leases;
    std::optional<int> kept;
  };
  struct Save {
    int world_size = 0;
    std::map<int, Contents> sealed;
    std::set<int> seal_ok;
    int64_t seal_daemon = 0;
    bool excused = false;
    std::optional<v1::Level> outcome;  // COMMITTED, or how it failed.
    int64_t published = 0;             // Sequence.
  };
  struct Owner {
    int64_t session = 0;
    int run = 0;
    int64_t sequence = 0;
    int rank = 0;
  };
  struct Use {
    std::vector<std::span<const std::byte>> memory;
    int run;
    int64_t sequence;
    int rank;
  };
  std::string violation_;
  int64_t daemon_ = 0;
  std::map<int, Run> runs_;
  std::map<SaveName, Save> saves_;
  std::map<int64_t, Owner> owners_;  // By segment, of this daemon.
  std::set<int64_t> mapped_;         // Likewise.
  std::map<int64_t, Use> uses_;
  std::vector<Found> found_;
  int64_t next_use_ = 1;
  // Parts whose memory was lent again before their save was over: it must not be read any more.
  std::map<std::tuple<int, int64_t, int>, std::pair<std::string, int64_t>>
      lent_early_;  // Run, sequence, rank.
  std::set<std::pair<int, int64_t>> over_, unheard_;
  std::set<std::pair<int, int64_t>> excused_;  // Run, sequence.
  int64_t commits_ = 0;
  int64_t step_ = 0;
};

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_ORACLE_H_
