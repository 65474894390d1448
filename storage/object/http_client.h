// HTTP and HTTPS by libcurl: one request and its answer, over connections that are kept open.
#ifndef CKPTD_STORAGE_OBJECT_HTTP_CLIENT_H_
#define CKPTD_STORAGE_OBJECT_HTTP_CLIENT_H_

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/base/clock.h"
#include "storage/base/mutex.h"

namespace ckptd {

// Signs the request by AWS Signature Version 4. libcurl signs headers as they are listed, and the query as it
// stands: its parameters must be in order of their names.
struct HttpSignature {
  std::string access_key;
  std::string secret_key;
  std::string region;
  std::string service;
};

struct HttpRequest {
  std::string method;
  std::string url;
  std::vector<std::string> headers = {};  // "name: value"
  std::span<const std::byte> body = {};   // Of PUT and POST.
  std::span<std::byte> into = {};  // Takes the body of a successful answer, instead of HttpResponse::body.
  std::optional<HttpSignature> signature = {};
  std::string unix_socket = {};  // The path of the socket to connect to, in the place of the URL's host.
};

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // By name in lower case.
  std::string body;
  size_t received = 0;  // Bytes of the body, also of those that `into` took.

  bool IsSuccess() const { return status >= 200 && status < 300; }
  std::string Header(const std::string& name) const;
};

// Thread-safe.
class HttpClient {
 public:
  // `ca_file` has the certificates of the authorities that are trusted, in PEM. Empty: the machine's.
  // `is_cancelled` may be null. The threads in Send ask it about once a second; true ends Send (CANCELLED).
  explicit HttpClient(std::string ca_file, std::function<bool()> is_cancelled = nullptr);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // UNAVAILABLE if no whole answer came in `limit`, or the connection failed: a later try may succeed.
  // FAILED_PRECONDITION, reason STORE_REFUSED, if the server's certificate is not trusted.
  absl::StatusOr<HttpResponse> Send(const HttpRequest& request, Duration limit);

 private:
  void* Take();
  void Return(void* handle);

  const std::string ca_file_;
  const std::function<bool()> is_cancelled_;
  Mutex mutex_;
  std::vector<void*> idle_ ABSL_GUARDED_BY(mutex_);  // libcurl's handles, each with its open connections.
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_OBJECT_HTTP_CLIENT_H_
