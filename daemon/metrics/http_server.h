// A small HTTP server for /metrics, on a loopback port or on a Unix socket. Uses libevent.
#ifndef CKPTD_DAEMON_METRICS_HTTP_SERVER_H_
#define CKPTD_DAEMON_METRICS_HTTP_SERVER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/metrics/metrics_format.h"
#include "storage/base/clock.h"
#include "storage/base/unique_fd.h"

namespace ckptd {

class HttpServer {
 public:
  // Renders the metrics in the format that the request asks for. Runs on the server's thread, one request at a
  // time; may block for a few seconds. An error becomes a 503 with its message.
  using Handler = std::function<absl::StatusOr<std::string>(MetricsFormat)>;

  struct Options {
    UniqueFd listener = {};  // A listening, non-blocking socket; empty: listen on `port`.
    int port = 0;            // TCP port on 127.0.0.1; 0: any free port.
    // Requests must have `Authorization: Bearer TOKEN`, else they get 401; empty: no check.
    std::string token = {};
    // About this many connections are open at a time. Later ones wait in the kernel's backlog until one ends:
    // a client that sends nothing for 10 s is disconnected.
    int max_connections = 64;
    // The port may be in use: the server tries again after each interval. `on_listen` is called when it
    // listens, and with the error when it does not, once; within Start or on the server's thread.
    Duration retry_interval = std::chrono::seconds(5);
    std::function<void(const absl::Status&)> on_listen = {};
  };
  // Answers GET and HEAD of /metrics and /healthz. Fails if `listener` is no listening socket.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options, Handler metrics);
  ~HttpServer();

  int port() const;  // The TCP port on which the server listens; 0 if none.

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_METRICS_HTTP_SERVER_H_
