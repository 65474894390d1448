#include "storage/object/s3_answers.h"

#include <pugixml.hpp>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

absl::Status Refused(const std::string& message) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_REFUSED", message);
}

// The element `name` at the top of the document.
absl::StatusOr<pugi::xml_node> Parse(pugi::xml_document& document, const std::string& body, const char* name,
                                     const std::string& what) {
  document.load_buffer(body.data(), body.size());
  const pugi::xml_node root = document.child(name);
  if (root) return root;
  return Refused(absl::StrCat(what, ": the answer has no <", name,
                              ">; is the endpoint a server of S3? It begins with \"",
                              absl::CEscape(body.substr(0, 100)), "\""));
}

std::string NextIf(const pugi::xml_node& root, const char* name) {
  return std::string(root.child_value("IsTruncated")) == "true" ? root.child_value(name) : "";
}

int64_t Number(const pugi::xml_node& node, const char* name) {
  int64_t number = 0;
  return absl::SimpleAtoi(node.child_value(name), &number) ? number : 0;
}

struct ServerError {
  std::string code, message;
};

ServerError ErrorOf(const HttpResponse& response) {
  pugi::xml_document document;
  document.load_buffer(response.body.data(), response.body.size());
  const pugi::xml_node error = document.child("Error");
  return {error.child_value("Code"), error.child_value("Message")};
}

}  // namespace

std::string ChecksumText(uint32_t crc32c) {
  const char bytes[] = {static_cast<char>(crc32c >> 24), static_cast<char>(crc32c >> 16),
                        static_cast<char>(crc32c >> 8), static_cast<char>(crc32c)};
  return absl::Base64Escape(absl::string_view(bytes, sizeof(bytes)));
}

uint32_t ParseChecksum(const std::string& text) {
  std::string bytes;
  if (!absl::Base64Unescape(text, &bytes) || bytes.size() != 4) return 0;
  uint32_t value = 0;
  for (const char c : bytes) value = value << 8 | static_cast<uint8_t>(c);
  return value;
}

bool IsWholeXml(const HttpResponse& response) {
  pugi::xml_document document;
  return document.load_buffer(response.body.data(), response.body.size());
}

std::string ErrorCodeOf(const HttpResponse& response) {
  const std::string code = ErrorOf(response).code;
  if (!code.empty() || response.IsSuccess()) return code;
  return absl::StrCat("HTTP ", response.status);
}

bool MayPass(const HttpResponse& response) {
  const std::string code = ErrorCodeOf(response);
  for (const absl::string_view passing :
       {"InternalError", "SlowDown", "ServiceUnavailable", "RequestTimeout", "OperationAborted",
        "ConditionalRequestConflict", "BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch"}) {
    if (code == passing) return true;
  }
  const int status = response.status;
  return status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
}

absl::Status StatusOf(const HttpResponse& response, const std::string& what) {
  const std::string code = ErrorCodeOf(response);
  if (code.empty()) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": ", code, " ", ErrorOf(response).message);
  if (code == "NoSuchBucket") return MakeError(absl::StatusCode::kNotFound, "NO_BUCKET", message);
  if (response.status == 404) return MakeError(absl::StatusCode::kNotFound, "NO_OBJECT", message);
  if (response.status == 412) return MakeError(absl::StatusCode::kAlreadyExists, "OBJECT_EXISTS", message);
  if (response.status == 416) return MakeError(absl::StatusCode::kOutOfRange, "SHORT_OBJECT", message);
  if (code == "BadDigest" || code == "InvalidDigest" || code == "XAmzContentChecksumMismatch")
    return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_TRANSFER", message);
  const std::string region = response.Header("x-amz-bucket-region");
  if (response.status == 301 || code == "AuthorizationHeaderMalformed") {
    return Refused(absl::StrCat(message, "; the bucket is in ",
                                region.empty() ? "another region" : "the region " + region,
                                ": set AWS_REGION"));
  }
  if (code == "RequestTimeTooSkewed") {
    return MakeError(absl::StatusCode::kPermissionDenied, "STORE_DENIED",
                     absl::StrCat(message, "; set this machine's clock"));
  }
  if (response.status == 401 || response.status == 403) {
    return MakeError(absl::StatusCode::kPermissionDenied, "STORE_DENIED",
                     absl::StrCat(message, "; look at the credentials and their policy"));
  }
  return Refused(message);
}

absl::StatusOr<ObjectPage> ParseObjectPage(const std::string& body, const std::string& what) {
  pugi::xml_document document;
  CKPTD_ASSIGN_OR_RETURN(const pugi::xml_node root, Parse(document, body, "ListBucketResult", what));
  ObjectPage page;
  for (const pugi::xml_node& object : root.children("Contents"))
    page.objects.push_back({object.child_value("Key"), Number(object, "Size")});
  for (const pugi::xml_node& folder : root.children("CommonPrefixes"))
    page.folders.push_back(folder.child_value("Prefix"));
  page.next = NextIf(root, "NextContinuationToken");
  return page;
}

absl::StatusOr<std::string> ParseUploadId(const std::string& body, const std::string& what) {
  pugi::xml_document document;
  CKPTD_ASSIGN_OR_RETURN(const pugi::xml_node root,
                         Parse(document, body, "InitiateMultipartUploadResult", what));
  return std::string(root.child_value("UploadId"));
}

absl::StatusOr<PartPage> ParsePartPage(const std::string& body, const std::string& what) {
  pugi::xml_document document;
  // moto calls it otherwise.
  const char* const name =
      absl::StrContains(body, "<ListPartsResponse") ? "ListPartsResponse" : "ListPartsResult";
  CKPTD_ASSIGN_OR_RETURN(const pugi::xml_node root, Parse(document, body, name, what));
  PartPage page;
  for (const pugi::xml_node& part : root.children("Part")) {
    page.parts.push_back({static_cast<int>(Number(part, "PartNumber")), Number(part, "Size"),
                          ParseChecksum(part.child_value("ChecksumCRC32C")), part.child_value("ETag")});
  }
  page.next_part = NextIf(root, "NextPartNumberMarker");
  return page;
}

absl::StatusOr<UploadPage> ParseUploadPage(const std::string& body, const std::string& what) {
  pugi::xml_document document;
  CKPTD_ASSIGN_OR_RETURN(const pugi::xml_node root,
                         Parse(document, body, "ListMultipartUploadsResult", what));
  UploadPage page;
  for (const pugi::xml_node& upload : root.children("Upload"))
    page.uploads.push_back({upload.child_value("Key"), upload.child_value("UploadId")});
  page.next_key = NextIf(root, "NextKeyMarker");
  page.next_id = NextIf(root, "NextUploadIdMarker");
  return page;
}

std::string PartsAsXml(const std::vector<UploadedPart>& parts) {
  pugi::xml_document document;
  pugi::xml_node root = document.append_child("CompleteMultipartUpload");
  for (const UploadedPart& part : parts) {
    pugi::xml_node node = root.append_child("Part");
    node.append_child("PartNumber").text() = part.number;
    node.append_child("ETag").text() = part.etag.c_str();
    node.append_child("ChecksumCRC32C").text() = ChecksumText(part.crc32c).c_str();
  }
  std::ostringstream text;
  document.save(text, "", pugi::format_raw | pugi::format_no_declaration);
  return text.str();
}

}  // namespace ckptd
