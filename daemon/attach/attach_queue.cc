#include "daemon/attach/attach_queue.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

absl::Status Draining() {
  return MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                   "the daemon is ending; attach with the next one");
}

}  // namespace

void AttachQueue::Submit(uid_t uid, const std::string& file_system, Inspect inspect, Done done,
                         bool any_number) {
  auto attach = std::make_shared<Attach>();
  attach->uid = uid;
  attach->file_system = file_system;
  attach->inspect = std::move(inspect);
  absl::Status refused = absl::OkStatus();
  {
    MutexLock lock(mutex_);
    attach->timeout = timeout_;
    attach->deadline = clock_->Now() + timeout_;
    int waiting = 0;
    for (const auto& other : attaches_) waiting += other->uid == uid && !other->running;
    if (closed_) {
      refused = Draining();
    } else if (waiting >= limits_.waiting_per_uid && !any_number) {
      refused =
          MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_EXCEEDED",
                    absl::StrCat(limits_.waiting_per_uid, " attaches of uid ", uid,
                                 " are waiting already, perhaps for a file system that hangs; attach fewer "
                                 "roots at once"));
    } else {
      attach->done = std::move(done);
      attaches_.push_back(std::move(attach));
      StartReady();
    }
  }
  if (!refused.ok()) done(refused);
}

void AttachQueue::SetTimeout(Duration timeout) {
  MutexLock lock(mutex_);
  timeout_ = timeout;
}

// Starts the inspections that the limits allow now.
void AttachQueue::StartReady() {
  if (closed_) return;
  std::map<uid_t, int> of_uid;
  std::map<std::pair<uid_t, std::string>, int> of_file_system;
  for (const auto& attach : attaches_) {
    if (!attach->running) continue;
    ++of_uid[attach->uid];
    ++of_file_system[{attach->uid, attach->file_system}];
  }
  for (const auto& attach : attaches_) {
    if (attach->running) continue;
    int& user = of_uid[attach->uid];
    int& file_system = of_file_system[{attach->uid, attach->file_system}];
    if (user >= limits_.running_per_uid || file_system >= limits_.running_per_file_system) continue;
    ++user;
    ++file_system;
    attach->running = true;
    workers_->Submit([this, attach] { Run(attach); });
  }
}

void AttachQueue::Run(const std::shared_ptr<Attach>& attach) {
  absl::StatusOr<RootAttachment> inspected = attach->inspect();
  attach->inspect = nullptr;
  Done done;
  {
    MutexLock lock(mutex_);
    done = std::move(attach->done);
    attach->done = nullptr;
    std::erase(attaches_, attach);
    StartReady();
  }
  if (done != nullptr) done(std::move(inspected));
}

void AttachQueue::Close() {
  std::vector<Done> waiting;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    for (const auto& attach : attaches_) {
      if (!attach->running && attach->done != nullptr) waiting.push_back(std::move(attach->done));
    }
    std::erase_if(attaches_, [](const auto& attach) { return !attach->running; });
  }
  for (Done& done : waiting) done(Draining());
  workers_.reset();  // No thread uses it any more, because closed_ is set.
}

void AttachQueue::Expire() {
  struct Over {
    std::string file_system;
    Duration timeout;
    Done done;
  };
  std::vector<Over> over;
  {
    MutexLock lock(mutex_);
    const Instant now = clock_->Now();
    for (auto entry = attaches_.begin(); entry != attaches_.end();) {
      Attach& attach = **entry;
      if (attach.done == nullptr || now < attach.deadline) {
        ++entry;
        continue;
      }
      over.push_back({attach.file_system, attach.timeout, std::move(attach.done)});
      attach.done = nullptr;
      // A running inspection keeps its entry, because it still holds a thread.
      entry = attach.running ? std::next(entry) : attaches_.erase(entry);
    }
  }
  for (auto& [file_system, timeout, done] : over) {
    done(MakeError(absl::StatusCode::kDeadlineExceeded, "FILE_SYSTEM_HANGS",
                   absl::StrCat("the root's file system (", file_system, ") has not answered within ",
                                std::chrono::duration_cast<std::chrono::seconds>(timeout).count(),
                                " s; check its server or disk, then attach again")));
  }
}

std::string FileSystemOf(int descriptor) {
  struct statx info {};
  statx(descriptor, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &info);
  return absl::StrCat(info.stx_dev_major, ":", info.stx_dev_minor);
}

}  // namespace ckptd
