// Whether two paths lead to one place, by whatever way: links, bind mounts, one within the other.
#ifndef CKPTD_CLIENT_CONVERT_PLACES_H_
#define CKPTD_CLIENT_CONVERT_PLACES_H_

#include <string>

#include "absl/status/statusor.h"

namespace ckptd {

struct ConvertPlaces {
  std::string input;   // Absolute, without links.
  std::string parent;  // Of the output, in the same way; it exists.
  std::string name;    // Of the output, in `parent`.
};

// NOT_FOUND, reason ENOENT, when the input or the output's parent is not there; FAILED_PRECONDITION, reason
// OUTPUT_IS_INPUT, when the output is the input or lies in it.
absl::StatusOr<ConvertPlaces> CheckPlaces(const std::string& input, const std::string& output);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_PLACES_H_
