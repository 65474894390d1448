#include "client/cpp/client.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/client_impl.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd::client {
namespace {

constexpr Duration kHelloTimeout = std::chrono::seconds(10);
constexpr size_t kMaxIdBytes = 500;  // Of a launch's id and a job's; the daemon's limit.

// The absolute path, for logs and messages only: the root is identified by its descriptor.
absl::StatusOr<std::string> AbsolutePath(const std::string& path) {
  char* real = realpath(path.c_str(), nullptr);
  if (real == nullptr) return ErrnoError(errno, absl::StrCat("root ", path));
  std::string result(real);
  std::free(real);
  return result;
}

// The prefix makes the ids those of the Python client, so that a launch may have ranks of both.
std::string FromEnvironment(const char* name, const char* prefix) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return "";
  return absl::StrCat(prefix, value).substr(0, kMaxIdBytes);
}

absl::Status CheckLocalRanks(const RunOptions& options) {
  const std::vector<int>& ranks = options.local_ranks;
  if (ranks.empty()) return absl::OkStatus();
  const bool in_range = ranks.front() >= 0 && ranks.back() < options.world_size;
  const bool once = std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end();
  if (in_range && once && std::binary_search(ranks.begin(), ranks.end(), options.rank))
    return absl::OkStatus();
  return InvalidArgument(absl::StrCat("local_ranks is ", JoinRanks(ranks),
                                      "; it must name each rank of this node once, rank ", options.rank,
                                      " among them, of [0, ", options.world_size, ")"));
}

// The options with what the environment gives in the place of empty ones.
absl::StatusOr<RunOptions> CompleteOptions(RunOptions options) {
  std::sort(options.local_ranks.begin(), options.local_ranks.end());
  CKPTD_RETURN_IF_ERROR(CheckLocalRanks(options));
  if (std::ssize(options.local_ranks) == options.world_size) options.local_ranks.clear();
  if (options.job.empty()) options.job = FromEnvironment("CKPTD_JOB_ID", "env-");
  if (options.job.empty()) options.job = FromEnvironment("SLURM_JOB_ID", "slurm-");
  if (options.launch_id.empty()) options.launch_id = FromEnvironment("CKPTD_LAUNCH_ID", "env-");
  if (!options.launch_id.empty()) return options;
  if (!options.local_ranks.empty()) {
    return InvalidArgument(
        "the launch spans nodes (local_ranks names fewer ranks than world_size), and nothing identifies it "
        "on all of "
        "them; set launch_id, or CKPTD_LAUNCH_ID, to a text that is the same on all nodes and differs "
        "between launches");
  }
  options.launch_id = LaunchIdOfParent();
  return options;
}

}  // namespace

std::string ToString(Level level) { return v1::Level_Name(static_cast<v1::Level>(level)); }

void SetDuration(Duration value, google::protobuf::Duration* out) {
  out->set_seconds(value.count() / 1'000'000'000);
  out->set_nanos(static_cast<int32_t>(value.count() % 1'000'000'000));
}

CheckpointInfo InfoOf(const v1::Checkpoint& checkpoint) {
  CheckpointInfo info;
  info.name = checkpoint.name();
  info.tag = checkpoint.tag();
  if (checkpoint.has_step()) info.step = checkpoint.step();
  info.sequence = checkpoint.sequence();
  info.attempt = checkpoint.attempt();
  info.level = static_cast<Level>(checkpoint.level());
  info.world_size = checkpoint.world_size();
  info.size_bytes = checkpoint.size_bytes();
  info.file_count = checkpoint.file_count();
  info.pinned = checkpoint.pinned();
  info.resident = checkpoint.resident();
  info.damage = checkpoint.damage().message();
  info.suspect = checkpoint.suspect();
  info.metrics = {checkpoint.metrics().begin(), checkpoint.metrics().end()};
  for (const v1::FileInfo& file : checkpoint.files())
    info.files.push_back({file.path(), file.size_bytes(), file.rank()});
  return info;
}

ClientImpl::ClientImpl(Endpoint endpoint, ClientOptions options)
    : endpoint_(std::move(endpoint)), pid_(getpid()) {
  hello_.set_min_version(1);
  hello_.set_max_version(1);
  hello_.set_client_instance(RandomHex128());
  hello_.set_client_name(options.name);
  hello_.set_keeper(options.keeper);
}

absl::Status ClientImpl::CheckNotForked() const {
  if (getpid() == pid_) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, "FORKED",
                   absl::StrCat("the client was made by process ", pid_, " and cannot be used in process ",
                                getpid(), ", a fork of it; call Connect in the child"));
}

absl::StatusOr<std::shared_ptr<Session>> ClientImpl::GetSession() {
  CKPTD_RETURN_IF_ERROR(CheckNotForked());
  MutexLock lock(mutex_);
  if (session_ != nullptr && session_->alive()) return session_;
  session_.reset();
  CKPTD_ASSIGN_OR_RETURN(session_, Session::Open(endpoint_, hello_, kHelloTimeout));
  return session_;
}

Client::Client(std::shared_ptr<ClientImpl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<Client> Client::Connect(const std::string& endpoint, const ClientOptions& options) {
  CKPTD_ASSIGN_OR_RETURN(Endpoint parsed, ParseEndpoint(endpoint));
  auto impl = std::make_shared<ClientImpl>(std::move(parsed), options);
  const Instant deadline = SystemClock().Now() + options.connect_timeout;
  for (;;) {
    absl::StatusOr<std::shared_ptr<Session>> session = impl->GetSession();
    if (session.ok()) return Client(impl);
    if (!IsTransient(session.status()) || TimeLeft(deadline) == Duration(0)) return session.status();
    // There is no event to wait for while a daemon starts.
    std::this_thread::sleep_for(std::min<Duration>(TimeLeft(deadline), std::chrono::milliseconds(50)));
  }
}

absl::StatusOr<Run> Client::OpenRun(const std::string& root, const RunOptions& options) {
  UniqueFd directory(open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return ErrnoError(errno, absl::StrCat("opening the root ", root));
  CKPTD_ASSIGN_OR_RETURN(std::string path, AbsolutePath(root));
  CKPTD_ASSIGN_OR_RETURN(RunOptions complete, CompleteOptions(options));
  auto run = std::make_shared<RunImpl>(impl_, std::move(directory), std::move(path), std::move(complete));
  CKPTD_RETURN_IF_ERROR(
      run->Retry(kCallTimeout,
                 [](const std::shared_ptr<const Membership>& membership)
                     -> absl::StatusOr<std::shared_ptr<const Membership>> { return membership; })
          .status());
  return Run(std::move(run));
}

const std::string& Client::endpoint() const { return impl_->endpoint().text; }

}  // namespace ckptd::client
