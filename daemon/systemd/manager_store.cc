#include "daemon/systemd/manager_store.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr int kFirstDescriptor = 3;  // SD_LISTEN_FDS_START.
constexpr int kMaxDescriptors = 1 << 20;

std::string TakeVariable(const char* name) {
  const char* value = std::getenv(name);
  std::string taken = value == nullptr ? "" : value;
  ::unsetenv(name);
  return taken;
}

}  // namespace

int ManagerStoreSize() {
  int size = 0;
  return absl::SimpleAtoi(TakeVariable("FDSTORE"), &size) ? std::max(size, 0) : 0;
}

std::vector<NamedDescriptor> TakeManagerDescriptors() {
  int64_t pid = 0;
  int count = 0;
  const bool ours = absl::SimpleAtoi(TakeVariable("LISTEN_PID"), &pid) && pid == ::getpid();
  const bool some =
      absl::SimpleAtoi(TakeVariable("LISTEN_FDS"), &count) && count > 0 && count <= kMaxDescriptors;
  const std::vector<std::string> names = absl::StrSplit(TakeVariable("LISTEN_FDNAMES"), ':');
  std::vector<NamedDescriptor> descriptors;
  if (!ours || !some) return descriptors;
  for (int i = 0; i < count; ++i) {
    const int fd = kFirstDescriptor + i;
    if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) continue;  // No such descriptor.
    descriptors.push_back(
        {names.size() == static_cast<size_t>(count) ? names[static_cast<size_t>(i)] : "", UniqueFd(fd)});
  }
  return descriptors;
}

ManagerStore::ManagerStore(Notifier* notifier, int most, std::set<std::string> held, Duration timeout)
    : notifier_(notifier), most_(most), timeout_(timeout), held_(std::move(held)) {}

absl::Status ManagerStore::Put(const std::string& name, int fd) {
  MutexLock lock(mutex_);
  if (static_cast<int>(held_.size()) >= most_) {
    return MakeError(absl::StatusCode::kResourceExhausted, "STORE_FULL",
                     absl::StrCat("the service manager keeps at most ", most_,
                                  " descriptors and has that many; raise FileDescriptorStoreMax"));
  }
  // FDPOLL=0, because a memfd has no events to poll for.
  CKPTD_RETURN_IF_ERROR(notifier_->SendWith(absl::StrCat("FDSTORE=1\nFDNAME=", name, "\nFDPOLL=0"), fd));
  held_.insert(name);
  return AwaitBarrier();
}

absl::Status ManagerStore::Remove(const std::string& name) {
  MutexLock lock(mutex_);
  if (held_.erase(name) == 0) return absl::OkStatus();
  return notifier_->SendWith(absl::StrCat("FDSTOREREMOVE=1\nFDNAME=", name), -1);
}

// Waits until the manager closes its end of a pipe, which it does after it has handled all earlier messages.
absl::Status ManagerStore::AwaitBarrier() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "pipe for BARRIER=1");
  const UniqueFd read(ends[0]);
  UniqueFd write(ends[1]);
  CKPTD_RETURN_IF_ERROR(notifier_->SendWith("BARRIER=1", write.get()));
  write.reset();
  const Instant deadline = SystemClock().Now() + timeout_;
  while (true) {
    const Duration left = std::max(deadline - SystemClock().Now(), Duration::zero());
    pollfd waiting = {read.get(), 0, 0};
    const auto millis = std::chrono::ceil<std::chrono::milliseconds>(left);
    const int ready = ::poll(&waiting, 1, static_cast<int>(millis.count()));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoError(errno, "poll for BARRIER=1");
    if (ready == 0 && left == Duration::zero()) {
      return MakeError(
          absl::StatusCode::kDeadlineExceeded, "MANAGER_SLOW",
          absl::StrCat("the service manager has not answered within ",
                       std::chrono::duration_cast<std::chrono::seconds>(timeout_).count(), " s"));
    }
  }
}

}  // namespace ckptd
