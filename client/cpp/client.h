// The C++ client of ckptd: hands a trainer's checkpoint bytes to the daemon of this node and gets them back.
//
//   using namespace ckptd::client;
//   absl::StatusOr<Client> client = Client::Connect();
//   absl::StatusOr<Run> run = client->OpenRun("/data/ckpts", {.rank = 0, .world_size = 8});
//
//   absl::StatusOr<std::optional<Checkpoint>> last = run->Resume();
//   if (last.ok() && last->has_value()) {
//     absl::Status read = (*last)->ReadInto("model_0.bin", 0, bytes);
//     absl::Status all_have_read = (*last)->Finish();
//   }
//
//   absl::StatusOr<Save> save = run->Save({.tag = "step_100"}, {{"model_0.bin", {bytes}}});
//   absl::Status durable = save->Wait(Level::kCommitted);  // Whenever it suits: training goes on.
//
// Save returns after one copy of the bytes into the daemon's memory: from then on the caller may change them,
// and once every rank's Save has returned every trainer may die. docs/design.md says what each level
// promises.
//
// Errors are absl::Status; ReasonOf and DetailsOf of storage/base/errors.h give the machine-readable reason
// and details of docs/protocol.md. Nothing here throws. Every call has a deadline. When the daemon restarts,
// calls reconnect by themselves and repeat what was asked; a repeated request takes effect once.
//
// Threads: a Client and a Run may be used by several threads at once; a Save as well; a Part and a Checkpoint
// by one thread at a time. After fork() the child must not use what its parent made: calls there are refused.
#ifndef CKPTD_CLIENT_CPP_CLIENT_H_
#define CKPTD_CLIENT_CPP_CLIENT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckptd::client {

// Lengths of time. Literals such as 30s convert.
using Timeout = std::chrono::nanoseconds;

// How safe a checkpoint is, or how its save ended: the numbers of ckptd.v1.Level.
enum class Level {
  kOpen = 1,       // Begun.
  kStaged = 2,     // This rank's part belongs to the daemon.
  kSealed = 3,     // Every rank's part does: every trainer may die.
  kCommitted = 4,  // Durable, complete, published.
  kFailed = 10,
  kSkipped = 11,
  kSuperseded = 12,
  kIndeterminate = 13,
};
std::string ToString(Level level);  // "COMMITTED"

// What to do with a save for which there is no room now; the same on all ranks.
enum class BusyPolicy {
  kWait,       // Wait until SaveOptions::timeout.
  kSkip,       // Give this save up at once: Save succeeds, and its level is kSkipped.
  kSupersede,  // Drop the run's oldest save that is not sealed by all ranks, then wait.
};

struct ClientOptions {
  std::string name = "ckptd-cpp";  // For the daemon's log; at most 100 characters.
  // How long Connect tries. 0: once.
  Timeout connect_timeout = std::chrono::seconds(5);
  // Holds a private daemon (ckptd --private) open: it ends when its last keeper's Client is destroyed.
  bool keeper = false;
};

struct RunOptions {
  int rank = 0;  // [0, world_size).
  int world_size = 1;
  // Names this launch of the job: the same on all of its ranks, another one after a restart. Empty: the
  // parent process (pid and start time), which is right where one launcher started all ranks.
  std::string launch_id = {};
  std::string run_id = {};  // A label that must match what the root has; empty: whatever that is.
  int64_t attempt = 0;      // 0: the daemon numbers the launch.
  std::optional<int> num_kept_ckpts = {};              // >= 1; unset: keep all.
  Timeout commit_timeout = std::chrono::seconds(600);  // First rank's Begin to last rank's Seal.
  int copy_threads = 0;  // Threads that copy a large part; 0: as many as there are cores, 4 at most.
};

struct SaveOptions {
  std::string tag = {};              // The checkpoint's directory: 1 to 200 characters of [A-Za-z0-9._=+,@-].
  std::optional<int64_t> step = {};  // A label; the same on all ranks.
  std::map<std::string, double> metrics = {};  // Rank 0's count.
  // Pointer files: name in the root -> content (DeepSpeed's `latest` -> the tag), written after the commit;
  // of several saves the newest that names one counts. At most 8, together 1024 bytes; all ranks' count.
  std::map<std::string, std::string> pointers = {};
  BusyPolicy busy = BusyPolicy::kWait;
  Timeout timeout =
      std::chrono::seconds(30);  // For admission, and for reconnecting to a daemon that restarts.
};

// One file of a part: the pieces, one behind the other.
struct FileSource {
  std::string path = {};  // Relative to the checkpoint's directory; belongs to one rank.
  std::vector<std::span<const std::byte>> pieces = {};
};

// A slice of a file, and where its bytes go: as many as `into` has.
struct ReadRange {
  std::string path = {};
  int64_t offset = 0;
  std::span<std::byte> into = {};
};

