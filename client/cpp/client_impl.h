// The implementation behind client.h.
//   client.cc      Client: opens the session, and a new one after the daemon has restarted
//   run.cc         Run: joins the run, retries calls, looks up checkpoints
//   saving.cc      Save and Part
//   recovery.cc    Run: offers sealed saves to the next daemon
//   checkpoint.cc  Resume, Open and reading
#ifndef CKPTD_CLIENT_CPP_CLIENT_IMPL_H_
#define CKPTD_CLIENT_CPP_CLIENT_IMPL_H_

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"
#include "client/cpp/client.h"
#include "client/cpp/memory/copy.h"
#include "client/cpp/session/endpoint.h"
#include "client/cpp/session/session.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"
#include "storage/base/unique_fd.h"

namespace ckptd::client {

// How long a call retries while the daemon restarts, for calls whose own timeout is longer.
inline constexpr Duration kReconnectTimeout = std::chrono::seconds(60);

inline Duration TimeLeft(Instant deadline) { return std::max(Duration(0), deadline - SystemClock().Now()); }

CheckpointInfo InfoOf(const v1::Checkpoint& checkpoint);
void SetDuration(Duration value, google::protobuf::Duration* out);

class ClientImpl {
 public:
  ClientImpl(Endpoint endpoint, ClientOptions options);

  const Endpoint& endpoint() const { return endpoint_; }
  // The session, or a new one if the old one has ended. One try: UNAVAILABLE if there is no daemon.
  absl::StatusOr<std::shared_ptr<Session>> GetSession();
  // FAILED_PRECONDITION, reason FORKED, in a forked child of the process that connected.
  absl::Status CheckNotForked() const;

 private:
  const Endpoint endpoint_;
  v1::Hello hello_;
  const pid_t pid_;
  Mutex mutex_;
  std::shared_ptr<Session> session_ ABSL_GUARDED_BY(mutex_);
};

// This rank's membership in the run, as one session has it.
struct Membership {
  std::shared_ptr<Session> session;
  std::string run;  // `runs/{run}`
  int64_t attempt = 0;
};

// A save that this rank has sealed, and whose end it does not know. docs/design.md, "From one daemon to the
// next". RunImpl guards what is not const.
struct StagedSave {
  StagedSave(int64_t number_, int64_t attempt_, v1::BeginRequest begin_, v1::SealRequest seal_)
      : number(number_), attempt(attempt_), begin(std::move(begin_)), seal(std::move(seal_)) {}

  const int64_t number;  // Of its part.
  const int64_t attempt;
  const v1::BeginRequest begin;  // As the next daemon gets it: all files, and WAIT as the busy policy.
  const v1::SealRequest seal;
  Segments segments;                                     // Where the sealed bytes lie, or
  std::vector<std::vector<std::span<std::byte>>> bytes;  // empty if they are gone. For each file.
  std::string daemon_instance;                           // The daemon that has the save.
  int64_t sequence = 0;
  bool recovered = false;  // It was sealed with another daemon than the one that it began with.
  absl::Status lost;       // Why it cannot be recovered.
};

// The files of a rank's last part and their places, by the number that the daemon has given them.
struct Layout {
  std::weak_ptr<const Session> session;  // The number means nothing in another one.
  int64_t number = 0;
  google::protobuf::RepeatedPtrField<v1::FilePlacement> placements;
};

class RunImpl : public std::enable_shared_from_this<RunImpl> {
 public:
  RunImpl(std::shared_ptr<ClientImpl> client, UniqueFd root, std::string path, RunOptions options);

  const RunOptions& options() const { return options_; }
  int root() const { return root_.get(); }
  int copy_threads() const;
  int read_threads() const;
  std::string name();
  int64_t attempt();

  // The membership under the client's present session; joins the run if that session has not joined yet.
  absl::StatusOr<std::shared_ptr<const Membership>> Join();

  // Calls `ask` with the membership until it returns OK or an error that is not transient (IsTransient), with
  // growing pauses. Gives up, with the last error, when the daemon has been away for `timeout` since the
  // first failure, or at `deadline`.
  template <typename Ask>
  auto Retry(Duration timeout, Ask ask, Instant deadline = Instant::max())
      -> decltype(ask(std::declval<const std::shared_ptr<const Membership>&>())) {
    std::optional<Instant> give_up;
    Duration pause = std::chrono::milliseconds(20);
    for (;;) {
      absl::StatusOr<std::shared_ptr<const Membership>> membership = Join();
      absl::Status failure = membership.status();
      if (membership.ok()) {
        auto answer = ask(*membership);
        if (answer.ok() || !IsTransient(answer.status())) return answer;
        failure = answer.status();
      } else if (!IsTransient(failure)) {
        return failure;
      }
      const Instant now = SystemClock().Now();
      if (!give_up) give_up = std::min(now + timeout, deadline);
      if (now + pause > *give_up) return failure;
      Pause(pause);
      pause = std::min<Duration>(pause * 2, std::chrono::milliseconds(500));
    }
  }

