#include "storage/base/errors.h"

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ckptd {
namespace {

// The payload is the reason, followed by a line `key=value` for each detail.
constexpr char kPayload[] = "ckptd/error";

std::string PayloadOf(const absl::Status& status) {
  auto payload = status.GetPayload(kPayload);
  return payload ? std::string(*payload) : std::string();
}

}  // namespace

absl::Status MakeError(absl::StatusCode code, std::string_view reason, std::string_view message,
                       const ErrorDetails& details) {
  absl::Status status(code, absl::string_view(message.data(), message.size()));
  std::string payload(reason);
  for (const auto& [key, value] : details) absl::StrAppend(&payload, "\n", key, "=", value);
  status.SetPayload(kPayload, absl::Cord(payload));
  return status;
}

absl::Status InvalidArgument(std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT", message);
}

std::string ReasonOf(const absl::Status& status) {
  std::string payload = PayloadOf(status);
  return payload.substr(0, payload.find('\n'));
}

ErrorDetails DetailsOf(const absl::Status& status) {
  ErrorDetails details;
  const std::string payload = PayloadOf(status);
  const std::vector<std::string> lines = absl::StrSplit(payload, '\n');
  for (size_t i = 1; i < lines.size(); ++i) {
    const size_t equals = lines[i].find('=');
    if (equals != std::string::npos) details[lines[i].substr(0, equals)] = lines[i].substr(equals + 1);
  }
  return details;
}

absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(std::string(context), ": ", status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& value) { annotated.SetPayload(url, value); });
  return annotated;
}

absl::Status ErrnoError(int error_number, std::string_view what) {
  const char* name = ::strerrorname_np(error_number);
  std::string reason = name != nullptr ? name : absl::StrCat("ERRNO_", error_number);
  absl::StatusCode code = absl::ErrnoToStatusCode(error_number);
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      code = absl::StatusCode::kResourceExhausted;
      reason = "NO_SPACE";
      break;
    case EIO:
      code = absl::StatusCode::kDataLoss;
      reason = "IO_ERROR";
      break;
    case EROFS:
      code = absl::StatusCode::kFailedPrecondition;
      break;
    default:
      break;
  }
  return MakeError(code, reason, absl::StrCat(std::string(what), ": ", std::strerror(error_number)),
                   {{"errno", absl::StrCat(error_number)}});
}

int ErrnoOf(const absl::Status& status) {
  const ErrorDetails details = DetailsOf(status);
  int number = 0;
  auto found = details.find("errno");
  return found != details.end() && absl::SimpleAtoi(found->second, &number) ? number : 0;
}

bool ProvesDamage(const absl::Status& status) {
  const int error = ErrnoOf(status);
  if (error != 0) return error == ENODATA || error == EILSEQ;
  // IO_ERROR without an errno: another process read, and its error came over a socket.
  // CORRUPT_TRANSFER: the bytes were damaged on their way to or from a bucket.
  const std::string reason = ReasonOf(status);
  return absl::IsDataLoss(status) && reason != "IO_ERROR" && reason != "CORRUPT_TRANSFER";
}

bool CouldNotFindOut(const absl::Status& status) {
  switch (ErrnoOf(status)) {
    case 0:
      // Of a bucket's server, or of the disk.
      return absl::StartsWith(ReasonOf(status), "STORE_") || ReasonOf(status) == "NO_CREDENTIALS" ||
             ReasonOf(status) == "NO_BUCKET" || ReasonOf(status) == "CORRUPT_TRANSFER" ||
             ReasonOf(status) == "IO_ERROR";
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case EEXIST:
    case ENOTEMPTY:
    case EXDEV:  // The path leaves its root.
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return false;
    default:
      return !ProvesDamage(status);
  }
}

std::string JoinRanks(const std::vector<int>& ranks) {
  std::string joined;
  for (int rank : ranks) absl::StrAppend(&joined, joined.empty() ? "" : ",", rank);
  return joined;
}

std::vector<int> SplitRanks(std::string_view ranks) {
  std::vector<int> numbers;
  for (absl::string_view piece :
       absl::StrSplit(absl::string_view(ranks.data(), ranks.size()), ',', absl::SkipEmpty())) {
    int number = 0;
    if (absl::SimpleAtoi(piece, &number)) numbers.push_back(number);
  }
  return numbers;
}

std::string FirstBytes(std::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xc0) == 0x80) --limit;
  return std::string(text.substr(0, limit));
}

}  // namespace ckptd
