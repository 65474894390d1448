// Checks the promises from the requests and answers of clients and the changes of the disk, without knowledge
// of the engine's state. The oracle keeps the first violation, which ends the case.
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
#include "tests/sim/marks.h"

namespace ckptd::sim {

// Identifies a save across daemons.
struct SaveName {
  int run = 0;
  int64_t attempt = 0;
  std::string tag;
  int64_t ordinal = 0;
  auto operator<=>(const SaveName&) const = default;
  std::string ToString() const;
};

class Oracle {
 public:
  const std::string& violation() const { return violation_; }
  void Violated(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }

  // ---- The daemon
  void DaemonStarted();
  void DaemonGone();

  // ---- Memory
  // The session received these segments for its part of a save.
  void Granted(const SaveName& save, int rank, int64_t sequence, int64_t session,
               const std::vector<int64_t>& segments);
  // A reader maps the segments until its process ends: this daemon must not lend them to a session again.
  void Mapped(const std::vector<int64_t>& segments) { mapped_.insert(segments.begin(), segments.end()); }
  void EndStep();
  void SaveEnded(int run, int64_t sequence, bool committed);  // As the daemon reported.
  // An I/O (or a WriteFile) uses this memory until EndUse. Freeing the memory before that is a violation.
  int64_t BeginUse(std::vector<std::span<const std::byte>> memory, int run = -1, int64_t sequence = 0,
                   int rank = -1);
  void EndUse(int64_t use);
  bool InUse(const std::byte* data, int64_t size) const;

  // ---- Attempts
  // What was known when a request was sent: an attempt that was fenced then must stay fenced.
  struct FenceState {
    int64_t acted = 0;
    int64_t told_fenced = 0;
  };
  FenceState FenceStateOf(int run) { return {runs_[run].acted, runs_[run].told_fenced}; }
  void RequestSent(int run, int64_t attempt);  // A Begin or Resume was sent.
  void RequestTookEffect(int run, int64_t attempt, const FenceState& before, const std::string& by);
  // A join that takes the root over makes its attempt act before it is answered. `attempt` 0: it was refused.
  void TakeoverSent(int run) { ++runs_[run].takeovers; }
  void TakeoverAnswered(int run, int64_t attempt) {
    --runs_[run].takeovers;
    RequestSent(run, attempt);
  }
  void ToldFenced(int run, int64_t attempt);
  // The root and the record of its run are lost. The next attempt must resume from this checkpoint, the newest in the
  // bucket; 0: the bucket has none.
  void RootLost(int run, int64_t newest);
  bool HasResumedAfterLoss(int run) { return !runs_[run].resumed.empty(); }
  // A daemon has made the process a rank of the attempt. If an earlier daemon had made another process this
  // rank, and no Begin or Resume of that process took effect, no record has that process, and no save began
  // for it. Answers to it then prove nothing about the saves of the new process, which may have the same
  // names.
  void Joined(int run, int64_t attempt, int rank, const std::string& process);
  // A Begin or Resume of the process took effect: no other process becomes this rank of the attempt.
  void Acted(int run, int64_t attempt, int rank, const std::string& process) {
    runs_[run].acting.try_emplace({attempt, rank}, process);
  }
  // The attempt must resume at least from the newest checkpoint that was known to be committed when it first
  // asked.
  void ResumeSent(int run, int64_t attempt);
  void Resumed(int run, int64_t attempt, int64_t sequence, const std::string& tag, bool allows_suspect);
  // `Damaged`: a rank reported damage. `Agreed`: a rank was told that all ranks have read their parts.
  void Damaged(int run, int64_t sequence) { runs_[run].damaged.insert(sequence); }
  bool WasDamaged(int run, int64_t sequence) { return runs_[run].damaged.contains(sequence); }
  void Agreed(int run, int64_t attempt, int64_t sequence);
  // A read found a wrong checksum; the engine learns of it in this step and then must have marked the
  // checkpoint, unless the root waits for a scan.
  struct FoundDamage {
    int run;
    std::string tag;
    int64_t sequence;
  };
  void DamageFound(int run, const std::string& tag, int64_t sequence, bool waits_for_scan) {
    Damaged(run, sequence);
    if (!waits_for_scan) found_.push_back({run, tag, sequence});
  }
  std::vector<FoundDamage> TakeFoundDamage() { return std::exchange(found_, {}); }
  // The engine marked the checkpoint as damaged. A violation unless a rank or a read reported damage.
  void MarkedDamaged(int run, int64_t sequence);

  // ---- Saves
  void BeginSent(const SaveName& save);
  // `sequence` 0: it was skipped.
  void Begun(const SaveName& save, int64_t sequence);
  void SealSent(const SaveName& save, int rank, int world_size, Contents contents);
  // `repeated`: this seal was answered before.
  void SealOk(const SaveName& save, int rank, const FenceState& before, bool repeated, v1::Level level);
  // A rank seals the save as suspect.
  void Suspected(const SaveName& save) { saves_[save].suspect = true; }
  // A fault hit the save, or a rank aborted it: it need not be committed.
  void Excuse(const SaveName& save);
  void Excuse(int run, int64_t sequence) { excused_.emplace(run, sequence); }
  void OutcomeReported(const SaveName& save, int rank, v1::Level level, const std::string& reason,
                       int64_t sequence);

