#include "daemon/metrics/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/metrics/metrics_format.h"
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
  auto server = HttpServer::Start({}, [](MetricsFormat) { return std::string("ckptd_sessions 1\n"); });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Get((*server)->port(), "/metrics"),
              AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("Content-Type: text/plain; version=0.0.4"),
                    EndsWith("\r\n\r\nckptd_sessions 1\n")));
}

// Answers with the headers `accept` of a request.
std::string GetAs(const HttpServer& server, const std::string& accept) {
  return Ask(server.port(), "GET /metrics HTTP/1.1\r\nHost: x\r\n" + accept + "Connection: close\r\n\r\n");
}

TEST(HttpServer, AnswersInTheFormatThatTheRequestAccepts) {
  auto server = HttpServer::Start({}, [](MetricsFormat format) {
    return std::string(format == MetricsFormat::kOpenMetrics ? "# EOF\n" : "x 1\n");
  });
  ASSERT_TRUE(server.ok()) << server.status();
  const auto is_open_metrics =
      AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("\r\nVary: Accept\r\n"), EndsWith("\r\n\r\n# EOF\n"),
            HasSubstr("\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"));
  const auto is_text =
      AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("\r\nVary: Accept\r\n"), EndsWith("\r\n\r\nx 1\n"),
            HasSubstr("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  const std::string open_metrics = "Accept: application/openmetrics-text; version=1.0.0\r\n";
  EXPECT_THAT(GetAs(**server, open_metrics), is_open_metrics);
  EXPECT_THAT(GetAs(**server, "Accept: text/plain;q=0.5\r\naccept: application/openmetrics-text\r\n"),
              is_open_metrics)
      << "two headers";
  EXPECT_THAT(GetAs(**server, "Accept: */*\r\n"), is_text);
  EXPECT_THAT(GetAs(**server, ""), is_text);
  EXPECT_THAT(GetAs(**server, "Accept: text/html\r\n"), is_text) << "an answer is better than a 406";
}

TEST(HttpServer, AnswersAnErrorInPlainTextToARequestForOpenMetrics) {
  auto server = HttpServer::Start({}, [](MetricsFormat) -> absl::StatusOr<std::string> {
    return absl::DeadlineExceededError("the engine did not answer");
  });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(
      GetAs(**server, "Accept: application/openmetrics-text\r\n"),
      AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("\r\nContent-Type: text/plain; charset=utf-8\r\n")));
}

TEST(HttpServer, AnswersAnErrorWith503AndItsMessage) {
  auto server = HttpServer::Start({}, [](MetricsFormat) -> absl::StatusOr<std::string> {
    return absl::DeadlineExceededError("the engine did not answer");
  });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Get((*server)->port(), "/metrics"),
              AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("the engine did not answer")));
}

TEST(HttpServer, AnswersHealthWithoutTokenAndWithoutMetrics) {
  auto server = HttpServer::Start({.token = "secret"}, [](MetricsFormat) { return std::string("x 1\n"); });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Get((*server)->port(), "/healthz"),
              AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("\r\n\r\nok\n")));
  auto sick = HttpServer::Start({}, [](MetricsFormat) -> absl::StatusOr<std::string> {
    return absl::DeadlineExceededError("the engine did not answer");
  });
  EXPECT_THAT(Get((*sick)->port(), "/healthz"), StartsWith("HTTP/1.1 503 "));
}

TEST(HttpServer, RefusesOtherPathsAndMethods) {
  auto server = HttpServer::Start({}, [](MetricsFormat) { return std::string("x"); });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Get((*server)->port(), "/"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask((*server)->port(), "DELETE /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
              StartsWith("HTTP/1.1 501 "));
  EXPECT_THAT(Ask((*server)->port(), std::string("\x16\x03\x01garbage\r\n\r\n")),
              StartsWith("HTTP/1.1 400 "));
}

TEST(HttpServer, ListensWhenThePortThatIsInUseBecomesFree) {
  auto first = HttpServer::Start({}, [](MetricsFormat) { return std::string("first"); });
  ASSERT_TRUE(first.ok()) << first.status();
  const int port = (*first)->port();
  std::promise<void> listens;
  absl::Status refused;
  const auto on_listen = [&](const absl::Status& status) {
    if (!status.ok()) {
      EXPECT_TRUE(refused.ok()) << "reported twice";
      refused = status;
    } else {
      listens.set_value();
    }
  };
  auto second = HttpServer::Start(
      {.port = port, .retry_interval = std::chrono::milliseconds(20), .on_listen = on_listen},
      [](MetricsFormat) { return std::string("second"); });
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(ErrnoOf(refused), EADDRINUSE) << refused;
  EXPECT_EQ((*second)->port(), 0);
  EXPECT_THAT(Get(port, "/metrics"), EndsWith("first"));
  first->reset();
  ASSERT_EQ(listens.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_EQ((*second)->port(), port);
  EXPECT_THAT(Get(port, "/metrics"), EndsWith("second"));
}

// A connection that has sent nothing yet.
UniqueFd Connect(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval timeout{.tv_sec = 60, .tv_usec = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return socket;
}

size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    count += !entry.path().empty();
  return count;
}

// Sends a request and reads one answer; the connection stays open.
bool AsksAndIsAnswered(const UniqueFd& socket) {
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
  if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return false;
  std::string answer;
  char buffer[4096];
  while (!answer.ends_with("\r\n\r\nx")) {
    const ssize_t read = ::recv(socket.get(), buffer, sizeof(buffer), 0);
    if (read <= 0) return false;
    answer.append(buffer, static_cast<size_t>(read));
  }
  return true;
}

TEST(HttpServer, ConnectionsBeyondTheLimitHoldNoDescriptorAndAreServedLater) {
  constexpr int kLimit = 4, kClients = 40;
  auto server =
      HttpServer::Start({.max_connections = kLimit}, [](MetricsFormat) { return std::string("x"); });
  ASSERT_TRUE(server.ok()) << server.status();
  const UniqueFd first = Connect((*server)->port());
  ASSERT_TRUE(AsksAndIsAnswered(first));
  const size_t before = OpenDescriptors();
  std::vector<UniqueFd> clients;
  for (int i = 0; i < kClients; ++i) clients.push_back(Connect((*server)->port()));
  // The server's loop has seen all the connections once it has answered a few requests that came after them.
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(AsksAndIsAnswered(first));
  EXPECT_LE(OpenDescriptors(), before + kClients + 2 * kLimit);
  const UniqueFd last = std::move(clients.back());
  clients.clear();
  EXPECT_TRUE(AsksAndIsAnswered(last));
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
  auto server = HttpServer::Start({.listener = std::move(listener)},
                                  [](MetricsFormat) { return std::string("ckptd_sessions 1\n"); });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ((*server)->port(), 0);
  EXPECT_THAT(AskAt(UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)), name, sizeof(address),
                    "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("\r\n\r\nckptd_sessions 1\n")));
}

TEST(HttpServer, RequiresTheTokenWhenThereIsOne) {
  auto server =
      HttpServer::Start({.token = "0123456789abcdef"}, [](MetricsFormat) { return std::string("secret"); });
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
