// What is behind client.h.
//   client.cc      Client: the session, and a new one when the daemon restarts
//   run.cc         Run: joining, repeating what was asked, looking
//   saving.cc      Save and Part
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
#include "client/cpp/copy.h"
#include "client/cpp/endpoint.h"
#include "client/cpp/session.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"
#include "storage/base/unique_fd.h"

namespace ckptd::client {

// For a daemon that restarts while a call waits for more than that.
inline constexpr Duration kReconnectTimeout = std::chrono::seconds(60);

inline Duration TimeLeft(Instant deadline) { return std::max(Duration(0), deadline - SystemClock().Now()); }

CheckpointInfo InfoOf(const v1::Checkpoint& checkpoint);
void SetDuration(Duration value, google::protobuf::Duration* out);

class ClientImpl {
 public:
  ClientImpl(Endpoint endpoint, ClientOptions options);

  const Endpoint& endpoint() const { return endpoint_; }
  // The session, or a new one when it has ended. One try: UNAVAILABLE when there is no daemon.
  absl::StatusOr<std::shared_ptr<Session>> GetSession();
  // FAILED_PRECONDITION, reason FORKED, in a child of the process that connected.
  absl::Status CheckNotForked() const;

 private:
  const Endpoint endpoint_;
  v1::Hello hello_;
  const pid_t pid_;
  Mutex mutex_;
  std::shared_ptr<Session> session_ ABSL_GUARDED_BY(mutex_);
};

// The run as one session has joined it.
struct Joined {
  std::shared_ptr<Session> session;
  std::string run;  // `runs/{run}`
  int64_t attempt = 0;
};

class RunImpl : public std::enable_shared_from_this<RunImpl> {
 public:
  RunImpl(std::shared_ptr<ClientImpl> client, UniqueFd root, std::string path, RunOptions options);

  const RunOptions& options() const { return options_; }
  int root() const { return root_.get(); }
  int copy_threads() const;
  std::string name();
  int64_t attempt();

  // Joins with the client's present session, when it has not yet.
  absl::StatusOr<std::shared_ptr<const Joined>> Join();

  // Runs `ask` with the joined run until it answers something that IsTransient does not hold for. A daemon
  // that is away is waited for as long as `patience`, counted from the first failure, but not beyond
  // `deadline`.
  template <typename Ask>
  auto Repeat(Duration patience, Ask ask, Instant deadline = Instant::max())
      -> decltype(ask(std::declval<const std::shared_ptr<const Joined>&>())) {
    std::optional<Instant> give_up;
    Duration pause = std::chrono::milliseconds(20);
    for (;;) {
      absl::StatusOr<std::shared_ptr<const Joined>> joined = Join();
      absl::Status failure = joined.status();
      if (joined.ok()) {
        auto answer = ask(*joined);
        if (answer.ok() || !IsTransient(answer.status())) return answer;
        failure = answer.status();
      } else if (!IsTransient(failure)) {
        return failure;
      }
      const Instant now = SystemClock().Now();
      if (!give_up) give_up = std::min(now + patience, deadline);
      if (now + pause > *give_up) return failure;
      Pause(pause);
      pause = std::min<Duration>(pause * 2, std::chrono::milliseconds(500));
    }
  }

  // The next save of a tag by this rank in this attempt: 1, 2, ...
  int64_t NextOrdinal(const std::string& tag);
  // Saves whose bytes this daemon has, until it is known how they ended: what to ask a successor about.
  void RememberStaged(const v1::SaveKey& key, const std::string& daemon_instance);
  void ForgetStaged(const v1::SaveKey& key);

