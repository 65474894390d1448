#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/client.h"
#include "client/cpp/client_impl.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd::client {
namespace {

// A root may have to be recovered first.
constexpr Duration kAttachTimeout = std::chrono::seconds(120);
// The daemon remembers as many ends; older saves it cannot tell from ones it never saw.
constexpr size_t kRememberedStaged = 64;
constexpr int kMostCopyThreads = 4;

bool SameSave(const v1::SaveKey& a, const v1::SaveKey& b) {
  return a.tag() == b.tag() && a.ordinal() == b.ordinal();
}

}  // namespace

RunImpl::RunImpl(std::shared_ptr<ClientImpl> client, UniqueFd root, std::string path, RunOptions options)
    : client_(std::move(client)),
      root_(std::move(root)),
      path_(std::move(path)),
      options_(std::move(options)) {}

int RunImpl::copy_threads() const {
  if (options_.copy_threads > 0) return options_.copy_threads;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMostCopyThreads);
}

void RunImpl::Pause(Duration duration) { std::this_thread::sleep_for(duration); }

absl::StatusOr<std::shared_ptr<const Joined>> RunImpl::Join() {
  CKPTD_ASSIGN_OR_RETURN(std::shared_ptr<Session> session, client_->GetSession());
  MutexLock lock(mutex_);
  if (joined_ != nullptr && joined_->session == session) return joined_;
  return JoinAnew(std::move(session));
}

absl::StatusOr<std::shared_ptr<const Joined>> RunImpl::JoinAnew(std::shared_ptr<Session> session) {
  v1::JoinRunRequest request;
  CKPTD_ASSIGN_OR_RETURN(*request.mutable_root(),
                         session->handoff().AttachRoot(root_.get(), path_, kAttachTimeout));
  request.set_run_id(options_.run_id);
  request.set_rank(options_.rank);
  request.set_world_size(options_.world_size);
  request.set_launch_id(options_.launch_id);
  request.set_attempt(options_.attempt);
  const std::string& instance = session->daemon().daemon_instance();
  for (const Staged& staged : staged_) {
    if (staged.daemon_instance != instance) *request.add_orphaned() = staged.key;
  }
  CKPTD_ASSIGN_OR_RETURN(v1::JoinRunResponse response, session->rpc().JoinRun(request, kCallTimeout));
  // The new daemon has them on disk, or has told every rank that they are lost.
  std::erase_if(staged_, [&](const Staged& staged) { return staged.daemon_instance != instance; });
  joined_ = std::make_shared<const Joined>(Joined{std::move(session), response.run(), response.attempt()});
  return joined_;
}

std::string RunImpl::name() {
  MutexLock lock(mutex_);
  return joined_->run;
}

int64_t RunImpl::attempt() {
  MutexLock lock(mutex_);
  return joined_->attempt;
}

int64_t RunImpl::NextOrdinal(const std::string& tag) {
  MutexLock lock(mutex_);
  return ++ordinals_[tag];
}

void RunImpl::RememberStaged(const v1::SaveKey& key, const std::string& daemon_instance) {
  MutexLock lock(mutex_);
  staged_.push_back({key, daemon_instance});
  if (staged_.size() > kRememberedStaged) staged_.pop_front();
}

void RunImpl::ForgetStaged(const v1::SaveKey& key) {
  MutexLock lock(mutex_);
  std::erase_if(staged_, [&](const Staged& staged) { return SameSave(staged.key, key); });
}

Run::Run(std::shared_ptr<RunImpl> impl) : impl_(std::move(impl)) {}
std::string Run::name() const { return impl_->name(); }
int64_t Run::attempt() const { return impl_->attempt(); }

absl::StatusOr<std::optional<CheckpointInfo>> Run::Latest() {
  absl::StatusOr<v1::Checkpoint> latest =
      impl_->Repeat(kCallTimeout, [](const std::shared_ptr<const Joined>& joined) {
        v1::GetCheckpointRequest request;
        request.set_name(absl::StrCat(joined->run, "/checkpoints/latest"));
        return joined->session->rpc().GetCheckpoint(request, kCallTimeout);
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
        impl_->Repeat(kCallTimeout, [&page](const std::shared_ptr<const Joined>& joined) {
          v1::ListCheckpointsRequest request;
          request.set_parent(joined->run);
          request.set_page_size(1000);
          request.set_page_token(page);
          return joined->session->rpc().ListCheckpoints(request, kCallTimeout);
        });
    if (!response.ok()) return response.status();
    for (const v1::Checkpoint& checkpoint : response->checkpoints()) result.push_back(InfoOf(checkpoint));
    page = response->next_page_token();
  } while (!page.empty());
  return result;
}

absl::StatusOr<CheckpointInfo> Run::Prefetch(const std::string& tag, Timeout timeout) {
  const Instant deadline = SystemClock().Now() + timeout;
  absl::StatusOr<v1::Checkpoint> read = impl_->Repeat(
      std::min<Duration>(timeout, kReconnectTimeout),
      [&](const std::shared_ptr<const Joined>& joined) {
        v1::PrefetchRequest request;
        request.set_name(absl::StrCat(joined->run, "/checkpoints/", tag));
        return joined->session->rpc().Prefetch(request, TimeLeft(deadline));
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
  absl::StatusOr<bool> begun = impl_->Repeat(
      options.timeout, [&part](const std::shared_ptr<const Joined>& joined) -> absl::StatusOr<bool> {
        CKPTD_RETURN_IF_ERROR(part->Attach(joined));
        return true;
      });
  if (!begun.ok()) return begun.status();
  return Part(std::move(part));
}

}  // namespace ckptd::client
