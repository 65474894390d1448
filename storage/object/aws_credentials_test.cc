#include "storage/object/aws_credentials.h"

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "tests/testing/scripted_http_server.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class AwsTest : public ::testing::Test {
 protected:
  AwsTest() { variables_ = {{"HOME", dir_.path()}}; }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_.path() + "/" + name) << text;
  }
  Environment Variables() {
    return [this](const std::string& name) -> std::string {
      const auto found = variables_.find(name);
      return found == variables_.end() ? "" : found->second;
    };
  }
  absl::StatusOr<AwsSettings> Settings() { return ReadAwsSettings(Variables()); }
  absl::StatusOr<AwsCredentials> Find() {
    const absl::StatusOr<AwsSettings> settings = Settings();
    if (!settings.ok()) return settings.status();
    return AwsCredentialSource(*settings, Variables(), &http_).Get();
  }
  static std::string Json(const std::string& key, absl::Duration valid) {
    return ScriptedHttpServer::Answer(
        "200 OK",
        absl::StrCat(
            R"({"AccessKeyId": ")", key, R"(", "SecretAccessKey": "s", "Token": "t", "Expiration": ")",
            absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now() + valid, absl::UTCTimeZone()), "\"}"));
  }

  TempDir dir_;
  std::map<std::string, std::string> variables_;
  HttpClient http_{""};
};

TEST_F(AwsTest, EnvironmentComesBeforeTheProfile) {
  Write("credentials", "[default]\naws_access_key_id = FILE\naws_secret_access_key = f\n");
  variables_["AWS_SHARED_CREDENTIALS_FILE"] = dir_.path() + "/credentials";
  EXPECT_EQ(Find()->access_key, "FILE");
  variables_["AWS_ACCESS_KEY_ID"] = "VARIABLE";
  EXPECT_THAT(std::string(Find().status().message()), HasSubstr("AWS_ACCESS_KEY_ID without"));
  variables_["AWS_SECRET_ACCESS_KEY"] = "v";
  EXPECT_EQ(Find()->access_key, "VARIABLE");
}

TEST_F(AwsTest, ProfileIsReadFromBothFiles) {
  Write("credentials",
        "# keys\n[other]\naws_access_key_id=X\n[ mine ]\naws_access_key_id=A\n"
        "aws_secret_access_key = b\naws_session_token= c=\n");
  Write("config",
        "[default]\nregion = us-west-1\n[profile mine]\nregion = eu-west-1\ns3 =\n  region = nested\n"
        "endpoint_url = http://127.0.0.1:9000/\nca_bundle = /ca.pem\n");
  variables_["AWS_SHARED_CREDENTIALS_FILE"] = dir_.path() + "/credentials";
  variables_["AWS_CONFIG_FILE"] = dir_.path() + "/config";
  EXPECT_EQ(Settings()->region, "us-west-1");
  EXPECT_FALSE(Settings()->is_path_style);
  variables_["AWS_PROFILE"] = "mine";
  const absl::StatusOr<AwsSettings> settings = Settings();
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->region, "eu-west-1");
  EXPECT_EQ(settings->endpoint, "http://127.0.0.1:9000");
  EXPECT_EQ(settings->ca_file, "/ca.pem");
  EXPECT_TRUE(settings->is_path_style);
  EXPECT_EQ(Find()->session_token, "c=");
  variables_["AWS_PROFILE"] = "missing";
  EXPECT_THAT(std::string(Settings().status().message()), HasSubstr("AWS_PROFILE is \"missing\""));
}

TEST_F(AwsTest, RefusesSettingsThatCannotBeUsed) {
  variables_["AWS_ENDPOINT_URL"] = "localhost:9000";
  EXPECT_THAT(std::string(Settings().status().message()),
              HasSubstr("\"localhost:9000\", and must begin with"));
  variables_["AWS_ENDPOINT_URL"] = "https://localhost:9000";
  variables_["CKPTD_S3_ADDRESSING_STYLE"] = "virtual";
  EXPECT_FALSE(Settings()->is_path_style);
  variables_["CKPTD_S3_ADDRESSING_STYLE"] = "auto";
  EXPECT_THAT(std::string(Settings().status().message()), HasSubstr("\"auto\", and must be path or virtual"));
}

