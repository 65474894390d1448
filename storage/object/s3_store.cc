#include "storage/object/s3_store.h"

#include <algorithm>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/object/aws_credentials.h"
#include "storage/object/http_client.h"
#include "storage/object/s3_answers.h"
#include "storage/object/url_encoding.h"

namespace ckptd {
namespace {

constexpr int64_t kLeastBytesPerSecond = 16 << 10;  // Of one transfer; several are under way at once.
constexpr Duration kFirstDelay = std::chrono::milliseconds(100);
constexpr Duration kLongestDelay = std::chrono::seconds(5);
constexpr Duration kCutShort = std::chrono::milliseconds(10);  // By which libcurl may end a try too early.
constexpr Duration kCancelPoll = std::chrono::milliseconds(200);
constexpr int kHeadTries = 3;  // For an object that is missing and there by turns.
// Bytes that arrive damaged so often have been damaged before they were sent, or on each way.
constexpr int kDamagedTries = 3;

// Doubles with each try, less up to a half, so that clients that failed together do not return together.
Duration DelayAfter(int tries, const absl::StatusOr<HttpResponse>& response) {
  int64_t seconds = 0;
  if (response.ok() && absl::SimpleAtoi(response->Header("retry-after"), &seconds) && seconds >= 0)
    return std::chrono::seconds(std::min<int64_t>(seconds, 24 * 3600));
  thread_local std::minstd_rand random{std::random_device{}()};
  const Duration longest = std::min(kFirstDelay * (1 << std::min(tries - 1, 10)), kLongestDelay);
  return longest / 2 + Duration(std::uniform_int_distribution<int64_t>(0, longest.count() / 2)(random));
}

using Query = std::map<std::string, std::string>;  // The signature wants it in order.

struct Call {
  std::string method;
  std::string key;  // Empty: the bucket.
  Query query = {};
  std::vector<std::string> headers = {};
  std::span<const std::byte> body = {};
  std::span<std::byte> into = {};
  std::string range = {};  // Of the bytes that `into` takes: "0-99".
  bool is_xml = false;     // The answer is a document.
};

// DATA_LOSS, reason CORRUPT_TRANSFER, if bytes are missing from the end of an answer, which no Content-Length
// says: a program in between may have cut it off.
absl::Status CheckWhole(const Call& call, const HttpResponse& response, const std::string& what) {
  std::string why;
  if (call.is_xml && !IsWholeXml(response)) {
    why = absl::StrCat("no whole XML document; is the endpoint a server of S3? It begins with \"",
                       absl::CEscape(response.body.substr(0, 100)), "\"");
  } else if (!call.range.empty() && response.received < call.into.size() &&
             absl::StartsWith(response.Header("content-range"), absl::StrCat("bytes ", call.range, "/"))) {
    why = absl::StrCat("cut off after ", response.received, " bytes of ", call.range);
  }
  if (why.empty()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_TRANSFER",
                   absl::StrCat(what, ": the answer is ", why));
}

// A HEAD's answer has no body that says so.
bool IsOfCredentials(const Call& call, const HttpResponse& response) {
  return ErrorCodeOf(response) == "ExpiredToken" ||
         (call.method == "HEAD" && (response.status == 400 || response.status == 403));
}

class S3Store : public ObjectStore {
 public:
  S3Store(const S3Options& options, const AwsSettings& settings)
      : bucket_(options.bucket),
        limit_(options.limit),
        settings_(settings),
        is_cancelled_(options.is_cancelled),
        http_(settings.ca_file, options.is_cancelled),
        credentials_(settings, options.environment, &http_) {}

  absl::Status Put(const std::string& key, std::span<const std::byte> bytes, uint32_t crc32c,
                   PutMode mode) override {
    Call call{"PUT", key, {}, {Checksum(crc32c)}, bytes};
    if (mode == PutMode::kIfAbsent) call.headers.push_back("if-none-match: *");
    return Do(call).status();
  }

  absl::Status Get(const std::string& key, int64_t offset, std::span<std::byte> into) override {
    if (into.empty()) return absl::OkStatus();
    const Call call = GetCall(key, offset, into);
    CKPTD_ASSIGN_OR_RETURN(const HttpResponse response, Do(call));
    if (response.status == 206 && response.received == into.size()) return absl::OkStatus();
    return MakeError(absl::StatusCode::kOutOfRange, "SHORT_OBJECT",
                     absl::StrCat(What(call), ": asked for ", into.size(), " bytes from ", offset,
                                  " on, and got ", response.received, " (HTTP ", response.status, ")"));
  }

  absl::StatusOr<ObjectInfo> Head(const std::string& key) override {
    absl::StatusOr<HttpResponse> response;
    for (int tries = 0; tries < kHeadTries; ++tries) {
      response = Do({"HEAD", key});
      if (ReasonOf(response.status()) != "NO_OBJECT") break;
      // Only the answer to a GET says whether the object or the bucket is missing.
      std::byte first{};
      const absl::Status got = Do(GetCall(key, 0, std::span(&first, 1))).status();
      if (!got.ok() && ReasonOf(got) != "SHORT_OBJECT") return got;
    }
    if (!response.ok()) return response.status();
    ObjectInfo info{key, 0};
    if (absl::SimpleAtoi(response->Header("content-length"), &info.size)) return info;
    return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_REFUSED",
                     absl::StrCat("HEAD ", key, ": the answer has no Content-Length"));
  }