 private:
  // Between two tries to reach a daemon that is away: there is no event to wait for.
  static void Pause(Duration duration);
  absl::StatusOr<std::shared_ptr<const Joined>> JoinAnew(std::shared_ptr<Session> session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<ClientImpl> client_;
  const UniqueFd root_;
  const std::string path_;
  const RunOptions options_;
  Mutex mutex_;
  std::shared_ptr<const Joined> joined_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> ordinals_ ABSL_GUARDED_BY(mutex_);
  struct Staged {
    v1::SaveKey key;
    std::string daemon_instance;
  };
  std::deque<Staged> staged_ ABSL_GUARDED_BY(mutex_);
};

// A file of a part: where the caller writes it, and where the daemon wants it. The two differ only when the
// daemon restarted in between.
struct PartFile {
  std::string path;
  int64_t size = 0;        // As placed.
  int64_t final_size = 0;  // As it will be sealed.
  std::vector<std::span<std::byte>> written;
  std::vector<std::span<std::byte>> placed;
};

// One part of one save, from Begin to Seal.
class PartImpl {
 public:
  PartImpl(std::shared_ptr<RunImpl> run, SaveOptions options, bool growing);
  ~PartImpl();  // Aborts the save for all ranks, when it was begun and is neither sealed nor over.

  // A file that is known at Begin; before the first Attach.
  void Declare(const std::string& path, int64_t size);
  // Begins with this session, if it was not yet: after a restart of the daemon again, with the same key.
  absl::Status Attach(const std::shared_ptr<const Joined>& joined);
  absl::StatusOr<std::vector<std::span<std::byte>>> AddFile(const std::string& path, int64_t size);
  absl::Status Truncate(const std::string& path, int64_t size);
  absl::StatusOr<Save> Seal();
  // For files that were declared: `sources` are theirs, in that order.
  absl::StatusOr<Save> CopyAndSeal(const std::vector<FileSource>& sources);
  absl::Status Abort(const std::string& message);

  bool skipped() const { return level_ == v1::SKIPPED; }

 private:
  absl::StatusOr<v1::BeginResponse> Begin(const Joined& joined);
  absl::Status FindCommitted(const Joined& joined, const absl::Status& refusal);
  absl::Status Place(const Joined& joined, const google::protobuf::RepeatedPtrField<v1::Segment>& granted,
                     const google::protobuf::RepeatedPtrField<v1::FilePlacement>& placements,
                     size_t first_file);
  absl::StatusOr<std::vector<std::span<std::byte>>> Extend(const Joined& joined, const std::string& path,
                                                           int64_t size);
  // `steps` puts the bytes where the daemon wants them.
  absl::StatusOr<Save> FillAndSeal(const std::function<std::vector<CopyStep>()>& steps);
  absl::StatusOr<Save> SealOnce(const Joined& joined);
  Save Result();

  const std::shared_ptr<RunImpl> run_;
  const SaveOptions options_;
  const bool growing_;
  const Instant started_;
  v1::SaveKey key_;                       // Its run is known from the first Attach on.
  std::shared_ptr<const Joined> joined_;  // That Begin was answered with.
  std::vector<PartFile> files_;
  Segments segments_;              // Of joined_'s session, in part order.
  std::vector<Segments> earlier_;  // Of sessions before it: the caller may still write there.
  bool filled_ = false;            // The bytes are in segments_.
  bool seal_sent_ = false;         // Perhaps its effect took place, and only the answer was lost.
  bool over_ = false;              // Sealed, skipped or aborted: nothing to abort.
  int64_t sequence_ = 0;
  v1::Level level_ = v1::OPEN;
  v1::SaveError error_;  // Of a skipped save.
  SaveTiming timing_;
};

class SaveImpl {
 public:
  SaveImpl(std::shared_ptr<RunImpl> run, v1::SaveKey key, int64_t attempt, int64_t sequence, v1::Level level,
           v1::SaveError error, SaveTiming timing);

  absl::Status Wait(Level level, Timeout timeout);

  const v1::SaveKey& key() const { return key_; }
  int64_t sequence() const { return sequence_; }
  Level level() const { return static_cast<Level>(level_.load()); }
  const SaveTiming& timing() const { return timing_; }

 private:
  // What an answer says about `wanted`, remembered for level().
  absl::Status Judge(const v1::Checkpoint& checkpoint, Level wanted);

  const std::shared_ptr<RunImpl> run_;
  const v1::SaveKey key_;
  const int64_t attempt_, sequence_;
  const v1::SaveError error_;  // Of a skipped save.
  const SaveTiming timing_;
  std::atomic<int> level_;
};

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_CLIENT_IMPL_H_
