// The C++ library of ckptd: hands a trainer's checkpoint bytes to the daemon on this node, and reads them
// back.
//
//   ckptd::Result<ckptd::Client> client = ckptd::Client::Connect();
//   ckptd::Result<ckptd::Run> run = client->OpenRun("/data/ckpts", {.rank = 0, .world_size = 8});
//
//   ckptd::Result<std::optional<ckptd::Checkpoint>> last = run->Resume();
//   if (last.ok() && last->has_value()) {
//     ckptd::Status read = (*last)->ReadInto("model_0.bin", 0, bytes);
//     ckptd::Status agreed = (*last)->Finish();  // OK when every rank has read its part.
//   }
//
//   ckptd::Result<ckptd::Save> save = run->Save({.tag = "step_100"}, {{"model_0.bin", {bytes}}});
//   ckptd::Status durable = save->Wait(ckptd::Level::kCommitted);  // Later; training goes on.
//
// Durability: Save returns after one copy of the bytes into the daemon's memory. From then on the caller may
// change its bytes, but the checkpoint is on disk only once Wait(Level::kCommitted) returns OK. Once every
// rank's Save has returned (SEALED), the checkpoint survives the death of every trainer. It survives the
// death of the daemon as well: under a service manager the next daemon has its memory, else each rank offers
// its part to it at its next call. Save::Wait tells whether it was lost all the same (STAGED_LOST).
//
// Errors: functions return a Status or a Result, and throw nothing. Status::reason and Status::details are
// the machine-readable ones that docs/protocol.md of ckptd lists. Every call has a deadline. When the daemon
// restarts, calls reconnect and send their request again; a repeated request takes effect once. If no daemon
// answers within the call's timeout, the call returns UNAVAILABLE.
//
// Threads: any number of threads may use one Client, Run, Save, CheckpointInfo or MappedFile at once. A Part
// and a Checkpoint belong to one thread at a time. After fork() the child must not use what its parent made:
// calls that reach the daemon fail there with FAILED_PRECONDITION, reason FORKED.
//
// Compatibility: a program runs with every later libckptd_client.so.0 without being compiled again.
//   - The classes hold one pointer, and their functions are in the library. Result, File, Range, FileInfo and
//     the values of the enumerations never change; an enumeration may get more of them.
//   - The structures ...Options, Keep and Upload are of the program alone: each field crosses by its name, so
//     later headers may have more fields. A library that is older than the header refuses a field that it
//     does not know, where the program has set it: INVALID_ARGUMENT, reason UNKNOWN_OPTION.
//   - A change that breaks programs gets another name: libckptd_client.so.1, namespace ckptd::abi1. So the
//     dynamic linker refuses a library that does not fit, and two of them can live in one process.
//   - The daemon may be older or newer than the library, as docs/operations.md of ckptd says of clients.
// The library needs libc and libstdc++, and shows no symbols but those of this header: what it was built with
// (gRPC, protobuf, Abseil) does not meet the program's own. It is never unloaded. Both sides need the present
// form of std::string (_GLIBCXX_USE_CXX11_ABI=1, GCC's default).
#ifndef CKPTD_CLIENT_H_
#define CKPTD_CLIENT_H_

#if __cplusplus < 202002L
#error "ckptd/client.h needs C++20: compile with -std=c++20 or later"
#endif

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#if defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI
#error "libckptd_client.so has the present std::string: compile with -D_GLIBCXX_USE_CXX11_ABI=1"
#endif