  absl::StatusOr<ObjectPage> List(const std::string& prefix, const std::string& delimiter,
                                  const std::string& page) override {
    Call call{"GET", "", {{"list-type", "2"}, {"prefix", prefix}}};
    if (!delimiter.empty()) call.query["delimiter"] = delimiter;
    if (!page.empty()) call.query["continuation-token"] = page;
    call.is_xml = true;
    CKPTD_ASSIGN_OR_RETURN(const HttpResponse response, Do(call));
    return ParseObjectPage(response.body, What(call));
  }

  absl::Status Delete(const std::string& key) override { return OkIfMissing(Do({"DELETE", key}).status()); }

  absl::Status Copy(const std::string& from, const std::string& to) override {
    const std::string source = absl::StrCat("/", bucket_, "/", UrlEncode(from, "/"));
    return Do({"PUT", to, {}, {absl::StrCat("x-amz-copy-source: ", source)}}).status();
  }

  absl::StatusOr<MultipartUpload> BeginUpload(const std::string& key) override {
    Call call{"POST", key, {{"uploads", ""}}, {"x-amz-checksum-algorithm: CRC32C"}};
    call.is_xml = true;
    CKPTD_ASSIGN_OR_RETURN(const HttpResponse response, Do(call));
    CKPTD_ASSIGN_OR_RETURN(std::string id, ParseUploadId(response.body, What(call)));
    return MultipartUpload{key, std::move(id)};
  }

  absl::StatusOr<UploadedPart> PutPart(const MultipartUpload& upload, int number,
                                       std::span<const std::byte> bytes, uint32_t crc32c) override {
    const Call call{"PUT",
                    upload.key,
                    {{"partNumber", absl::StrCat(number)}, {"uploadId", upload.id}},
                    {Checksum(crc32c)},
                    bytes};
    CKPTD_ASSIGN_OR_RETURN(const HttpResponse response, Do(call));
    return UploadedPart{number, static_cast<int64_t>(bytes.size()), crc32c, response.Header("etag")};
  }

  absl::Status CompleteUpload(const MultipartUpload& upload,
                              const std::vector<UploadedPart>& parts) override {
    const std::string xml = PartsAsXml(parts);
    Call call{"POST", upload.key, {{"uploadId", upload.id}}, {}, std::as_bytes(std::span(xml))};
    call.is_xml = true;
    return Do(call).status();
  }

  absl::Status AbortUpload(const MultipartUpload& upload) override {
    return OkIfMissing(Do({"DELETE", upload.key, {{"uploadId", upload.id}}}).status());
  }

  absl::StatusOr<std::vector<UploadedPart>> ListParts(const MultipartUpload& upload) override {
    std::vector<UploadedPart> parts;
    Call call{"GET", upload.key, {{"uploadId", upload.id}}};
    call.is_xml = true;
    do {
      CKPTD_ASSIGN_OR_RETURN(const HttpResponse response, Do(call));
      CKPTD_ASSIGN_OR_RETURN(const PartPage page, ParsePartPage(response.body, What(call)));
      parts.insert(parts.end(), page.parts.begin(), page.parts.end());
      call.query["part-number-marker"] = page.next_part;
    } while (!call.query["part-number-marker"].empty());
    return parts;
  }

  absl::StatusOr<std::vector<MultipartUpload>> ListUploads(const std::string& prefix) override {
    std::vector<MultipartUpload> uploads;
    Call call{"GET", "", {{"prefix", prefix}, {"uploads", ""}}};
    call.is_xml = true;
    do {
      CKPTD_ASSIGN_OR_RETURN(const HttpResponse response, Do(call));
      CKPTD_ASSIGN_OR_RETURN(const UploadPage page, ParseUploadPage(response.body, What(call)));
      uploads.insert(uploads.end(), page.uploads.begin(), page.uploads.end());
      call.query["key-marker"] = page.next_key;
      call.query["upload-id-marker"] = page.next_id;
    } while (!call.query["key-marker"].empty());
    return uploads;
  }

 private:
  static std::string Checksum(uint32_t crc32c) {
    return absl::StrCat("x-amz-checksum-crc32c: ", ChecksumText(crc32c));
  }
  static absl::Status OkIfMissing(const absl::Status& status) {
    return ReasonOf(status) == "NO_OBJECT" ? absl::OkStatus() : status;
  }

  static Call GetCall(const std::string& key, int64_t offset, std::span<std::byte> into) {
    Call call{"GET", key};
    call.range = absl::StrCat(offset, "-", offset + static_cast<int64_t>(into.size()) - 1);
    call.headers.push_back(absl::StrCat("range: bytes=", call.range));
    call.into = into;
    return call;
  }

