#include "daemon/memory/lent_segments.h"

#include <fcntl.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd {

absl::StatusOr<SegmentDirectory::Descriptor> LentSegments::Find(SessionId session, SegmentId id) {
  MutexLock lock(mutex_);
  auto found = entries_.find(id);
  if (found == entries_.end() || found->second.session != session) {
    return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_SEGMENT",
                     absl::StrCat("segment ", id, " is not lent to this session"));
  }
  const SegmentMemory& memory = *found->second.memory;
  // Under the lock: the descriptor cannot be closed meanwhile.
  const int fd = fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return ErrnoError(errno, "duplicating a segment's descriptor");
  return Descriptor{fd, memory.size(), memory.pages() != PageKind::kPlain};
}

void LentSegments::Add(SegmentId id, SessionId session, const SegmentMemory& memory) {
  MutexLock lock(mutex_);
  entries_[id] = {session, &memory};
}

void LentSegments::Remove(SegmentId id) {
  MutexLock lock(mutex_);
  entries_.erase(id);
}

void LentSegments::RemoveSession(SessionId session) {
  MutexLock lock(mutex_);
  std::erase_if(entries_, [session](const auto& entry) { return entry.second.session == session; });
}

}  // namespace ckptd