  // The ordinal of this rank's next save of `tag` in this attempt: 1, 2, ...
  int64_t NextOrdinal(const std::string& tag);
  // Remembers a save that is sealed and has not ended. If another daemon answers later, the save is offered
  // to it, or named to it as orphaned.
  void RememberStaged(std::shared_ptr<StagedSave> save);
  void ForgetStaged(const std::shared_ptr<StagedSave>& save);
  // Drops the bytes of staged saves that lie in these segments: the daemon will not lend them again, so these
  // saves have ended.
  void DropBytes(const Segments& retired);
  // Waits until a part of this number may begin without overtaking an earlier save of this rank. UNAVAILABLE
  // if no daemon has taken those within `timeout`.
  absl::Status AwaitEarlier(int64_t number, Duration timeout);
  // Waits until the present daemon has the save; false: it did not by `deadline`. The save's error if it is
  // lost.
  absl::StatusOr<bool> AwaitRecovery(const std::shared_ptr<StagedSave>& save, Instant deadline);
  int64_t SequenceOf(const std::shared_ptr<StagedSave>& save);
  // Null: no part has been begun whose files a daemon keeps.
  std::shared_ptr<const Layout> last_layout();
  void SetLastLayout(std::shared_ptr<const Layout> layout);
  bool IsRecovered(const std::shared_ptr<StagedSave>& save);

 private:
  // ---- recovery.cc. A thread of its own runs RecoverPending while saves are pending.
  v1::JoinRunRequest JoinRequest(const std::string& root) const;
  void AddPending(const std::string& daemon_instance) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void RecoverPending(const std::weak_ptr<RunImpl>& weak);
  std::shared_ptr<StagedSave> NextPending();
  bool TryToRecover(const std::shared_ptr<StagedSave>& save, Instant give_up);
  absl::Status Recover(const Membership& membership, const std::shared_ptr<StagedSave>& save);
  absl::Status WhyNot(const Membership& membership, const std::shared_ptr<StagedSave>& save, bool unknown);
  absl::StatusOr<bool> WouldOvertake(const Membership& membership, const std::shared_ptr<StagedSave>& save);
  absl::Status UploadAgain(const Membership& membership, const std::shared_ptr<StagedSave>& save);
  void Assign(const std::shared_ptr<StagedSave>& save, const std::string& daemon_instance, int64_t sequence);
  void SetLost(const std::shared_ptr<StagedSave>& save, const absl::Status& why);

  // Sleeps between two tries to reach a daemon that is away: there is no event to wait for.
  static void Pause(Duration duration);
  int Threads(int most) const;
  absl::StatusOr<std::shared_ptr<const Membership>> JoinWith(std::shared_ptr<Session> session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<ClientImpl> client_;
  const UniqueFd root_;
  const std::string path_;
  const RunOptions options_;
  Mutex mutex_;
  std::shared_ptr<const Membership> membership_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> ordinals_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Layout> last_layout_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<StagedSave>> staged_ ABSL_GUARDED_BY(mutex_);
  // Those of staged_ that the present daemon may not have, in the order of their numbers.
  std::vector<std::shared_ptr<StagedSave>> pending_ ABSL_GUARDED_BY(mutex_);
  bool recovering_ ABSL_GUARDED_BY(mutex_) = false;  // There is a thread.
  CondVar recovered_;
};

// A file of a part: where the caller writes its bytes, and where the daemon expects them. The two differ only
// if the daemon has restarted in between.
struct PartFile {
  std::string path;
  int64_t size = 0;                           // As reserved.
  int64_t final_size = 0;                     // As it will be sealed; Truncate makes it smaller.
  std::vector<std::span<std::byte>> written;  // Where the caller writes.
  std::vector<std::span<std::byte>> placed;   // Where the daemon expects the bytes.
};

// One rank's part of one save, from Begin to Seal.
class PartImpl {
 public:
  PartImpl(std::shared_ptr<RunImpl> run, SaveOptions options, bool growing);
  ~PartImpl();  // Aborts the save for all ranks unless it was sealed, skipped or aborted.

