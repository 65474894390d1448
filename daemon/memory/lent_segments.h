// Which segments are lent to whom, for the hand-off.
#ifndef CKPTD_DAEMON_MEMORY_LENT_SEGMENTS_H_
#define CKPTD_DAEMON_MEMORY_LENT_SEGMENTS_H_

#include <map>
#include <unordered_map>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/memory/segment_memory.h"
#include "daemon/memory/segment_pool.h"
#include "storage/base/mutex.h"

namespace ckptd {

// Thread-safe: the pool keeps it, the hand-off asks it.
class LentSegments : public SegmentDirectory {
 public:
  absl::StatusOr<Descriptor> Find(SessionId session, SegmentId id, SegmentAccess access) override;

  // `memory` stays until Remove.
  void Add(SegmentId id, SessionId session, const SegmentMemory& memory);
  void Remove(SegmentId id);
  void RemoveSession(SessionId session);
  // `session` may read it, until as many RemoveReaders; `memory` stays until then.
  void AddReader(SegmentId id, SessionId session, const SegmentMemory& memory);
  void RemoveReader(SegmentId id, SessionId session);

 private:
  struct Entry {
    SessionId session;
    const SegmentMemory* memory;
  };
  Mutex mutex_;
  std::unordered_map<SegmentId, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  struct Reader {
    int count = 0;
    const SegmentMemory* memory = nullptr;
  };
  std::map<std::pair<SegmentId, SessionId>, Reader> readers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_MEMORY_LENT_SEGMENTS_H_
