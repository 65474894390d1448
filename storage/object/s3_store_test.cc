#include "storage/object/s3_store.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/errors.h"
#include "tests/testing/scripted_http_server.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string Error(const std::string& code) {
  return "<Error><Code>" + code + "</Code><Message>a message</Message></Error>";
}

// A bucket on a server that gives `answers` one after the other, and the last one for ever.
class S3StoreTest : public ::testing::Test {
 protected:
  void Serve(
      std::vector<std::string> answers, Duration limit = std::chrono::seconds(20),
      std::function<void()> before = [] {}) {
    server_ =
        std::make_unique<ScriptedHttpServer>([answers, before, next = size_t{0}](const std::string&) mutable {
          before();
          return answers[std::min(next++, answers.size() - 1)];
        });
    std::map<std::string, std::string> variables = {{"AWS_ENDPOINT_URL", server_->endpoint()},
                                                    {"AWS_ACCESS_KEY_ID", "AKEY"},
                                                    {"AWS_SECRET_ACCESS_KEY", "secret"},
                                                    {"AWS_SESSION_TOKEN", "session"},
                                                    {"AWS_REGION", "eu-north-1"},
                                                    {"HOME", "/nonexistent"}};
    absl::StatusOr<std::unique_ptr<ObjectStore>> store =
        MakeS3Store({.bucket = "bucket",
                     .environment = [variables](const std::string& name) -> std::string {
                       const auto found = variables.find(name);
                       return found == variables.end() ? "" : found->second;
                     },
                     .limit = limit,
                     .is_cancelled = [this] { return is_cancelled_.load(); }});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  absl::Status Put(PutMode mode = PutMode::kReplace) {
    const auto bytes = std::as_bytes(std::span(text_));
    return store_->Put("run/a b", bytes, Crc32c(bytes), mode);
  }

  const std::string text_ = "123456789";
  const std::string ok_ = ScriptedHttpServer::Answer("200 OK");
  const std::string slow_down_ = ScriptedHttpServer::Answer("503 Slow Down", Error("SlowDown"));
  std::atomic<bool> is_cancelled_ = false;
  std::unique_ptr<ScriptedHttpServer> server_;
  std::unique_ptr<ObjectStore> store_;
};

TEST_F(S3StoreTest, SendsChecksumConditionAndSignature) {
  Serve({ok_});
  ASSERT_EQ(Put(PutMode::kIfAbsent), absl::OkStatus());
  ASSERT_THAT(server_->requests(), SizeIs(1));
  EXPECT_THAT(server_->requests()[0],
              AllOf(HasSubstr("PUT /bucket/run/a%20b HTTP/1.1"), HasSubstr("x-amz-checksum-crc32c: 4waSgw=="),
                    HasSubstr("if-none-match: *"), HasSubstr("x-amz-security-token: session"),
                    HasSubstr("Credential=AKEY/"), HasSubstr("/eu-north-1/s3/aws4_request"),
                    HasSubstr("\r\n\r\n123456789")));
}

TEST_F(S3StoreTest, TriesAgainAfterErrorsOfTheServerAndLostConnections) {
  Serve({slow_down_, "", ScriptedHttpServer::Answer("500 Error", Error("InternalError")), ok_});
  EXPECT_EQ(Put(), absl::OkStatus());
  ASSERT_THAT(server_->requests(), SizeIs(4));
  EXPECT_THAT(server_->requests()[3], HasSubstr("\r\n\r\n123456789"));
}

TEST_F(S3StoreTest, WaitsAsLongAsRetryAfterSays) {
  Serve({ScriptedHttpServer::Answer("503 Slow Down", Error("SlowDown"), "Retry-After: 2\r\n"), ok_});
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(Put(), absl::OkStatus());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
}

TEST_F(S3StoreTest, ErrorAfterTheLimitNamesItAndTheLastFault) {
  Serve({slow_down_}, std::chrono::seconds(1));
  const absl::Status status = Put();
  EXPECT_EQ(ReasonOf(status), "STORE_TIMEOUT");
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("PUT s3://bucket/run/a b"), HasSubstr("within 1s"), HasSubstr("SlowDown")));
}

TEST_F(S3StoreTest, RetryAfterBeyondTheLimitEndsAtOnce) {
  Serve({ScriptedHttpServer::Answer("503 Slow Down", Error("SlowDown"), "Retry-After: 3600\r\n")});
  EXPECT_EQ(ReasonOf(Put()), "STORE_TIMEOUT");
  EXPECT_THAT(server_->requests(), SizeIs(1));
}

