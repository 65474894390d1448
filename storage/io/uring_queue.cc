// io_uring: one ring, one thread, one system call for each Poll.
//
// SINGLE_ISSUER and DEFER_TASKRUN where the kernel has them: completions are then worked off by the owner's
// own Poll, and interrupt nobody. No registered buffers: they need CAP_IPC_LOCK, and gain nothing at our
// sizes.
#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"
#include "storage/io/io_queue.h"

namespace ckptd {
namespace {

constexpr Duration kLongestWait = std::chrono::hours(1);
// The kernel transfers less than 2 GiB at once. Cutting a request here makes a short transfer like any other.
constexpr size_t kMaxTransfer = size_t{1} << 30;
constexpr int kMaxDepth = 4096;

class UringQueue : public IoQueue {
 public:
  // Takes ownership of the ring, which holds up to `capacity` requests at once.
  UringQueue(const io_uring& ring, UniqueFd wake, int capacity)
      : ring_(ring), wake_(std::move(wake)), capacity_(capacity) {}

  ~UringQueue() override {
    // The last Wake completes the ring's own read of the eventfd.
    Wake();
    while (in_flight_ > 0 || wake_armed_) {
      for (const Completion& completion : Turn(kLongestWait)) delete completion.request;
    }
    io_uring_queue_exit(&ring_);
  }

  std::string_view name() const override { return "io_uring"; }

  void Write(Handle file, std::span<const std::byte> from, int64_t offset, IoDone done) override {
    Add({Request::Kind::kWrite, file, const_cast<std::byte*>(from.data()), from.size(), offset,
         std::move(done)});
  }
  void Read(Handle file, std::span<std::byte> into, int64_t offset, IoDone done) override {
    Add({Request::Kind::kRead, file, into.data(), into.size(), offset, std::move(done)});
  }
  void SyncData(Handle file, IoDone done) override {
    Add({Request::Kind::kSync, file, nullptr, 0, 0, std::move(done)});
  }

  void Poll(Duration timeout) override {
    if (!wake_armed_) ArmWake();
    // Collect first, then run: a completion may submit more while the ring is being read.
    for (const Completion& completion : Turn(timeout)) {
      const std::unique_ptr<Request> request(completion.request);
      request->done(completion.result);
    }
  }

  void Wake() override {
    if (wake_pending_.exchange(true)) return;
    const uint64_t one = 1;
    if (::write(wake_.get(), &one, sizeof(one)) != sizeof(one)) Die("writing to an eventfd", errno);
  }

  int in_flight() const override { return in_flight_; }

 private:
  struct Request {
    enum class Kind { kWrite, kRead, kSync } kind;
    Handle file;
    std::byte* data;  // Not written to if this is a write.
    size_t size;
    int64_t offset;
    IoDone done;
  };
  struct Completion {
    Request* request;
    int64_t result;
  };

  [[noreturn]] static void Die(const char* what, int error) {
    std::fprintf(stderr, "ckptd: %s: %s\n", what, std::strerror(error));
    std::abort();
  }

  void Add(Request request) {
    ++in_flight_;
    waiting_.push_back(std::make_unique<Request>(std::move(request)));
  }

  // Never null: the ring always has a free entry.
  io_uring_sqe* Entry() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) Die("a full submission ring", ENOBUFS);
    return entry;
  }

  void ArmWake() {
    io_uring_sqe* entry = Entry();
    io_uring_prep_read(entry, wake_.get(), &wake_count_, sizeof(wake_count_), 0);
    io_uring_sqe_set_data(entry, nullptr);
    wake_armed_ = true;
  }

  void Enter(Request* request) {
    io_uring_sqe* entry = Entry();
    const auto size = static_cast<unsigned>(std::min(request->size, kMaxTransfer));
    const auto offset = static_cast<uint64_t>(request->offset);
    switch (request->kind) {
      case Request::Kind::kWrite:
        io_uring_prep_write(entry, request->file, request->data, size, offset);
        break;
      case Request::Kind::kRead:
        io_uring_prep_read(entry, request->file, request->data, size, offset);
        break;
      case Request::Kind::kSync:
        io_uring_prep_fsync(entry, request->file, IORING_FSYNC_DATASYNC);
        break;
    }
    io_uring_sqe_set_data(entry, request);
    ++in_ring_;
  }

