// Reading a checkpoint. The client takes a lease from the daemon. Then it reads each file from the first of
// these that works:
//   1. the resident copy in the daemon's memory
//   2. the file on disk, beneath this process's own descriptor of the root, with every chunk checked
//   3. the daemon, which reads, checks and sends the bytes: where this process may not read the files, or
//      where the tag names another checkpoint by now
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "client/cpp/client_impl.h"
#include "client/cpp/memory/copy.h"
#include "client/cpp/reading/background.h"
#include "client/cpp/reading/ranges.h"
#include "client/cpp/reading/read_progress_reporter.h"
#include "client/cpp/reading/resident_files.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/checkpoint/disk_file.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd::client {
namespace {

constexpr int64_t kMinReadBytesPerSecond = 20'000'000;  // Bytes per second that the daemon sends at least.
constexpr size_t kMaxDamageText = 1000;                 // Bytes; the limit of ckptd.v1.Damage.
constexpr size_t kMaxRanges = 10'000;  // Ranges in one request, which must be a small message.
constexpr Duration kReportTimeout = std::chrono::seconds(1);

}  // namespace

class CheckpointImpl {
 public:
  enum class From { kResume, kOpen };

  // `response` is that of Resume or OpenCheckpoint.
  template <typename Response>
  CheckpointImpl(std::shared_ptr<RunImpl> run, std::shared_ptr<Session> session, const Response& response,
                 From from, bool background = false)
      : run_(std::move(run)),
        session_(std::move(session)),
        lease_(response.lease()),
        info_(InfoOf(response.checkpoint())),
        from_(from),
        background_(background),
        progress_([this](int64_t read, int64_t total) { return Report(read, total); }) {
    for (const v1::Checkpoint& passed : response.passed_over()) passed_over_.push_back(InfoOf(passed));
    for (const FileInfo& file : info_.files) sizes_[file.path] = file.size_bytes;
    // Best effort: without a directory the daemon reads.
    OpenDirectory().IgnoreError();
  }

  ~CheckpointImpl() {
    if (from_ == From::kResume && !finish_sent_ && session_->alive()) {
      v1::FinishResumeRequest finish;
      finish.set_failure("the rank released the checkpoint before all ranks had read their parts");
      SendFinishResume(std::move(finish), kCallTimeout).IgnoreError();
    }
    progress_.Finish();  // Before the lease ends: a report names it.
    v1::CloseCheckpointRequest request;
    request.set_lease(lease_);
    // The leases of a session that has ended are released already.
    if (session_->alive()) session_->rpc().CloseCheckpoint(request, kCallTimeout).status().IgnoreError();
  }

  const CheckpointInfo& info() const { return info_; }
  const std::vector<CheckpointInfo>& passed_over() const { return passed_over_; }

  absl::Status Finish(Timeout timeout) {
    if (from_ != From::kResume) {
      return InvalidArgument(absl::StrCat("Finish was called for checkpoint ", info_.tag,
                                          ", which Open gave; only a checkpoint of Resume needs Finish"));
    }
    if (!first_error_.ok()) return first_error_;
    finish_sent_ = true;
    in_memory_ = false;  // When all ranks have read their parts, the daemon reuses the memory for saves.
    return SendFinishResume(v1::FinishResumeRequest(), timeout);
  }

  absl::StatusOr<std::vector<std::byte>> Read(const std::string& path) {
    CKPTD_ASSIGN_OR_RETURN(const int64_t size, SizeOf(path));
    std::vector<std::byte> bytes(static_cast<size_t>(size));
    CKPTD_RETURN_IF_ERROR(ReadRanges({{path, 0, bytes}}));
    return bytes;
  }

