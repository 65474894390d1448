// Seam: one bucket of an object store. Implementations: S3Store (s3_store.h); for tests
// tests/testing/memory_object_store.h and killing_object_store.h.
//
// An object appears whole or not at all, under a key of UTF-8. Thread-safe; calls block, retry what may pass,
// and begin no try after the store's time limit: then DEADLINE_EXCEEDED, reason STORE_TIMEOUT, names the limit and
// the last fault. A try may take longer by what its bytes need on a slow link. A call that failed in that way may have
// had its effect.
//
// Other errors: NOT_FOUND, reason NO_OBJECT or NO_BUCKET. PERMISSION_DENIED, reason STORE_DENIED.
// FAILED_PRECONDITION, reason STORE_REFUSED, for requests that the store will not serve as they are.
// DATA_LOSS, reason CORRUPT_TRANSFER, if bytes arrived other than they were sent.
#ifndef CKPTD_STORAGE_OBJECT_OBJECT_STORE_H_
#define CKPTD_STORAGE_OBJECT_OBJECT_STORE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckptd {

// S3's limits for the parts of a multipart upload; the last part may be smaller.
inline constexpr int64_t kMinPartBytes = int64_t{5} << 20;
inline constexpr int kMaxParts = 10'000;

enum class PutMode {
  kReplace,  // Replaces an object of that key.
  // ALREADY_EXISTS, reason OBJECT_EXISTS, if there is one: perhaps by an earlier try of this call.
  kIfAbsent,
};

struct ObjectInfo {
  std::string key;
  int64_t size = 0;
};

struct ObjectPage {
  std::vector<ObjectInfo> objects;   // By key.
  std::vector<std::string> folders;  // Prefixes of keys, up to and with the delimiter. By name.
  std::string next;                  // Names the next page. Empty: this is the last one.
};

struct MultipartUpload {
  std::string key;
  std::string id;
};

struct UploadedPart {
  int number = 0;  // From 1 on.
  int64_t size = 0;
  uint32_t crc32c = 0;
  std::string etag;  // The store's name for the bytes.
};

class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  // `crc32c` is that of the bytes: CORRUPT_TRANSFER if others have arrived. Not every server that speaks S3
  // compares it, nor minds kIfAbsent.
  virtual absl::Status Put(const std::string& key, std::span<const std::byte> bytes, uint32_t crc32c,
                           PutMode mode) = 0;
  // Reads exactly `into.size()` bytes. OUT_OF_RANGE, reason SHORT_OBJECT, if the object ends before.
  virtual absl::Status Get(const std::string& key, int64_t offset, std::span<std::byte> into) = 0;
  virtual absl::StatusOr<ObjectInfo> Head(const std::string& key) = 0;
  // A page of at most 1000 of the objects whose keys begin with `prefix`. With a delimiter, keys that have it
  // after the prefix are one folder. `page` is empty, or the `next` of the page before.
  virtual absl::StatusOr<ObjectPage> List(const std::string& prefix, const std::string& delimiter,
                                          const std::string& page) = 0;
  // OK if there is no such object.
  virtual absl::Status Delete(const std::string& key) = 0;
  // Within the bucket. Objects of at most 5 GiB.
  virtual absl::Status Copy(const std::string& from, const std::string& to) = 0;

  // An object that is sent in parts, in any order, and appears with CompleteUpload. Until then its parts cost
  // room, and survive the process. NO_OBJECT if the upload has ended, perhaps by an earlier try.
  virtual absl::StatusOr<MultipartUpload> BeginUpload(const std::string& key) = 0;
  virtual absl::StatusOr<UploadedPart> PutPart(const MultipartUpload& upload, int number,
                                               std::span<const std::byte> bytes, uint32_t crc32c) = 0;
  // All parts, by number.
  virtual absl::Status CompleteUpload(const MultipartUpload& upload,
                                      const std::vector<UploadedPart>& parts) = 0;
  // OK if the upload has ended.
  virtual absl::Status AbortUpload(const MultipartUpload& upload) = 0;
  // The parts that have arrived, by number.
  virtual absl::StatusOr<std::vector<UploadedPart>> ListParts(const MultipartUpload& upload) = 0;
  // The uploads in flight of keys that begin with `prefix`, by key.
  virtual absl::StatusOr<std::vector<MultipartUpload>> ListUploads(const std::string& prefix) = 0;
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_OBJECT_OBJECT_STORE_H_
