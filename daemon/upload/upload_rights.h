// To which URLs the runs of a user may be uploaded: with the daemon's own credentials, so the operator says
// where.
#ifndef CKPTD_DAEMON_UPLOAD_UPLOAD_RIGHTS_H_
#define CKPTD_DAEMON_UPLOAD_UPLOAD_RIGHTS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace ckptd {

struct UploadRights {
  bool allows_all = false;  // The daemon has the rights of the job that has started it.
  // upload.allowed_prefixes of the configuration, which was checked.
  std::vector<std::string> prefixes = {};
};

// INVALID_ARGUMENT if it is no URL of a bucket; PERMISSION_DENIED, reason UPLOAD_NOT_ALLOWED, says what the
// operator can do.
absl::Status CheckUpload(const UploadRights& rights, uid_t uid, const std::string& url);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_UPLOAD_UPLOAD_RIGHTS_H_