  std::string What(const Call& call) const {
    const auto prefix = call.query.find("prefix");  // Of a list.
    return absl::StrCat(call.method, " s3://", bucket_, "/", call.key,
                        prefix == call.query.end() ? "" : absl::StrCat(prefix->second, "*"));
  }

  std::string UrlOf(const Call& call) const {
    std::string url = settings_.endpoint;
    if (url.empty()) url = absl::StrCat("https://s3.", settings_.region, ".amazonaws.com");
    if (settings_.is_path_style) {
      absl::StrAppend(&url, "/", bucket_);
    } else {
      url.insert(url.find("://") + 3, absl::StrCat(bucket_, "."));
    }
    absl::StrAppend(&url, "/", UrlEncode(call.key, "/"));
    const char* separator = "?";
    for (const auto& [name, value] : call.query) {
      absl::StrAppend(&url, separator, name, "=", UrlEncode(value));
      separator = "&";
    }
    return url;
  }

  absl::StatusOr<HttpResponse> SendOnce(const Call& call, Duration limit) {
    CKPTD_ASSIGN_OR_RETURN(const AwsCredentials credentials, credentials_.Get());
    HttpRequest request{call.method, UrlOf(call), call.headers, call.body, call.into, std::nullopt};
    request.headers.push_back("x-amz-content-sha256: UNSIGNED-PAYLOAD");
    if (!credentials.session_token.empty())
      request.headers.push_back(absl::StrCat("x-amz-security-token: ", credentials.session_token));
    request.signature = {credentials.access_key, credentials.secret_key, settings_.region, "s3"};
    return http_.Send(request, limit);
  }

  // What the bytes of a call need on the slowest link that is of use. HttpClient gives up a connection on which nothing
  // moves long before.
  static Duration TransferTime(const Call& call) {
    const auto bytes = static_cast<int64_t>(call.body.size() + call.into.size());
    return std::chrono::milliseconds(bytes * 1000 / kLeastBytesPerSecond);
  }

  // Sends the call until it is answered. No try begins after the limit.
  absl::StatusOr<HttpResponse> Do(const Call& call) {
    const Instant deadline = SystemClock().Now() + limit_;
    bool is_refreshed = false;
    absl::Status before;  // The fault of the try before.
    for (int tries = 1;; ++tries) {
      if (is_cancelled_ != nullptr && is_cancelled_())
        return absl::CancelledError(absl::StrCat(What(call), ": cancelled"));
      const absl::StatusOr<HttpResponse> response =
          SendOnce(call, deadline - SystemClock().Now() + TransferTime(call));
      if (!response.ok() && !absl::IsUnavailable(response.status()))
        return Annotate(response.status(), What(call));
      absl::Status fault = response.ok() ? StatusOf(*response, What(call)) : response.status();
      if (fault.ok()) fault = CheckWhole(call, *response, What(call));
      if (fault.ok()) return response;
      if (response.ok() && !is_refreshed && IsOfCredentials(call, *response)) {
        is_refreshed = true;
        credentials_.Discard();
        continue;
      }
      if (response.ok() && !MayPass(*response) && !absl::IsDataLoss(fault)) return fault;
      if (absl::IsDataLoss(fault) && tries == kDamagedTries) return fault;
      const Duration delay = DelayAfter(tries, response);
      if (SystemClock().Now() + delay >= deadline) {
        // A try that the limit has cut short says nothing of the server.
        const bool is_cut = !response.ok() && SystemClock().Now() + kCutShort >= deadline;
        if (is_cut && !before.ok()) fault = before;
        return MakeError(absl::StatusCode::kDeadlineExceeded, "STORE_TIMEOUT",
                         absl::StrCat(What(call), ": no success within ",
                                      absl::FormatDuration(absl::FromChrono(limit_)), " and ", tries,
                                      tries == 1 ? " try" : " tries", "; the last one: ", fault.message()));
      }
      before = fault;
      Sleep(delay);
    }
  }

  // A cancellation ends it: the server may have asked for a long wait.
  void Sleep(Duration delay) const {
    const Instant end = SystemClock().Now() + delay;
    while (is_cancelled_ == nullptr || !is_cancelled_()) {
      const Duration left = end - SystemClock().Now();
      if (left <= Duration::zero()) return;
      std::this_thread::sleep_for(is_cancelled_ == nullptr ? left : std::min(left, kCancelPoll));
    }
  }

  const std::string bucket_;
  const Duration limit_;
  const AwsSettings settings_;
  const std::function<bool()> is_cancelled_;
  HttpClient http_;
  AwsCredentialSource credentials_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ObjectStore>> OpenS3(const std::string& bucket, Duration limit,
                                                    std::function<bool()> is_cancelled) {
  S3Options options;
  options.bucket = bucket;
  options.limit = limit;
  options.is_cancelled = std::move(is_cancelled);
  return MakeS3Store(options);
}

absl::StatusOr<std::unique_ptr<ObjectStore>> MakeS3Store(const S3Options& options) {
  CKPTD_ASSIGN_OR_RETURN(const AwsSettings settings, ReadAwsSettings(options.environment));
  return std::make_unique<S3Store>(options, settings);
}

}  // namespace ckptd
