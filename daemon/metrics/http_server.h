// A small HTTP server for /metrics, on loopback and on a Unix socket. libevent is behind it.
#ifndef CKPTD_DAEMON_METRICS_HTTP_SERVER_H_
#define CKPTD_DAEMON_METRICS_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace ckptd {

class HttpServer {
 public:
  // Runs on the server's thread, one request at a time; may block for a moment. An error becomes 503 with its
  // message.
  using Handler = std::function<absl::StatusOr<std::string>()>;

  struct Options {
    int port = -1;      // On 127.0.0.1; 0: any free one; -1: none.
    UniqueFd listener;  // A listening, non-blocking socket; may be empty.
    std::string
        token;  // Requests must carry `Authorization: Bearer TOKEN`, else they get 401; empty: all may ask.
  };
  // Answers GET and HEAD of /metrics. Fails as ErrnoError when the port is taken.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options, Handler metrics);
  ~HttpServer();

  int port() const;  // The one that was taken; 0 without one.

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_METRICS_HTTP_SERVER_H_
