// ExpectedSizes estimates how many bytes each rank's part of a save will have. A rank that has begun without
// `growing` has named its files, so its size is known. Any other part is expected to be at least as large as
// the rank's part in the last save that was sealed, if the world size is the same.
#ifndef CKPTD_DAEMON_ENGINE_ADMISSION_EXPECTED_SIZES_H_
#define CKPTD_DAEMON_ENGINE_ADMISSION_EXPECTED_SIZES_H_

#include <cstdint>
#include <map>
#include <vector>

#include "daemon/engine/run/run_states.h"
#include "daemon/engine/run/save.h"

namespace ckptd {

class ExpectedSizes {
 public:
  // The save is sealed: the run's next save is expected to have parts of the same sizes.
  void Remember(const Save& save);
  // Ranks that have not begun and have no part in the last save.
  std::vector<int> UnknownRanks(const Save& save) const;
  int64_t PartBytes(const Save& save, int rank) const;
  // Of all ranks.
  int64_t TotalBytes(const Save& save) const;
  void Forget(const Run* run) { states_.Forget(run); }

 private:
  struct State {
    int world_size = 0;
    std::map<int, int64_t> part_bytes;  // By rank.
  };
  // The size of the rank's part in the last save; -1 if there is none, or the world size differs.
  int64_t LastBytes(const Save& save, int rank) const;

  RunStates<State> states_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_ADMISSION_EXPECTED_SIZES_H_