  absl::Status ReadRanges(const std::vector<ReadRange>& ranges) {
    std::map<std::string, std::vector<FilePiece>> wanted;
    for (const ReadRange& range : ranges) {
      CKPTD_ASSIGN_OR_RETURN(const int64_t size, SizeOf(range.path));
      const int64_t length = std::ssize(range.into);
      if (range.offset < 0 || range.offset > size || length > size - range.offset) {
        return InvalidArgument(absl::StrCat(length, " bytes of ", range.path, " from byte ", range.offset,
                                            " on were requested, but the file has ", size, " bytes"));
      }
      if (length > 0) wanted[range.path].push_back({range.offset, range.into});
    }
    for (auto& [path, pieces] : wanted) CKPTD_RETURN_IF_ERROR(ReadFile(path, PlanRanges(std::move(pieces))));
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<MappedFile>> Map(const std::string& path) {
    CKPTD_ASSIGN_OR_RETURN(const int64_t size, SizeOf(path));
    std::shared_ptr<std::byte> bytes;
    if (in_memory_ && size > 0) bytes = resident_files().Map(path, size);
    if (bytes == nullptr) return std::optional<MappedFile>();
    return std::optional<MappedFile>(MappedFile(std::move(bytes), static_cast<size_t>(size)));
  }

 private:
  absl::StatusOr<int64_t> SizeOf(const std::string& path) const {
    auto found = sizes_.find(path);
    if (found != sizes_.end()) return found->second;
    return MakeError(
        absl::StatusCode::kNotFound, "UNKNOWN_FILE",
        absl::StrCat("checkpoint ", info_.tag, " has no file ", path, "; info().files lists them"),
        {{"tag", info_.tag}, {"path", path}});
  }

  ResidentFiles& resident_files() {
    if (!resident_files_) resident_files_.emplace(session_, lease_, info_.size_bytes);
    return *resident_files_;
  }

  absl::Status ReadFile(const std::string& path, const RangePlan& plan) {
    int64_t size = 0;
    for (const FilePiece& piece : plan.pieces) size += std::ssize(piece.into);
    uint64_t* const done = progress_.Begin(size);
    const absl::Status read = ReadPieces(path, plan.pieces, done);
    progress_.End(read.ok());
    if (read.ok()) {
      RunCopy(CopyWay::kFromReadBuffer, plan.copies,
              /*threads=*/1);  // In order: a step may copy what an earlier one has written.
      return read;
    }
    const absl::Status error =
        Annotate(MissingFileAsDamage(path, read), absl::StrCat("checkpoint ", info_.tag));
    if (first_error_.ok() && ProvesDamage(error)) ReportDamage(path, error);
    // An I/O error proves no damage, but this rank has not read its part, so Finish must fail.
    if (first_error_.ok() && CouldNotFindOut(error)) first_error_ = error;
    return error;
  }

  absl::Status ReadPieces(const std::string& path, const std::vector<FilePiece>& pieces, uint64_t* done) {
    if (in_memory_ && resident_files().Read(path, pieces, run_->read_threads(), background_))
      return absl::OkStatus();
    if (directory_) {
      absl::Status read;
      RunInBackgroundIf(background_, [&] {
        read = ReadFromDisk(*fs_, directory_.get(), *records_.at(path), manifest_.summary.chunk_bytes(),
                            pieces, run_->read_threads(), /*stop=*/nullptr, done);
      });
      if (!absl::IsPermissionDenied(read)) return read;
    }
    const std::span<const FilePiece> all(pieces);
    for (size_t i = 0; i < all.size(); i += kMaxRanges)
      CKPTD_RETURN_IF_ERROR(ReadByDaemon(path, all.subspan(i, std::min(kMaxRanges, all.size() - i)), done));
    return absl::OkStatus();
  }

  // A file of a committed checkpoint that is missing is damage; any other error stays what it is.
  absl::Status MissingFileAsDamage(const std::string& path, const absl::Status& read) const {
    const int number = ErrnoOf(read);
    if (number != ENOENT && number != ENOTDIR && number != ELOOP && number != EISDIR) return read;
    return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_FILE",
                     absl::StrCat("file ", path, " cannot be opened: ", std::string(read.message())),
                     {{"tag", info_.tag}, {"path", path}});
  }