TEST_F(AwsTest, ProfileWithARoleSaysWhatToDo) {
  Write("config", "[default]\nrole_arn = arn:aws:iam::1:role/a\n");
  variables_["AWS_CONFIG_FILE"] = dir_.path() + "/config";
  EXPECT_THAT(std::string(Find().status().message()), HasSubstr("aws configure export-credentials"));
}

TEST_F(AwsTest, InstanceGivesCredentialsForItsToken) {
  ScriptedHttpServer server([](const std::string& request) {
    if (absl::StartsWith(request, "PUT /latest/api/token "))
      return ScriptedHttpServer::Answer("200 OK", "TOKEN");
    if (!absl::StrContains(request, "x-aws-ec2-metadata-token: TOKEN"))
      return ScriptedHttpServer::Answer("401 Unauthorized");
    if (absl::StartsWith(request, "GET /latest/meta-data/iam/security-credentials/ "))
      return ScriptedHttpServer::Answer("200 OK", "a-role\n");
    return absl::StrContains(request, "security-credentials/a-role ")
               ? Json("INSTANCE", absl::Hours(1))
               : ScriptedHttpServer::Answer("404 Not Found");
  });
  variables_["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = server.endpoint();
  const absl::StatusOr<AwsCredentials> found = Find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->access_key, "INSTANCE");
  EXPECT_EQ(found->session_token, "t");
  EXPECT_GT(found->expires, absl::Now() + absl::Minutes(50));
}

TEST_F(AwsTest, ContainerCredentialsAreRefreshedBeforeTheyExpire) {
  int asked = 0;
  absl::Duration valid = absl::Minutes(4);
  ScriptedHttpServer server([&](const std::string&) { return Json(absl::StrCat("KEY", ++asked), valid); });
  Write("token", "Bearer x\n");
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = server.endpoint() + "/creds";
  variables_["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = dir_.path() + "/token";
  AwsCredentialSource source(*Settings(), Variables(), &http_);
  EXPECT_EQ(source.Get()->access_key, "KEY1");
  valid = absl::Hours(1);
  EXPECT_EQ(source.Get()->access_key, "KEY2");  // KEY1 had less than five minutes left.
  EXPECT_EQ(source.Get()->access_key, "KEY2");
  source.Discard();
  EXPECT_EQ(source.Get()->access_key, "KEY3");
  EXPECT_THAT(server.requests()[0], HasSubstr("Authorization: Bearer x\r\n"));
}

TEST_F(AwsTest, CredentialsThatAreStillValidServeWhileARefreshFails) {
  std::vector<std::string> answers = {Json("KEY", absl::Minutes(2)),
                                      ScriptedHttpServer::Answer("500 Internal Server Error")};
  ScriptedHttpServer server([&, next = 0](const std::string&) mutable { return answers[next++]; });
  variables_["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = server.endpoint();
  AwsCredentialSource source(*Settings(), Variables(), &http_);
  EXPECT_EQ(source.Get()->access_key, "KEY");
  EXPECT_EQ(source.Get()->access_key, "KEY");
  EXPECT_THAT(server.requests(), SizeIs(2));
}

TEST_F(AwsTest, WebIdentityIsExchanged) {
  ScriptedHttpServer server([](const std::string&) {
    return ScriptedHttpServer::Answer(
        "200 OK",
        "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>WEB"
        "</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>"
        "2050-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult>"
        "</AssumeRoleWithWebIdentityResponse>");
  });
  Write("token", "a+token\n");
  variables_["AWS_WEB_IDENTITY_TOKEN_FILE"] = dir_.path() + "/token";
  variables_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/a";
  variables_["AWS_ENDPOINT_URL_STS"] = server.endpoint();
  const absl::StatusOr<AwsCredentials> found = Find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->access_key, "WEB");
  EXPECT_THAT(server.requests()[0],
              HasSubstr("RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fa&RoleSessionName=ckptd&"
                        "WebIdentityToken=a%2Btoken "));
}

TEST_F(AwsTest, SaysWhereItHasLooked) {
  variables_["AWS_EC2_METADATA_DISABLED"] = "true";
  const absl::Status status = Find().status();
  EXPECT_EQ(ReasonOf(status), "NO_CREDENTIALS");
  EXPECT_THAT(std::string(status.message()), HasSubstr("AWS_ACCESS_KEY_ID"));
}

}  // namespace
}  // namespace ckptd
