// Reading: a lease from the daemon, and its memory where that has the bytes still; else the files themselves
// beneath this process's own descriptor of the root, every chunk checked. Where this process may not read
// them, or their name is another checkpoint's meanwhile, the daemon reads, checks and sends.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "client/cpp/client_impl.h"
#include "client/cpp/residents.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint_dir.h"
#include "storage/commit/disk_file.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd::client {
namespace {

// For one call of ReadInto by way of the daemon.
constexpr Duration kRemoteReadTimeout = std::chrono::seconds(600);
// For a daemon that restarts while a rank waits for the others.
constexpr Timeout kReconnectTimeout = std::chrono::seconds(60);
constexpr size_t kMostDamageText = 1000;  // As ckptd.v1.Damage has it.

}  // namespace

class CheckpointImpl {
 public:
  enum class From { kResume, kOpen };

  // `response`: of Resume or OpenCheckpoint.
  template <typename Response>
  CheckpointImpl(std::shared_ptr<RunImpl> run, std::shared_ptr<Session> session, const Response& response,
                 From from)
      : run_(std::move(run)),
        session_(std::move(session)),
        lease_(response.lease()),
        info_(InfoOf(response.checkpoint())),
        from_(from) {
    for (const v1::Checkpoint& passed : response.passed_over()) passed_over_.push_back(InfoOf(passed));
    for (const FileInfo& file : info_.files) sizes_[file.path] = file.size_bytes;
    // Not an error: then the daemon reads.
    OpenHere().IgnoreError();
  }

  ~CheckpointImpl() {
    if (from_ == From::kResume && !said_ && session_->alive()) {
      v1::FinishResumeRequest finish;
      finish.set_failure("it let go of the checkpoint before all ranks had read theirs");
      Say(std::move(finish), kCallTimeout).IgnoreError();
    }
    v1::CloseCheckpointRequest request;
    request.set_lease(lease_);
    // A session that has ended has taken its leases along.
    if (session_->alive()) session_->rpc().CloseCheckpoint(request, kCallTimeout).status().IgnoreError();
  }

  const CheckpointInfo& info() const { return info_; }
  const std::vector<CheckpointInfo>& passed_over() const { return passed_over_; }

  absl::Status Finish(Timeout timeout) {
    if (from_ != From::kResume) {
      return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
                       "Finish is for what Resume gave; a checkpoint of Open is read by one process alone");
    }
    if (!fault_.ok()) return fault_;
    said_ = true;
    in_memory_ = false;  // When all ranks have read theirs, the daemon gives the memory to saves.
    return Say(v1::FinishResumeRequest(), timeout);
  }

  absl::StatusOr<std::vector<std::byte>> Read(const std::string& path) {
    CKPTD_ASSIGN_OR_RETURN(const int64_t size, SizeOf(path));
    std::vector<std::byte> bytes(static_cast<size_t>(size));
    CKPTD_RETURN_IF_ERROR(ReadInto(path, 0, bytes));
    return bytes;
  }

  absl::Status ReadInto(const std::string& path, int64_t offset, std::span<std::byte> into) {
    CKPTD_ASSIGN_OR_RETURN(const int64_t size, SizeOf(path));
    const auto length = static_cast<int64_t>(into.size());
    if (offset < 0 || offset > size || length > size - offset) {
      return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
                       absl::StrCat("bytes ", offset, " to ", offset + length, " of ", path,
                                    " were asked for; it has ", size));
    }
    if (into.empty()) return absl::OkStatus();
    if (in_memory_ && !residents_) residents_.emplace(session_, lease_, info_.size_bytes);
    if (in_memory_ && residents_->Read(path, offset, into, run_->copy_threads())) return absl::OkStatus();
    const absl::Status read =
        directory_ ? ReadFromDisk(*fs_, directory_.get(), *records_.at(path), manifest_.summary.chunk_bytes(),
                                  offset, {&into, 1}, run_->copy_threads())
                   : ReadByDaemon(path, offset, into);
    if (read.ok()) return read;
    const absl::Status error = Annotate(read, absl::StrCat("checkpoint ", info_.tag));
    if (absl::IsDataLoss(error) && fault_.ok()) Found(path, error);
    return error;
  }

 private:
  absl::StatusOr<int64_t> SizeOf(const std::string& path) const {
    auto found = sizes_.find(path);
    if (found != sizes_.end()) return found->second;
    return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_FILE",
                     absl::StrCat("checkpoint ", info_.tag, " has no file ", path),
                     {{"tag", info_.tag}, {"path", path}});
  }

  // The daemon is told what is wrong, and with it every rank that resumes from this.
  void Found(const std::string& path, const absl::Status& error) {
    fault_ = error;
    said_ = true;
    v1::Damage damage;
    damage.set_path(path);
    damage.set_message(FirstBytes(std::string(error.message()), kMostDamageText));
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
      told = Say(std::move(finish), kCallTimeout);
    } else {
      v1::ReportDamageRequest report;
      report.set_name(info_.name);
      report.set_sequence(info_.sequence);
      *report.mutable_damage() = std::move(damage);
      told = session_->rpc().ReportDamage(report, kCallTimeout).status();
    }
    told.IgnoreError();  // Who cannot be told now hears it from the next reader.
  }

  absl::Status Say(v1::FinishResumeRequest request, Timeout timeout) {
    request.set_rank(run_->options().rank);
    request.set_sequence(info_.sequence);
    SetDuration(timeout, request.mutable_timeout());
    return run_
        ->Repeat(std::min(timeout, kReconnectTimeout),
                 [&](const std::shared_ptr<const Joined>& joined) {
                   request.set_run(joined->run);
                   return joined->session->rpc().FinishResume(request, timeout + kCallTimeout);
                 })
        .status();
  }

  absl::Status OpenHere() {
    CKPTD_ASSIGN_OR_RETURN(fs_, MakePosixFileSystem());
    CKPTD_ASSIGN_OR_RETURN(ScopedHandle directory,
                           OpenScoped(*fs_, run_->root(), info_.tag, OpenMode::kDirectory));
    CKPTD_ASSIGN_OR_RETURN(manifest_, ReadWholeManifest(*fs_, directory.get(), ""));
    if (manifest_.summary.sequence() != info_.sequence) {
      return absl::AbortedError(absl::StrCat("tag ", info_.tag, " was saved again meanwhile"));
    }
    for (const storage::v1::FileRecord& record : manifest_.body.files()) records_[record.path()] = &record;
    for (const auto& file : sizes_) {
      auto record = records_.find(file.first);
      if (record == records_.end() || record->second->size_bytes() != file.second) {
        return absl::DataLossError(absl::StrCat("the manifest does not have the daemon's file ", file.first));
      }
    }
    directory_ = std::move(directory);
    return absl::OkStatus();
  }

  absl::Status ReadByDaemon(const std::string& path, int64_t offset, std::span<std::byte> into) {
    v1::ReadFileRequest request;
    request.set_lease(lease_);
    request.set_path(path);
    request.set_offset(offset);
    request.set_limit(static_cast<int64_t>(into.size()));
    size_t done = 0;
    CKPTD_RETURN_IF_ERROR(session_->rpc().ReadFile(request, kRemoteReadTimeout, [&](std::string_view data) {
      if (data.size() > into.size() - done)
        return absl::InternalError("the daemon sent more bytes than were asked for");
      std::memcpy(into.data() + done, data.data(), data.size());
      done += data.size();
      return absl::OkStatus();
    }));
    if (done == into.size()) return absl::OkStatus();
    return MakeError(
        absl::StatusCode::kDataLoss, "SHORT_FILE",
        absl::StrCat("the daemon sent ", done, " bytes of ", path, ", ", into.size(), " were asked for"));
  }

  const std::shared_ptr<RunImpl> run_;
  const std::shared_ptr<Session> session_;
  const std::string lease_;
  const CheckpointInfo info_;
  const From from_;
  std::vector<CheckpointInfo> passed_over_;
  absl::Status fault_;  // What was found to be wrong with it first.
  bool said_ = false;   // How this rank's reading went.
  std::map<std::string, int64_t> sizes_;
  bool in_memory_ = true;
  std::optional<Residents> residents_;  // Asked for when the first byte is.
  std::unique_ptr<FileSystem> fs_;
  ScopedHandle directory_;  // Invalid: the daemon reads.
  Manifest manifest_;
  std::map<std::string, const storage::v1::FileRecord*> records_;
};

