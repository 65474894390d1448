// The C++ client of ckptd: hands a trainer's checkpoint bytes to the daemon on this node, and reads them
// back.
//
//   using namespace ckptd::client;
//   absl::StatusOr<Client> client = Client::Connect();
//   absl::StatusOr<Run> run = client->OpenRun("/data/ckpts", {.rank = 0, .world_size = 8});
//
//   absl::StatusOr<std::optional<Checkpoint>> last = run->Resume();
//   if (last.ok() && last->has_value()) {
//     absl::Status read = (*last)->ReadInto("model_0.bin", 0, bytes);
//     absl::Status agreed = (*last)->Finish();  // OK when every rank has read its part.
//   }
//
//   absl::StatusOr<Save> save = run->Save({.tag = "step_100"}, {{"model_0.bin", {bytes}}});
//   absl::Status durable = save->Wait(Level::kCommitted);  // At any time later; training goes on meanwhile.
//
// Durability: Save returns after one copy of the bytes into the daemon's memory. From then on the caller may
// change its bytes, but the checkpoint is on disk only once Wait(Level::kCommitted) returns OK. Once every
// rank's Save has returned (SEALED), the checkpoint survives the death of every trainer. docs/design.md says
// what each level promises.
//
// Errors: functions return absl::Status and never throw. ReasonOf and DetailsOf of storage/base/errors.h give
// the machine-readable reason and details that docs/protocol.md lists. Every call has a deadline. When the
// daemon restarts, calls reconnect and send their request again; a repeated request takes effect once. If no
// daemon answers within the call's timeout, the call returns UNAVAILABLE.
//
// Threads: any number of threads may use one Client, Run, Save or MappedFile at once. A Part and a Checkpoint
// belong to one thread at a time. After fork() the child must not use what its parent made: calls that reach
// the daemon fail there with FAILED_PRECONDITION, reason FORKED.
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

// A duration in nanoseconds. Literals such as 30s convert.
using Timeout = std::chrono::nanoseconds;

// How safe a checkpoint is, or how its save ended. The values are those of ckptd.v1.Level.
enum class Level {
  kOpen = 1,       // A rank has begun the save.
  kStaged = 2,     // This rank's part is sealed: its bytes belong to the daemon.
  kSealed = 3,     // Every rank's part is sealed: the checkpoint survives the death of every trainer.
  kCommitted = 4,  // The checkpoint is durable, complete and published.
  kFailed = 10,
  kSkipped = 11,
  kSuperseded = 12,
  kIndeterminate = 13,
};
std::string ToString(Level level);  // "COMMITTED"

// What the daemon does with a save for which there is no room now. All ranks of a save get the same outcome.
enum class BusyPolicy {
  kWait,       // Wait for room, at most SaveOptions::timeout.
  kSkip,       // Give this save up at once: Save returns OK, and the save's level is kSkipped.
  kSupersede,  // End the run's oldest save that not all ranks have sealed, then wait for room.
};

struct ClientOptions {
  std::string name = "ckptd-cpp";  // Shown in the daemon's log; at most 100 characters.
  // How long Connect retries while no daemon answers. 0: one try.
  Timeout connect_timeout = std::chrono::seconds(5);
  // Keeps a private daemon (`ckptd --private`) running: it ends when the last Client with `keeper` is
  // destroyed.
  bool keeper = false;
};

// Which committed checkpoints a run keeps: those that at least one field keeps. All that are left at their
// defaults: every checkpoint.
struct Keep {
  std::optional<int> last =
      {};        // The newest N that are neither damaged nor suspect. Unset beside another field: 1.
  int best = 0;  // The K with the best value of `metric`, the newer of equal ones first.
  std::string metric = {};             // A checkpoint without it, or with NaN, is never among the best.
  bool highest = false;                // The best value is the highest, not the lowest.
  int64_t every = 0;                   // Those whose step is a multiple of it.
  std::chrono::seconds newer_than{0};  // Those that were committed less than this time ago.
};

