// Save and Part. A part goes through Attach (Begin, and its memory), the copy, and Seal. When the daemon
// restarts in between, the same steps run again with the new one and the same key: Attach takes new memory,
// what the caller had written is copied over, Seal.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cpp/client.h"
#include "client/cpp/client_impl.h"
#include "client/cpp/wire_errors.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd::client {
namespace {

constexpr Duration kAbortTimeout = std::chrono::seconds(5);

// Adds the time until its end to `sum`.
class Stopwatch {
 public:
  explicit Stopwatch(Timeout* sum) : sum_(sum), begin_(SystemClock().Now()) {}
  ~Stopwatch() { *sum_ += SystemClock().Now() - begin_; }

 private:
  Timeout* const sum_;
  const Instant begin_;
};

absl::Status Over(const std::string& tag) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "SEALED",
                   absl::StrCat("the part of ", tag, " is sealed or aborted and takes nothing more"),
                   {{"tag", tag}});
}

}  // namespace

// ---- Part

PartImpl::PartImpl(std::shared_ptr<RunImpl> run, SaveOptions options, bool growing)
    : run_(std::move(run)), options_(std::move(options)), growing_(growing), started_(SystemClock().Now()) {
  key_.set_rank(run_->options().rank);
  key_.set_tag(options_.tag);
  key_.set_ordinal(run_->NextOrdinal(options_.tag));
}

PartImpl::~PartImpl() {
  if (!over_) Abort("the part was given up before it was sealed").IgnoreError();
}

void PartImpl::Declare(const std::string& path, int64_t size) {
  files_.push_back({path, size, size, {}, {}});
}

absl::StatusOr<v1::BeginResponse> PartImpl::Begin(const Joined& joined) {
  key_.set_run(joined.run);
  v1::BeginRequest request;
  *request.mutable_key() = key_;
  if (options_.step) request.set_step(*options_.step);
  for (const PartFile& file : files_) {
    v1::FileSpec& spec = *request.add_files();
    spec.set_path(file.path);
    spec.set_size_bytes(file.size);
  }
  request.set_growing(growing_);
  request.set_busy(static_cast<v1::BusyPolicy>(static_cast<int>(options_.busy) + 1));
  SetDuration(options_.timeout, request.mutable_timeout());
  SetDuration(run_->options().commit_timeout, request.mutable_commit_timeout());
  if (run_->options().num_kept_ckpts) request.set_num_kept_ckpts(*run_->options().num_kept_ckpts);
  for (const auto& metric : options_.metrics) (*request.mutable_metrics())[metric.first] = metric.second;
  request.mutable_pointers()->insert(options_.pointers.begin(), options_.pointers.end());
  Stopwatch watch(&timing_.begin);
  return joined.session->rpc().Begin(request, options_.timeout + kCallTimeout);
}

absl::Status PartImpl::Attach(const std::shared_ptr<const Joined>& joined) {
  if (joined_ != nullptr && joined_->session == joined->session) return absl::OkStatus();
  absl::StatusOr<v1::BeginResponse> response = Begin(*joined);
  if (!response.ok()) {
    return seal_sent_ && ReasonOf(response.status()) == "SAVE_CONFLICT"
               ? FindCommitted(*joined, response.status())
               : response.status();
  }
  if (joined_ != nullptr) earlier_.push_back(std::move(segments_));
  joined_ = joined;
  filled_ = false;
  sequence_ = response->sequence();
  if (response->level() == v1::SKIPPED) {
    level_ = v1::SKIPPED;
    error_ = response->error();
    over_ = true;
    return absl::OkStatus();
  }
  joined->session->Forget({response->retired_segments().begin(), response->retired_segments().end()});
  absl::Status placed = Place(*joined, response->segments(), response->placements(), 0);
  if (IsTransient(placed)) joined_ = nullptr;  // To begin again.
  return placed;
}

// The daemon that this part was sealed with has ended before it could say so. Its successor found the whole
// checkpoint.
absl::Status PartImpl::FindCommitted(const Joined& joined, const absl::Status& refusal) {
  v1::WaitRequest request;
  *request.mutable_key() = key_;
  request.set_level(v1::STAGED);
  request.mutable_timeout();
  request.set_sequence(sequence_);
  request.set_attempt(joined.attempt);
  CKPTD_ASSIGN_OR_RETURN(v1::WaitResponse response, joined.session->rpc().Wait(request, kCallTimeout));
  if (response.checkpoint().level() != v1::COMMITTED) return refusal;
  sequence_ = response.checkpoint().sequence();
  level_ = v1::COMMITTED;
  over_ = true;
  return absl::OkStatus();
}

