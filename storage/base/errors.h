// Errors: an absl::Status whose code says what the caller should do, and a machine-readable reason with
// details that travel with it from any layer to the wire (docs/protocol.md has the table).
#ifndef CKPTD_STORAGE_BASE_ERRORS_H_
#define CKPTD_STORAGE_BASE_ERRORS_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace ckptd {

using ErrorDetails = std::map<std::string, std::string>;

// A status with a reason (UPPER_SNAKE_CASE) and details such as {"tag", "step_100"}. Keys and values hold no
// newline.
absl::Status MakeError(absl::StatusCode code, std::string_view reason, std::string_view message,
                       const ErrorDetails& details = {});
// INVALID_ARGUMENT, with that reason. `message` says which value was wrong and what is allowed.
absl::Status InvalidArgument(std::string_view message);

// The reason of a status; empty when it has none.
std::string ReasonOf(const absl::Status& status);
ErrorDetails DetailsOf(const absl::Status& status);

// The same status with `context: ` before its message; reason and details stay.
absl::Status Annotate(const absl::Status& status, std::string_view context);

// errno as a status: ENOSPC and EDQUOT are RESOURCE_EXHAUSTED with reason NO_SPACE, EIO is DATA_LOSS with
// reason IO_ERROR, EROFS and EACCES FAILED_PRECONDITION / PERMISSION_DENIED with their own names as reason,
// others as absl::ErrnoToStatus with the errno's name (strerrorname_np) as reason. Detail "errno" holds the
// number.
absl::Status ErrnoError(int error_number, std::string_view what);
// The errno that a status was made of; 0 when it was not.
int ErrnoOf(const absl::Status& status);

// What a call that only looked (open, stat, list, read) proves about what it looked at. Nothing else decides
// that: neither a status code nor a reason does, for an I/O error has the code of damage, and a device that
// is gone has the code of a missing file.

// The bytes were read and are not what was written (CORRUPT_*, SHORT_FILE), or the device says that it has
// lost them: ENODATA (a medium error) or EILSEQ (the device's own checksum).
bool ProvesDamage(const absl::Status& status);
// The call failed for a reason that is no answer: an I/O error, a device or a server that is gone or does not
// answer, too few descriptors, too little memory, damage of the file system's own structures. The next call
// may succeed, so nothing may be discarded, delisted or marked because of it. Answers are OK, what
// ProvesDamage says, and the errnos that say what is at a name, or that this user may not look there.
bool CouldNotFindOut(const absl::Status& status);

// Not more than `limit` bytes, whole characters of UTF-8: for proto3 strings, which cannot be read again
// otherwise.
std::string FirstBytes(std::string_view text, size_t limit);

// "0,3,7" for the detail "ranks", and back.
std::string JoinRanks(const std::vector<int>& ranks);
std::vector<int> SplitRanks(std::string_view ranks);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_ERRORS_H_
