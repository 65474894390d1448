// A daemon without its sockets: the real engine, segment pool and RootIo, with their threads, on a CrashDisk.
// The thread that owns it is the engine's.
#ifndef CKPTD_TESTS_CRASH_DISK_DAEMON_H_
#define CKPTD_TESTS_CRASH_DISK_DAEMON_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/engine/engine.h"
#include "daemon/memory/segment_pool.h"
#include "daemon/root_io/threaded_root_io.h"
#include "tests/crash/oracle.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/engine_fixture.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/root_store_fixture.h"

namespace ckptd {

class DiskDaemon {
 public:
  // Longer than any test's checkpoint has been in the trash: a CrashDisk says that all have been since 1970.
  static constexpr std::chrono::hours kKeepsTrash{24 * 365 * 200};

  // `disk` must outlive it.
  explicit DiskDaemon(CrashDisk* disk, std::chrono::hours trash_grace = std::chrono::hours(0));
  ~DiskDaemon();

  Engine& engine() { return *engine_; }
  const std::vector<std::string>& warnings() const { return observer_.warnings; }

  // Lets a second pass, after which the sealed parts of a save wait no longer for ranks that still copy.
  void PassSecond();
  // Runs posted work until `until` is true. Returns false after a minute.
  bool RunUntil(const std::function<bool()>& until);
  // Calls `ask` with a reply, and waits for the answer.
  template <typename T>
  absl::StatusOr<T> Ask(const std::function<void(Reply<T>)>& ask) {
    Answer<T> answer;
    ask(answer.reply());
    if (!RunUntil([&] { return answer.has(); })) return absl::DeadlineExceededError("no answer");
    return **answer.value;
  }

  // Recovers the root, as a daemon does at start with a root that it knows.
  absl::Status Recover();
  // Returns the sessions of a launch's trainers; each has joined the run.
  absl::StatusOr<std::vector<SessionId>> Launch(const std::string& launch, int world_size);
  static Caller As(SessionId session) { return Caller{session, kUser, false}; }
  v1::SaveKey KeyOf(int rank, const std::string& tag, int64_t ordinal) const;
  std::string NameOf(const std::string& tag) const { return run_ + "/checkpoints/" + tag; }

  struct SaveOptions {
    int64_t ordinal = 1;
    std::optional<int> num_kept_ckpts = std::nullopt;
    std::map<std::string, std::string> pointers = {};
    std::string suspect = {};                                     // As in SealRequest.
    std::optional<v1::RetentionPolicy> retention = std::nullopt;  // Instead of num_kept_ckpts.
    std::map<std::string, double> metrics = {};
    size_t KeptLast() const {  // 0: retention keeps all.
      if (retention) return static_cast<size_t>(retention->last());
      return static_cast<size_t>(num_kept_ckpts.value_or(0));
    }
  };
  // A save that every rank has begun. Its bytes are ContentOf(spec).
  struct Begun {
    SaveSpec spec;
    std::vector<SessionId> sessions;
    std::vector<v1::SaveKey> keys;  // By rank.
  };
  absl::StatusOr<Begun> Begin(const std::vector<SessionId>& sessions, const std::string& tag,
                              const SaveOptions& options);
  // Writes a rank's bytes into its segments, and seals.
  absl::Status WriteAndSeal(const Begun& begun, int rank);
  // Calls `ended` once for each rank, with the outcome of the save.
  void WhenEnded(const Begun& begun, const std::function<void(v1::Level)>& ended);

  // Returns the outcome of a save, as a rank learns it that reconnects after its daemon was killed.
  absl::StatusOr<v1::Level> AskEnd(SessionId session, const v1::SaveKey& key, int64_t sequence);

  // Returns the committed checkpoints as an operator sees them: tags, sequences and pins.
  absl::StatusOr<ShownCheckpoints> List();
  // Returns the sequences of the checkpoints that can be brought back from the trash.
  absl::StatusOr<std::set<int64_t>> ListTrash();
  // Waits until retention has removed what it does not list any more. True: it has.
  bool AwaitEvictions();
  // Lists, opens and reads the checkpoints as a trainer does, and compares them with what was saved. They
  // stay open, so that retention keeps them. `known`: what saves wrote, by sequence.
  ShownCheckpoints ReadAll(SessionId session, const std::map<int64_t, SaveSpec>& known, Broken& broken);
  absl::Status CloseAll(SessionId session);
  // Returns the sequence that every rank resumes from; 0: there is no checkpoint.
  absl::StatusOr<int64_t> Resume(const std::vector<SessionId>& sessions);

 private:
  static constexpr uid_t kUser = 1000;

  RootAttachment Attachment();
  // Opens the checkpoint and reads every file. Returns its manifest's summary; nullopt if retention has
  // evicted the checkpoint since it was listed.
  std::optional<storage::v1::ManifestSummary> ReadOne(SessionId session, const SaveSpec& save,
                                                      Broken& broken);
  absl::Status CloseLease(SessionId session, const std::string& lease);

  CrashDisk* const disk_;
  FakeClock clock_;
  Observer observer_;
  Inbox inbox_;
  std::unique_ptr<SegmentPool> pool_;
  std::unique_ptr<ThreadedRootIoFactory> roots_;
  std::unique_ptr<Engine> engine_;
  std::string run_;
  std::vector<std::string> leases_;  // Opened by ReadAll.
  SessionId last_session_ = 0;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_CRASH_DISK_DAEMON_H_