namespace ckptd {
inline namespace abi0 {

// The version of the library that this program runs with, such as "0.2.0". The header's is that of the
// package.
const char* LibraryVersion();

// A duration in nanoseconds. Literals such as 30s convert.
using Timeout = std::chrono::nanoseconds;

namespace internal {
struct Access;  // Of the library: makes the objects of this header.
struct StatusData;
struct InfoData;
struct MapData;
struct SaveData;
struct PartData;
struct CheckpointData;
struct RunData;
struct ClientData;
struct ArgumentsData;
}  // namespace internal

// What the caller should do about an error. The values are those of google.rpc.Code.
enum class Code {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK.
  bool ok() const { return data_ == nullptr; }
  Code code() const;
  const std::string& reason() const;   // UPPER_SNAKE_CASE, such as "RANKS_MISSING". Empty if there is none.
  const std::string& message() const;  // For people: what was wrong, and what to do.
  const std::map<std::string, std::string>& details() const;  // Such as {"tag", "step_100"}.
  std::string ToString() const;                               // "OK", or code, reason and message.

 private:
  friend struct internal::Access;
  std::shared_ptr<const internal::StatusData> data_;
};

namespace internal {
[[noreturn]] void EndWithoutValue(const Status& status);  // Writes the error to stderr, and aborts.
}  // namespace internal

// A value, or why there is none. Taking the value of an error ends the process with the error's text.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: a value is a result.
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: an error, too. Not of an OK status.
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & { return Checked(); }
  const T& value() const& { return const_cast<Result*>(this)->Checked(); }
  T&& value() && { return std::move(Checked()); }
  T& operator*() & { return Checked(); }
  const T& operator*() const& { return const_cast<Result*>(this)->Checked(); }
  T&& operator*() && { return std::move(Checked()); }
  T* operator->() { return &Checked(); }
  const T* operator->() const { return &const_cast<Result*>(this)->Checked(); }

 private:
  T& Checked() {
    if (!value_.has_value()) internal::EndWithoutValue(status_);
    return *value_;
  }
  Status status_;
  std::optional<T> value_;
};

// How safe a checkpoint is, or how its save ended.
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

// Which committed checkpoints the daemon copies to a bucket. docs/buckets.md says when, and with whose
// rights.
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
  // node. Empty: all ranks are on this node. Such a job has its root in a folder that all nodes share, and
  // needs a launch_id.
  std::vector<int> local_ranks = {};
  // Identifies this start of the job: the same on all of its ranks, and different after a restart. Empty:
  // $CKPTD_LAUNCH_ID, else the parent process (boot, pid and start time), which is right where one launcher
  // started all ranks.
  std::string launch_id = {};
  // Identifies the job across its launches. Not empty: RUN_IN_USE while all processes of a launch of another
  // job run. Empty: $CKPTD_JOB_ID, else $SLURM_JOB_ID; without these, this launch fences such a launch off.
  std::string job = {};
  std::string run_id = {};             // A label that must match the run in the root. Empty: accept any.
  int64_t attempt = 0;                 // The attempt to join; 0: the daemon gives each launch its number.
  std::optional<Keep> retention = {};  // Which checkpoints retention keeps; unset: all.
  std::optional<Upload> upload = {};   // The same on all ranks; unset: nothing is uploaded.
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
  Timeout timeout =
      std::chrono::seconds(30);  // Limits the wait for admission, and for a daemon that restarts.
};

struct ResumeOptions {
  Timeout timeout = std::chrono::seconds(60);
  bool strict = false;         // Fail if the newest checkpoint is damaged, instead of taking an older one.
  bool allow_suspect = false;  // Take a suspect checkpoint, too. All ranks give the same.
};

struct OpenOptions {
  // True: fail with CHECKPOINT_DAMAGED instead of opening a damaged checkpoint, or an older one in its place.
  bool strict = false;
  // True: read at idle CPU and I/O priority, so that processes that train on this machine are not slowed
  // down. On a machine without an idle core reading may take very long.
  bool background = false;
};

// One file of a part. Its content is the pieces, concatenated in order.
struct File {
  std::string path = {};  // Relative to the checkpoint's directory. Two ranks must not save the same path.
  std::vector<std::span<const std::byte>> pieces = {};
};

// A slice of a file and its destination: the bytes [offset, offset + into.size()) go to `into`.
struct Range {
  std::string path = {};
  int64_t offset = 0;
  std::span<std::byte> into = {};
};

struct FileInfo {
  std::string path;
  int64_t size_bytes = 0;
  int rank = 0;
};

namespace internal {
// Options on their way to the library: each by its name. Thread-compatible.
class Arguments {
 public:
  Arguments();
  void Set(std::string_view name, std::string_view value);
  void Set(std::string_view name, int64_t value);
  void Set(std::string_view name, double value);

