// One thread owns the queue and does everything else.
//
//   1. It opens and allocates a file when it begins the file's first chunk; at most kMaxOpenOutputs are open.
//   2. A chunk has two buffers: the bytes to write, and an arena to read into. Bytes that are close together
//      in one input are one read, aligned for direct I/O. What does not fit into the arena at once is read
//      in further rounds.
//   3. When all reads of a round are complete, their pieces are copied, or cast, to their places in the
//      chunk. After the last round the chunk is written.
//   4. When the last chunk of a file is written, the file is cut to size and synced, while others go on.
//
// After an error nothing more is begun, and the operations in the queue are waited for.
#include "client/convert/files/stream_files.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr int64_t kAlignment = 4096;   // Direct I/O needs this for offsets, lengths and memory.
constexpr int64_t kMaxGap = 64 << 10;  // Bytes. Reading over such a gap is cheaper than another read.
constexpr int kMaxSpans = 24;          // Reads in one round.
constexpr size_t kMaxOpenOutputs = 48;
constexpr size_t kMaxOpenInputs = 400;  // More than depth * kMaxSpans of the default options.
constexpr auto kPollTime = std::chrono::milliseconds(200);

int64_t RoundDown(int64_t at) { return at / kAlignment * kAlignment; }
int64_t RoundUp(int64_t at) { return RoundDown(at + kAlignment - 1); }

absl::Status FileError(const std::string& path, const absl::Status& status) {
  ErrorDetails details = DetailsOf(status);
  details["path"] = path;
  return MakeError(status.code(), ReasonOf(status), absl::StrCat(path, ": ", std::string(status.message())),
                   details);
}

// Memory for buffers, in huge pages if there are any.
class Arena {
 public:
  static absl::StatusOr<Arena> Make(size_t size) {
    void* data = mmap(nullptr, size + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return ErrnoError(errno, absl::StrCat("memory for buffers, ", size, " bytes"));
    (void)madvise(data, size + kHuge, MADV_HUGEPAGE);
    return Arena(static_cast<std::byte*>(data), size + kHuge);
  }
  Arena(Arena&& other) noexcept : mapped_(std::exchange(other.mapped_, nullptr)), size_(other.size_) {}
  ~Arena() {
    if (mapped_ != nullptr) munmap(mapped_, size_);
  }
  Arena& operator=(Arena&&) = delete;
  std::byte* data() const {
    const auto start = reinterpret_cast<uintptr_t>(mapped_);
    return mapped_ + ((start + kHuge - 1) / kHuge * kHuge - start);
  }

 private:
  static constexpr size_t kHuge = 2 << 20;
  Arena(std::byte* mapped, size_t size) : mapped_(mapped), size_(size) {}
  std::byte* mapped_;
  size_t size_;
};

struct Input {
  ScopedHandle handle;
  int users = 0;
  uint64_t last_use = 0;
};

struct Output {
  const PlannedFile* file;
  ScopedHandle handle;
  int64_t begun = 0;      // Bytes of the file whose chunks have begun.
  size_t next_piece = 0;  // The first piece that may reach beyond `begun`.
  int chunks = 0;         // Chunks in flight.
  bool direct = false;
};

// One read, which may serve several pieces.
struct Span {
  int input;
  int64_t offset, size;  // Multiples of kAlignment.
  int64_t needed;        // The first bytes of it that must exist; the rest may be beyond the end of the file.
  std::byte* at;
};

struct Wanted {
  Piece piece;         // Its offset is relative to the chunk.
  int64_t input_size;  // The bytes to read; other than piece.size if the elements are cast.
  const std::byte* at = nullptr;
};

struct Slot {
  std::byte* chunk;  // The bytes to write.
  std::byte* arena;  // Reads go here.
};

struct Chunk {
  std::shared_ptr<Output> output;
  Slot slot;
  int64_t offset, size;
  std::vector<Wanted> wanted;  // The pieces to read, ordered by input and offset there.
  size_t round_begin = 0, round_end = 0;
  std::vector<Span> spans;  // The reads of this round.
  int reads = 0;            // Reads in the queue.
};
using ChunkPtr = std::shared_ptr<Chunk>;

class Streamer {
 public:
  Streamer(FileSystem& fs, Handle in, const std::vector<std::string>& inputs, Handle out,
           const std::vector<PlannedFile>& files, const StreamOptions& options)
      : fs_(fs),
        in_(in),
        out_(out),
        input_paths_(inputs),
        files_(files),
        options_(options),
        arena_bytes_(options.chunk_bytes + options.chunk_bytes / 4 + 2 * kAlignment),
        inputs_(inputs.size()) {}

