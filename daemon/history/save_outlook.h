// What to expect of a run's next save, and how often to save, from how the last ones have gone.
#ifndef CKPTD_DAEMON_HISTORY_SAVE_OUTLOOK_H_
#define CKPTD_DAEMON_HISTORY_SAVE_OUTLOOK_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "ckptd/v1/messages.pb.h"

namespace ckptd {

// The interval between saves at which a job loses the least time, by Daly's formula (J. T. Daly, "A higher order
// estimate of the optimum checkpoint interval for restart dumps", 2006), of which Young's is the first term.
// `cost`: seconds that a save takes from training; `between_failures`: mean seconds, both > 0.
double DalyInterval(double cost, double between_failures);

class OutlookMaker {
 public:
  // In the order of time.
  void Add(const v1::HistoryEntry& entry);
  // Nothing without a committed save. `between_failures` 0: as the entries show.
  std::optional<v1::SaveOutlook> Make(double between_failures) const;

 private:
  struct Committed {
    int64_t size_bytes = 0;
    double stall_seconds = 0, durable_seconds = 0;
  };
  struct Attempt {
    double first = 0, last = 0;  // Unix time of its first and last save.
  };
  std::vector<Committed> committed_;
  std::vector<double> intervals_;
  std::map<int64_t, Attempt> attempts_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_HISTORY_SAVE_OUTLOOK_H_
