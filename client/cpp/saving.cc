// Save and Part. A part goes through EnsureBegun (Begin, and mapping the granted memory), the copy, and Seal.
// If the daemon restarts in between, the same steps run again with the new daemon and the same key:
// EnsureBegun gets new memory, the bytes that the caller had written are copied there, and Seal is sent.
#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cpp/client.h"
#include "client/cpp/client_impl.h"
#include "client/cpp/recovery.h"
#include "client/cpp/session/wire_errors.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd::client {
namespace {

constexpr Duration kAbortTimeout = std::chrono::seconds(5);

v1::RetentionPolicy ToWire(const Keep& keep) {
  v1::RetentionPolicy policy;
  if (keep.last) policy.set_last(*keep.last);
  policy.set_best(keep.best);
  policy.set_metric(keep.metric);
  policy.set_order(keep.highest ? v1::MAX : v1::MIN);
  policy.set_every_steps(keep.every);
  if (keep.newer_than.count() != 0) policy.mutable_newer_than()->set_seconds(keep.newer_than.count());
  return policy;
}

// Adds the time of its scope to `sum`.
class Stopwatch {
 public:
  explicit Stopwatch(Timeout* sum) : sum_(sum), begin_(SystemClock().Now()) {}
  ~Stopwatch() { *sum_ += SystemClock().Now() - begin_; }

 private:
  Timeout* const sum_;
  const Instant begin_;
};

absl::Status PartEnded(const std::string& tag) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "SEALED",
                   absl::StrCat("the part of ", tag, " is already sealed or aborted; begin a new save"),
                   {{"tag", tag}});
}

int64_t NextPartNumber() {
  static std::atomic<int64_t> last{0};
  return ++last;
}

}  // namespace

// ---- Part

PartImpl::PartImpl(std::shared_ptr<RunImpl> run, SaveOptions options, bool growing)
    : run_(std::move(run)),
      options_(std::move(options)),
      growing_(growing),
      started_(SystemClock().Now()),
      number_(NextPartNumber()) {
  key_.set_rank(run_->options().rank);
  key_.set_tag(options_.tag);
  key_.set_ordinal(run_->NextOrdinal(options_.tag));
}

PartImpl::~PartImpl() {
  if (!ended_) Abort("the rank destroyed its part before sealing it").IgnoreError();
}

void PartImpl::Declare(const std::string& path, int64_t size) {
  files_.push_back({path, size, size, {}, {}});
}

v1::BeginRequest PartImpl::MakeBegin(int64_t layout) const {
  v1::BeginRequest request;
  *request.mutable_key() = key_;
  if (options_.step) request.set_step(*options_.step);
  request.set_layout(layout);
  if (layout <= 0) {
    for (const PartFile& file : files_) {
      v1::FileSpec& spec = *request.add_files();
      spec.set_path(file.path);
      spec.set_size_bytes(file.size);
    }
  }
  request.set_growing(growing_);
  request.set_busy(static_cast<v1::BusyPolicy>(static_cast<int>(options_.busy) + 1));
  SetDuration(options_.timeout, request.mutable_timeout());
  SetDuration(run_->options().commit_timeout, request.mutable_commit_timeout());
  if (run_->options().retention) *request.mutable_retention() = ToWire(*run_->options().retention);
  if (run_->options().num_kept_ckpts) request.set_num_kept_ckpts(*run_->options().num_kept_ckpts);
  request.set_share_unchanged(run_->options().share_unchanged);
  for (const auto& [name, value] : options_.metrics) (*request.mutable_metrics())[name] = value;
  request.mutable_pointers()->insert(options_.pointers.begin(), options_.pointers.end());
  return request;
}

absl::StatusOr<v1::BeginResponse> PartImpl::Begin(const Membership& membership) {
  CKPTD_RETURN_IF_ERROR(run_->AwaitEarlier(number_, options_.timeout));
  key_.set_run(membership.run);
  Stopwatch watch(&timing_.begin);
  Rpc& rpc = membership.session->rpc();
  has_layout_ = false;
  absl::StatusOr<v1::BeginResponse> response = absl::UnknownError("not asked");
  if (const std::shared_ptr<const Layout> last = FindLayout(membership)) {
    response = rpc.Begin(MakeBegin(last->number), options_.timeout + kCallTimeout);
    if (response.ok() && response->layout() == last->number) {
      has_layout_ = true;
      *response->mutable_placements() = last->placements;
      return response;
    }
    if (!response.ok() && ReasonOf(response.status()) != "UNKNOWN_LAYOUT") return response;
  }
  if (!response.ok()) response = rpc.Begin(MakeBegin(growing_ ? 0 : -1), options_.timeout + kCallTimeout);
  if (response.ok() && response->layout() != 0) {
    has_layout_ = true;
    run_->SetLastLayout(std::make_shared<const Layout>(
        Layout{membership.session, response->layout(), response->placements()}));
  }
  return response;
}