  absl::Status Run(const std::function<bool(int64_t)>& progress) {
    const int64_t slot_bytes = options_.chunk_bytes + RoundUp(arena_bytes_);
    CKPTD_ASSIGN_OR_RETURN(const Arena memory, Arena::Make(static_cast<size_t>(slot_bytes * options_.depth)));
    for (int i = 0; i < options_.depth; ++i) {
      std::byte* const at = memory.data() + i * slot_bytes;
      free_.push_back({at, at + options_.chunk_bytes});
    }
    CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<IoQueue> queue, options_.queue());
    queue_ = queue.get();
    Instant told;
    for (;;) {
      while (BeginNext()) {
      }
      if (queue_->in_flight() == 0 && (!status_.ok() || Finished())) break;
      queue_->Poll(kPollTime);
      const Instant now = SystemClock().Now();
      if (now - told < kPollTime / 4) continue;
      told = now;
      if (!progress(written_)) {
        Fail(MakeError(absl::StatusCode::kAborted, "INTERRUPTED",
                       "the conversion was stopped before its end"));
      }
    }
    if (status_.ok()) progress(written_);
    return status_;
  }

 private:
  bool Finished() const { return next_file_ == files_.size() && current_ == nullptr && open_outputs_ == 0; }

  void Fail(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }

  // Begins the next chunk. False if nothing can be begun now.
  bool BeginNext() {
    if (!status_.ok()) {
      current_.reset();
      return false;
    }
    if (current_ == nullptr) {
      if (next_file_ == files_.size() || open_outputs_ >= kMaxOpenOutputs) return false;
      const PlannedFile& file = files_[next_file_++];
      current_ = std::make_shared<Output>(Output{.file = &file, .handle = {}});
      const absl::Status opened = Open(*current_);
      if (!opened.ok()) {
        Fail(FileError(file.path, opened));
      } else if (file.size == 0) {
        CutAndSync(std::exchange(current_, nullptr));
      }
      return true;
    }
    if (free_.empty()) return false;
    // Buffered writes to one file block one another in the kernel, and each costs a thread there.
    if (!current_->direct && current_->chunks > 0) return false;
    BeginChunk();
    if (current_->begun == current_->file->size) current_.reset();
    return true;
  }

  absl::Status Open(Output& output) {
    const PlannedFile& file = *output.file;
    output.direct = options_.direct_writes && file.size > 0;
    CKPTD_ASSIGN_OR_RETURN(
        output.handle,
        OpenScoped(fs_, out_, file.path, output.direct ? OpenMode::kCreateDirect : OpenMode::kCreate));
    ++open_outputs_;
    if (file.size == 0) return absl::OkStatus();
    const absl::Status allocated =
        fs_.Allocate(output.handle.get(), output.direct ? RoundUp(file.size) : file.size);
    const int error = ErrnoOf(allocated);
    // Some file systems cannot allocate. Then the writes find out whether there is space.
    if (error == EOPNOTSUPP || error == ENOSYS) return absl::OkStatus();
    return allocated;
  }