struct OpenOptions {
  bool strict = false;  // Rather an error than a damaged checkpoint, or an older one in its place.
  // For who looks at a checkpoint while others on this machine train: reading gives way to them. It computes
  // only where nothing else wants the core (SCHED_IDLE), and the disk takes its reads behind all others where
  // its scheduler has an idle class. Where every core is busy it may take very long. What the daemon reads
  // for this process is read as ever.
  bool background = false;
};

struct FileInfo {
  std::string path;
  int64_t size_bytes = 0;
  int rank = 0;
};

struct CheckpointInfo {
  std::string name;  // `runs/{run}/checkpoints/{tag}`.
  std::string tag;
  std::optional<int64_t> step;
  int64_t sequence = 0;  // The only order there is.
  int64_t attempt = 0;
  Level level = Level::kOpen;
  int world_size = 0;
  int64_t size_bytes = 0;
  int file_count = 0;
  bool pinned = false;
  bool resident = false;  // Its bytes are in the daemon's memory still: restoring it reads no disk.
  std::string damage;     // Not empty: it is not what was saved, as a reader has found.
  std::map<std::string, double> metrics;
  std::vector<FileInfo> files;  // Of an open Checkpoint; empty in lists.
};

// Where a save's time went, as this rank saw it.
struct SaveTiming {
  Timeout begin{0};  // Asking for room.
  Timeout map{0};    // Mapping segments that were new to this process; 0 for a later save of the same shape.
  Timeout copy{0};   // The bytes.
  Timeout seal{0};   // Handing them over.
  Timeout stall{0};  // All of it.
};

class RunImpl;
class PartImpl;
class SaveImpl;
class CheckpointImpl;
class ClientImpl;

// A save whose part is handed over (or was skipped). Copies are the same save.
class Save {
 public:
  const std::string& tag() const;
  int64_t sequence() const;
  Level level() const;  // As far as this process knows: never waits, never asks.
  SaveTiming timing() const;

  // Until the checkpoint has reached `level`. OK when it has. DEADLINE_EXCEEDED with reason WAIT_TIMEOUT when
  // only the patience ended: the save goes on, and Wait may be called again. Else how the save ended: its own
  // code and reason, with the tag and ranks at fault.
  absl::Status Wait(Level level, Timeout timeout = std::chrono::seconds(60));

  explicit Save(std::shared_ptr<SaveImpl> impl);  // Not for callers.

 private:
  std::shared_ptr<SaveImpl> impl_;
};

// A part that is filled file by file, in the daemon's memory itself. Destroyed before Seal: the save is
// aborted for all ranks.
class Part {
 public:
  Part(Part&&) noexcept;
  Part& operator=(Part&&) noexcept;
  ~Part();

  // True when the busy policy gave this save up: there is nothing to fill, and Seal returns a save at level
  // kSkipped.
  bool skipped() const;

  // Room for a file. The spans, one behind the other, are the file; the caller writes all of their bytes
  // before Seal, from any thread, and none after. They stay mapped until the Part is sealed or destroyed.
  absl::StatusOr<std::vector<std::span<std::byte>>> AddFile(const std::string& path, int64_t size_bytes);
  // A file turned out smaller than was asked for.
  absl::Status Truncate(const std::string& path, int64_t size_bytes);
  // Hands the part over. Leaves the Part empty.
  absl::StatusOr<Save> Seal();
  // Ends the save for all ranks, who hear `message`.
  absl::Status Abort(const std::string& message);

  explicit Part(std::unique_ptr<PartImpl> impl);  // Not for callers.

 private:
  std::unique_ptr<PartImpl> impl_;
};

// The bytes of a file in the daemon's own memory, checked, and nobody's copy. They stay, and stay what they
// are, as long as this or a copy of it does, whatever becomes of the Checkpoint, the Client and the daemon.
// What this process writes there is its own, page by page as it writes. Any number of threads.
class MappedFile {
 public:
  std::span<std::byte> bytes() const { return {bytes_.get(), size_}; }

  MappedFile(std::shared_ptr<std::byte> bytes, size_t size);  // Not for callers.

 private:
  std::shared_ptr<std::byte> bytes_;
  size_t size_;
};

// A committed checkpoint, open for reading. Retention and re-saves leave it alone until it is destroyed.
// Every byte read was checked against the manifest's CRC32C; when one is wrong the daemon hears of it,
// remembers it, and offers an older checkpoint. Those who watch (`ckptctl watch`) see how far a reading of
// more than a second has come.
class Checkpoint {
 public:
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const CheckpointInfo& info() const;
  // A whole file. NOT_FOUND, reason UNKNOWN_FILE; DATA_LOSS, reason CORRUPT_FILE or SHORT_FILE.
  absl::StatusOr<std::vector<std::byte>> Read(const std::string& path);
  // The bytes [offset, offset + into.size()) of a file. INVALID_ARGUMENT, before a byte is read, where they
  // are not all within it; else as Read. After an error `into` may hold old bytes and new ones.
  absl::Status ReadInto(const std::string& path, int64_t offset, std::span<std::byte> into);
  // Slices of files, many at once and in any order: what a load onto another number of ranks needs. Of each
  // file only the chunks that a slice touches are read, each once, in the order of the disk. Refused as by
  // ReadInto where any of them does not lie within its file: then nothing is read of any.
  absl::Status ReadRanges(const std::vector<ReadRange>& ranges);
  // A file as it lies in the daemon's memory, without a copy and without memory for one. nullopt: Read it
  // instead. The daemon has no copy of it, or could not spare one to the end of this process's session (it
  // leaves a save its room, and gives none that a trainer could still write to); or the file is empty; or
  // Finish was called. Errors: UNKNOWN_FILE.
  absl::StatusOr<std::optional<MappedFile>> Map(const std::string& path);
  // Newer ones that are damaged, newest first: this one is offered in their place.
  const std::vector<CheckpointInfo>& passed_over() const;

