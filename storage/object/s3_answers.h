// What S3's answers mean: its errors as statuses, its XML as structs.
#ifndef CKPTD_STORAGE_OBJECT_S3_ANSWERS_H_
#define CKPTD_STORAGE_OBJECT_S3_ANSWERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/object/http_client.h"
#include "storage/object/object_store.h"

namespace ckptd {

// A CRC32C as S3 writes it: base64 of four bytes, big-endian.
std::string ChecksumText(uint32_t crc32c);
// 0 if the text is no checksum.
uint32_t ParseChecksum(const std::string& text);

// False if the body is no whole document: it was cut off, or another program has answered.
bool IsWholeXml(const HttpResponse& response);
// The word in <Code> of an error, also where it is the body of an answer with status 200. Empty: no error.
std::string ErrorCodeOf(const HttpResponse& response);
// True if the same request may succeed later.
bool MayPass(const HttpResponse& response);
// The error of an answer, as object_store.h has them. OK if it is none. `what` is "PUT s3://bucket/key".
absl::Status StatusOf(const HttpResponse& response, const std::string& what);

// These fail with FAILED_PRECONDITION, reason STORE_REFUSED, if the body is something else.
absl::StatusOr<ObjectPage> ParseObjectPage(const std::string& body, const std::string& what);
absl::StatusOr<std::string> ParseUploadId(const std::string& body, const std::string& what);
// A page of parts or uploads; `next` is what the query of the next page has. Empty: this is the last one.
struct PartPage {
  std::vector<UploadedPart> parts;
  std::string next_part;
};
absl::StatusOr<PartPage> ParsePartPage(const std::string& body, const std::string& what);
struct UploadPage {
  std::vector<MultipartUpload> uploads;
  std::string next_key, next_id;
};
absl::StatusOr<UploadPage> ParseUploadPage(const std::string& body, const std::string& what);
// The body of CompleteMultipartUpload.
std::string PartsAsXml(const std::vector<UploadedPart>& parts);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_OBJECT_S3_ANSWERS_H_
