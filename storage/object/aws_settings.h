// Which endpoint and region the tools of AWS would use, and in which profile: from the environment and the
// shared files, under the names that all of these tools know.
#ifndef CKPTD_STORAGE_OBJECT_AWS_SETTINGS_H_
#define CKPTD_STORAGE_OBJECT_AWS_SETTINGS_H_

#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace ckptd {

// The value of a variable of the environment; empty if it is unset.
using Environment = std::function<std::string(const std::string& name)>;
Environment ProcessEnvironment();

struct AwsSettings {
  std::string endpoint;                        // Without a slash at the end. Empty: AWS itself.
  std::string region;                          // us-east-1 if nothing names one.
  bool is_path_style = false;                  // endpoint/BUCKET/key, and not BUCKET.endpoint/key.
  std::string ca_file;                         // Empty: the machine's.
  std::string profile_name;                    // "default" if nothing names one.
  std::map<std::string, std::string> profile;  // Its settings, from both files.
};

// AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL; AWS_REGION, AWS_DEFAULT_REGION; AWS_CA_BUNDLE; AWS_PROFILE;
// AWS_SHARED_CREDENTIALS_FILE (~/.aws/credentials), AWS_CONFIG_FILE (~/.aws/config), and in a profile
// endpoint_url, region, ca_bundle. CKPTD_S3_ADDRESSING_STYLE is path or virtual; by default path for an
// endpoint that is not AWS's own. INVALID_ARGUMENT names what cannot be used.
absl::StatusOr<AwsSettings> ReadAwsSettings(const Environment& environment);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_OBJECT_AWS_SETTINGS_H_