  // Of one from Resume, by every rank, when it has read what it wanted: OK when all ranks have. DATA_LOSS,
  // reason CHECKPOINT_DAMAGED, when one has found damage; ABORTED, reason RESUME_FAILED, when one has ended,
  // or destroyed its Checkpoint without this; DEADLINE_EXCEEDED, reason RESUME_INCOMPLETE, with the ranks
  // that are missing. Then Resume again.
  absl::Status Finish(Timeout timeout = std::chrono::seconds(600));

  explicit Checkpoint(std::unique_ptr<CheckpointImpl> impl);  // Not for callers.

 private:
  std::unique_ptr<CheckpointImpl> impl_;
};

// One rank of a job, and the root that its checkpoints are in. Copies are the same run.
class Run {
 public:
  std::string name() const;  // `runs/{run}`.
  int64_t attempt() const;

  // Copies the files and hands them over; returns when the daemon owns the bytes. The whole of it is the
  // trainer's stall. Every rank calls it with the same tag and step; a rank that contributes nothing passes
  // no files.
  absl::StatusOr<client::Save> Save(const SaveOptions& options, const std::vector<FileSource>& files);
  // The same, file by file.
  absl::StatusOr<Part> Begin(const SaveOptions& options);

  // What to go on from: the newest committed checkpoint that is not known to be damaged, the same one for
  // every rank of this attempt, decided after what earlier attempts had sealed is published or has failed.
  // nullopt: start from the beginning. DATA_LOSS, reason CHECKPOINT_DAMAGED, when all that there is is
  // damaged, and, where `strict`, rather than an older one. Every rank calls Finish of what it gets.
  absl::StatusOr<std::optional<Checkpoint>> Resume(Timeout timeout = std::chrono::seconds(60),
                                                   bool strict = false);

  absl::StatusOr<std::optional<CheckpointInfo>> Latest();
  absl::StatusOr<std::vector<CheckpointInfo>> List();  // Committed ones, newest first.
  // A committed checkpoint by tag, or "latest" (which is not damaged), for this process alone. NOT_FOUND,
  // reason NO_CHECKPOINT; DATA_LOSS, reason CHECKPOINT_DAMAGED, when all that there is is damaged, and as
  // `strict` wants it.
  absl::StatusOr<Checkpoint> Open(const std::string& tag, const OpenOptions& options = {});
  // Has the daemon read a checkpoint, or "latest", into its memory and check it, and returns when it is
  // there: Resume and Open read it from there, and wait for it while it is under way. A thread of its own
  // does this while the process gets ready; one rank of a node asks for all. Where it is refused readers read
  // the disk:
  //   NOT_FOUND           NO_CHECKPOINT
  //   DATA_LOSS           CHECKPOINT_DAMAGED; CORRUPT_FILE or SHORT_FILE, found now and remembered; IO_ERROR
  //   RESOURCE_EXHAUSTED  POOL_EXHAUSTED: too little memory beside it for a save
  //   ABORTED             PREFETCH_BUSY: another checkpoint of this run is being read
  //   DEADLINE_EXCEEDED   it is read all the same; ask again, or not
  absl::StatusOr<CheckpointInfo> Prefetch(const std::string& tag = "latest",
                                          Timeout timeout = std::chrono::seconds(600));

  explicit Run(std::shared_ptr<RunImpl> impl);  // Not for callers.

 private:
  std::shared_ptr<RunImpl> impl_;
};

// A session with the daemon; ends with the last of the Client, its Runs, and what they made. Copies are the
// same client.
class Client {
 public:
  // `unix:/path/ckptd.sock`; empty: $CKPTD_ENDPOINT, else unix:/run/ckptd/ckptd.sock. UNAVAILABLE when no
  // daemon is there.
  static absl::StatusOr<Client> Connect(const std::string& endpoint = "", const ClientOptions& options = {});

  // `root` is an existing directory. Joins the run in it as `options.rank`.
  absl::StatusOr<Run> OpenRun(const std::string& root, const RunOptions& options = {});

  const std::string& endpoint() const;

 private:
  explicit Client(std::shared_ptr<ClientImpl> impl);
  std::shared_ptr<ClientImpl> impl_;
};

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_CLIENT_H_
