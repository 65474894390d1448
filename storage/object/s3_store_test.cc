#include "storage/object/s3_store.h"

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
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
                     .limit = limit});
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

TEST_F(S3StoreTest, SilentServerIsGivenUpAtTheLimit) {
  std::promise<void> is_over;
  Serve({ok_}, std::chrono::milliseconds(300), [over = is_over.get_future().share()] { over.wait(); });
  EXPECT_EQ(ReasonOf(Put()), "STORE_TIMEOUT");
  is_over.set_value();
}

TEST_F(S3StoreTest, DoesNotRepeatWhatTheServerRefuses) {
  Serve({ScriptedHttpServer::Answer("403 Forbidden", Error("SignatureDoesNotMatch"))});
  EXPECT_EQ(ReasonOf(Put()), "STORE_DENIED");
  EXPECT_THAT(server_->requests(), SizeIs(1));
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
  Serve({ScriptedHttpServer::Answer("200 OK", Error("InternalError")), ok_});
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

TEST_F(S3StoreTest, AnswerOfAnotherProgramIsRefusedWithItsBeginning) {
  Serve({ScriptedHttpServer::Answer("200 OK", "<html>hello</html>")});
  const absl::Status status = store_->List("", "", "").status();
  EXPECT_EQ(ReasonOf(status), "STORE_REFUSED");
  EXPECT_THAT(std::string(status.message()), HasSubstr("<html>hello"));
}

}  // namespace
}  // namespace ckptd
