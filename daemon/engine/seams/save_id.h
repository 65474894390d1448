// Names a save within its run.
#ifndef CKPTD_DAEMON_ENGINE_SEAMS_SAVE_ID_H_
#define CKPTD_DAEMON_ENGINE_SEAMS_SAVE_ID_H_

#include <compare>
#include <cstdint>
#include <string>

namespace ckptd {

struct SaveId {
  int64_t attempt;
  std::string tag;
  int64_t ordinal;
  auto operator<=>(const SaveId&) const = default;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SEAMS_SAVE_ID_H_