// Which committed checkpoints the daemon copies to a bucket. docs/buckets.md says when, and with whose rights.
struct Upload {
  std::string url = {};              // s3://BUCKET/PREFIX
  int every = 1;                     // Each N-th checkpoint.
  int keep_last = 0;                 // How many of those that this run has uploaded stay there; 0: all.
  bool evict_before_upload = false;  // Retention may evict what waits; it is then not uploaded.
  bool restore = true;               // Resume takes a newer checkpoint of the bucket, and fails without it.
};

struct RunOptions {
  int rank = 0;        // This process, in [0, world_size).
  int world_size = 1;  // The number of ranks of the job; at least 1.
  // The ranks on this node, of a job on several nodes: `rank` among them, the same from all ranks of the
  // node. Empty: all ranks are on this node. Such a job needs a launch_id.
  std::vector<int> local_ranks = {};
  // Identifies this start of the job: the same on all of its ranks, and different after a restart. Empty:
  // $CKPTD_LAUNCH_ID, else the parent process (boot, pid and start time), which is right where one launcher
  // started all ranks.
  std::string launch_id = {};
  // Identifies the job across its launches. Not empty: RUN_IN_USE while all processes of a launch of another
  // job run. Empty: $CKPTD_JOB_ID, else $SLURM_JOB_ID; without these, this launch fences such a launch off.
  std::string job = {};
  std::string run_id = {};  // A label that must match the run in the root. Empty: accept any.
  int64_t attempt = 0;      // The attempt to join; 0: the daemon gives each launch its number.
  // Which checkpoints retention keeps; unset: all. num_kept_ckpts is short for Keep::last. Set at most one.
  std::optional<Keep> retention = {};
  std::optional<int> num_kept_ckpts = {};
  std::optional<Upload> upload = {};  // The same on all ranks; unset: nothing is uploaded.
  // True: files of this rank that the newest checkpoint has with the same bytes are shared with it (blocks of the
  // file system, or hard links) and not written. The daemon reads them back and compares every byte first.
  bool share_unchanged = false;
  // The most time from the first rank's Begin to the last rank's Seal. Then the save ends FAILED.
  Timeout commit_timeout = std::chrono::seconds(600);
  // Threads that copy a large part, or read one. 0: one for each core, at most 4, or 16 to read.
  int copy_threads = 0;
};

struct SaveOptions {
  std::string tag = {};              // The checkpoint's directory: 1 to 200 characters of [A-Za-z0-9._=+,@-].
  std::optional<int64_t> step = {};  // A label; the same on all ranks.
  std::map<std::string, double> metrics = {};  // Stored with the checkpoint. Only those of rank 0 count.
  // Not empty: this rank calls the state suspect, and why (at most 300 bytes). Then nobody resumes from it
  // unless asked to, retention does not count it, and it does not replace a checkpoint that is not suspect.
  std::string suspect = {};
  // Pointer files: a file's name in the root -> its content (DeepSpeed's `latest` -> the tag). The daemon
  // writes them after the commit. If several checkpoints name the same file, the newest one decides. At most
  // 8 files of all ranks together, with at most 1024 bytes in all.
  std::map<std::string, std::string> pointers = {};
  BusyPolicy busy = BusyPolicy::kWait;
  // Limits the wait for admission, and the wait for a daemon that restarts.
  Timeout timeout = std::chrono::seconds(30);
};

// One file of a part. Its content is the pieces, concatenated in order.
struct FileSource {
  std::string path = {};  // Relative to the checkpoint's directory. Two ranks must not save the same path.
  std::vector<std::span<const std::byte>> pieces = {};
};

// A slice of a file and its destination: the bytes [offset, offset + into.size()) go to `into`.
struct ReadRange {
  std::string path = {};
  int64_t offset = 0;
  std::span<std::byte> into = {};
};

