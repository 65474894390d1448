#include "daemon/metrics/http_server.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
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
  Impl(Options options, Handler metrics)
      : options_(std::move(options)),
        metrics_(std::move(metrics)),
        authorization_(options_.token.empty() ? "" : absl::StrCat("Bearer ", options_.token)),
        stop_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        base_(::event_base_new()),
        http_(::evhttp_new(base_.get())) {}

  ~Impl() {
    if (!thread_.joinable()) return;
    ::eventfd_write(stop_fd_.get(), 1);
    thread_.join();
  }

  absl::Status Listen() {
    ::evhttp_set_allowed_methods(http_.get(), EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
    ::evhttp_set_max_headers_size(http_.get(), 16 << 10);
    ::evhttp_set_max_body_size(http_.get(), 4 << 10);
    ::evhttp_set_timeout(http_.get(), 10);
    ::evhttp_set_cb(http_.get(), "/metrics", &Impl::OnMetrics, this);
    ::evhttp_set_cb(http_.get(), "/healthz", &Impl::OnHealth, this);
    ::evhttp_set_bevcb(http_.get(), &Impl::OnConnection, this);
    stop_.reset(::event_new(base_.get(), stop_fd_.get(), EV_READ, &Impl::OnStop, base_.get()));
    ::event_add(stop_.get(), nullptr);
    resume_.reset(::event_new(base_.get(), -1, 0, &Impl::OnResume, this));
    retry_.reset(::event_new(base_.get(), -1, 0, &Impl::OnRetry, this));
    if (!options_.listener) {
      ListenOnPort();
      return absl::OkStatus();
    }
    evhttp_bound_socket* bound = ::evhttp_accept_socket_with_handle(http_.get(), options_.listener.get());
    if (bound == nullptr) return ErrnoError(errno, "listen on metrics.socket_path for /metrics");
    options_.listener.release();
    listener_ = ::evhttp_bound_socket_get_listener(bound);
    return absl::OkStatus();
  }

  void Run() {
    thread_ = std::thread([this] {
      ::pthread_setname_np(::pthread_self(), "ckptd-http");
      ::event_base_dispatch(base_.get());
    });
  }

  int port() const { return port_; }

 private:
  static void After(event* timer, Duration delay) {
    const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(delay).count();
    const timeval time{.tv_sec = micros / 1'000'000, .tv_usec = micros % 1'000'000};
    ::event_add(timer, &time);
  }

  // Another program may have the port: then the server tries again.
  void ListenOnPort() {
    const absl::Status bound = BindPort();
    if (!bound.ok()) After(retry_.get(), options_.retry_interval);
    if (options_.on_listen != nullptr && (bound.ok() || !reported_)) options_.on_listen(bound);
    reported_ = true;
  }

  absl::Status BindPort() {
    evhttp_bound_socket* bound =
        ::evhttp_bind_socket_with_handle(http_.get(), "127.0.0.1", static_cast<uint16_t>(options_.port));
    if (bound == nullptr) {
      return ErrnoError(errno,
                        absl::StrCat("listen on 127.0.0.1:", options_.port, " for /metrics (metrics.port)"));
    }
    listener_ = ::evhttp_bound_socket_get_listener(bound);
    sockaddr_in address{};
    socklen_t length = sizeof(address);
    if (::getsockname(::evhttp_bound_socket_get_fd(bound), reinterpret_cast<sockaddr*>(&address), &length) !=
        0)
      return ErrnoError(errno, "getsockname");
    port_ = ntohs(address.sin_port);
    return absl::OkStatus();
  }

  static void OnRetry(evutil_socket_t, short, void* self) { static_cast<Impl*>(self)->ListenOnPort(); }

  // libevent 2.1 does not count connections, but each one has at least one event in the loop.
  bool IsFull() const {
    constexpr int kOwnEvents = 3;  // Of the listener, stop_ and resume_.
    return ::event_base_get_num_events(base_.get(), EVENT_BASE_COUNT_ADDED) >=
           kOwnEvents + options_.max_connections;
  }

  // Called for each accepted connection. If the server is full, it accepts no more until a connection has
  // ended.
  static bufferevent* OnConnection(event_base* base, void* self) {
    auto* impl = static_cast<Impl*>(self);
    if (impl->IsFull()) {
      ::evconnlistener_disable(impl->listener_);
      After(impl->resume_.get(), kResumeInterval);
    }
    return ::bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
  }

  static void OnResume(evutil_socket_t, short, void* self) {
    auto* impl = static_cast<Impl*>(self);
    if (impl->IsFull()) return After(impl->resume_.get(), kResumeInterval);
    ::evconnlistener_enable(impl->listener_);
  }

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

  // The elements of all headers Accept: a client may send several.
  static std::string AcceptOf(evhttp_request* request) {
    std::string accept;
    const evkeyvalq* headers = ::evhttp_request_get_input_headers(request);
    for (const evkeyval* header = headers->tqh_first; header != nullptr; header = header->next.tqe_next) {
      if (absl::EqualsIgnoreCase(header->key, "Accept")) absl::StrAppend(&accept, header->value, ",");
    }
    return accept;
  }

  static void OnMetrics(evhttp_request* request, void* self) {
    if (!static_cast<Impl*>(self)->IsAllowed(request)) {
      ::evhttp_add_header(::evhttp_request_get_output_headers(request), "WWW-Authenticate", "Bearer");
      return ::evhttp_send_error(request, 401, "Unauthorized");
    }
    ::evhttp_add_header(::evhttp_request_get_output_headers(request), "Vary", "Accept");
    const MetricsFormat format = NegotiateFormat(AcceptOf(request));
    const absl::StatusOr<std::string> text = static_cast<Impl*>(self)->metrics_(format);
    Answer(request, text, text.ok() ? ContentTypeOf(format) : kPlain);
  }

  // Healthy is a daemon that can answer a scrape. The answer tells nothing else, so it needs no token.
  static void OnHealth(evhttp_request* request, void* self) {
    absl::StatusOr<std::string> text = static_cast<Impl*>(self)->metrics_(MetricsFormat::kPrometheusText);
    if (text.ok()) *text = "ok\n";
    Answer(request, text, kPlain);
  }

  static constexpr Duration kResumeInterval = std::chrono::milliseconds(50);
  static constexpr char kPlain[] = "text/plain; charset=utf-8";
  static void Answer(evhttp_request* request, const absl::StatusOr<std::string>& text, const char* type) {
    const std::string body = text.ok() ? *text : absl::StrCat(std::string(text.status().message()), "\n");
    ::evhttp_add_header(::evhttp_request_get_output_headers(request), "Content-Type", type);
    evbuffer* out = ::evhttp_request_get_output_buffer(request);
    ::evbuffer_add(out, body.data(), body.size());
    ::evhttp_send_reply(request, text.ok() ? HTTP_OK : HTTP_SERVUNAVAIL, text.ok() ? "OK" : "Unavailable",
                        nullptr);
  }

  Options options_;
  const Handler metrics_;
  const std::string authorization_;  // The required value of the header; empty: no check.
  UniqueFd stop_fd_;
  std::unique_ptr<event_base, Free> base_;
  std::unique_ptr<evhttp, Free> http_;
  std::unique_ptr<event, Free> stop_, resume_, retry_;
  evconnlistener* listener_ = nullptr;  // Owned by http_. Null while the port is in use by another program.
  bool reported_ = false;               // An attempt to listen on the port.
  std::thread thread_;
  std::atomic<int> port_ = 0;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options, Handler metrics) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(metrics));
  if (const absl::Status listening = impl->Listen(); !listening.ok()) return listening;
  impl->Run();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

int HttpServer::port() const { return impl_->port(); }

}  // namespace ckptd