 private:
  friend struct Access;
  std::shared_ptr<ArgumentsData> data_;
};

Arguments ToArguments(const ClientOptions& options);
Arguments ToArguments(const RunOptions& options);
Arguments ToArguments(const SaveOptions& options);
Arguments ToArguments(const ResumeOptions& options);
Arguments ToArguments(const OpenOptions& options);
}  // namespace internal

class CheckpointInfo {
 public:
  const std::string& name() const;  // `runs/{run}/checkpoints/{tag}`.
  const std::string& tag() const;
  std::optional<int64_t> step() const;
  int64_t sequence() const;  // The order of the run's checkpoints: the highest one is the latest.
  int64_t attempt() const;
  Level level() const;
  int world_size() const;
  int64_t size_bytes() const;
  int file_count() const;
  bool pinned() const;
  bool resident() const;               // The daemon's memory still holds the bytes: restoring reads no disk.
  const std::string& suspect() const;  // Not empty: its trainer called it suspect when it saved it, and why.
  const std::string& damage()
      const;  // Not empty: a reader found that the bytes are not what was saved, and how.
  const std::map<std::string, double>& metrics() const;
  const std::vector<FileInfo>& files() const;  // Of an open Checkpoint; empty in lists.

 private:
  friend struct internal::Access;
  explicit CheckpointInfo(std::shared_ptr<const internal::InfoData> data) : data_(std::move(data)) {}
  std::shared_ptr<const internal::InfoData> data_;
};

// The steps of a save on this rank whose times it knows.
enum class Step {
  kStall,  // All: the time for which the trainer was held up.
  kBegin,  // Begin, with the wait for admission.
  kMap,    // Mapping segments that are new to this process. 0 for a later save of the same shape.
  kCopy,   // Copying the bytes into the daemon's memory.
  kSeal,
};

// A save whose part is sealed or was skipped. Copies refer to the same save.
class Save {
 public:
  const std::string& tag() const;
  int64_t sequence() const;
  Level level() const;  // As this process last knew it. Neither waits nor asks the daemon.
  Timeout time(Step step = Step::kStall) const;

  // Waits until the save has reached `level`, which is kStaged, kSealed or kCommitted.
  //   OK                 the save has reached `level`
  //   DEADLINE_EXCEEDED  WAIT_TIMEOUT: `timeout` has passed and the save goes on; Wait may be called again
  //   INVALID_ARGUMENT   `level` is none of those three
  // When the save has ended otherwise: its own code and reason (such as RANKS_MISSING), with the details tag,
  // sequence and, where known, the ranks at fault.
  Status Wait(Level level, Timeout timeout = std::chrono::seconds(60));

 private:
  friend struct internal::Access;
  explicit Save(std::shared_ptr<internal::SaveData> data) : data_(std::move(data)) {}
  std::shared_ptr<internal::SaveData> data_;
};

// A part that the caller writes file by file, directly in the daemon's memory. Destroying a Part that is
// neither sealed nor aborted ends the save for all ranks. One thread at a time.
class Part {
 public:
  Part(Part&&) = default;
  Part& operator=(Part&&) = default;

  // True if the busy policy gave this save up. Then no file needs to be written, and Seal returns a save at
  // level kSkipped.
  bool skipped() const;
  // Reserves `size_bytes` bytes for a file. The returned spans, concatenated, are the file's content. The
  // caller writes all of their bytes before Seal, from any thread, and none afterwards. They stay mapped
  // until the Part is sealed or destroyed. Fails with FILE_CONFLICT if the part has a file of that path
  // already, and with the reason of the daemon's refusal, such as POOL_EXHAUSTED.
  Result<std::vector<std::span<std::byte>>> AddFile(const std::string& path, int64_t size_bytes);
  // Makes an added file shorter than was reserved. INVALID_ARGUMENT if it would become longer; NOT_FOUND,
  // reason UNKNOWN_FILE, if it was not added.
  Status Truncate(const std::string& path, int64_t size_bytes);
  // Hands the part to the daemon, which owns the bytes once this returns OK. The Part takes no more calls. On
  // an error the save is aborted for all ranks.
  Result<Save> Seal();
  // Ends the save for all ranks. They get reason SAVE_ABORTED with `message`.
  Status Abort(const std::string& message);