  // Adds a file that is known at Begin. Called before the first EnsureBegun.
  void Declare(const std::string& path, int64_t size);
  // Sends Begin if this session has not yet, and maps the segments. After a restart of the daemon this sends
  // it again, with the same key.
  absl::Status EnsureBegun(const std::shared_ptr<const Membership>& membership);
  absl::StatusOr<std::vector<std::span<std::byte>>> AddFile(const std::string& path, int64_t size);
  absl::Status Truncate(const std::string& path, int64_t size);
  absl::StatusOr<Save> Seal();
  // Copies and seals the files that were declared; `sources` are theirs, in the same order.
  absl::StatusOr<Save> CopyAndSeal(const std::vector<FileSource>& sources);
  absl::Status Abort(const std::string& message);

  bool skipped() const { return level_ == v1::SKIPPED; }

 private:
  // layout: names the files; 0: they are listed; -1: likewise, and the answer is to have the layout's number.
  v1::BeginRequest MakeBegin(int64_t layout) const;
  // The last layout, if it is of these files in this session; else null.
  std::shared_ptr<const Layout> FindLayout(const Membership& membership) const;
  // The answer has the places of all files, also if the request has named a layout.
  absl::StatusOr<v1::BeginResponse> Begin(const Membership& membership);
  absl::Status FindCommittedSave(const Membership& membership, const absl::Status& refusal);
  absl::Status MapPlacements(const Membership& membership,
                             const google::protobuf::RepeatedPtrField<v1::Segment>& granted,
                             const google::protobuf::RepeatedPtrField<v1::FilePlacement>& placements,
                             size_t first_file);
  absl::StatusOr<std::vector<std::span<std::byte>>> Extend(const Membership& membership,
                                                           const std::string& path, int64_t size);
  // Runs the copy steps that `steps` plans, which put the bytes where the daemon expects them, and seals.
  absl::StatusOr<Save> FillAndSeal(const std::function<std::vector<CopyStep>()>& steps);
  absl::StatusOr<Save> SendSeal(const Membership& membership);
  // Whether Seal may say "as placed" instead of listing the files.
  bool IsAsPlaced() const;
  void ListFiles(v1::SealRequest* request) const;
  Save MakeSave();

  std::shared_ptr<StagedSave> MakeStaged(const Membership& membership, v1::SealRequest seal) const;

  const std::shared_ptr<RunImpl> run_;
  const SaveOptions options_;
  const bool growing_;
  const Instant started_;
  const int64_t number_;  // Of this part, in the order in which this process has made its parts.
  v1::SaveKey key_;       // Its run is set by the first EnsureBegun.
  std::shared_ptr<const Membership>
      membership_;  // The membership that Begin was sent under. Null: not begun.
  std::vector<PartFile> files_;
  bool has_layout_ = false;  // The daemon of membership_ keeps the files that Begin had.
  Segments segments_;        // Of membership_'s session, in the part's order.
  std::vector<Segments>
      earlier_segments_;    // Of sessions before: kept mapped, because the caller may write there.
  bool filled_ = false;     // The bytes are in segments_.
  bool seal_sent_ = false;  // Seal may have taken effect even if its answer was lost.
  bool ended_ = false;      // Sealed, skipped or aborted: there is nothing left to abort.
  int64_t sequence_ = 0;
  v1::Level level_ = v1::OPEN;
  v1::SaveError error_;  // Why the save was skipped.
  SaveTiming timing_;
  std::shared_ptr<StagedSave> staged_;  // Set by a Seal that has not ended the save.
};

class SaveImpl {
 public:
  // `staged` is null if the save has ended.
  SaveImpl(std::shared_ptr<RunImpl> run, std::shared_ptr<StagedSave> staged, v1::SaveKey key, int64_t attempt,
           int64_t sequence, v1::Level level, v1::SaveError error, SaveTiming timing);

  absl::Status Wait(Level level, Timeout timeout);

  const v1::SaveKey& key() const { return key_; }
  int64_t sequence() const { return staged_ != nullptr ? run_->SequenceOf(staged_) : sequence_; }
  Level level() const { return static_cast<Level>(level_.load()); }
  const SaveTiming& timing() const { return timing_; }

 private:
  // Updates level() from the daemon's answer, and returns the result of a Wait for `wanted`.
  absl::Status UpdateLevel(const v1::Checkpoint& checkpoint, Level wanted);

  absl::Status EndedOtherwise(const v1::Checkpoint& checkpoint) const;

  const std::shared_ptr<RunImpl> run_;
  const std::shared_ptr<StagedSave> staged_;
  const v1::SaveKey key_;
  const int64_t attempt_, sequence_;
  const v1::SaveError error_;  // Why the save was skipped.
  const SaveTiming timing_;
  std::atomic<int> level_;
};

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_CLIENT_IMPL_H_
