#include "daemon/metrics/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Sends one request and returns everything until the server closes the connection.
std::string AskAt(const UniqueFd& socket, const sockaddr* address, socklen_t size,
                  const std::string& request) {
  const timeval timeout{.tv_sec = 20, .tv_usec = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  if (::connect(socket.get(), address, size) != 0) return "refused";
  if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "not sent";
  std::string answer;
  char buffer[4096];
  for (ssize_t read = 0; (read = ::recv(socket.get(), buffer, sizeof(buffer), 0)) > 0;) {
    answer.append(buffer, static_cast<size_t>(read));
  }
  return answer;
}

std::string Ask(int port, const std::string& request) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return AskAt(UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
               reinterpret_cast<const sockaddr*>(&address), sizeof(address), request);
}

std::string Get(int port, const std::string& path) {
  return Ask(port, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
}

TEST(HttpServer, AnswersMetrics) {
  auto server = HttpServer::Start({.port = 0, .listener = {}, .token = ""},
                                  [] { return std::string("ckptd_sessions 1\n"); });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Get((*server)->port(), "/metrics"),
              AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("Content-Type: text/plain; version=0.0.4"),
                    EndsWith("\r\n\r\nckptd_sessions 1\n")));
}

TEST(HttpServer, AnswersAnErrorWith503AndItsMessage) {
  auto server =
      HttpServer::Start({.port = 0, .listener = {}, .token = ""}, []() -> absl::StatusOr<std::string> {
        return absl::DeadlineExceededError("the engine did not answer");
      });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Get((*server)->port(), "/metrics"),
              AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("the engine did not answer")));
}

TEST(HttpServer, AnswersHealthWithoutTokenAndWithoutMetrics) {
  auto server =
      HttpServer::Start({.port = 0, .listener = {}, .token = "secret"}, [] { return std::string("x 1\n"); });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Get((*server)->port(), "/healthz"),
              AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("\r\n\r\nok\n")));
  auto sick =
      HttpServer::Start({.port = 0, .listener = {}, .token = ""}, []() -> absl::StatusOr<std::string> {
        return absl::DeadlineExceededError("the engine did not answer");
      });
  EXPECT_THAT(Get((*sick)->port(), "/healthz"), StartsWith("HTTP/1.1 503 "));
}

TEST(HttpServer, RefusesOtherPathsAndMethods) {
  auto server = HttpServer::Start({.port = 0, .listener = {}, .token = ""}, [] { return std::string("x"); });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Get((*server)->port(), "/"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask((*server)->port(), "DELETE /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
              StartsWith("HTTP/1.1 501 "));
  EXPECT_THAT(Ask((*server)->port(), std::string("\x16\x03\x01garbage\r\n\r\n")),
              StartsWith("HTTP/1.1 400 "));
}

TEST(HttpServer, ReportsAPortInUse) {
  auto first = HttpServer::Start({.port = 0, .listener = {}, .token = ""}, [] { return std::string("x"); });
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = HttpServer::Start({.port = (*first)->port(), .listener = {}, .token = ""},
                                        [] { return std::string("x"); });
  EXPECT_EQ(ErrnoOf(second.status()), EADDRINUSE) << second.status();
}

TEST(HttpServer, AnswersOnAUnixSocketOnly) {
  const TempDir folder("/tmp");
  const std::string path = folder.path() + "/m.sock";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const auto* name = reinterpret_cast<const sockaddr*>(&address);
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ASSERT_EQ(::bind(listener.get(), name, sizeof(address)), 0);
  ASSERT_EQ(::listen(listener.get(), 4), 0);
  auto server = HttpServer::Start({.port = -1, .listener = std::move(listener), .token = ""},
                                  [] { return std::string("ckptd_sessions 1\n"); });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ((*server)->port(), 0);
  EXPECT_THAT(AskAt(UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)), name, sizeof(address),
                    "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("\r\n\r\nckptd_sessions 1\n")));
}

TEST(HttpServer, RequiresTheTokenWhenThereIsOne) {
  auto server = HttpServer::Start({.port = 0, .listener = {}, .token = "0123456789abcdef"},
                                  [] { return std::string("secret"); });
  ASSERT_TRUE(server.ok()) << server.status();
  const auto with = [&](const std::string& header) {
    return Ask((*server)->port(),
               "GET /metrics HTTP/1.1\r\nHost: x\r\n" + header + "Connection: close\r\n\r\n");
  };
  for (const char* header :
       {"", "Authorization: Bearer 0123456789abcdeF\r\n", "Authorization: Bearer \r\n",
        "Authorization: Bearer 0123456789abcdef0\r\n", "Authorization: Basic 0123456789abcdef\r\n"}) {
    EXPECT_THAT(with(header), AllOf(StartsWith("HTTP/1.1 401 "), Not(HasSubstr("secret")))) << header;
  }
  EXPECT_THAT(with("Authorization: Bearer 0123456789abcdef\r\n"),
              AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("secret")));
}

}  // namespace
}  // namespace ckptd
