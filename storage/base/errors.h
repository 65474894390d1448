// Errors are absl::Status values. The code says what the caller should do. A machine-readable reason and
// details travel with the status from any layer to the wire; docs/protocol.md lists them.
#ifndef CKPTD_STORAGE_BASE_ERRORS_H_
#define CKPTD_STORAGE_BASE_ERRORS_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace ckptd {

using ErrorDetails = std::map<std::string, std::string>;

// A status with a reason (UPPER_SNAKE_CASE) and details such as {"tag", "step_100"}. Keys and values must not
// contain newlines.
absl::Status MakeError(absl::StatusCode code, std::string_view reason, std::string_view message,
                       const ErrorDetails& details = {});
// INVALID_ARGUMENT, with that reason. `message` says which value was wrong and what is allowed.
absl::Status InvalidArgument(std::string_view message);

// The reason of a status. Empty if it has none.
std::string ReasonOf(const absl::Status& status);
ErrorDetails DetailsOf(const absl::Status& status);

// The same status with `context: ` before its message. Reason and details are kept.
absl::Status Annotate(const absl::Status& status, std::string_view context);

// Converts an errno to a status. The detail "errno" holds the number.
//   ENOSPC, EDQUOT  RESOURCE_EXHAUSTED, reason NO_SPACE
//   EIO             DATA_LOSS, reason IO_ERROR
//   EROFS           FAILED_PRECONDITION, reason EROFS
//   others          the code of absl::ErrnoToStatus; the reason is the errno's name, such as EACCES
absl::Status ErrnoError(int error_number, std::string_view what);
// The errno that a status was made from. 0 if it was made otherwise.
int ErrnoOf(const absl::Status& status);

// The next two functions say what the result of a read-only call (open, stat, list, read) proves about its
// target. Decide that only with them. Code and reason are not enough: an I/O error has the code of damage,
// and a device that is gone has the code of a missing file.

// True if the error proves corruption: the bytes were read and are not what was written (CORRUPT_*,
// SHORT_FILE), or the device reports that it has lost them, by ENODATA (a medium error) or EILSEQ (the
// device's checksum).
bool ProvesDamage(const absl::Status& status);
// True if the call failed in a way that says nothing about the target: an I/O error, a device or a server
// that is gone or does not answer, too few descriptors, too little memory, damage of the file system's own
// structures. The next call may succeed, so nothing may be discarded, delisted or marked as damaged. False
// for OK, for what ProvesDamage, and for errnos that say what exists at a name or that this user may not look
// there.
bool CouldNotFindOut(const absl::Status& status);

// The first `limit` bytes at most, cut between characters of UTF-8: protobuf cannot parse a string that is
// cut within one.
std::string FirstBytes(std::string_view text, size_t limit);

// Converts ranks to the text of the detail "ranks", such as "0,3,7", and back.
std::string JoinRanks(const std::vector<int>& ranks);
std::vector<int> SplitRanks(std::string_view ranks);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_ERRORS_H_