Checkpoint::Checkpoint(std::unique_ptr<CheckpointImpl> impl) : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;
const CheckpointInfo& Checkpoint::info() const { return impl_->info(); }
absl::StatusOr<std::vector<std::byte>> Checkpoint::Read(const std::string& path) { return impl_->Read(path); }
absl::Status Checkpoint::ReadInto(const std::string& path, int64_t offset, std::span<std::byte> into) {
  return impl_->ReadInto(path, offset, into);
}

const std::vector<CheckpointInfo>& Checkpoint::passed_over() const { return impl_->passed_over(); }
absl::Status Checkpoint::Finish(Timeout timeout) { return impl_->Finish(timeout); }

absl::StatusOr<std::optional<Checkpoint>> Run::Resume(Timeout timeout, bool strict) {
  using Answer = std::optional<Checkpoint>;
  return impl_->Repeat(timeout, [&](const std::shared_ptr<const Joined>& joined) -> absl::StatusOr<Answer> {
    v1::ResumeRequest request;
    request.set_run(joined->run);
    request.set_rank(impl_->options().rank);
    request.set_strict(strict);
    SetDuration(timeout, request.mutable_timeout());
    CKPTD_ASSIGN_OR_RETURN(v1::ResumeResponse response,
                           joined->session->rpc().Resume(request, timeout + kCallTimeout));
    if (!response.has_checkpoint()) return Answer();
    return Answer(Checkpoint(
        std::make_unique<CheckpointImpl>(impl_, joined->session, response, CheckpointImpl::From::kResume)));
  });
}

absl::StatusOr<Checkpoint> Run::Open(const std::string& tag) {
  return impl_->Repeat(
      kCallTimeout, [&](const std::shared_ptr<const Joined>& joined) -> absl::StatusOr<Checkpoint> {
        v1::OpenCheckpointRequest request;
        request.set_name(absl::StrCat(joined->run, "/checkpoints/", tag));
        CKPTD_ASSIGN_OR_RETURN(v1::OpenCheckpointResponse response,
                               joined->session->rpc().OpenCheckpoint(request, kCallTimeout));
        return Checkpoint(
            std::make_unique<CheckpointImpl>(impl_, joined->session, response, CheckpointImpl::From::kOpen));
      });
}

}  // namespace ckptd::client