 private:
  friend struct internal::Access;
  explicit Part(std::shared_ptr<internal::PartData> data) : data_(std::move(data)) {}
  std::shared_ptr<internal::PartData> data_;
};

// The checked bytes of a file, mapped from the daemon's own memory: the process has no copy of them. They
// stay valid and unchanged as long as this object or a copy of it lives, even when the Checkpoint, the Client
// or the daemon ends before. The mapping is private: a page that this process writes is copied, and nobody
// else sees the change.
class MappedFile {
 public:
  std::span<std::byte> bytes() const;

 private:
  friend struct internal::Access;
  explicit MappedFile(std::shared_ptr<const internal::MapData> data) : data_(std::move(data)) {}
  std::shared_ptr<const internal::MapData> data_;
};

// A committed checkpoint, open for reading. While it exists its lease keeps retention and re-saves from
// removing it. Every byte that is read was checked against the CRC32C of its chunk in the manifest. When a
// check fails, the daemon is told: it marks the checkpoint as damaged and offers an older one from then on.
// One thread at a time.
class Checkpoint {
 public:
  Checkpoint(Checkpoint&&) = default;
  Checkpoint& operator=(Checkpoint&&) = default;

  CheckpointInfo info() const;
  // Reads a whole file.
  //   NOT_FOUND  UNKNOWN_FILE: the checkpoint has no such file
  //   DATA_LOSS  CORRUPT_FILE or SHORT_FILE: the bytes are not what was saved
  //   DATA_LOSS  IO_ERROR: the disk failed; this does not mark the checkpoint as damaged
  Result<std::vector<std::byte>> Read(const std::string& path);
  // Reads the bytes [offset, offset + into.size()) of a file. INVALID_ARGUMENT, before anything is read, if
  // they are not all within the file; otherwise the errors of Read. After an error `into` may be partly
  // overwritten.
  Status ReadInto(const std::string& path, int64_t offset, std::span<std::byte> into);
  // Reads many slices of files, in any order; they may overlap. A load onto another number of ranks needs
  // this. Only the chunks that a slice touches are read, each once, in the order of their offsets. The errors
  // are those of ReadInto; if any slice lies outside its file, nothing is read.
  Status ReadRanges(const std::vector<Range>& ranges);
  // Maps a file from the daemon's memory, without a copy and without memory of its own. nullopt if that is
  // not possible; then Read it. That is so if the daemon has no resident copy, or cannot spare the memory
  // until this process's session ends, if the file is empty, or after Finish. NOT_FOUND, reason UNKNOWN_FILE,
  // if the checkpoint has no such file.
  Result<std::optional<MappedFile>> Map(const std::string& path);
  // The newer checkpoints that are damaged, newest first, in whose place this one was opened.
  std::vector<CheckpointInfo> passed_over() const;

  // Joins the agreement of all ranks on a checkpoint of Resume. Every rank calls it once it has read its
  // part; it waits for the other ranks. On an error no rank may train on from this checkpoint: call Resume
  // again.
  //   OK                 every rank has read its part
  //   DATA_LOSS          CHECKPOINT_DAMAGED: a rank has found damage
  //   ABORTED            RESUME_FAILED: a rank has ended, or destroyed its Checkpoint without Finish
  //   DEADLINE_EXCEEDED  RESUME_INCOMPLETE: `timeout` has passed; the detail "ranks" names the missing ranks
  //   INVALID_ARGUMENT   this checkpoint comes from Open
  Status Finish(Timeout timeout = std::chrono::seconds(600));

 private:
  friend struct internal::Access;
  explicit Checkpoint(std::shared_ptr<internal::CheckpointData> data) : data_(std::move(data)) {}
  std::shared_ptr<internal::CheckpointData> data_;
};

// One rank of a job, joined to the run of a root. Copies refer to the same run.
class Run {
 public:
  std::string name() const;  // `runs/{run}`.
  int64_t attempt() const;

