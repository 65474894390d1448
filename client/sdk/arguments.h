// The options of ckptd/client.h, as they reach the library: by name.
#ifndef CKPTD_CLIENT_SDK_ARGUMENTS_H_
#define CKPTD_CLIENT_SDK_ARGUMENTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "client/sdk/client.h"

namespace ckptd::inline abi0::internal {

struct ArgumentsData {
  std::map<std::string, std::variant<int64_t, double, std::string>> values;
};

struct ResumeArguments {
  Timeout timeout{0};
  bool strict = false;
  bool allow_suspect = false;
};

// INVALID_ARGUMENT, reason UNKNOWN_OPTION: the program's header has an option that this library does not
// know.
absl::StatusOr<client::ClientOptions> ToClientOptions(const ArgumentsData& arguments);
absl::StatusOr<client::RunOptions> ToRunOptions(const ArgumentsData& arguments);
absl::StatusOr<client::SaveOptions> ToSaveOptions(const ArgumentsData& arguments);
absl::StatusOr<client::OpenOptions> ToOpenOptions(const ArgumentsData& arguments);
absl::StatusOr<ResumeArguments> ToResumeArguments(const ArgumentsData& arguments);

}  // namespace ckptd::inline abi0::internal
#endif  // CKPTD_CLIENT_SDK_ARGUMENTS_H_
