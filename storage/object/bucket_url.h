// s3://BUCKET/PREFIX, as users write it.
#ifndef CKPTD_STORAGE_OBJECT_BUCKET_URL_H_
#define CKPTD_STORAGE_OBJECT_BUCKET_URL_H_

#include <string>

#include "absl/status/statusor.h"

namespace ckptd {

struct BucketUrl {
  std::string bucket;
  std::string prefix;  // Without a slash at either end. Empty: the bucket itself.
};

bool IsBucketUrl(const std::string& text);
// INVALID_ARGUMENT, which says what is wrong with the URL.
absl::StatusOr<BucketUrl> ParseBucketUrl(const std::string& text);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_OBJECT_BUCKET_URL_H_