  // Saves this rank's part: copies the files into the daemon's memory and seals them. The trainer is held up
  // for exactly the time of this call; the daemon writes to disk afterwards. Every rank calls it with the
  // same tag and step; a rank that contributes nothing passes no files. A save that SaveOptions::busy gave up
  // is OK at level kSkipped. On an error the save is aborted for all ranks.
  Result<abi0::Save> Save(const SaveOptions& options, const std::vector<File>& files) {
    return SaveWith(internal::ToArguments(options), files);
  }
  // Begins a save whose files the caller adds and writes one by one.
  Result<Part> Begin(const SaveOptions& options) { return BeginWith(internal::ToArguments(options)); }

  // The checkpoint to go on from: the newest committed one that is not known to be damaged and, unless
  // `allow_suspect`, not suspect. The daemon decides once for all ranks of this attempt, after every save
  // that earlier attempts sealed is published or has failed. nullopt: the root holds no checkpoint, train
  // from the beginning. Every rank reads its part and calls Finish.
  //   DATA_LOSS            CHECKPOINT_DAMAGED: all checkpoints are damaged or, if `strict`, the newest one
  //   FAILED_PRECONDITION  SUSPECT: all checkpoints are suspect, or the ranks differ in `allow_suspect`
  //   DEADLINE_EXCEEDED    there was no decision within `timeout`
  Result<std::optional<Checkpoint>> Resume(const ResumeOptions& options = {}) {
    return ResumeWith(internal::ToArguments(options));
  }

  Result<std::optional<CheckpointInfo>>
  Latest();  // The newest that is neither damaged nor suspect; nullopt: none.
  Result<std::vector<CheckpointInfo>> List();  // Committed checkpoints, newest first.
  // Opens a committed checkpoint by its tag, or "latest" (see Latest), for this process alone: other ranks
  // are not involved, and Finish is not called.
  //   NOT_FOUND  NO_CHECKPOINT
  //   DATA_LOSS  CHECKPOINT_DAMAGED: all checkpoints are damaged, or as OpenOptions::strict says
  Result<Checkpoint> Open(const std::string& tag, const OpenOptions& options = {}) {
    return OpenWith(tag, internal::ToArguments(options));
  }
  // Makes the daemon read a checkpoint (a tag or "latest") into its memory and check it, and waits for that.
  // Resume and Open then read it from memory; while it is under way they wait for it. Call it from a thread
  // of its own while the process starts up; one rank of a node does it for all. After an error readers read
  // the disk:
  //   NOT_FOUND           NO_CHECKPOINT
  //   DATA_LOSS           CHECKPOINT_DAMAGED; CORRUPT_FILE or SHORT_FILE, found now and remembered; IO_ERROR
  //   RESOURCE_EXHAUSTED  POOL_EXHAUSTED: the memory would not leave room for a save
  //   ABORTED             PREFETCH_BUSY: the daemon is reading another checkpoint of this run
  //   DEADLINE_EXCEEDED   `timeout` has passed; the daemon goes on reading
  Result<CheckpointInfo> Prefetch(const std::string& tag = "latest",
                                  Timeout timeout = std::chrono::seconds(600));

 private:
  friend struct internal::Access;
  explicit Run(std::shared_ptr<internal::RunData> data) : data_(std::move(data)) {}
  Result<abi0::Save> SaveWith(const internal::Arguments& options, const std::vector<File>& files);
  Result<Part> BeginWith(const internal::Arguments& options);
  Result<std::optional<Checkpoint>> ResumeWith(const internal::Arguments& options);
  Result<Checkpoint> OpenWith(const std::string& tag, const internal::Arguments& options);
  std::shared_ptr<internal::RunData> data_;
};

// A session with the daemon. It ends when the last of the Client, its Runs and the objects made by them is
// destroyed. Copies refer to the same session.
class Client {
 public:
  // Connects to the daemon at `endpoint`, `unix:/path/ckptd.sock`. Empty: $CKPTD_ENDPOINT, or
  // unix:/run/ckptd/ckptd.sock if that is not set. UNAVAILABLE if no daemon answers within
  // ClientOptions::connect_timeout; INVALID_ARGUMENT if `endpoint` is malformed.
  static Result<Client> Connect(const std::string& endpoint = "", const ClientOptions& options = {}) {
    return ConnectWith(endpoint, internal::ToArguments(options));
  }
  // Joins the run in `root`, an existing directory that this process can open, as `options.rank`. Waits while
  // the daemon recovers the root.
  Result<Run> OpenRun(const std::string& root, const RunOptions& options = {}) {
    return OpenRunWith(root, internal::ToArguments(options));
  }
  const std::string& endpoint() const;

