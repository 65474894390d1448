#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "client/cpp/client_impl.h"
#include "client/cpp/recovery.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd::client {
namespace {

// The daemon may have to recover the root first.
constexpr Duration kAttachTimeout = std::chrono::seconds(120);
// The daemon remembers the ends of as many saves. It cannot report older saves from unknown ones.
constexpr size_t kMaxStagedSaves = 64;
constexpr int kMaxCopyThreads = 4;   // The trainer goes on loading data meanwhile.
constexpr int kMaxReadThreads = 16;  // They copy as fast as a GPU does.

}  // namespace

RunImpl::RunImpl(std::shared_ptr<ClientImpl> client, UniqueFd root, std::string path, RunOptions options)
    : client_(std::move(client)),
      root_(std::move(root)),
      path_(std::move(path)),
      options_(std::move(options)) {}

int RunImpl::copy_threads() const { return Threads(kMaxCopyThreads); }
int RunImpl::read_threads() const { return Threads(kMaxReadThreads); }

int RunImpl::Threads(int most) const {
  if (options_.copy_threads > 0) return options_.copy_threads;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, most);
}

void RunImpl::Pause(Duration duration) { std::this_thread::sleep_for(duration); }

absl::StatusOr<std::shared_ptr<const Membership>> RunImpl::Join() {
  CKPTD_ASSIGN_OR_RETURN(std::shared_ptr<Session> session, client_->GetSession());
  MutexLock lock(mutex_);
  if (membership_ != nullptr && membership_->session == session) return membership_;
  return JoinWith(std::move(session));
}

v1::JoinRunRequest RunImpl::JoinRequest(const std::string& root) const {
  v1::JoinRunRequest request;
  request.set_root(root);
  request.set_run_id(options_.run_id);
  request.set_rank(options_.rank);
  request.set_world_size(options_.world_size);
  request.set_local_world_size(static_cast<int>(options_.local_ranks.size()));
  request.mutable_local_ranks()->Assign(options_.local_ranks.begin(), options_.local_ranks.end());
  request.set_launch_id(options_.launch_id);
  request.set_job(options_.job);
  if (options_.upload.has_value()) {
    v1::UploadPolicy& upload = *request.mutable_upload();
    upload.set_url(options_.upload->url);
    upload.set_every(options_.upload->every);
    upload.set_keep_last(options_.upload->keep_last);
    upload.set_evict_before_upload(options_.upload->evict_before_upload);
    upload.set_no_restore(!options_.upload->restore);
  }
  request.set_attempt(options_.attempt);
  return request;
}

absl::StatusOr<std::shared_ptr<const Membership>> RunImpl::JoinWith(std::shared_ptr<Session> session) {
  CKPTD_ASSIGN_OR_RETURN(const std::string root,
                         session->handoff().AttachRoot(root_.get(), path_, kAttachTimeout));
  v1::JoinRunRequest request = JoinRequest(root);
  const std::string& instance = session->daemon().daemon_instance();
  std::vector<std::shared_ptr<StagedSave>> orphaned;
  for (const auto& save : staged_) {
    if (save->daemon_instance == instance || IsRecoverable(*save)) continue;
    *request.add_orphaned() = save->begin.key();
    orphaned.push_back(save);
  }
  CKPTD_ASSIGN_OR_RETURN(v1::JoinRunResponse response, session->rpc().JoinRun(request, kCallTimeout));
  // The new daemon has these saves on disk, or has told every rank that they are lost.
  for (const auto& save : orphaned) {
    std::erase(staged_, save);
    std::erase(pending_, save);
  }
  AddPending(instance);  // Before any Begin of this rank: AwaitEarlier keeps it behind them.
  membership_ =
      std::make_shared<const Membership>(Membership{std::move(session), response.run(), response.attempt()});
  return membership_;
}

std::string RunImpl::name() {
  MutexLock lock(mutex_);
  return membership_->run;
}

int64_t RunImpl::attempt() {
  MutexLock lock(mutex_);
  return membership_->attempt;
}

int64_t RunImpl::NextOrdinal(const std::string& tag) {
  MutexLock lock(mutex_);
  return ++ordinals_[tag];
}