  // Reports damage to the daemon, which tells every rank that resumes from this checkpoint.
  void ReportDamage(const std::string& path, const absl::Status& error) {
    first_error_ = error;
    finish_sent_ = true;
    v1::Damage damage;
    damage.set_path(path);
    damage.set_message(FirstBytes(std::string(error.message()), kMaxDamageText));
    const ErrorDetails details = DetailsOf(error);
    int64_t number = 0;
    if (auto chunk = details.find("chunk");
        chunk != details.end() && absl::SimpleAtoi(chunk->second, &number))
      damage.set_chunk(number);
    if (auto value = details.find("expected"); value != details.end()) damage.set_expected(value->second);
    if (auto value = details.find("found"); value != details.end()) damage.set_found(value->second);
    absl::Status told;
    if (from_ == From::kResume) {
      v1::FinishResumeRequest finish;
      *finish.mutable_damage() = std::move(damage);
      told = SendFinishResume(std::move(finish), kCallTimeout);
    } else {
      v1::ReportDamageRequest report;
      report.set_name(info_.name);
      report.set_sequence(info_.sequence);
      *report.mutable_damage() = std::move(damage);
      told = session_->rpc().ReportDamage(report, kCallTimeout).status();
    }
    told.IgnoreError();  // Best effort: the next reader will find the damage again.
  }

  absl::Status SendFinishResume(v1::FinishResumeRequest request, Timeout timeout) {
    request.set_rank(run_->options().rank);
    request.set_sequence(info_.sequence);
    SetDuration(timeout, request.mutable_timeout());
    return run_
        ->Retry(std::min(timeout, kReconnectTimeout),
                [&](const std::shared_ptr<const Membership>& membership) {
                  request.set_run(membership->run);
                  return membership->session->rpc().FinishResume(request, timeout + kCallTimeout);
                })
        .status();
  }

  absl::Status Report(int64_t read, int64_t total) {
    if (!session_->alive()) return absl::UnavailableError("the session has ended");
    v1::ReportReadingRequest request;
    request.set_lease(lease_);
    request.set_read_bytes(read);
    request.set_total_bytes(total);
    return session_->rpc().ReportReading(request, kReportTimeout).status();
  }

  absl::Status OpenDirectory() {
    CKPTD_ASSIGN_OR_RETURN(fs_, MakePosixFileSystem());
    CKPTD_ASSIGN_OR_RETURN(ScopedHandle directory,
                           OpenScoped(*fs_, run_->root(), info_.tag, OpenMode::kDirectory));
    CKPTD_ASSIGN_OR_RETURN(manifest_, ReadWholeManifest(*fs_, directory.get(), ""));
    if (manifest_.summary.sequence() != info_.sequence) {
      return absl::AbortedError(absl::StrCat("tag ", info_.tag, " was saved again after this checkpoint"));
    }
    for (const storage::v1::FileRecord& record : manifest_.body.files()) records_[record.path()] = &record;
    for (const auto& [path, size] : sizes_) {
      auto record = records_.find(path);
      if (record == records_.end() || record->second->size_bytes() != size) {
        return absl::DataLossError(absl::StrCat("the manifest on disk has no file ", path, " of ", size,
                                                " bytes, but the daemon's has"));
      }
    }
    directory_ = std::move(directory);
    return absl::OkStatus();
  }

  // Reads by the daemon, which checks whole chunks but sends only the requested bytes.
  absl::Status ReadByDaemon(const std::string& path, std::span<const FilePiece> pieces, uint64_t* done) {
    v1::ReadFileRequest request;
    request.set_lease(lease_);
    request.set_path(path);
    int64_t left = 0;
    for (const FilePiece& piece : pieces) {
      v1::FileRange& range = *request.add_ranges();
      range.set_offset(piece.offset);
      range.set_size_bytes(std::ssize(piece.into));
      left += std::ssize(piece.into);
    }
    size_t piece = 0, filled = 0;
    const Duration timeout = kCallTimeout + std::chrono::seconds(left / kMinReadBytesPerSecond);
    CKPTD_RETURN_IF_ERROR(session_->rpc().ReadFile(request, timeout, [&](std::string_view data) {
      if (std::ssize(data) > left)
        return absl::InternalError(absl::StrCat("the daemon sent more than the requested bytes of ", path));
      left -= std::ssize(data);
      __atomic_add_fetch(done, data.size(), __ATOMIC_RELAXED);
      while (!data.empty()) {
        const std::span<std::byte> into = pieces[piece].into.subspan(filled);
        const size_t size = std::min(into.size(), data.size());
        std::memcpy(into.data(), data.data(), size);
        data.remove_prefix(size);
        filled += size;
        if (size < into.size()) continue;
        ++piece;
        filled = 0;
      }
      return absl::OkStatus();
    }));
    if (left == 0) return absl::OkStatus();
    return MakeError(
        absl::StatusCode::kDataLoss, "SHORT_FILE",
        absl::StrCat("the daemon's answer for ", path, " ended ", left, " bytes before the requested end"));
  }