TEST_F(S3StoreTest, CancellationEndsTheWaitThatTheServerAsksFor) {
  Serve({ScriptedHttpServer::Answer("503 Slow Down", Error("SlowDown"), "Retry-After: 15\r\n")});
  std::future<absl::Status> put = std::async(std::launch::async, [this] { return Put(); });
  while (server_->requests().empty()) std::this_thread::yield();
  is_cancelled_ = true;
  ASSERT_EQ(put.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_TRUE(absl::IsCancelled(put.get()));
}

TEST_F(S3StoreTest, SilentServerIsGivenUpAtTheLimit) {
  std::promise<void> is_over;
  Serve({ok_}, std::chrono::milliseconds(300), [over = is_over.get_future().share()] { over.wait(); });
  EXPECT_EQ(ReasonOf(Put()), "STORE_TIMEOUT");
  is_over.set_value();
}

// A part of an upload is 16 MiB, and a link may be slow.
TEST_F(S3StoreTest, TransferMayTakeLongerThanTheLimitIfItHasManyBytes) {
  const auto takes_long = [] { std::this_thread::sleep_for(std::chrono::milliseconds(600)); };
  const std::string large(64 << 10, 'x');  // 4 s at the least rate.
  const auto bytes = std::as_bytes(std::span(large));
  Serve({ok_}, std::chrono::milliseconds(200), takes_long);
  EXPECT_EQ(store_->Put("large", bytes, Crc32c(bytes), PutMode::kReplace), absl::OkStatus());
  EXPECT_THAT(server_->requests(), SizeIs(1));
  Serve({slow_down_, ok_}, std::chrono::milliseconds(200), takes_long);
  const absl::Status status = store_->Put("large", bytes, Crc32c(bytes), PutMode::kReplace);
  EXPECT_EQ(ReasonOf(status), "STORE_TIMEOUT");  // No second try after the limit.
  EXPECT_THAT(server_->requests(), SizeIs(1));
}

TEST_F(S3StoreTest, DoesNotRepeatWhatTheServerRefuses) {
  Serve({ScriptedHttpServer::Answer("403 Forbidden", Error("SignatureDoesNotMatch"))});
  EXPECT_EQ(ReasonOf(Put()), "STORE_DENIED");
  EXPECT_THAT(server_->requests(), SizeIs(1));
}

// The answer to a HEAD has no body with the error's code.
TEST_F(S3StoreTest, TriesAgainWithNewCredentialsAfterAHeadThatIsDenied) {
  for (const char* status : {"400 Bad Request", "403 Forbidden"}) {
    Serve({"HTTP/1.1 " + std::string(status) + "\r\nConnection: close\r\nContent-Length: 77\r\n\r\n",
           "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\n"});
    const absl::StatusOr<ObjectInfo> info = store_->Head("a");
    ASSERT_EQ(info.status(), absl::OkStatus()) << status;
    EXPECT_EQ(info->size, 9);
    EXPECT_THAT(server_->requests(), SizeIs(2));
  }
}

TEST_F(S3StoreTest, HeadSaysWhetherTheObjectOrTheBucketIsMissing) {
  const std::string missing = "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 77\r\n\r\n";
  Serve({missing, ScriptedHttpServer::Answer("404 Not Found", Error("NoSuchBucket"))});
  EXPECT_EQ(ReasonOf(store_->Head("a").status()), "NO_BUCKET");
  Serve({missing, ScriptedHttpServer::Answer("404 Not Found", Error("NoSuchKey"))});
  EXPECT_EQ(ReasonOf(store_->Head("a").status()), "NO_OBJECT");
  EXPECT_THAT(server_->requests()[1], HasSubstr("GET /bucket/a HTTP/1.1"));
}

TEST_F(S3StoreTest, HeadAsksAgainAboutAnObjectThatIsThereAfterAll) {
  Serve({"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 77\r\n\r\n",
         ScriptedHttpServer::Answer("206 Partial Content", "1", "Content-Range: bytes 0-0/9\r\n"),
         "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\n"});
  const absl::StatusOr<ObjectInfo> info = store_->Head("a");
  ASSERT_EQ(info.status(), absl::OkStatus());
  EXPECT_EQ(info->size, 9);
}

TEST_F(S3StoreTest, SaysWhichClockOrRegionIsWrong) {
  Serve({ScriptedHttpServer::Answer("403 Forbidden", Error("RequestTimeTooSkewed"))});
  EXPECT_THAT(std::string(Put().message()), HasSubstr("set this machine's clock"));
  Serve({ScriptedHttpServer::Answer("301 Moved", Error("PermanentRedirect"),
                                    "x-amz-bucket-region: us-west-2\r\n")});
  EXPECT_THAT(std::string(Put().message()),
              HasSubstr("the bucket is in the region us-west-2: set AWS_REGION"));
}

TEST_F(S3StoreTest, GivesUpBytesThatArriveDamagedThreeTimes) {
  Serve({ScriptedHttpServer::Answer("400 Bad Request", Error("BadDigest"))});
  EXPECT_EQ(ReasonOf(Put()), "CORRUPT_TRANSFER");
  EXPECT_THAT(server_->requests(), SizeIs(3));
}

TEST_F(S3StoreTest, ErrorWithinAnAnswerOfSuccessIsAnError) {
  Serve({ScriptedHttpServer::Answer("200 OK", Error("InternalError")),
         ScriptedHttpServer::Answer("200 OK", "<CompleteMultipartUploadResult/>")});
  EXPECT_EQ(store_->CompleteUpload({"a", "id"}, {{1, 9, 0xe3069283, "\"etag\""}}), absl::OkStatus());
  ASSERT_THAT(server_->requests(), SizeIs(2));
  EXPECT_THAT(server_->requests()[1],
              HasSubstr("<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"etag\"</ETag>"
                        "<ChecksumCRC32C>4waSgw==</ChecksumCRC32C></Part></CompleteMultipartUpload>"));
}

TEST_F(S3StoreTest, TakesCutOffAnswerForALostConnection) {
  Serve({"HTTP/1.1 206 Partial Content\r\nContent-Length: 9\r\n\r\n1234",
         ScriptedHttpServer::Answer("206 Partial Content", text_)});
  std::string text(9, '\0');
  EXPECT_EQ(store_->Get("a", 0, std::as_writable_bytes(std::span(text))), absl::OkStatus());
  EXPECT_EQ(text, text_);
}

TEST_F(S3StoreTest, GetsAgainWhatIsShorterThanTheAnswerSays) {
  const std::string range = "Content-Range: bytes 0-8/9\r\n";
  Serve({ScriptedHttpServer::Answer("206 Partial Content", "1234", range),
         ScriptedHttpServer::Answer("206 Partial Content", text_, range)});
  std::string text(9, '\0');
  EXPECT_EQ(store_->Get("a", 0, std::as_writable_bytes(std::span(text))), absl::OkStatus());
  EXPECT_EQ(text, text_);
}

TEST_F(S3StoreTest, ObjectThatIsShorterThanTheRangeIsNotAskedForAgain) {
  Serve({ScriptedHttpServer::Answer("206 Partial Content", "1234", "Content-Range: bytes 0-3/4\r\n")});
  std::string text(9, '\0');
  EXPECT_EQ(ReasonOf(store_->Get("a", 0, std::as_writable_bytes(std::span(text)))), "SHORT_OBJECT");
  EXPECT_THAT(server_->requests(), SizeIs(1));
}

TEST_F(S3StoreTest, TakesNoPartOfAListForTheWholeList) {
  const std::string list =
      "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>a</Key>"
      "<Size>1</Size></Contents><Contents><Key>b</Key><Size>1</Size></Contents>"
      "</ListBucketResult>";
  const std::string part = ScriptedHttpServer::Answer("200 OK", list.substr(0, list.find("<Key>b")));
  Serve({part, ScriptedHttpServer::Answer("200 OK", list)});
  const absl::StatusOr<ObjectPage> page = store_->List("", "", "");
  ASSERT_EQ(page.status(), absl::OkStatus());
  EXPECT_THAT(page->objects, SizeIs(2));
  Serve({part});
  EXPECT_EQ(ReasonOf(store_->List("", "", "").status()), "CORRUPT_TRANSFER");
  EXPECT_THAT(server_->requests(), SizeIs(3));
}

TEST_F(S3StoreTest, AnswerOfAnotherProgramIsRefusedWithItsBeginning) {
  Serve({ScriptedHttpServer::Answer("200 OK", "<html>hello</html>")});
  const absl::Status status = store_->List("", "", "").status();
  EXPECT_EQ(ReasonOf(status), "STORE_REFUSED");
  EXPECT_THAT(std::string(status.message()), HasSubstr("<html>hello"));
}

}  // namespace
}  // namespace ckptd
