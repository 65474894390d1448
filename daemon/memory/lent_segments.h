// Which session may fetch which segment, for writing or for reading. The hand-off server looks descriptors up
// here.
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

// Thread-safe: the pool changes it on the engine's thread, the hand-off server reads it on its own.
class LentSegments : public SegmentDirectory {
 public:
  absl::StatusOr<Descriptor> Find(SessionId session, SegmentId id, SegmentAccess access) override;

  // `memory` must live until Remove or RemoveSession.
  void Add(SegmentId id, SessionId session, const SegmentMemory& memory);
  void Remove(SegmentId id);
  void RemoveSession(SessionId session);
  // `session` may read `id` until RemoveReader was called as often; `memory` must live until then.
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
