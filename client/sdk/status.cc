#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "ckptd/version.h"
#include "client/sdk/objects.h"
#include "storage/base/errors.h"

namespace ckptd::inline abi0 {
namespace {

const internal::StatusData& DataOf(const std::shared_ptr<const internal::StatusData>& data) {
  static const auto& ok = *new internal::StatusData;  // Never destroyed: threads may outlive main().
  return data == nullptr ? ok : *data;
}

}  // namespace

const char* LibraryVersion() { return kVersion; }

Code Status::code() const { return DataOf(data_).code; }
const std::string& Status::reason() const { return DataOf(data_).reason; }
const std::string& Status::message() const { return DataOf(data_).message; }
const std::map<std::string, std::string>& Status::details() const { return DataOf(data_).details; }

std::string Status::ToString() const {
  if (ok()) return "OK";
  const std::string code = absl::StatusCodeToString(static_cast<absl::StatusCode>(data_->code));
  return absl::StrCat(code, data_->reason.empty() ? "" : " ", data_->reason, ": ", data_->message);
}

std::string ToString(Level level) { return client::ToString(static_cast<client::Level>(level)); }

namespace internal {

Status Access::ToStatus(const absl::Status& status) {
  Status result;
  if (status.ok()) return result;
  result.data_ = std::make_shared<const StatusData>(StatusData{
      static_cast<Code>(status.code()), ReasonOf(status), std::string(status.message()), DetailsOf(status)});
  return result;
}

Status FromException(const std::exception* error) {
  return Access::ToStatus(absl::ResourceExhaustedError(
      absl::StrCat("the client library has failed, which happens where there is too little memory: ",
                   error == nullptr ? "an unknown exception" : error->what())));
}

void EndWithoutValue(const Status& status) {
  std::fprintf(stderr, "ckptd: the value of a failed call was used: %s\n", status.ToString().c_str());
  std::abort();
}

}  // namespace internal
}  // namespace ckptd::inline abi0