struct OpenOptions {
  // True: fail with CHECKPOINT_DAMAGED instead of opening a damaged checkpoint, or an older one in its place.
  bool strict = false;
  // True: read at idle CPU and I/O priority (SCHED_IDLE, and the idle class where the disk's scheduler has
  // one), so that processes that train on this machine are not slowed down. On a machine without an idle core
  // reading may take very long. What the daemon reads for this process keeps its normal priority.
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
  int64_t sequence = 0;  // The order of the run's checkpoints: the highest one is the latest.
  int64_t attempt = 0;
  Level level = Level::kOpen;
  int world_size = 0;
  int64_t size_bytes = 0;
  int file_count = 0;
  bool pinned = false;
  bool resident = false;  // The daemon's memory still holds the bytes: restoring reads no disk.
  std::string suspect;    // Not empty: its trainer called it suspect when it saved it, and why.
  std::string damage;     // Not empty: a reader found that the bytes are not what was saved, and how.
  std::map<std::string, double> metrics;
  std::vector<FileInfo> files;  // Set for an open Checkpoint; empty in lists.
};

// How long each step of a save took on this rank.
struct SaveTiming {
  Timeout begin{0};  // Begin, with the wait for admission.
  Timeout map{0};    // Mapping segments that are new to this process. 0 for a later save of the same shape.
  Timeout copy{0};   // Copying the bytes into the daemon's memory.
  Timeout seal{0};   // Seal.
  Timeout stall{0};  // The time for which the trainer was held up: the sum.
};

class RunImpl;
class PartImpl;
class SaveImpl;
class CheckpointImpl;
class ClientImpl;

// A save whose part is sealed or was skipped. Copies refer to the same save. Thread-safe.
class Save {
 public:
  const std::string& tag() const;
  int64_t sequence() const;
  Level level() const;  // As this process last knew it. Neither waits nor asks the daemon.
  SaveTiming timing() const;

  // Waits until the save has reached `level`, which is kStaged, kSealed or kCommitted.
  //   OK                 the save has reached `level`
  //   DEADLINE_EXCEEDED  WAIT_TIMEOUT: `timeout` has passed and the save goes on; Wait may be called again
  //   INVALID_ARGUMENT   `level` is none of those three
  // When the save has ended otherwise: its own code and reason (such as RANKS_MISSING), with the details tag,
  // sequence and, where known, the ranks at fault.
  absl::Status Wait(Level level, Timeout timeout = std::chrono::seconds(60));

  explicit Save(std::shared_ptr<SaveImpl> impl);  // Internal: Run::Save and Part::Seal make Saves.

 private:
  std::shared_ptr<SaveImpl> impl_;
};

// A part that the caller writes file by file, directly in the daemon's memory. Destroying a Part that is
// neither sealed nor aborted ends the save for all ranks. One thread at a time.
class Part {
 public:
  Part(Part&&) noexcept;
  Part& operator=(Part&&) noexcept;
  ~Part();

  // True if the busy policy gave this save up. Then no file needs to be written, and Seal returns a save at
  // level kSkipped.
  bool skipped() const;

  // Reserves `size_bytes` bytes for a file. The returned spans, concatenated, are the file's content. The
  // caller writes all of their bytes before Seal, from any thread, and none afterwards. They stay mapped
  // until the Part is sealed or destroyed. Fails with FILE_CONFLICT if the part has a file of that path
  // already, and with the reason of the daemon's refusal, such as POOL_EXHAUSTED.
  absl::StatusOr<std::vector<std::span<std::byte>>> AddFile(const std::string& path, int64_t size_bytes);
  // Makes an added file shorter than was reserved. INVALID_ARGUMENT if it would become longer; NOT_FOUND,
  // reason UNKNOWN_FILE, if it was not added.
  absl::Status Truncate(const std::string& path, int64_t size_bytes);
  // Hands the part to the daemon, which owns the bytes once this returns OK. The Part takes no more calls. On
  // an error the save is aborted for all ranks.
  absl::StatusOr<Save> Seal();
  // Ends the save for all ranks. They get reason SAVE_ABORTED with `message`.
  absl::Status Abort(const std::string& message);

  explicit Part(std::unique_ptr<PartImpl> impl);  // Internal: Run::Begin makes Parts.

 private:
  std::unique_ptr<PartImpl> impl_;
};

