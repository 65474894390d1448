#include "daemon/grpc/base/wire_errors.h"

#include <string>
#include <string_view>

#include "ckptd/v1/types.pb.h"
#include "google/protobuf/any.pb.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/stubs/common.h"
#include "google/protobuf/wire_format_lite.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

using google::protobuf::internal::WireFormatLite;

constexpr std::string_view kMore = "...";
constexpr size_t kMaxDetails = 6;

// Returns at most `limit` bytes of the text, without splitting a UTF-8 character. If it is not valid UTF-8,
// as proto3 strings must be, replaces its non-ASCII bytes.
std::string Cut(std::string_view text, size_t limit) {
  std::string out;
  const bool cut = text.size() > limit;
  if (cut) {
    size_t end = limit - kMore.size();
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    text = text.substr(0, end);
  }
  out.assign(text);
  if (!google::protobuf::internal::IsStructurallyValidUTF8(out.data(), static_cast<int>(out.size()))) {
    for (char& c : out) {
      if (static_cast<unsigned char>(c) >= 0x80) c = '?';
    }
  }
  if (cut) out += kMore;
  return out;
}

std::string CutList(const std::string& value) {
  if (value.size() <= kMaxWireDetail) return value;
  const size_t comma = value.rfind(',', kMaxWireDetail);
  return comma == std::string::npos ? Cut(value, kMaxWireDetail) : value.substr(0, comma);
}

v1::ErrorInfo ErrorInfoOf(const absl::Status& status) {
  v1::ErrorInfo info;
  info.set_reason(ReasonOf(status));
  info.set_domain("ckptd");
  for (const auto& [key, value] : DetailsOf(status)) {
    if (info.metadata().size() == kMaxDetails) break;
    (*info.mutable_metadata())[key] = Cut(key == "ranks" ? CutList(value) : value, kMaxWireDetail);
  }
  return info;
}

// google.rpc.Status { int32 code = 1; string message = 2; repeated google.protobuf.Any details = 3; }. No
// Debian package has its .proto, so this writes it field by field.
std::string EncodeRpcStatus(int code, const std::string& message, const google::protobuf::Any& detail) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream out(&stream);
  WireFormatLite::WriteInt32(1, code, &out);
  WireFormatLite::WriteString(2, message, &out);
  WireFormatLite::WriteTag(3, WireFormatLite::WIRETYPE_LENGTH_DELIMITED, &out);
  const std::string encoded = detail.SerializeAsString();
  out.WriteVarint32(static_cast<uint32_t>(encoded.size()));
  out.WriteString(encoded);
  out.Trim();
  return bytes;
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message = Cut(std::string(status.message()), kMaxWireMessage);
  google::protobuf::Any detail;
  detail.set_type_url("type.googleapis.com/google.rpc.ErrorInfo");
  detail.set_value(ErrorInfoOf(status).SerializeAsString());
  const int code = static_cast<int>(status.code());
  return grpc::Status(static_cast<grpc::StatusCode>(code), message, EncodeRpcStatus(code, message, detail));
}

}  // namespace ckptd
