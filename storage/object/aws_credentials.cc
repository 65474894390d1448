#include "storage/object/aws_credentials.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <pugixml.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/object/url_encoding.h"

namespace ckptd {
namespace {

constexpr absl::Duration kRefreshBefore = absl::Minutes(5);
// Metadata services are near; outside of AWS nobody answers at their address.
constexpr Duration kAskLimit = std::chrono::seconds(3);

absl::Status NoCredentials(const std::string& what) {
  return MakeError(absl::StatusCode::kUnauthenticated, "NO_CREDENTIALS", what);
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  std::ifstream file(path);
  if (!file) return NoCredentials(absl::StrCat("the token file ", path, " cannot be read"));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return std::string(absl::StripAsciiWhitespace(text));
}

absl::StatusOr<AwsCredentials> Checked(AwsCredentials found, const std::string& expires,
                                       const std::string& what) {
  std::string error;
  if (!expires.empty() && !absl::ParseTime(absl::RFC3339_full, expires, &found.expires, &error))
    return NoCredentials(absl::StrCat(what, " gave an expiry that is no time: ", expires));
  if (found.access_key.empty() || found.secret_key.empty())
    return NoCredentials(absl::StrCat(what, " gave no access key"));
  return found;
}

absl::StatusOr<AwsCredentials> FromJson(const std::string& text, const std::string& what) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  const auto field = [&](const char* name) -> std::string {
    if (!json.is_object() || !json.contains(name) || !json[name].is_string()) return "";
    return json[name].get<std::string>();
  };
  return Checked({field("AccessKeyId"), field("SecretAccessKey"), field("Token")}, field("Expiration"), what);
}

}  // namespace

AwsCredentialSource::AwsCredentialSource(AwsSettings settings, Environment environment, HttpClient* http)
    : settings_(std::move(settings)), environment_(std::move(environment)), http_(http) {}

absl::StatusOr<AwsCredentials> AwsCredentialSource::Get() {
  MutexLock lock(mutex_);
  if (known_.has_value() && absl::Now() + kRefreshBefore < known_->expires) return *known_;
  absl::StatusOr<AwsCredentials> found = Find();
  if (found.ok()) {
    known_ = *found;
  } else if (known_.has_value() && absl::Now() < known_->expires) {
    return *known_;  // The refresh has failed, and those that are there are still good.
  }
  return found;
}

void AwsCredentialSource::Discard() {
  MutexLock lock(mutex_);
  known_.reset();
}

