#include "client/cpp/session/wire_errors.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/unknown_field_set.h>

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd::client {
namespace {

constexpr int kStatusDetails = 3;  // The number of google.rpc.Status.details.
constexpr char kErrorInfoType[] = "google.rpc.ErrorInfo";

// google.rpc's protos are in no package that we build on. UnknownFieldSet reads the one field that we need.
std::optional<v1::ErrorInfo> FindErrorInfo(std::string_view bytes) {
  google::protobuf::UnknownFieldSet status;
  if (!status.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return std::nullopt;
  for (int i = 0; i < status.field_count(); ++i) {
    const google::protobuf::UnknownField& field = status.field(i);
    if (field.number() != kStatusDetails ||
        field.type() != google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) {
      continue;
    }
    google::protobuf::Any any;
    if (!any.ParseFromString(field.length_delimited())) continue;
    const std::string& url = any.type_url();
    if (url.substr(url.rfind('/') + 1) != kErrorInfoType) continue;
    v1::ErrorInfo info;
    if (info.ParseFromString(any.value()) && info.domain() == "ckptd") return info;
  }
  return std::nullopt;
}

absl::StatusCode CodeFromWire(int code) {
  if (code == 0) return absl::StatusCode::kInternal;  // An error with code OK would be lost.
  if (code < 0 || code > 16) return absl::StatusCode::kUnknown;
  return static_cast<absl::StatusCode>(code);
}

}  // namespace

absl::Status FromWire(int code, std::string_view message, std::string_view details) {
  const std::optional<v1::ErrorInfo> info = FindErrorInfo(details);
  if (!info) return absl::Status(CodeFromWire(code), absl::string_view(message.data(), message.size()));
  return MakeError(CodeFromWire(code), info->reason(), message,
                   ErrorDetails(info->metadata().begin(), info->metadata().end()));
}

absl::Status FromWire(const v1::HandoffError& error) {
  return MakeError(CodeFromWire(error.code()), error.reason(), error.message());
}

absl::Status FromSaveError(const v1::Checkpoint& checkpoint) {
  const v1::SaveError& error = checkpoint.error();
  ErrorDetails details = {{"tag", checkpoint.tag()}, {"sequence", absl::StrCat(checkpoint.sequence())}};
  if (error.ranks_size() > 0) details["ranks"] = JoinRanks({error.ranks().begin(), error.ranks().end()});
  const std::string reason = error.reason().empty() ? v1::Level_Name(checkpoint.level()) : error.reason();
  const int code = error.code() != 0 ? error.code() : static_cast<int>(absl::StatusCode::kAborted);
  return MakeError(CodeFromWire(code), reason,
                   absl::StrCat("save of ", checkpoint.tag(), " ended ", v1::Level_Name(checkpoint.level()),
                                error.message().empty() ? "" : ": ", error.message()),
                   details);
}

}  // namespace ckptd::client
