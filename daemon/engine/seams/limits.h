// What one user may hold of the daemon: LimitsConfig, as the engine uses it.
#ifndef CKPTD_DAEMON_ENGINE_SEAMS_LIMITS_H_
#define CKPTD_DAEMON_ENGINE_SEAMS_LIMITS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {

// Defaults as in proto/ckptd/config/v1.
struct EngineLimits {
  int ranks_per_run = 1024;
  int64_t files_per_part = 100'000;
  int64_t files_per_uid = 2'000'000;
  int saves_per_uid = 256;
  int leases_per_uid = 1024;
  int64_t manifest_bytes_per_uid = int64_t{1} << 30;
  int watches_per_uid = 256;
};

// RESOURCE_EXHAUSTED, reason LIMIT_EXCEEDED. `whose` has `limit` of `what` ("watches"), the most that the
// field `field` of the configuration ("watches_per_uid") allows.
inline absl::Status LimitExceeded(std::string_view whose, std::string_view what, int64_t limit,
                                  std::string_view field) {
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kLimitExceeded,
                   absl::StrCat(std::string(whose), " has reached the limit of ", limit, " ",
                                std::string(what), "; end some of them, or raise limits.", std::string(field),
                                " in the daemon's configuration"),
                   {{"limit", absl::StrCat("limits.", std::string(field))}});
}

inline absl::Status UidLimitExceeded(uid_t uid, std::string_view what, int64_t limit,
                                     std::string_view field) {
  return LimitExceeded(absl::StrCat("uid ", uid), what, limit, field);
}

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SEAMS_LIMITS_H_
