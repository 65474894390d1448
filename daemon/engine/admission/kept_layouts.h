// KeptLayouts keeps the file places of each rank's last part, so that its next Begin may name them by a number
// instead of listing the same files again.
#ifndef CKPTD_DAEMON_ENGINE_ADMISSION_KEPT_LAYOUTS_H_
#define CKPTD_DAEMON_ENGINE_ADMISSION_KEPT_LAYOUTS_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "daemon/engine/run/file_places.h"
#include "daemon/engine/seams/limits.h"
#include "daemon/memory/segment_pool.h"

namespace ckptd {

// A layout is known to the session that has begun with its files, as one rank of one run, and by no other number than
// the one it was told: numbers are not used again while the daemon lives, and no session outlives it.
class KeptLayouts {
 public:
  struct Owner {
    SessionId session = 0;
    std::string run;  // `runs/{run}`.
    int rank = 0;
  };

  explicit KeptLayouts(const EngineLimits& limits) : limits_(limits) {}

  // Counts for layouts that are kept from now on.
  void SetLimits(const EngineLimits& limits) { limits_ = limits; }

  // Keeps them in the place of the owner's last ones. No file may be added to them any more. Returns their number; 0
  // if they are not kept, because the layouts of this user would have more than limits.files_per_uid files.
  int64_t Keep(uid_t uid, const Owner& owner, std::shared_ptr<FilePlaces> places);
  // Null: the owner's last layout has another number, or it has none.
  std::shared_ptr<FilePlaces> Find(const Owner& owner, int64_t number) const;
  void OnSessionEnded(SessionId session);

 private:
  struct Layout {
    uid_t uid = 0;
    int64_t number = 0;
    std::shared_ptr<FilePlaces> places;
  };
  using Key = std::tuple<SessionId, std::string, int>;
  using Layouts = std::map<Key, Layout>;

  Layouts::iterator Drop(Layouts::iterator layout);

  EngineLimits limits_;
  Layouts layouts_;
  std::map<uid_t, int64_t> files_;  // In all layouts of a user.
  int64_t last_number_ = 0;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_ADMISSION_KEPT_LAYOUTS_H_
