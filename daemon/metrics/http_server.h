// A small HTTP server for /metrics, on loopback and on a Unix socket. Uses libevent.
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
  // Renders the metrics. Runs on the server's thread, one request at a time; may block for a few seconds. An
  // error becomes a 503 with its message.
  using Handler = std::function<absl::StatusOr<std::string>()>;

  struct Options {
    int port = -1;      // TCP port on 127.0.0.1; 0: any free port; -1: none.
    UniqueFd listener;  // A listening, non-blocking socket; empty: none.
    std::string
        token;  // Requests must have `Authorization: Bearer TOKEN`, else they get 401; empty: no check.
  };
  // Answers GET and HEAD of /metrics. Fails as ErrnoError does when the port is in use.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options, Handler metrics);
  ~HttpServer();

  int port() const;  // The TCP port in use; 0 if none.

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_METRICS_HTTP_SERVER_H_