absl::Status PartImpl::Place(const Joined& joined,
                             const google::protobuf::RepeatedPtrField<v1::Segment>& granted,
                             const google::protobuf::RepeatedPtrField<v1::FilePlacement>& placements,
                             size_t first_file) {
  Stopwatch watch(&timing_.map);
  CKPTD_ASSIGN_OR_RETURN(
      segments_, joined.session->Map({granted.begin(), granted.end()}, run_->copy_threads(), kCallTimeout));
  if (files_.size() - first_file != static_cast<size_t>(placements.size())) {
    return absl::InternalError(
        absl::StrCat("the daemon placed ", placements.size(), " files of ", files_.size() - first_file));
  }
  for (int i = 0; i < placements.size(); ++i) {
    PartFile& file = files_[first_file + i];
    CKPTD_ASSIGN_OR_RETURN(file.placed, Locate(segments_, placements.Get(i).offset(), file.size));
    if (file.written.empty()) file.written = file.placed;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::span<std::byte>>> PartImpl::Extend(const Joined& joined,
                                                                   const std::string& path, int64_t size) {
  v1::ExtendRequest request;
  *request.mutable_key() = key_;
  v1::FileSpec& spec = *request.add_files();
  spec.set_path(path);
  spec.set_size_bytes(size);
  CKPTD_ASSIGN_OR_RETURN(v1::ExtendResponse response,
                         joined.session->rpc().Extend(request, options_.timeout + kCallTimeout));
  Declare(path, size);
  absl::Status placed = Place(joined, response.segments(), response.placements(), files_.size() - 1);
  if (placed.ok()) return files_.back().written;
  files_.pop_back();
  return placed;
}

absl::StatusOr<std::vector<std::span<std::byte>>> PartImpl::AddFile(const std::string& path, int64_t size) {
  if (over_) return Over(options_.tag);
  for (const PartFile& file : files_) {
    if (file.path == path) {
      return MakeError(absl::StatusCode::kAlreadyExists, "FILE_CONFLICT",
                       absl::StrCat("file ", path, " is in this part already"),
                       {{"tag", options_.tag}, {"path", path}});
    }
  }
  return run_->Repeat(
      options_.timeout,
      [&](const std::shared_ptr<const Joined>& joined) -> absl::StatusOr<std::vector<std::span<std::byte>>> {
        CKPTD_RETURN_IF_ERROR(Attach(joined));
        return Extend(*joined, path, size);
      });
}

absl::Status PartImpl::Truncate(const std::string& path, int64_t size) {
  if (over_) return Over(options_.tag);
  for (PartFile& file : files_) {
    if (file.path != path) continue;
    if (size < 0 || size > file.size) {
      return MakeError(
          absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
          absl::StrCat("file ", path, " has room for ", file.size, " bytes; ", size, " is not within"));
    }
    file.final_size = size;
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_FILE",
                   absl::StrCat("file ", path, " was not added to this part"));
}

absl::StatusOr<Save> PartImpl::FillAndSeal(const std::function<std::vector<CopyStep>()>& steps) {
  if (over_ && !skipped()) return Over(options_.tag);
  absl::StatusOr<Save> save = run_->Repeat(
      options_.timeout, [&](const std::shared_ptr<const Joined>& joined) -> absl::StatusOr<Save> {
        if (!over_) CKPTD_RETURN_IF_ERROR(Attach(joined));
        if (over_) return Result();  // Skipped, or found committed.
        if (!filled_) {
          Stopwatch watch(&timing_.copy);
          RunCopy(steps(), run_->copy_threads());
          filled_ = true;
        }
        return SealOnce(*joined);
      });
  if (!save.ok() && !over_) Abort(std::string(save.status().message())).IgnoreError();
  return save;
}

absl::StatusOr<Save> PartImpl::CopyAndSeal(const std::vector<FileSource>& sources) {
  return FillAndSeal([&] {
    std::vector<CopyStep> steps;
    for (size_t i = 0; i < sources.size(); ++i) PlanCopy(sources[i].pieces, files_[i].placed, &steps);
    return steps;
  });
}

absl::StatusOr<Save> PartImpl::Seal() {
  return FillAndSeal([&] {
    std::vector<CopyStep> steps;
    for (const PartFile& file : files_) {
      if (file.written.empty() || file.written[0].data() == file.placed[0].data()) continue;
      PlanCopy(std::vector<std::span<const std::byte>>(file.written.begin(), file.written.end()), file.placed,
               &steps);
    }
    return steps;
  });
}

absl::StatusOr<Save> PartImpl::SealOnce(const Joined& joined) {
  v1::SealRequest request;
  *request.mutable_key() = key_;
  for (const PartFile& file : files_) {
    v1::FileSpec& spec = *request.add_files();
    spec.set_path(file.path);
    spec.set_size_bytes(file.final_size);
  }
  // A growing part is filled while training goes on: only its calls are a stall. What the daemon hears is
  // without this last one.
  auto stall = [this]() -> Duration {
    return growing_ ? timing_.begin + timing_.map + timing_.copy + timing_.seal
                    : SystemClock().Now() - started_;
  };
  SetDuration(stall(), request.mutable_stall());
  seal_sent_ = true;
  absl::StatusOr<v1::SealResponse> response = absl::UnknownError("not asked");
  {
    Stopwatch watch(&timing_.seal);
    response = joined.session->rpc().Seal(request, kCallTimeout);
  }
  if (!response.ok()) return response.status();
  over_ = true;
  level_ = response->level();
  sequence_ = response->sequence();
  if (level_ < v1::COMMITTED) run_->RememberStaged(key_, joined.session->daemon().daemon_instance());
  timing_.stall = stall();
  return Result();
}

Save PartImpl::Result() {
  const int64_t attempt = joined_ != nullptr ? joined_->attempt : run_->attempt();
  return Save(std::make_shared<SaveImpl>(run_, key_, attempt, sequence_, level_, error_, timing_));
}

absl::Status PartImpl::Abort(const std::string& message) {
  if (over_) return Over(options_.tag);
  over_ = true;
  if (joined_ == nullptr) return absl::OkStatus();  // Never begun.
  v1::AbortRequest request;
  *request.mutable_key() = key_;
  request.set_message(message.substr(0, 1000));
  return joined_->session->rpc().Abort(request, kAbortTimeout).status();
}

Part::Part(std::unique_ptr<PartImpl> impl) : impl_(std::move(impl)) {}
Part::Part(Part&&) noexcept = default;
Part& Part::operator=(Part&&) noexcept = default;
Part::~Part() = default;
bool Part::skipped() const { return impl_->skipped(); }
absl::StatusOr<std::vector<std::span<std::byte>>> Part::AddFile(const std::string& path, int64_t size_bytes) {
  return impl_->AddFile(path, size_bytes);
}
absl::Status Part::Truncate(const std::string& path, int64_t size_bytes) {
  return impl_->Truncate(path, size_bytes);
}
absl::StatusOr<Save> Part::Seal() { return impl_->Seal(); }
absl::Status Part::Abort(const std::string& message) { return impl_->Abort(message); }

// ---- Save

SaveImpl::SaveImpl(std::shared_ptr<RunImpl> run, v1::SaveKey key, int64_t attempt, int64_t sequence,
                   v1::Level level, v1::SaveError error, SaveTiming timing)
    : run_(std::move(run)),
      key_(std::move(key)),
      attempt_(attempt),
      sequence_(sequence),
      error_(std::move(error)),
      timing_(timing),
      level_(level) {}

absl::Status SaveImpl::Judge(const v1::Checkpoint& checkpoint, Level wanted) {
  const int level = std::max<int>(checkpoint.level(), level_.load());
  level_.store(level);
  if (level >= v1::COMMITTED) run_->ForgetStaged(key_);
  if (level >= v1::FAILED) return FromSaveError(checkpoint);
  if (level >= static_cast<int>(wanted)) return absl::OkStatus();
  const std::string ranks = JoinRanks({checkpoint.missing_ranks().begin(), checkpoint.missing_ranks().end()});
  ErrorDetails details = {{"tag", key_.tag()}, {"sequence", absl::StrCat(sequence_)}};
  if (!ranks.empty()) details["ranks"] = ranks;
  return MakeError(
      absl::StatusCode::kDeadlineExceeded, "WAIT_TIMEOUT",
      absl::StrCat("the save of ", key_.tag(), " is not ", ToString(wanted), " yet but ",
                   v1::Level_Name(static_cast<v1::Level>(level)),
                   ranks.empty() ? "" : absl::StrCat(", ranks ", ranks, " have not sealed their part"),
                   "; it goes on"),
      details);
}

absl::Status SaveImpl::Wait(Level level, Timeout timeout) {
  if (level < Level::kStaged || level > Level::kCommitted) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
        absl::StrCat("nobody can wait for ", ToString(level), "; wait for STAGED, SEALED or COMMITTED"));
  }
  if (level_ == v1::SKIPPED) {
    v1::Checkpoint skipped;
    skipped.set_tag(key_.tag());
    skipped.set_sequence(sequence_);
    skipped.set_level(v1::SKIPPED);
    *skipped.mutable_error() = error_;
    return FromSaveError(skipped);
  }
  if (level_ >= static_cast<int>(level) && level_ <= v1::COMMITTED) return absl::OkStatus();
  const Instant deadline = SystemClock().Now() + timeout;
  absl::StatusOr<v1::WaitResponse> response = run_->Repeat(
      timeout,
      [&](const std::shared_ptr<const Joined>& joined) {
        v1::WaitRequest request;
        *request.mutable_key() = key_;
        request.set_level(static_cast<v1::Level>(level));
        SetDuration(TimeLeft(deadline), request.mutable_timeout());
        request.set_sequence(sequence_);
        request.set_attempt(attempt_);
        return joined->session->rpc().Wait(request, TimeLeft(deadline) + kCallTimeout);
      },
      deadline);
  if (!response.ok()) return response.status();
  return Judge(response->checkpoint(), level);
}

Save::Save(std::shared_ptr<SaveImpl> impl) : impl_(std::move(impl)) {}
const std::string& Save::tag() const { return impl_->key().tag(); }
int64_t Save::sequence() const { return impl_->sequence(); }
Level Save::level() const { return impl_->level(); }
SaveTiming Save::timing() const { return impl_->timing(); }
absl::Status Save::Wait(Level level, Timeout timeout) { return impl_->Wait(level, timeout); }

}  // namespace ckptd::client