std::shared_ptr<const Layout> PartImpl::FindLayout(const Membership& membership) const {
  std::shared_ptr<const Layout> last = growing_ ? nullptr : run_->last_layout();
  if (last == nullptr || last->session.lock() != membership.session) return nullptr;
  const bool is_same = std::equal(files_.begin(), files_.end(), last->placements.begin(),
                                  last->placements.end(), [](const PartFile& file, const auto& placed) {
                                    return file.size == placed.size_bytes() && file.path == placed.path();
                                  });
  return is_same ? last : nullptr;
}

absl::Status PartImpl::EnsureBegun(const std::shared_ptr<const Membership>& membership) {
  if (membership_ != nullptr && membership_->session == membership->session) return absl::OkStatus();
  absl::StatusOr<v1::BeginResponse> response = Begin(*membership);
  if (!response.ok()) {
    return seal_sent_ && ReasonOf(response.status()) == "SAVE_CONFLICT"
               ? FindCommittedSave(*membership, response.status())
               : response.status();
  }
  if (membership_ != nullptr) earlier_segments_.push_back(std::move(segments_));
  membership_ = membership;
  filled_ = false;
  sequence_ = response->sequence();
  if (response->level() == v1::SKIPPED) {
    level_ = v1::SKIPPED;
    error_ = response->error();
    ended_ = true;
    return absl::OkStatus();
  }
  run_->DropBytes(membership->session->Forget(
      {response->retired_segments().begin(), response->retired_segments().end()}));
  absl::Status placed = MapPlacements(*membership, response->segments(), response->placements(), 0);
  if (IsTransient(placed)) membership_ = nullptr;  // The retry sends Begin again.
  return placed;
}

// Handles the refusal of a Begin after a Seal whose answer was lost: the daemon died after the seal, and the
// next one may have found the whole checkpoint and published it. Then the save is COMMITTED; otherwise
// `refusal`.
absl::Status PartImpl::FindCommittedSave(const Membership& membership, const absl::Status& refusal) {
  v1::WaitRequest request;
  *request.mutable_key() = key_;
  request.set_level(v1::STAGED);
  request.mutable_timeout();
  request.set_sequence(sequence_);
  request.set_attempt(membership.attempt);
  CKPTD_ASSIGN_OR_RETURN(v1::WaitResponse response, membership.session->rpc().Wait(request, kCallTimeout));
  if (response.checkpoint().level() != v1::COMMITTED) return refusal;
  sequence_ = response.checkpoint().sequence();
  level_ = v1::COMMITTED;
  ended_ = true;
  return absl::OkStatus();
}