  // ---- The disk
  // A part is being written to disk: its contents must be what the rank sealed.
  void PartOnDisk(const SaveName& save, int rank, const Contents& contents);
  void Published(int run, const storage::v1::ManifestSummary& summary,
                 const std::map<int, Contents>& contents);
  // A checkpoint of another program was adopted. `beside`: the committed checkpoints when its sequence was
  // chosen.
  void Adopted(int run, const storage::v1::ManifestSummary& summary, const Contents& contents,
               const std::vector<storage::v1::ManifestSummary>& beside);
  // A checkpoint of another root was moved in. The next commit finds it.
  void MovedIn(int run, const storage::v1::ManifestSummary& summary);
  // Whether a checkpoint of an attempt with this number was moved in.
  bool WasMovedIn(int run, int64_t attempt) { return runs_[run].moved_in_attempts.contains(attempt); }
  // An attempt cannot resume from this checkpoint, and goes on with a state of its own.
  void HasAnotherModel(int run, int64_t attempt, int64_t sequence) {
    runs_[run].other_models[attempt] = sequence;
  }
  // A launch has joined with takeover: retention counts the checkpoints of other models again.
  void CountsAll(int run) {
    runs_[run].retained_through = 0;
    runs_[run].other_models.clear();
  }
  // Recovery published a newer checkpoint of this tag over the given one, or the disk failed to store the
  // history with its outcome. If the daemon was killed before it reported the commit, a later daemon may
  // report the save as lost. (A rank that was told COMMITTED still counts.)
  void MayBeReportedLost(int run, int64_t sequence) { may_be_reported_lost_.emplace(run, sequence); }
  void SetKept(int run, std::optional<int> kept, int64_t every_steps) {
    runs_[run].kept = kept;
    runs_[run].every_steps = every_steps;
  }
  // `left`: the undamaged checkpoints that remain, suspect ones too.
  void Evicted(int run, const storage::v1::ManifestSummary& evicted, const std::vector<int64_t>& left,
               bool pinned);
  void TrashRemoved(int run, int64_t sequence);
  void LeaseOpen(int run, int64_t sequence, const std::string& lease) { runs_[run].leases[lease] = sequence; }
  void AllLeasesEnded();  // All sessions end because the daemon ends.
  void LeaseEnded(int run, const std::string& lease) { runs_[run].leases.erase(lease); }
  // Returns the number of checkpoints with a lease.
  int64_t CountLeases(int run);
  // A reader read one rank's files from the daemon's memory.
  void ReadFromMemory(int run, int64_t sequence, int rank, const Contents& contents);
  void Latest(int run, int64_t sequence);  // 0: no checkpoint is committed.

  // Number of COMMITTED answers that ranks received.
  int64_t commits() const { return commits_; }

 private:
  struct Run {
    int64_t acted = 0, asked = 0, told_fenced = 0;
    // Processes, by attempt and rank, with the number of the daemon that they joined last.
    std::map<std::pair<int64_t, int>, std::pair<std::string, int64_t>> joined;
    std::map<std::pair<int64_t, int>, std::string> acting;
    int takeovers = 0;  // Joins with takeover without an answer; their attempts may act already.
    int64_t latest = 0;
    std::map<std::string, int64_t> newest_of_tag;  // Published, with the highest sequence of the tag.
    int64_t newest_reported = 0;                   // Newest sequence that was reported as COMMITTED.
    std::map<int64_t, int64_t> resume_at_least;
    std::map<int64_t, std::set<int64_t>> resumed;  // Attempt -> the checkpoints that its ranks resume from,
    std::map<int64_t, int64_t> agreed;             // and the one that they agreed on.
    std::set<int64_t> damaged;
    std::set<int64_t> published;
    std::set<int64_t> suspect;            // Published as suspect.
    std::set<int64_t> begun;              // Sequences that this daemon gave to ranks.
    std::map<int64_t, Contents> adopted;  // By sequence.
    std::map<std::string, int64_t> leases;
    std::optional<int> kept;
    int64_t every_steps = 0;
    int64_t moved_in = 0, known_moved_in = 0;  // The highest sequences.
    std::set<int64_t> moved_in_attempts;
    std::map<int64_t, int64_t> other_models;  // By attempt: the checkpoint that it could not resume from.
    int64_t retained_through = 0;             // The checkpoints up to it have another model than later ones.
  };
  struct Save {
    int world_size = 0;
    std::map<int, Contents> sealed;
    std::set<int> seal_ok;
    int64_t seal_daemon = 0;
    bool excused = false;
    bool suspect = false;              // A rank has sealed it as suspect.
    std::optional<v1::Level> outcome;  // COMMITTED, or how the save failed.
    std::set<int> told;                // The ranks that were told the outcome.
    int64_t published = 0;             // Sequence.
    // The highest moved-in sequence that was known when a rank first began the save, and the highest that had
    // been moved in when the save was published.
    std::optional<int64_t> known_before;
    int64_t moved_in_before = 0;
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
  std::map<int64_t, Owner> owners_;  // By segment, for this daemon.
  std::set<int64_t> mapped_;         // Likewise.
  std::map<int64_t, Use> uses_;
  std::vector<FoundDamage> found_;
  int64_t next_use_ = 1;
  // Parts whose memory was lent again before their save ended: no reader may get it any more.
  std::map<std::tuple<int, int64_t, int>, std::pair<std::string, int64_t>>
      lent_early_;  // Run, sequence, rank.
  std::set<std::pair<int, int64_t>> ended_, may_be_reported_lost_;
  std::set<std::pair<int, int64_t>> excused_;  // Run, sequence.
  int64_t commits_ = 0;
  int64_t step_ = 0;
};

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_ORACLE_H_