std::shared_ptr<const Layout> RunImpl::last_layout() {
  MutexLock lock(mutex_);
  return last_layout_;
}

void RunImpl::SetLastLayout(std::shared_ptr<const Layout> layout) {
  MutexLock lock(mutex_);
  last_layout_ = std::move(layout);
}

void RunImpl::RememberStaged(std::shared_ptr<StagedSave> save) {
  MutexLock lock(mutex_);
  staged_.push_back(std::move(save));
  if (staged_.size() > kMaxStagedSaves) staged_.pop_front();
}

void RunImpl::ForgetStaged(const std::shared_ptr<StagedSave>& save) {
  MutexLock lock(mutex_);
  std::erase(staged_, save);
  save->segments.clear();
  save->bytes.clear();
}

Run::Run(std::shared_ptr<RunImpl> impl) : impl_(std::move(impl)) {}
std::string Run::name() const { return impl_->name(); }
int64_t Run::attempt() const { return impl_->attempt(); }

absl::StatusOr<std::optional<CheckpointInfo>> Run::Latest() {
  absl::StatusOr<v1::Checkpoint> latest =
      impl_->Retry(kCallTimeout, [](const std::shared_ptr<const Membership>& membership) {
        v1::GetCheckpointRequest request;
        request.set_name(absl::StrCat(membership->run, "/checkpoints/latest"));
        return membership->session->rpc().GetCheckpoint(request, kCallTimeout);
      });
  if (ReasonOf(latest.status()) == "NO_CHECKPOINT") return std::optional<CheckpointInfo>();
  if (!latest.ok()) return latest.status();
  return std::optional<CheckpointInfo>(InfoOf(*latest));
}

absl::StatusOr<std::vector<CheckpointInfo>> Run::List() {
  std::vector<CheckpointInfo> result;
  std::string page;
  do {
    absl::StatusOr<v1::ListCheckpointsResponse> response =
        impl_->Retry(kCallTimeout, [&page](const std::shared_ptr<const Membership>& membership) {
          v1::ListCheckpointsRequest request;
          request.set_parent(membership->run);
          request.set_page_size(1000);
          request.set_page_token(page);
          return membership->session->rpc().ListCheckpoints(request, kCallTimeout);
        });
    if (!response.ok()) return response.status();
    for (const v1::Checkpoint& checkpoint : response->checkpoints()) result.push_back(InfoOf(checkpoint));
    page = response->next_page_token();
  } while (!page.empty());
  return result;
}

absl::StatusOr<CheckpointInfo> Run::Prefetch(const std::string& tag, Timeout timeout) {
  const Instant deadline = SystemClock().Now() + timeout;
  absl::StatusOr<v1::Checkpoint> read = impl_->Retry(
      std::min<Duration>(timeout, kReconnectTimeout),
      [&](const std::shared_ptr<const Membership>& membership) {
        v1::PrefetchRequest request;
        request.set_name(absl::StrCat(membership->run, "/checkpoints/", tag));
        return membership->session->rpc().Prefetch(request, TimeLeft(deadline));
      },
      deadline);
  if (!read.ok()) return read.status();
  return InfoOf(*read);
}

absl::StatusOr<client::Save> Run::Save(const SaveOptions& options, const std::vector<FileSource>& files) {
  PartImpl part(impl_, options, /*growing=*/false);
  for (const FileSource& file : files) {
    int64_t size = 0;
    for (std::span<const std::byte> piece : file.pieces) size += static_cast<int64_t>(piece.size());
    part.Declare(file.path, size);
  }
  return part.CopyAndSeal(files);
}

absl::StatusOr<Part> Run::Begin(const SaveOptions& options) {
  auto part = std::make_unique<PartImpl>(impl_, options, /*growing=*/true);
  absl::StatusOr<bool> begun = impl_->Retry(
      options.timeout, [&part](const std::shared_ptr<const Membership>& membership) -> absl::StatusOr<bool> {
        CKPTD_RETURN_IF_ERROR(part->EnsureBegun(membership));
        return true;
      });
  if (!begun.ok()) return begun.status();
  return Part(std::move(part));
}

}  // namespace ckptd::client
