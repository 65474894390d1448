// A bucket of S3, or of a server that speaks its protocol, over HTTP. docs/decisions/0019-object-store.md
// says why with libcurl.
#ifndef CKPTD_STORAGE_OBJECT_S3_STORE_H_
#define CKPTD_STORAGE_OBJECT_S3_STORE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "storage/base/clock.h"
#include "storage/object/aws_settings.h"
#include "storage/object/object_store.h"

namespace ckptd {

struct S3Options {
  std::string bucket;
  Environment environment = ProcessEnvironment();  // For settings and credentials.
  // For one call with all of its tries; the last one may take longer by a second for each 16 KiB that it transfers. An answer of 429, 500, 502, 503 or 504, a lost connection, an answer
  // that was cut off and bytes that arrived damaged are tried again, first after 0.1 s and then after twice as
  // long each time, at most 5 s, or after what the server's Retry-After says.
  Duration limit = std::chrono::seconds(60);
  // May be null. Asked about once a second from the threads that call: true ends all calls (CANCELLED).
  std::function<bool()> is_cancelled = nullptr;
};

// Opens a bucket; `limit` and `is_cancelled` as in S3Options.
using OpenBucket = std::function<absl::StatusOr<std::unique_ptr<ObjectStore>>(
    const std::string& bucket, Duration limit, std::function<bool()> is_cancelled)>;
// An OpenBucket, with this process's environment.
absl::StatusOr<std::unique_ptr<ObjectStore>> OpenS3(const std::string& bucket, Duration limit,
                                                    std::function<bool()> is_cancelled);

// Reads the settings; asks no server. INVALID_ARGUMENT if the settings cannot be used.
absl::StatusOr<std::unique_ptr<ObjectStore>> MakeS3Store(const S3Options& options);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_OBJECT_S3_STORE_H_
