#include "daemon/metrics/http_server.h"

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"

namespace ckptd {
namespace {

struct Free {
  void operator()(event_base* base) const { ::event_base_free(base); }
  void operator()(evhttp* http) const { ::evhttp_free(http); }
  void operator()(event* one) const { ::event_free(one); }
};

}  // namespace

class HttpServer::Impl {
 public:
  Impl(std::string token, Handler metrics)
      : metrics_(std::move(metrics)),
        authorization_(token.empty() ? "" : absl::StrCat("Bearer ", token)),
        stop_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        base_(::event_base_new()),
        http_(::evhttp_new(base_.get())) {}

  ~Impl() {
    if (!thread_.joinable()) return;
    ::eventfd_write(stop_fd_.get(), 1);
    thread_.join();
  }

  absl::Status Listen(int port, UniqueFd listener) {
    ::evhttp_set_allowed_methods(http_.get(), EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
    ::evhttp_set_max_headers_size(http_.get(), 16 << 10);
    ::evhttp_set_max_body_size(http_.get(), 4 << 10);
    ::evhttp_set_timeout(http_.get(), 10);
    ::evhttp_set_cb(http_.get(), "/metrics", &Impl::OnMetrics, this);
    ::evhttp_set_cb(http_.get(), "/healthz", &Impl::OnHealth, this);
    if (listener) {
      if (::evhttp_accept_socket(http_.get(), listener.get()) != 0) {
        return ErrnoError(errno, "listen on metrics.socket_path for /metrics");
      }
      listener.release();
    }
    if (port < 0) return absl::OkStatus();
    evhttp_bound_socket* bound =
        ::evhttp_bind_socket_with_handle(http_.get(), "127.0.0.1", static_cast<uint16_t>(port));
    if (bound == nullptr) {
      return ErrnoError(errno, absl::StrCat("listen on 127.0.0.1:", port, " for /metrics (metrics.port)"));
    }
    sockaddr_in address{};
    socklen_t length = sizeof(address);
    if (::getsockname(::evhttp_bound_socket_get_fd(bound), reinterpret_cast<sockaddr*>(&address), &length) !=
        0) {
      return ErrnoError(errno, "getsockname");
    }
    port_ = ntohs(address.sin_port);
    return absl::OkStatus();
  }

  void Run() {
    stop_.reset(::event_new(base_.get(), stop_fd_.get(), EV_READ, &Impl::OnStop, base_.get()));
    ::event_add(stop_.get(), nullptr);
    thread_ = std::thread([this] {
      ::pthread_setname_np(::pthread_self(), "ckptd-http");
      ::event_base_dispatch(base_.get());
    });
  }

  int port() const { return port_; }

 private:
  static void OnStop(evutil_socket_t, short, void* base) {
    ::event_base_loopbreak(static_cast<event_base*>(base));
  }

  // Compares every byte, so that the time does not reveal how much of the token matches.
  bool IsAllowed(evhttp_request* request) const {
    if (authorization_.empty()) return true;
    const char* header = ::evhttp_find_header(::evhttp_request_get_input_headers(request), "Authorization");
    const std::string_view said = header == nullptr ? "" : header;
    if (said.size() != authorization_.size()) return false;
    unsigned char differing = 0;
    for (size_t i = 0; i < said.size(); ++i) {
      differing |= static_cast<unsigned char>(said[i] ^ authorization_[i]);
    }
    return differing == 0;
  }

  static void OnMetrics(evhttp_request* request, void* self) {
    if (!static_cast<Impl*>(self)->IsAllowed(request)) {
      ::evhttp_add_header(::evhttp_request_get_output_headers(request), "WWW-Authenticate", "Bearer");
      return ::evhttp_send_error(request, 401, "Unauthorized");
    }
    const absl::StatusOr<std::string> text = static_cast<Impl*>(self)->metrics_();
    Answer(request, text, text.ok() ? "text/plain; version=0.0.4; charset=utf-8" : kPlain);
  }

  // Healthy is a daemon that can answer a scrape. The answer tells nothing else, so it needs no token.
  static void OnHealth(evhttp_request* request, void* self) {
    absl::StatusOr<std::string> text = static_cast<Impl*>(self)->metrics_();
    if (text.ok()) *text = "ok\n";
    Answer(request, text, kPlain);
  }

  static constexpr char kPlain[] = "text/plain; charset=utf-8";
  static void Answer(evhttp_request* request, const absl::StatusOr<std::string>& text, const char* type) {
    const std::string body = text.ok() ? *text : absl::StrCat(std::string(text.status().message()), "\n");
    ::evhttp_add_header(::evhttp_request_get_output_headers(request), "Content-Type", type);
    evbuffer* out = ::evhttp_request_get_output_buffer(request);
    ::evbuffer_add(out, body.data(), body.size());
    ::evhttp_send_reply(request, text.ok() ? HTTP_OK : HTTP_SERVUNAVAIL, text.ok() ? "OK" : "Unavailable",
                        nullptr);
  }

  const Handler metrics_;
  const std::string authorization_;  // The required value of the header; empty: no check.
  UniqueFd stop_fd_;
  std::unique_ptr<event_base, Free> base_;
  std::unique_ptr<evhttp, Free> http_;
  std::unique_ptr<event, Free> stop_;
  std::thread thread_;
  int port_ = 0;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options, Handler metrics) {
  auto impl = std::make_unique<Impl>(std::move(options.token), std::move(metrics));
  if (const absl::Status listening = impl->Listen(options.port, std::move(options.listener));
      !listening.ok()) {
    return listening;
  }
  impl->Run();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

int HttpServer::port() const { return impl_->port(); }

}  // namespace ckptd