absl::Status PartImpl::MapPlacements(const Membership& membership,
                                     const google::protobuf::RepeatedPtrField<v1::Segment>& granted,
                                     const google::protobuf::RepeatedPtrField<v1::FilePlacement>& placements,
                                     size_t first_file) {
  Stopwatch watch(&timing_.map);
  CKPTD_ASSIGN_OR_RETURN(segments_, membership.session->Map({granted.begin(), granted.end()},
                                                            run_->copy_threads(), kCallTimeout));
  for (const std::shared_ptr<Mapping>& segment : segments_) segment->LendTo(number_);
  if (files_.size() - first_file != static_cast<size_t>(placements.size())) {
    return absl::InternalError(absl::StrCat("the daemon placed ", placements.size(), " files, but ",
                                            files_.size() - first_file, " were requested"));
  }
  for (int i = 0; i < placements.size(); ++i) {
    PartFile& file = files_[first_file + i];
    CKPTD_ASSIGN_OR_RETURN(file.placed, Locate(segments_, placements.Get(i).offset(), file.size));
    if (file.written.empty()) file.written = file.placed;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::span<std::byte>>> PartImpl::Extend(const Membership& membership,
                                                                   const std::string& path, int64_t size) {
  v1::ExtendRequest request;
  *request.mutable_key() = key_;
  v1::FileSpec& spec = *request.add_files();
  spec.set_path(path);
  spec.set_size_bytes(size);
  CKPTD_ASSIGN_OR_RETURN(v1::ExtendResponse response,
                         membership.session->rpc().Extend(request, options_.timeout + kCallTimeout));
  Declare(path, size);
  absl::Status placed =
      MapPlacements(membership, response.segments(), response.placements(), files_.size() - 1);
  if (placed.ok()) return files_.back().written;
  files_.pop_back();
  return placed;
}

absl::StatusOr<std::vector<std::span<std::byte>>> PartImpl::AddFile(const std::string& path, int64_t size) {
  if (ended_) return PartEnded(options_.tag);
  for (const PartFile& file : files_) {
    if (file.path == path) {
      return MakeError(absl::StatusCode::kAlreadyExists, "FILE_CONFLICT",
                       absl::StrCat("file ", path, " is already in this part of ", options_.tag),
                       {{"tag", options_.tag}, {"path", path}});
    }
  }
  return run_->Retry(options_.timeout,
                     [&](const std::shared_ptr<const Membership>& membership)
                         -> absl::StatusOr<std::vector<std::span<std::byte>>> {
                       CKPTD_RETURN_IF_ERROR(EnsureBegun(membership));
                       return Extend(*membership, path, size);
                     });
}

absl::Status PartImpl::Truncate(const std::string& path, int64_t size) {
  if (ended_) return PartEnded(options_.tag);
  for (PartFile& file : files_) {
    if (file.path != path) continue;
    if (size < 0 || size > file.size) {
      return InvalidArgument(absl::StrCat("file ", path, " cannot be truncated to ", size,
                                          " bytes: allowed are 0 to ", file.size, ", its reserved size"));
    }
    file.final_size = size;
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_FILE",
                   absl::StrCat("file ", path, " was not added to this part; call AddFile before Truncate"));
}

absl::StatusOr<Save> PartImpl::FillAndSeal(const std::function<std::vector<CopyStep>()>& steps) {
  if (ended_ && !skipped()) return PartEnded(options_.tag);
  absl::StatusOr<Save> save = run_->Retry(
      options_.timeout, [&](const std::shared_ptr<const Membership>& membership) -> absl::StatusOr<Save> {
        if (!ended_) CKPTD_RETURN_IF_ERROR(EnsureBegun(membership));
        if (ended_) return MakeSave();  // Skipped, or already committed.
        if (!filled_) {
          Stopwatch watch(&timing_.copy);
          RunCopy(CopyWay::kIntoSegment, steps(), run_->copy_threads());
          filled_ = true;
        }
        return SendSeal(*membership);
      });
  if (!save.ok() && !ended_) Abort(std::string(save.status().message())).IgnoreError();
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

absl::StatusOr<Save> PartImpl::SendSeal(const Membership& membership) {
  v1::SealRequest request;
  *request.mutable_key() = key_;
  request.set_suspect(options_.suspect);
  if (IsAsPlaced()) {
    request.set_as_placed(true);
  } else {
    ListFiles(&request);
  }
  // A growing part is written while training goes on: only the calls are a stall. The daemon gets the stall
  // without the time of this Seal.
  auto stall = [this]() -> Duration {
    return growing_ ? timing_.begin + timing_.map + timing_.copy + timing_.seal
                    : SystemClock().Now() - started_;
  };
  SetDuration(stall(), request.mutable_stall());
  seal_sent_ = true;
  absl::StatusOr<v1::SealResponse> response = absl::UnknownError("not asked");
  {
    Stopwatch watch(&timing_.seal);
    response = membership.session->rpc().Seal(request, kCallTimeout);
  }
  if (!response.ok()) return response.status();
  ended_ = true;
  level_ = response->level();
  sequence_ = response->sequence();
  if (level_ < v1::COMMITTED) {
    staged_ = MakeStaged(membership, std::move(request));
    run_->RememberStaged(staged_);
  }
  timing_.stall = stall();
  return MakeSave();
}

bool PartImpl::IsAsPlaced() const {
  return has_layout_ && std::all_of(files_.begin(), files_.end(),
                                    [](const PartFile& file) { return file.final_size == file.size; });
}

void PartImpl::ListFiles(v1::SealRequest* request) const {
  for (const PartFile& file : files_) {
    v1::FileSpec& spec = *request->add_files();
    spec.set_path(file.path);
    spec.set_size_bytes(file.final_size);
  }
}

Save PartImpl::MakeSave() {
  const int64_t attempt = membership_ != nullptr ? membership_->attempt : run_->attempt();
  return Save(std::make_shared<SaveImpl>(run_, staged_, key_, attempt, sequence_, level_, error_, timing_));
}

std::shared_ptr<StagedSave> PartImpl::MakeStaged(const Membership& membership, v1::SealRequest seal) const {
  if (seal.as_placed()) {  // Another daemon does not know of these places.
    seal.set_as_placed(false);
    ListFiles(&seal);
  }
  v1::BeginRequest begin = MakeBegin(/*layout=*/0);
  // It has all its files, and its trainer has seen it sealed and does not expect it to be skipped.
  *begin.mutable_files() = seal.files();
  begin.set_growing(false);
  begin.set_busy(v1::WAIT);
  auto staged = std::make_shared<StagedSave>(number_, membership.attempt, std::move(begin), std::move(seal));
  for (const PartFile& file : files_) {
    std::vector<std::span<std::byte>>& sealed = staged->bytes.emplace_back();
    auto left = static_cast<size_t>(file.final_size);
    for (std::span<std::byte> piece : file.placed) {
      if (left == 0) break;
      sealed.push_back(piece.first(std::min(left, piece.size())));
      left -= sealed.back().size();
    }
  }
  staged->segments = segments_;
  staged->daemon_instance = membership.session->daemon().daemon_instance();
  staged->sequence = sequence_;
  return staged;
}

absl::Status PartImpl::Abort(const std::string& message) {
  if (ended_) return PartEnded(options_.tag);
  ended_ = true;
  if (membership_ == nullptr) return absl::OkStatus();  // The daemon never got Begin.
  v1::AbortRequest request;
  *request.mutable_key() = key_;
  request.set_message(message.substr(0, 1000));
  return membership_->session->rpc().Abort(request, kAbortTimeout).status();
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

SaveImpl::SaveImpl(std::shared_ptr<RunImpl> run, std::shared_ptr<StagedSave> staged, v1::SaveKey key,
                   int64_t attempt, int64_t sequence, v1::Level level, v1::SaveError error, SaveTiming timing)
    : run_(std::move(run)),
      staged_(std::move(staged)),
      key_(std::move(key)),
      attempt_(attempt),
      sequence_(sequence),
      error_(std::move(error)),
      timing_(timing),
      level_(level) {}

absl::Status SaveImpl::UpdateLevel(const v1::Checkpoint& checkpoint, Level wanted) {
  const int level = std::max<int>(checkpoint.level(), level_.load());
  level_.store(level);
  if (level >= v1::COMMITTED && staged_ != nullptr) run_->ForgetStaged(staged_);
  if (level >= v1::FAILED) return EndedOtherwise(checkpoint);
  if (level >= static_cast<int>(wanted)) return absl::OkStatus();
  const std::string ranks = JoinRanks({checkpoint.missing_ranks().begin(), checkpoint.missing_ranks().end()});
  ErrorDetails details = {{"tag", key_.tag()}, {"sequence", absl::StrCat(sequence_)}};
  if (!ranks.empty()) details["ranks"] = ranks;
  return MakeError(
      absl::StatusCode::kDeadlineExceeded, "WAIT_TIMEOUT",
      absl::StrCat("the save of ", key_.tag(), " has reached ", v1::Level_Name(static_cast<v1::Level>(level)),
                   " and not ", ToString(wanted), " within the timeout",
                   ranks.empty() ? "" : absl::StrCat("; ranks ", ranks, " have not sealed their parts"),
                   "; the save goes on, and Wait may be called again"),
      details);
}

absl::Status SaveImpl::EndedOtherwise(const v1::Checkpoint& checkpoint) const {
  const absl::Status error = FromSaveError(checkpoint);
  return staged_ != nullptr && run_->IsRecovered(staged_) ? LostBy(*staged_, error) : error;
}

absl::Status SaveImpl::Wait(Level level, Timeout timeout) {
  if (level < Level::kStaged || level > Level::kCommitted) {
    return InvalidArgument(
        absl::StrCat("Wait cannot wait for level ", ToString(level), "; use STAGED, SEALED or COMMITTED"));
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
  absl::StatusOr<v1::WaitResponse> response = run_->Retry(
      timeout,
      [&](const std::shared_ptr<const Membership>& membership) -> absl::StatusOr<v1::WaitResponse> {
        if (staged_ != nullptr) {
          const absl::StatusOr<bool> known = run_->AwaitRecovery(staged_, deadline);
          if (!known.ok()) {
            level_ = v1::FAILED;
            return known.status();
          }
          if (!*known) return v1::WaitResponse();  // The timeout has passed: nothing new is known.
        }
        v1::WaitRequest request;
        *request.mutable_key() = key_;
        request.set_level(static_cast<v1::Level>(level));
        SetDuration(TimeLeft(deadline), request.mutable_timeout());
        request.set_sequence(sequence());
        request.set_attempt(attempt_);
        return membership->session->rpc().Wait(request, TimeLeft(deadline) + kCallTimeout);
      },
      deadline);
  if (!response.ok()) return response.status();
  return UpdateLevel(response->checkpoint(), level);
}

Save::Save(std::shared_ptr<SaveImpl> impl) : impl_(std::move(impl)) {}
const std::string& Save::tag() const { return impl_->key().tag(); }
int64_t Save::sequence() const { return impl_->sequence(); }
Level Save::level() const { return impl_->level(); }
SaveTiming Save::timing() const { return impl_->timing(); }
absl::Status Save::Wait(Level level, Timeout timeout) { return impl_->Wait(level, timeout); }

}  // namespace ckptd::client
