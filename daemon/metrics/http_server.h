// A small HTTP server on loopback for /metrics. libevent is behind it.
#ifndef CKPTD_DAEMON_METRICS_HTTP_SERVER_H_
#define CKPTD_DAEMON_METRICS_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace ckptd {

class HttpServer {
 public:
  // Runs on the server's thread, one request at a time; may block for a moment. An error becomes 503 with its
  // message.
  using Handler = std::function<absl::StatusOr<std::string>()>;

  // Answers GET and HEAD of /metrics on 127.0.0.1, port `port` (0: any free one). Fails as ErrnoError when
  // the port is taken.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(int port, Handler metrics);
  ~HttpServer();

  int port() const;  // The one that was taken.

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_METRICS_HTTP_SERVER_H_
