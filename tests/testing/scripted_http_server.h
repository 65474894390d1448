// An HTTP server whose answers a test makes: one request a connection, each handed to a function.
#ifndef CKPTD_TESTS_TESTING_SCRIPTED_HTTP_SERVER_H_
#define CKPTD_TESTS_TESTING_SCRIPTED_HTTP_SERVER_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "storage/base/mutex.h"
#include "storage/base/unique_fd.h"

namespace ckptd {

class ScriptedHttpServer {
 public:
  // Gets the whole request, and returns the whole answer ("HTTP/1.1 200 OK\r\n..."). Empty: the connection is
  // closed without an answer.
  using Script = std::function<std::string(const std::string& request)>;

  explicit ScriptedHttpServer(Script script)
      : script_(std::move(script)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (bind(listener_.get(), generic, size) != 0 || listen(listener_.get(), 16) != 0 ||
        getsockname(listener_.get(), generic, &size) != 0) {
      std::abort();
    }
    endpoint_ = absl::StrCat("http://127.0.0.1:", ntohs(address.sin_port));
    thread_ = std::thread([this] { Serve(); });
  }
  ~ScriptedHttpServer() {
    shutdown(listener_.get(), SHUT_RDWR);  // Ends accept.
    thread_.join();
  }

  const std::string& endpoint() const { return endpoint_; }
  std::vector<std::string> requests() {
    MutexLock lock(mutex_);
    return requests_;
  }

  static std::string Answer(const std::string& status, const std::string& body = "",
                            const std::string& headers = "") {
    return absl::StrCat("HTTP/1.1 ", status, "\r\nConnection: close\r\nContent-Length: ", body.size(), "\r\n",
                        headers, "\r\n", body);
  }

 private:
  void Serve() {
    for (;;) {
      const UniqueFd connection(accept(listener_.get(), nullptr, nullptr));
      if (connection.get() < 0) return;
      const std::string request = Read(connection.get());
      {
        MutexLock lock(mutex_);
        requests_.push_back(request);
      }
      const std::string answer = script_(request);
      static_cast<void>(send(connection.get(), answer.data(), answer.size(), MSG_NOSIGNAL));
    }
  }

  static std::string Read(int fd) {
    std::string request;
    size_t end = request.npos, body = 0;
    char buffer[65536];
    while (end == request.npos || request.size() < end + 4 + body) {
      const ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
      if (got <= 0) break;
      request.append(buffer, static_cast<size_t>(got));
      end = request.find("\r\n\r\n");
      const size_t length = request.find("Content-Length: ");
      if (length < end) body = std::strtoul(request.c_str() + length + 16, nullptr, 10);
    }
    return request;
  }

  const Script script_;
  const UniqueFd listener_;
  std::string endpoint_;
  Mutex mutex_;
  std::vector<std::string> requests_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_SCRIPTED_HTTP_SERVER_H_