absl::StatusOr<AwsCredentials> AwsCredentialSource::Find() {
  const std::string key = environment_("AWS_ACCESS_KEY_ID");
  if (!key.empty()) {
    return Checked({key, environment_("AWS_SECRET_ACCESS_KEY"), environment_("AWS_SESSION_TOKEN")}, "",
                   "AWS_ACCESS_KEY_ID without AWS_SECRET_ACCESS_KEY");
  }
  const auto& profile = settings_.profile;
  const auto of_profile = [&](const char* name) {
    const auto found = profile.find(name);
    return found == profile.end() ? "" : found->second;
  };
  if (profile.contains("aws_access_key_id")) {
    return Checked({of_profile("aws_access_key_id"), of_profile("aws_secret_access_key"),
                    of_profile("aws_session_token")},
                   "", absl::StrCat("the profile ", settings_.profile_name));
  }
  for (const char* name : {"role_arn", "sso_session", "sso_start_url", "credential_process"}) {
    if (!profile.contains(name)) continue;
    return NoCredentials(absl::StrCat("the profile ", settings_.profile_name, " has ", name,
                                      ", which ckptd does not follow; set what `aws configure "
                                      "export-credentials --format env` prints"));
  }
  const std::string token_file = environment_("AWS_WEB_IDENTITY_TOKEN_FILE");
  if (!token_file.empty()) return FromWebIdentity(token_file);
  const std::string full = environment_("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  const std::string relative = environment_("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  if (!relative.empty()) return FromContainer(absl::StrCat("http://169.254.170.2", relative));
  if (!full.empty()) return FromContainer(full);
  return FromInstance();
}

absl::StatusOr<std::string> AwsCredentialSource::Ask(const HttpRequest& request, const std::string& what) {
  absl::StatusOr<HttpResponse> response = http_->Send(request, kAskLimit);
  if (!response.ok()) return NoCredentials(absl::StrCat(what, ": ", response.status().message()));
  if (!response->IsSuccess()) return NoCredentials(absl::StrCat(what, " answered HTTP ", response->status));
  return std::move(response->body);
}

absl::StatusOr<AwsCredentials> AwsCredentialSource::FromWebIdentity(const std::string& token_file) {
  const std::string what = absl::StrCat("the exchange of the token of ", token_file);
  CKPTD_ASSIGN_OR_RETURN(const std::string token, ReadToken(token_file));
  std::string endpoint = environment_("AWS_ENDPOINT_URL_STS");
  if (endpoint.empty()) endpoint = absl::StrCat("https://sts.", settings_.region, ".amazonaws.com");
  std::string session = environment_("AWS_ROLE_SESSION_NAME");
  if (session.empty()) session = "ckptd";
  HttpRequest request;
  request.method = "GET";
  request.url = absl::StrCat(endpoint, "/?Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=",
                             UrlEncode(environment_("AWS_ROLE_ARN")), "&RoleSessionName=", UrlEncode(session),
                             "&WebIdentityToken=", UrlEncode(token));
  CKPTD_ASSIGN_OR_RETURN(const std::string body, Ask(request, what));
  pugi::xml_document document;
  document.load_buffer(body.data(), body.size());
  const pugi::xml_node found = document.child("AssumeRoleWithWebIdentityResponse")
                                   .child("AssumeRoleWithWebIdentityResult")
                                   .child("Credentials");
  return Checked({found.child_value("AccessKeyId"), found.child_value("SecretAccessKey"),
                  found.child_value("SessionToken")},
                 found.child_value("Expiration"), what);
}

absl::StatusOr<AwsCredentials> AwsCredentialSource::FromContainer(const std::string& url) {
  HttpRequest request{"GET", url};
  std::string token = environment_("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  const std::string token_file = environment_("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  if (!token_file.empty()) {
    CKPTD_ASSIGN_OR_RETURN(token, ReadToken(token_file));
  }
  if (!token.empty()) request.headers.push_back(absl::StrCat("Authorization: ", token));
  CKPTD_ASSIGN_OR_RETURN(const std::string body, Ask(request, absl::StrCat("the container's service ", url)));
  return FromJson(body, url);
}

absl::StatusOr<AwsCredentials> AwsCredentialSource::FromInstance() {
  const std::string looked =
      "no credentials in the environment (AWS_ACCESS_KEY_ID and others) nor in the profile " +
      settings_.profile_name;
  if (absl::EqualsIgnoreCase(environment_("AWS_EC2_METADATA_DISABLED"), "true")) return NoCredentials(looked);
  std::string endpoint = environment_("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (endpoint.empty()) endpoint = "http://169.254.169.254";
  const std::string what = absl::StrCat(looked, ", and the metadata service ", endpoint);
  CKPTD_ASSIGN_OR_RETURN(
      const std::string token,
      Ask({"PUT", endpoint + "/latest/api/token", {"x-aws-ec2-metadata-token-ttl-seconds: 300"}}, what));
  const std::string roles = endpoint + "/latest/meta-data/iam/security-credentials/";
  const std::vector<std::string> headers = {absl::StrCat("x-aws-ec2-metadata-token: ", token)};
  CKPTD_ASSIGN_OR_RETURN(const std::string role, Ask({"GET", roles, headers}, what));
  const std::string name(absl::StripAsciiWhitespace(role.substr(0, role.find('\n'))));
  CKPTD_ASSIGN_OR_RETURN(const std::string body, Ask({"GET", roles + UrlEncode(name), headers}, what));
  return FromJson(body, what);
}

}  // namespace ckptd
