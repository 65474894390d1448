#include "daemon/metrics/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <string>

#include "absl/status/status.h"
#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// One request, and everything that comes back until the server closes.
std::string Ask(int port, const std::string& request) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience{.tv_sec = 20, .tv_usec = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return "refused";
  if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "not sent";
  std::string answer;
  char buffer[4096];
  for (ssize_t size = 0; (size = ::recv(socket.get(), buffer, sizeof(buffer), 0)) > 0;) {
    answer.append(buffer, static_cast<size_t>(size));
  }
  return answer;
}

std::string Get(int port, const std::string& path) {
  return Ask(port, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
}

TEST(HttpServer, AnswersMetrics) {
  auto server = HttpServer::Start(0, [] { return std::string("ckptd_sessions 1\n"); });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Get((*server)->port(), "/metrics"),
              AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("Content-Type: text/plain; version=0.0.4"),
                    EndsWith("\r\n\r\nckptd_sessions 1\n")));
}

TEST(HttpServer, AnErrorIsUnavailableWithItsMessage) {
  auto server = HttpServer::Start(0, []() -> absl::StatusOr<std::string> {
    return absl::DeadlineExceededError("the engine did not answer");
  });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Get((*server)->port(), "/metrics"),
              AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("the engine did not answer")));
}

TEST(HttpServer, OtherPathsAndMethodsAreRefused) {
  auto server = HttpServer::Start(0, [] { return std::string("x"); });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Get((*server)->port(), "/"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask((*server)->port(), "DELETE /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
              StartsWith("HTTP/1.1 501 "));
  EXPECT_THAT(Ask((*server)->port(), std::string("\x16\x03\x01garbage\r\n\r\n")),
              StartsWith("HTTP/1.1 400 "));
}

TEST(HttpServer, ATakenPortIsSaid) {
  auto first = HttpServer::Start(0, [] { return std::string("x"); });
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = HttpServer::Start((*first)->port(), [] { return std::string("x"); });
  EXPECT_EQ(ErrnoOf(second.status()), EADDRINUSE) << second.status();
}

}  // namespace
}  // namespace ckptd
