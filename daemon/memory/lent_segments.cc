#include "daemon/memory/lent_segments.h"

#include <fcntl.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd {

namespace {

// Returns a read-only descriptor. Its holder cannot reopen it for writing: the memfd belongs to the daemon's
// user and has mode 0600.
int OpenForReading(const SegmentMemory& memory) {
  return open(absl::StrCat("/proc/self/fd/", memory.fd()).c_str(), O_RDONLY | O_CLOEXEC);
}

}  // namespace

absl::StatusOr<SegmentDirectory::Descriptor> LentSegments::Find(SessionId session, SegmentId id,
                                                                SegmentAccess access) {
  const bool reads = access == SegmentAccess::kRead;
  MutexLock lock(mutex_);
  const SegmentMemory* memory = nullptr;
  if (auto lent = entries_.find(id); !reads && lent != entries_.end() && lent->second.session == session)
    memory = lent->second.memory;
  if (auto reader = readers_.find({id, session}); reads && reader != readers_.end())
    memory = reader->second.memory;
  if (memory == nullptr) {
    return MakeError(
        absl::StatusCode::kNotFound, "UNKNOWN_SEGMENT",
        absl::StrCat("segment ", id, " is not ", reads ? "readable for" : "lent to", " this session"));
  }
  // Still under the lock, so that the pool cannot close the descriptor meanwhile.
  const int fd = reads ? OpenForReading(*memory) : fcntl(memory->fd(), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return ErrnoError(errno, "duplicating a segment's descriptor");
  return Descriptor{fd, memory->size(), memory->pages() != PageKind::kPlain};
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

void LentSegments::AddReader(SegmentId id, SessionId session, const SegmentMemory& memory) {
  MutexLock lock(mutex_);
  Reader& reader = readers_[{id, session}];
  ++reader.count;
  reader.memory = &memory;
}

void LentSegments::RemoveReader(SegmentId id, SessionId session) {
  MutexLock lock(mutex_);
  auto reader = readers_.find({id, session});
  if (reader != readers_.end() && --reader->second.count == 0) readers_.erase(reader);
}

}  // namespace ckptd