  void BeginChunk() {
    Output& output = *current_;
    const PlannedFile& file = *output.file;
    auto chunk = std::make_shared<Chunk>();
    chunk->output = current_;
    chunk->slot = free_.back();
    free_.pop_back();
    chunk->offset = output.begun;
    chunk->size = std::min(options_.chunk_bytes, file.size - output.begun);
    output.begun += chunk->size;
    ++output.chunks;
    FillIn(*chunk);
    std::sort(chunk->wanted.begin(), chunk->wanted.end(), [](const Wanted& a, const Wanted& b) {
      return std::pair(a.piece.input, a.piece.from) < std::pair(b.piece.input, b.piece.from);
    });
    Advance(chunk);
  }

  // Puts literals and zeros in place, and notes what must be read from inputs.
  void FillIn(Chunk& chunk) {
    Output& output = *chunk.output;
    const PlannedFile& file = *output.file;
    const int64_t end = chunk.offset + chunk.size;
    int64_t filled = chunk.offset;
    for (size_t i = output.next_piece; i < file.pieces.size() && file.pieces[i].offset < end; ++i) {
      const Piece& piece = file.pieces[i];
      const int64_t piece_end = piece.offset + piece.size;
      const int64_t first = std::max(piece.offset, chunk.offset);
      const int64_t last = std::min(piece_end, end);
      if (piece_end <= end) output.next_piece = i + 1;
      if (first >= last) continue;
      std::memset(chunk.slot.chunk + (filled - chunk.offset), 0, static_cast<size_t>(first - filled));
      const int64_t from = piece.from + piece.cast.InputBytes(first - piece.offset);
      if (piece.input == Piece::kLiteral) {
        std::memcpy(chunk.slot.chunk + (first - chunk.offset), file.literals.data() + from,
                    static_cast<size_t>(last - first));
      } else {
        Want(chunk, {.offset = first - chunk.offset,
                     .size = last - first,
                     .input = piece.input,
                     .from = from,
                     .cast = piece.cast});
      }
      filled = last;
    }
    // Zeros up to the boundary that direct I/O needs.
    std::memset(chunk.slot.chunk + (filled - chunk.offset), 0, static_cast<size_t>(RoundUp(end) - filled));
  }

  // Notes that a piece must be read, in parts that fit into the arena: input may be larger than output.
  void Want(Chunk& chunk, Piece piece) const {
    const int64_t end = piece.offset + piece.size;
    const int64_t most = piece.cast.OutputBytes(options_.chunk_bytes);
    while (piece.offset < end) {
      piece.size = std::min(most, end - piece.offset);
      chunk.wanted.push_back({.piece = piece, .input_size = piece.cast.InputBytes(piece.size)});
      piece.offset += piece.size;
      piece.from += piece.cast.InputBytes(piece.size);
    }
  }

  // Starts the next round of reads, or the write.
  void Advance(const ChunkPtr& chunk) {
    if (!status_.ok()) return Drop(chunk);
    if (chunk->round_end == chunk->wanted.size()) return Write(chunk, 0);
    PlanRound(*chunk);
    // Count all reads before the first is submitted.
    chunk->reads = static_cast<int>(chunk->spans.size());
    for (size_t i = 0; i < chunk->spans.size(); ++i) {
      const absl::StatusOr<Handle> input = Acquire(chunk->spans[i].input);
      if (!input.ok())
        Fail(FileError(input_paths_[static_cast<size_t>(chunk->spans[i].input)], input.status()));
      if (!status_.ok()) {
        if (input.ok()) Release(chunk->spans[i].input);
        if (--chunk->reads == 0) return Drop(chunk);
        continue;
      }
      Read(chunk, i, *input, 0);
    }
  }

