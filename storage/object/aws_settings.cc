#include "storage/object/aws_settings.h"

#include <cstdlib>
#include <fstream>
#include <initializer_list>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

std::string FirstSet(std::initializer_list<std::string> values) {
  for (const std::string& value : values)
    if (!value.empty()) return value;
  return "";
}

// Adds the settings of one section to `profile`, which has precedence. True if the file has the section.
bool ReadSection(const std::string& path, const std::string& section,
                 std::map<std::string, std::string>& profile) {
  std::ifstream file(path);
  std::string line;
  bool is_in = false, found = false;
  while (std::getline(file, line)) {
    const bool is_nested = !line.empty() && absl::ascii_isspace(line[0]);  // "s3 =" has settings of its own.
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (text.empty() || text[0] == '#' || text[0] == ';') continue;
    if (text[0] == '[') {
      is_in = absl::StripAsciiWhitespace(absl::StripSuffix(text.substr(1), "]")) == section;
      found |= is_in;
    } else if (const size_t equals = text.find('='); is_in && !is_nested && equals != text.npos) {
      profile.try_emplace(absl::AsciiStrToLower(absl::StripAsciiWhitespace(text.substr(0, equals))),
                          absl::StripAsciiWhitespace(text.substr(equals + 1)));
    }
  }
  return found;
}

absl::Status ReadProfile(const Environment& environment, AwsSettings& settings) {
  const std::string home = FirstSet({environment("HOME"), "/root"});
  const std::string secrets =
      FirstSet({environment("AWS_SHARED_CREDENTIALS_FILE"), home + "/.aws/credentials"});
  const std::string config = FirstSet({environment("AWS_CONFIG_FILE"), home + "/.aws/config"});
  const std::string named = FirstSet({environment("AWS_PROFILE"), environment("AWS_DEFAULT_PROFILE")});
  settings.profile_name = FirstSet({named, "default"});
  bool found = ReadSection(secrets, settings.profile_name, settings.profile);
  found |= ReadSection(config, named.empty() ? "default" : "profile " + named, settings.profile);
  if (found || named.empty()) return absl::OkStatus();
  return InvalidArgument(absl::StrCat("AWS_PROFILE is \"", named, "\", and neither ", secrets, " nor ",
                                      config, " has a profile of that name"));
}

}  // namespace

Environment ProcessEnvironment() {
  return [](const std::string& name) -> std::string {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? "" : value;
  };
}

absl::StatusOr<AwsSettings> ReadAwsSettings(const Environment& environment) {
  AwsSettings settings;
  CKPTD_RETURN_IF_ERROR(ReadProfile(environment, settings));
  const auto& of_profile = [&](const char* name) {
    const auto found = settings.profile.find(name);
    return found == settings.profile.end() ? "" : found->second;
  };
  settings.endpoint =
      std::string(absl::StripSuffix(FirstSet({environment("AWS_ENDPOINT_URL_S3"),
                                              environment("AWS_ENDPOINT_URL"), of_profile("endpoint_url")}),
                                    "/"));
  if (!settings.endpoint.empty() && !absl::StartsWith(settings.endpoint, "http://") &&
      !absl::StartsWith(settings.endpoint, "https://")) {
    return InvalidArgument(absl::StrCat("the endpoint of S3 is \"", settings.endpoint,
                                        "\", and must begin with http:// or https:// (AWS_ENDPOINT_URL_S3)"));
  }
  settings.region = FirstSet(
      {environment("AWS_REGION"), environment("AWS_DEFAULT_REGION"), of_profile("region"), "us-east-1"});
  settings.ca_file = FirstSet({environment("AWS_CA_BUNDLE"), of_profile("ca_bundle")});
  const std::string style = environment("CKPTD_S3_ADDRESSING_STYLE");
  if (!style.empty() && style != "path" && style != "virtual") {
    return InvalidArgument(
        absl::StrCat("CKPTD_S3_ADDRESSING_STYLE is \"", style, "\", and must be path or virtual"));
  }
  settings.is_path_style = style.empty() ? !settings.endpoint.empty() : style == "path";
  return settings;
}

}  // namespace ckptd
