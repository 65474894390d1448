#include "storage/object/http_client.h"

#include <curl/curl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

// No answer that is kept as text is larger: a page of a list has at most 1000 keys of 1 KiB.
constexpr size_t kMaxTextBytes = 8 << 20;
constexpr Duration kConnectLimit = std::chrono::seconds(5);
// A connection on which nothing moves for so long is given up.
constexpr long kStallSeconds = 20;

// Where Debian, Red Hat, SUSE and Alpine have the certificates.
constexpr const char* kCaFiles[] = {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                                    "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};

std::string MachineCaFile() {
  for (const char* path : kCaFiles)
    if (access(path, R_OK) == 0) return path;
  return "";
}

struct Exchange {
  std::span<const std::byte> to_send;
  std::span<std::byte> into;
  CURL* handle = nullptr;
  HttpResponse response;
  bool is_too_long = false;
};

size_t OnHeader(char* data, size_t size, size_t count, void* context) {
  Exchange& exchange = *static_cast<Exchange*>(context);
  const absl::string_view line(data, size * count);
  if (absl::StartsWithIgnoreCase(line, "http/")) exchange.response.headers.clear();  // After "100 Continue".
  const size_t colon = line.find(':');
  if (colon != line.npos) {
    exchange.response.headers[absl::AsciiStrToLower(line.substr(0, colon))] =
        std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return line.size();
}

size_t OnBody(char* data, size_t size, size_t count, void* context) {
  Exchange& exchange = *static_cast<Exchange*>(context);
  const size_t bytes = size * count;
  long status = 0;
  curl_easy_getinfo(exchange.handle, CURLINFO_RESPONSE_CODE, &status);
  const bool is_text = exchange.into.empty() || status < 200 || status >= 300;
  size_t& received = exchange.response.received;
  if (bytes > (is_text ? kMaxTextBytes : exchange.into.size()) - received) {
    exchange.is_too_long = true;
    return 0;
  }
  if (is_text) {
    exchange.response.body.append(data, bytes);
  } else {
    std::memcpy(exchange.into.data() + received, data, bytes);
  }
  received += bytes;
  return bytes;
}

size_t OnRead(char* into, size_t size, size_t count, void* context) {
  std::span<const std::byte>& left = static_cast<Exchange*>(context)->to_send;
  const size_t bytes = std::min(size * count, left.size());
  std::memcpy(into, left.data(), bytes);
  left = left.subspan(bytes);
  return bytes;
}

// libcurl sends a body again if the server closed a kept connection meanwhile.
int OnSeek(void* context, curl_off_t offset, int origin) {
  const auto& [exchange, body] = *static_cast<std::pair<Exchange*, std::span<const std::byte>>*>(context);
  if (origin != SEEK_SET || offset < 0 || static_cast<size_t>(offset) > body.size())
    return CURL_SEEKFUNC_FAIL;
  exchange->to_send = body.subspan(static_cast<size_t>(offset));
  return CURL_SEEKFUNC_OK;
}

int OnProgress(void* is_cancelled, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return (*static_cast<const std::function<bool()>*>(is_cancelled))() ? 1 : 0;
}

bool IsOfCertificates(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
         code == CURLE_SSL_ISSUER_ERROR;
}

// A proxy cannot reach this machine's own addresses, nor the link-local ones of the metadata services.
bool IsNear(absl::string_view url) {
  const absl::string_view host = url.substr(std::min(url.find("://") + 3, url.size()));
  for (const absl::string_view near : {"localhost", "127.", "[::1]", "169.254."})
    if (absl::StartsWith(host, near)) return true;
  return false;
}

void Prepare(CURL* handle, const HttpRequest& request, const std::string& ca_file, Duration limit) {
  const auto milliseconds = [](Duration duration) {
    return std::max<long>(1, std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
  };
  curl_easy_setopt(handle, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_TIMEOUT_MS, milliseconds(limit));
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, milliseconds(std::min(limit, kConnectLimit)));
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, kStallSeconds);
  // A server that does not know "Expect: 100-continue" must not cost its default of a second.
  curl_easy_setopt(handle, CURLOPT_EXPECT_100_TIMEOUT_MS, 100L);
  curl_easy_setopt(handle, CURLOPT_UPLOAD_BUFFERSIZE, 512L << 10);
  curl_easy_setopt(handle, CURLOPT_BUFFERSIZE, 512L << 10);
  if (!ca_file.empty()) curl_easy_setopt(handle, CURLOPT_CAINFO, ca_file.c_str());
  if (!request.unix_socket.empty())
    curl_easy_setopt(handle, CURLOPT_UNIX_SOCKET_PATH, request.unix_socket.c_str());
  if (IsNear(request.url)) curl_easy_setopt(handle, CURLOPT_PROXY, "");
  if (request.method == "HEAD") {
    curl_easy_setopt(handle, CURLOPT_NOBODY, 1L);
  } else if (request.method == "PUT" || request.method == "POST") {
    curl_easy_setopt(handle, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(handle, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  }
  if (request.method != "HEAD" && request.method != "GET")
    curl_easy_setopt(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  if (request.signature.has_value()) {
    const HttpSignature& signature = *request.signature;
    curl_easy_setopt(handle, CURLOPT_AWS_SIGV4,
                     absl::StrCat("aws:amz:", signature.region, ":", signature.service).c_str());
    curl_easy_setopt(handle, CURLOPT_USERNAME, signature.access_key.c_str());
    curl_easy_setopt(handle, CURLOPT_PASSWORD, signature.secret_key.c_str());
  }
}

}  // namespace

std::string HttpResponse::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

HttpClient::HttpClient(std::string ca_file, std::function<bool()> is_cancelled)
    : ca_file_(ca_file.empty() ? MachineCaFile() : std::move(ca_file)),
      is_cancelled_(std::move(is_cancelled)) {
  static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
  static_cast<void>(initialized);
}

HttpClient::~HttpClient() {
  for (CURL* handle : idle_) curl_easy_cleanup(handle);
}

CURL* HttpClient::Take() {
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      CURL* handle = idle_.back();
      idle_.pop_back();
      return handle;
    }
  }
  return curl_easy_init();
}

void HttpClient::Return(CURL* handle) {
  curl_easy_reset(handle);  // Keeps the open connections.
  MutexLock lock(mutex_);
  idle_.push_back(handle);
}

absl::StatusOr<HttpResponse> HttpClient::Send(const HttpRequest& request, Duration limit) {
  CURL* handle = Take();
  if (handle == nullptr) return absl::ResourceExhaustedError("out of memory for an HTTP request");
  Prepare(handle, request, ca_file_, limit);
  Exchange exchange{request.body, request.into, handle, {}};
  std::pair<Exchange*, std::span<const std::byte>> rewind{&exchange, request.body};
  curl_slist* list = nullptr;
  for (const std::string& header : request.headers) list = curl_slist_append(list, header.c_str());
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(list, curl_slist_free_all);
  curl_easy_setopt(handle, CURLOPT_HTTPHEADER, list);
  curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, OnHeader);
  curl_easy_setopt(handle, CURLOPT_HEADERDATA, &exchange);
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, OnBody);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &exchange);
  curl_easy_setopt(handle, CURLOPT_READFUNCTION, OnRead);
  curl_easy_setopt(handle, CURLOPT_READDATA, &exchange);
  curl_easy_setopt(handle, CURLOPT_SEEKFUNCTION, OnSeek);
  curl_easy_setopt(handle, CURLOPT_SEEKDATA, &rewind);
  if (is_cancelled_ != nullptr) {
    curl_easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(handle, CURLOPT_XFERINFOFUNCTION, OnProgress);
    curl_easy_setopt(handle, CURLOPT_XFERINFODATA, &is_cancelled_);
  }
  char text[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, text);
  const CURLcode code = curl_easy_perform(handle);
  long status = 0;
  curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
  exchange.response.status = static_cast<int>(status);
  Return(handle);
  if (code == CURLE_OK) return std::move(exchange.response);
  if (code == CURLE_ABORTED_BY_CALLBACK) return absl::CancelledError("the transfer was cancelled");
  const std::string what = exchange.is_too_long    ? "the answer is longer than was asked for"
                           : std::strlen(text) > 0 ? text
                                                   : curl_easy_strerror(code);
  if (IsOfCertificates(code)) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_REFUSED",
                     absl::StrCat(what, " (certificates: ", ca_file_.empty() ? "none found" : ca_file_,
                                  "; AWS_CA_BUNDLE names another file)"));
  }
  return absl::UnavailableError(what);
}

}  // namespace ckptd