  void PlanRound(Chunk& chunk) const {
    chunk.spans.clear();
    chunk.round_begin = chunk.round_end;
    int64_t used = 0;
    size_t& at = chunk.round_end;
    for (; at < chunk.wanted.size(); ++at) {
      Wanted& wanted = chunk.wanted[at];
      const int64_t first = RoundDown(wanted.piece.from);
      const int64_t end = wanted.piece.from + wanted.input_size;
      Span* span = chunk.spans.empty() ? nullptr : &chunk.spans.back();
      const bool joins = span != nullptr && span->input == wanted.piece.input &&
                         first <= span->offset + span->size + kMaxGap;
      if (joins) {
        const int64_t grown = std::max(span->size, RoundUp(end) - span->offset);
        if (used + grown - span->size > arena_bytes_) break;
        used += grown - span->size;
        span->size = grown;
        span->needed = std::max(span->needed, end - span->offset);
      } else {
        const int64_t size = RoundUp(end) - first;
        if (used + size > arena_bytes_ || chunk.spans.size() == kMaxSpans) break;
        chunk.spans.push_back({.input = wanted.piece.input,
                               .offset = first,
                               .size = size,
                               .needed = end - first,
                               .at = chunk.slot.arena + used});
        used += size;
        span = &chunk.spans.back();
      }
      wanted.at = span->at + (wanted.piece.from - span->offset);
    }
  }

  absl::StatusOr<Handle> Acquire(int number) {
    Input& input = inputs_[static_cast<size_t>(number)];
    if (!input.handle) {
      if (open_inputs_.size() >= kMaxOpenInputs) CloseOneInput();
      const std::string& path = input_paths_[static_cast<size_t>(number)];
      absl::StatusOr<ScopedHandle> handle = OpenScoped(fs_, in_, path, OpenMode::kReadDirect);
      if (ErrnoOf(handle.status()) == EINVAL) handle = OpenScoped(fs_, in_, path, OpenMode::kRead);
      if (!handle.ok()) return handle.status();
      input.handle = *std::move(handle);
      open_inputs_.push_back(number);
    }
    ++input.users;
    input.last_use = ++uses_;
    return input.handle.get();
  }

  void Release(int number) { --inputs_[static_cast<size_t>(number)].users; }

  // Closes the input that was not used for the longest time, of those without a read in flight.
  void CloseOneInput() {
    auto oldest = open_inputs_.end();
    for (auto it = open_inputs_.begin(); it != open_inputs_.end(); ++it) {
      const Input& input = inputs_[static_cast<size_t>(*it)];
      if (input.users > 0) continue;
      if (oldest == open_inputs_.end() || input.last_use < inputs_[static_cast<size_t>(*oldest)].last_use)
        oldest = it;
    }
    if (oldest == open_inputs_.end()) return;
    inputs_[static_cast<size_t>(*oldest)].handle.reset();
    open_inputs_.erase(oldest);
  }

  void Read(const ChunkPtr& chunk, size_t index, Handle input, int64_t done) {
    const Span& span = chunk->spans[index];
    queue_->Read(
        input, {span.at + done, static_cast<size_t>(span.size - done)}, span.offset + done,
        [this, chunk, index, input, done](int64_t result) { OnRead(chunk, index, input, done, result); });
  }

  void OnRead(const ChunkPtr& chunk, size_t index, Handle input, int64_t done, int64_t result) {
    const Span& span = chunk->spans[index];
    const std::string& path = input_paths_[static_cast<size_t>(span.input)];
    if (status_.ok() && result < 0) {
      Fail(FileError(path, ErrnoError(static_cast<int>(-result),
                                      absl::StrCat("reading ", span.size, " bytes at byte ", span.offset))));
    }
    if (status_.ok() && done + result < span.needed) {
      // Continue a short read where it ended, rounded down for direct I/O.
      const int64_t resumed = RoundDown(done + result);
      if (resumed > done) return Read(chunk, index, input, resumed);
      Fail(FileError(path, MakeError(absl::StatusCode::kDataLoss, "SHORT_FILE",
                                     absl::StrCat("ends at byte ", span.offset + done + result, ", but byte ",
                                                  span.offset + span.needed, " of it is needed"))));
    }
    Release(span.input);
    if (--chunk->reads > 0) return;
    for (size_t i = chunk->round_begin; i < chunk->round_end; ++i) {
      const Wanted& wanted = chunk->wanted[i];
      const Cast& cast = wanted.piece.cast;
      CastElements(cast, wanted.at, chunk->slot.chunk + wanted.piece.offset,
                   wanted.piece.size / InfoOf(cast.to).item_bytes);
    }
    Advance(chunk);
  }

