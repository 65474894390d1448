// The credentials that sign requests to S3, from where the tools of AWS look for them.
#ifndef CKPTD_STORAGE_OBJECT_AWS_CREDENTIALS_H_
#define CKPTD_STORAGE_OBJECT_AWS_CREDENTIALS_H_

#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "storage/base/mutex.h"
#include "storage/object/aws_settings.h"
#include "storage/object/http_client.h"

namespace ckptd {

struct AwsCredentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token = {};  // May be empty.
  absl::Time expires = absl::InfiniteFuture();
};

// Looks, in this order, at AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN); at the profile;
// at AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN; at AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI;
// and at the metadata service of the instance (version 2). Keeps what it has found until five minutes before
// it expires. Thread-safe.
class AwsCredentialSource {
 public:
  // `http` must outlive it.
  AwsCredentialSource(AwsSettings settings, Environment environment, HttpClient* http);

  // UNAUTHENTICATED, reason NO_CREDENTIALS, says where it has looked, and what failed.
  absl::StatusOr<AwsCredentials> Get();
  // The server says that they are no longer valid: the next Get asks again.
  void Discard();

 private:
  absl::StatusOr<AwsCredentials> Find();
  absl::StatusOr<AwsCredentials> FromWebIdentity(const std::string& token_file);
  absl::StatusOr<AwsCredentials> FromContainer(const std::string& url);
  absl::StatusOr<AwsCredentials> FromInstance();
  absl::StatusOr<std::string> Ask(const HttpRequest& request, const std::string& what);

  const AwsSettings settings_;
  const Environment environment_;
  HttpClient* const http_;
  Mutex mutex_;
  std::optional<AwsCredentials> known_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_OBJECT_AWS_CREDENTIALS_H_