// The checked bytes of a file, mapped from the daemon's own memory: the process has no copy of them. The
// bytes stay valid and unchanged as long as this object or a copy of it lives, even when the Checkpoint, the
// Client or the daemon ends before. The mapping is private: a page that this process writes is copied, and
// nobody else sees the change. Thread-safe.
class MappedFile {
 public:
  std::span<std::byte> bytes() const { return {bytes_.get(), size_}; }

  MappedFile(std::shared_ptr<std::byte> bytes, size_t size);  // Internal: Checkpoint::Map makes these.

 private:
  std::shared_ptr<std::byte> bytes_;
  size_t size_;
};

// A committed checkpoint, open for reading. While it exists its lease keeps retention and re-saves from
// removing it. Every byte that is read was checked against the CRC32C of its chunk in the manifest. When a
// check fails, the daemon is told: it marks the checkpoint as damaged and offers an older one from then on. A
// reading that takes more than a second reports its progress to watchers (`ckptctl watch`). One thread at a
// time.
class Checkpoint {
 public:
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const CheckpointInfo& info() const;
  // Reads a whole file.
  //   NOT_FOUND  UNKNOWN_FILE: the checkpoint has no such file
  //   DATA_LOSS  CORRUPT_FILE or SHORT_FILE: the bytes are not what was saved
  //   DATA_LOSS  IO_ERROR: the disk failed; this does not mark the checkpoint as damaged
  absl::StatusOr<std::vector<std::byte>> Read(const std::string& path);
  // Reads the bytes [offset, offset + into.size()) of a file. INVALID_ARGUMENT, before anything is read, if
  // they are not all within the file; otherwise the errors of Read. After an error `into` may be partly
  // overwritten.
  absl::Status ReadInto(const std::string& path, int64_t offset, std::span<std::byte> into);
  // Reads many slices of files, in any order; they may overlap. A load onto another number of ranks needs
  // this. Only the chunks that a slice touches are read, each once, in the order of their offsets. The errors
  // are those of ReadInto; if any slice lies outside its file, nothing is read.
  absl::Status ReadRanges(const std::vector<ReadRange>& ranges);
  // Maps a file from the daemon's memory, without a copy and without memory of its own. nullopt if that is
  // not possible; then Read it. That is so if the daemon has no resident copy, or cannot spare the memory
  // until this process's session ends (it keeps room for the next save, and lends nobody memory that a
  // trainer could still write to), if the file is empty, or after Finish. NOT_FOUND, reason UNKNOWN_FILE, if
  // the checkpoint has no such file.
  absl::StatusOr<std::optional<MappedFile>> Map(const std::string& path);
  // The newer checkpoints that are damaged, newest first, in whose place this one was opened.
  const std::vector<CheckpointInfo>& passed_over() const;

  // Joins the agreement of all ranks on a checkpoint of Resume. Every rank calls it once it has read its
  // part; it waits for the other ranks. On an error no rank may train on from this checkpoint: call Resume
  // again.
  //   OK                 every rank has read its part
  //   DATA_LOSS          CHECKPOINT_DAMAGED: a rank has found damage
  //   ABORTED            RESUME_FAILED: a rank has ended, or destroyed its Checkpoint without Finish
  //   DEADLINE_EXCEEDED  RESUME_INCOMPLETE: `timeout` has passed; the detail "ranks" names the missing ranks
  //   INVALID_ARGUMENT   this checkpoint comes from Open
  absl::Status Finish(Timeout timeout = std::chrono::seconds(600));

  explicit Checkpoint(std::unique_ptr<CheckpointImpl> impl);  // Internal: Resume and Open make Checkpoints.

 private:
  std::unique_ptr<CheckpointImpl> impl_;
};

// One rank of a job, joined to the run of a root. Copies refer to the same run. Thread-safe.
class Run {
 public:
  std::string name() const;  // `runs/{run}`.
  int64_t attempt() const;