  const std::shared_ptr<RunImpl> run_;
  const std::shared_ptr<Session> session_;
  const std::string lease_;
  const CheckpointInfo info_;
  const From from_;
  const bool background_;
  std::vector<CheckpointInfo> passed_over_;
  absl::Status first_error_;  // The first proof that this rank has not read what was saved.
  bool finish_sent_ = false;  // FinishResume was sent.
  std::map<std::string, int64_t> sizes_;
  bool in_memory_ = true;
  std::optional<ResidentFiles> resident_files_;  // Made when the first byte is read.
  std::unique_ptr<FileSystem> fs_;
  ScopedHandle directory_;  // Invalid: the daemon reads.
  Manifest manifest_;
  std::map<std::string, const storage::v1::FileRecord*> records_;
  ReadProgressReporter progress_;
};

MappedFile::MappedFile(std::shared_ptr<std::byte> bytes, size_t size)
    : bytes_(std::move(bytes)), size_(size) {}

Checkpoint::Checkpoint(std::unique_ptr<CheckpointImpl> impl) : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;
const CheckpointInfo& Checkpoint::info() const { return impl_->info(); }
absl::StatusOr<std::vector<std::byte>> Checkpoint::Read(const std::string& path) { return impl_->Read(path); }
absl::Status Checkpoint::ReadInto(const std::string& path, int64_t offset, std::span<std::byte> into) {
  return impl_->ReadRanges({{path, offset, into}});
}
absl::Status Checkpoint::ReadRanges(const std::vector<ReadRange>& ranges) {
  return impl_->ReadRanges(ranges);
}
absl::StatusOr<std::optional<MappedFile>> Checkpoint::Map(const std::string& path) {
  return impl_->Map(path);
}

const std::vector<CheckpointInfo>& Checkpoint::passed_over() const { return impl_->passed_over(); }
absl::Status Checkpoint::Finish(Timeout timeout) { return impl_->Finish(timeout); }

absl::StatusOr<std::optional<Checkpoint>> Run::Resume(Timeout timeout, bool strict, bool allow_suspect) {
  using Answer = std::optional<Checkpoint>;
  return impl_->Retry(
      timeout, [&](const std::shared_ptr<const Membership>& membership) -> absl::StatusOr<Answer> {
        v1::ResumeRequest request;
        request.set_run(membership->run);
        request.set_rank(impl_->options().rank);
        request.set_strict(strict);
        request.set_allow_suspect(allow_suspect);
        SetDuration(timeout, request.mutable_timeout());
        CKPTD_ASSIGN_OR_RETURN(v1::ResumeResponse response,
                               membership->session->rpc().Resume(request, timeout + kCallTimeout));
        if (!response.has_checkpoint()) return Answer();
        return Answer(Checkpoint(std::make_unique<CheckpointImpl>(impl_, membership->session, response,
                                                                  CheckpointImpl::From::kResume)));
      });
}

absl::StatusOr<Checkpoint> Run::Open(const std::string& tag, const OpenOptions& options) {
  return impl_->Retry(
      kCallTimeout, [&](const std::shared_ptr<const Membership>& membership) -> absl::StatusOr<Checkpoint> {
        v1::OpenCheckpointRequest request;
        request.set_name(absl::StrCat(membership->run, "/checkpoints/", tag));
        request.set_strict(options.strict);
        CKPTD_ASSIGN_OR_RETURN(v1::OpenCheckpointResponse response,
                               membership->session->rpc().OpenCheckpoint(request, kCallTimeout));
        return Checkpoint(std::make_unique<CheckpointImpl>(impl_, membership->session, response,
                                                           CheckpointImpl::From::kOpen, options.background));
      });
}

}  // namespace ckptd::client