 private:
  friend struct internal::Access;
  explicit Client(std::shared_ptr<internal::ClientData> data) : data_(std::move(data)) {}
  static Result<Client> ConnectWith(const std::string& endpoint, const internal::Arguments& options);
  Result<Run> OpenRunWith(const std::string& root, const internal::Arguments& options);
  std::shared_ptr<internal::ClientData> data_;
};

// ---- The program's side of the options. A field that a later version adds is passed only where it differs
// from its default: older libraries do not know it.

namespace internal {

inline Arguments ToArguments(const ClientOptions& options) {
  Arguments arguments;
  arguments.Set("name", options.name);
  arguments.Set("connect_timeout", int64_t{options.connect_timeout.count()});
  arguments.Set("keeper", int64_t{options.keeper});
  return arguments;
}

inline void SetKeep(const Keep& keep, Arguments* arguments) {
  if (keep.last.has_value()) arguments->Set("retention.last", int64_t{*keep.last});
  arguments->Set("retention.best", int64_t{keep.best});
  arguments->Set("retention.metric", keep.metric);
  arguments->Set("retention.highest", int64_t{keep.highest});
  arguments->Set("retention.every", keep.every);
  arguments->Set("retention.newer_than", int64_t{keep.newer_than.count()});
}

inline void SetUpload(const Upload& upload, Arguments* arguments) {
  arguments->Set("upload.url", upload.url);
  arguments->Set("upload.every", int64_t{upload.every});
  arguments->Set("upload.keep_last", int64_t{upload.keep_last});
  arguments->Set("upload.evict_before_upload", int64_t{upload.evict_before_upload});
  arguments->Set("upload.restore", int64_t{upload.restore});
}

inline Arguments ToArguments(const RunOptions& options) {
  Arguments arguments;
  arguments.Set("rank", int64_t{options.rank});
  arguments.Set("world_size", int64_t{options.world_size});
  std::string ranks;
  for (const int rank : options.local_ranks) ranks += (ranks.empty() ? "" : ",") + std::to_string(rank);
  arguments.Set("local_ranks", ranks);
  arguments.Set("launch_id", options.launch_id);
  arguments.Set("job", options.job);
  arguments.Set("run_id", options.run_id);
  arguments.Set("attempt", options.attempt);
  if (options.retention.has_value()) SetKeep(*options.retention, &arguments);
  if (options.upload.has_value()) SetUpload(*options.upload, &arguments);
  if (options.share_unchanged) arguments.Set("share_unchanged", int64_t{1});
  arguments.Set("commit_timeout", int64_t{options.commit_timeout.count()});
  arguments.Set("copy_threads", int64_t{options.copy_threads});
  return arguments;
}

inline Arguments ToArguments(const SaveOptions& options) {
  Arguments arguments;
  arguments.Set("tag", options.tag);
  if (options.step.has_value()) arguments.Set("step", *options.step);
  for (const auto& [name, value] : options.metrics) arguments.Set("metrics." + name, value);
  arguments.Set("suspect", options.suspect);
  for (const auto& [name, content] : options.pointers) arguments.Set("pointers." + name, content);
  arguments.Set("busy", static_cast<int64_t>(options.busy));
  arguments.Set("timeout", int64_t{options.timeout.count()});
  return arguments;
}

inline Arguments ToArguments(const ResumeOptions& options) {
  Arguments arguments;
  arguments.Set("timeout", int64_t{options.timeout.count()});
  arguments.Set("strict", int64_t{options.strict});
  arguments.Set("allow_suspect", int64_t{options.allow_suspect});
  return arguments;
}

inline Arguments ToArguments(const OpenOptions& options) {
  Arguments arguments;
  arguments.Set("strict", int64_t{options.strict});
  arguments.Set("background", int64_t{options.background});
  return arguments;
}

}  // namespace internal
}  // namespace abi0
}  // namespace ckptd
#endif  // CKPTD_CLIENT_H_