  void Write(const ChunkPtr& chunk, int64_t done) {
    const int64_t size = chunk->output->direct ? RoundUp(chunk->size) : chunk->size;
    queue_->Write(chunk->output->handle.get(), {chunk->slot.chunk + done, static_cast<size_t>(size - done)},
                  chunk->offset + done,
                  [this, chunk, done, size](int64_t result) { OnWritten(chunk, done, size, result); });
  }

  void OnWritten(const ChunkPtr& chunk, int64_t done, int64_t size, int64_t result) {
    const std::string what =
        status_.ok() ? absl::StrCat("writing ", size - done, " bytes at byte ", chunk->offset + done) : "";
    const bool direct = chunk->output->direct;
    if (status_.ok() && result < 0) {
      Fail(FileError(chunk->output->file->path, ErrnoError(static_cast<int>(-result), what)));
    } else if (status_.ok() && result < size - done) {
      // Continue a short write where it ended, if direct I/O can.
      if (result > 0 && (!direct || result % kAlignment == 0)) return Write(chunk, done + result);
      Fail(FileError(chunk->output->file->path,
                     ErrnoError(EIO, absl::StrCat(what, ": the kernel wrote only ", result, " bytes"))));
    }
    if (status_.ok()) written_ += chunk->size;
    Drop(chunk);
  }

  // Ends a chunk, which is written or will not be.
  void Drop(const ChunkPtr& chunk) {
    free_.push_back(chunk->slot);
    const std::shared_ptr<Output> output = chunk->output;
    --output->chunks;
    if (status_.ok() && output->chunks == 0 && output->begun == output->file->size) CutAndSync(output);
  }

  void CutAndSync(const std::shared_ptr<Output>& output) {
    const PlannedFile& file = *output->file;
    if (output->direct && file.size % kAlignment != 0) {
      const absl::Status cut = fs_.Truncate(output->handle.get(), file.size);
      if (!cut.ok()) return Fail(FileError(file.path, cut));
    }
    queue_->SyncData(output->handle.get(), [this, output](int64_t result) {
      // A failed sync is never repeated: the second one may succeed without the data.
      if (result != 0) Fail(FileError(output->file->path, ErrnoError(static_cast<int>(-result), "syncing")));
      output->handle.reset();
      --open_outputs_;
    });
  }

  FileSystem& fs_;
  const Handle in_, out_;
  const std::vector<std::string>& input_paths_;
  const std::vector<PlannedFile>& files_;
  const StreamOptions& options_;
  const int64_t arena_bytes_;

  IoQueue* queue_ = nullptr;
  absl::Status status_;  // The first failure.
  std::vector<Slot> free_;
  size_t next_file_ = 0;
  std::shared_ptr<Output> current_;  // The output whose chunks are being begun.
  size_t open_outputs_ = 0;          // Outputs that are not synced yet.
  std::vector<Input> inputs_;
  std::vector<int> open_inputs_;
  uint64_t uses_ = 0;
  int64_t written_ = 0;
};

}  // namespace

absl::Status StreamFiles(FileSystem& fs, Handle in, const std::vector<std::string>& inputs, Handle out,
                         const std::vector<PlannedFile>& files, const StreamOptions& options,
                         const std::function<bool(int64_t bytes)>& progress) {
  return Streamer(fs, in, inputs, out, files, options).Run(progress);
}

}  // namespace ckptd