  // Submits, waits, and collects the completions.
  std::vector<Completion> Turn(Duration timeout) {
    for (; !waiting_.empty() && in_ring_ < capacity_; waiting_.pop_front()) Enter(waiting_.front().release());
    timeout = std::clamp(timeout, Duration::zero(), kLongestWait);
    __kernel_timespec wait = {.tv_sec = timeout.count() / 1'000'000'000,
                              .tv_nsec = timeout.count() % 1'000'000'000};
    io_uring_cqe* entry = nullptr;
    const int result = io_uring_submit_and_wait_timeout(&ring_, &entry, 1, &wait, nullptr);
    if (result == -EAGAIN || result == -EBUSY) {
      ::poll(nullptr, 0, 1);  // The kernel is short of memory and only asks to try again.
    } else if (result < 0 && result != -ETIME && result != -EINTR) {
      Die("io_uring_enter", -result);
    }
    return TakeCompleted();
  }

  std::vector<Completion> TakeCompleted() {
    std::vector<Completion> completed;
    io_uring_cqe* entry = nullptr;
    unsigned head = 0;
    unsigned count = 0;
    io_uring_for_each_cqe(&ring_, head, entry) {
      ++count;
      auto* request = static_cast<Request*>(io_uring_cqe_get_data(entry));
      if (request != nullptr) {
        completed.push_back({request, entry->res});
        continue;
      }
      wake_armed_ = false;
      wake_pending_.store(false);
    }
    io_uring_cq_advance(&ring_, count);
    in_ring_ -= static_cast<int>(completed.size());
    in_flight_ -= static_cast<int>(completed.size());
    return completed;
  }

  // Used by the owner only.
  io_uring ring_;
  const UniqueFd wake_;
  const int capacity_;
  uint64_t wake_count_ = 0;  // The ring reads the eventfd into this.
  bool wake_armed_ = false;
  int in_ring_ = 0;    // <= capacity_
  int in_flight_ = 0;  // in_ring_ + waiting_.size()
  std::deque<std::unique_ptr<Request>> waiting_;

  // Used by any thread.
  std::atomic<bool> wake_pending_ = false;
};

absl::Status Unavailable(const std::string& cause) {
  return MakeError(absl::StatusCode::kUnavailable, "IO_URING_UNAVAILABLE", absl::StrCat("io_uring: ", cause));
}

// Why io_uring_setup failed.
absl::Status SetupRefused(int error) {
  int disabled = 0;
  std::ifstream("/proc/sys/kernel/io_uring_disabled") >> disabled;
  switch (error) {
    case ENOSYS:
      return Unavailable("this kernel has none, or a seccomp filter hides it");
    case EPERM:
    case EACCES:
      return Unavailable(disabled != 0
                             ? absl::StrCat("forbidden by sysctl kernel.io_uring_disabled=", disabled)
                             : "forbidden, probably by a seccomp filter (container runtimes have one)");
    case ENOMEM:
      return Unavailable("no memory for a ring; the limit of locked memory (ulimit -l) may be too low");
    default:
      return Unavailable(absl::StrCat("making a ring: ", std::strerror(error)));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<IoQueue>> MakeUringQueue(int depth) {
  if (depth < 1 || depth > kMaxDepth) {
    return InvalidArgument(
        absl::StrCat("the depth of an I/O queue is from 1 to ", kMaxDepth, ", not ", depth));
  }
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC));
  if (!wake) return ErrnoError(errno, "making an eventfd");
  io_uring ring = {};
  io_uring_params params = {};
  params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SUBMIT_ALL;
  const auto entries = static_cast<unsigned>(depth) + 1;  // One more, for the eventfd.
  int result = io_uring_queue_init_params(entries, &ring, &params);
  if (result == -EINVAL) {  // The kernel is older than 6.1.
    params = {};
    result = io_uring_queue_init_params(entries, &ring, &params);
  }
  if (result < 0) return SetupRefused(-result);
  if ((params.features & IORING_FEAT_EXT_ARG) == 0) {
    io_uring_queue_exit(&ring);
    return Unavailable("this kernel is older than 5.11");
  }
  return std::make_unique<UringQueue>(ring, std::move(wake), depth);
}

}  // namespace ckptd