  // Saves this rank's part: copies the files into the daemon's memory and seals them. The trainer is held up
  // for exactly the time of this call; the daemon writes to disk afterwards. Every rank calls it with the
  // same tag and step; a rank that contributes nothing passes no files. A save that SaveOptions::busy gave up
  // is OK at level kSkipped. On an error the save is aborted for all ranks.
  absl::StatusOr<client::Save> Save(const SaveOptions& options, const std::vector<FileSource>& files);
  // Begins a save whose files the caller adds and writes one by one.
  absl::StatusOr<Part> Begin(const SaveOptions& options);

  // The checkpoint to go on from: the newest committed one that is not known to be damaged and, unless
  // `allow_suspect` (which all ranks give alike), not suspect. The daemon
  // decides once for all ranks of this attempt, after every save that earlier attempts sealed is published or
  // has failed. nullopt: the root holds no checkpoint, train from the beginning. Every rank reads its part
  // and calls Finish.
  //   DATA_LOSS          CHECKPOINT_DAMAGED: all checkpoints are damaged or, with `strict`, the newest one is
  //   FAILED_PRECONDITION  SUSPECT: all checkpoints are suspect, or the ranks differ in `allow_suspect`
  //   DEADLINE_EXCEEDED  there was no decision within `timeout`
  absl::StatusOr<std::optional<Checkpoint>> Resume(Timeout timeout = std::chrono::seconds(60),
                                                   bool strict = false, bool allow_suspect = false);

  // The newest that is neither damaged nor suspect; nullopt: none.
  absl::StatusOr<std::optional<CheckpointInfo>> Latest();
  absl::StatusOr<std::vector<CheckpointInfo>> List();  // Committed checkpoints, newest first.
  // Opens a committed checkpoint by its tag, or "latest" (see Latest), for this process
  // alone: other ranks are not involved, and Finish is not called.
  //   NOT_FOUND  NO_CHECKPOINT
  //   DATA_LOSS  CHECKPOINT_DAMAGED: all checkpoints are damaged, or as OpenOptions::strict says
  absl::StatusOr<Checkpoint> Open(const std::string& tag, const OpenOptions& options = {});
  // Makes the daemon read a checkpoint (a tag or "latest") into its memory and check it, and waits for that.
  // Resume and Open then read it from memory; while it is under way they wait for it. Call it from a thread
  // of its own while the process starts up; one rank of a node does it for all. After an error readers read
  // the disk:
  //   NOT_FOUND           NO_CHECKPOINT
  //   DATA_LOSS           CHECKPOINT_DAMAGED; CORRUPT_FILE or SHORT_FILE, found now and remembered; IO_ERROR
  //   RESOURCE_EXHAUSTED  POOL_EXHAUSTED: the memory would not leave room for a save
  //   ABORTED             PREFETCH_BUSY: the daemon is reading another checkpoint of this run
  //   DEADLINE_EXCEEDED   `timeout` has passed; the daemon goes on reading
  absl::StatusOr<CheckpointInfo> Prefetch(const std::string& tag = "latest",
                                          Timeout timeout = std::chrono::seconds(600));

  explicit Run(std::shared_ptr<RunImpl> impl);  // Internal: Client::OpenRun makes Runs.

 private:
  std::shared_ptr<RunImpl> impl_;
};

// A session with the daemon. It ends when the last of the Client, its Runs and the objects made by them is
// destroyed. Copies refer to the same session. Thread-safe.
class Client {
 public:
  // Connects to the daemon at `endpoint`, `unix:/path/ckptd.sock`. Empty: $CKPTD_ENDPOINT, or
  // unix:/run/ckptd/ckptd.sock if that is not set. UNAVAILABLE if no daemon answers within
  // ClientOptions::connect_timeout; INVALID_ARGUMENT if `endpoint` is malformed.
  static absl::StatusOr<Client> Connect(const std::string& endpoint = "", const ClientOptions& options = {});

  // Joins the run in `root`, an existing directory that this process can open, as `options.rank`. Waits while
  // the daemon recovers the root.
  absl::StatusOr<Run> OpenRun(const std::string& root, const RunOptions& options = {});

  const std::string& endpoint() const;

 private:
  explicit Client(std::shared_ptr<ClientImpl> impl);
  std::shared_ptr<ClientImpl> impl_;
};

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_CLIENT_H_
