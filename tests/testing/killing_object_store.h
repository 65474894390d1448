// An ObjectStore for a process that dies at one of its requests: from then on nothing reaches the store
// behind it, and every request fails with CANCELLED, as one whose time is over. Counts the requests, so that
// a test can die at each of them.
#ifndef CKPTD_TESTS_TESTING_KILLING_OBJECT_STORE_H_
#define CKPTD_TESTS_TESTING_KILLING_OBJECT_STORE_H_

#include <atomic>
#include <string>
#include <vector>

#include "storage/base/errors.h"
#include "storage/object/object_store.h"

namespace ckptd {

class KillingObjectStore : public ObjectStore {
 public:
  enum class When {
    kBefore,  // The request is not done.
    kAfter,   // It is done, and its answer does not arrive.
  };

  // `at` counts from 1. 0: it does not die. `behind` must outlive it.
  KillingObjectStore(ObjectStore* behind, int at = 0, When when = When::kBefore)
      : behind_(behind), at_(at), when_(when) {}

  int requests() const { return requests_; }

  absl::Status Put(const std::string& key, std::span<const std::byte> bytes, uint32_t crc32c,
                   PutMode mode) override {
    return Do<absl::Status>([&] { return behind_->Put(key, bytes, crc32c, mode); });
  }
  absl::Status Get(const std::string& key, int64_t offset, std::span<std::byte> into) override {
    return Do<absl::Status>([&] { return behind_->Get(key, offset, into); });
  }
  absl::StatusOr<ObjectInfo> Head(const std::string& key) override {
    return Do<absl::StatusOr<ObjectInfo>>([&] { return behind_->Head(key); });
  }
  absl::StatusOr<ObjectPage> List(const std::string& prefix, const std::string& delimiter,
                                  const std::string& page) override {
    return Do<absl::StatusOr<ObjectPage>>([&] { return behind_->List(prefix, delimiter, page); });
  }
  absl::Status Delete(const std::string& key) override {
    return Do<absl::Status>([&] { return behind_->Delete(key); });
  }
  absl::Status Copy(const std::string& from, const std::string& to) override {
    return Do<absl::Status>([&] { return behind_->Copy(from, to); });
  }
  absl::StatusOr<MultipartUpload> BeginUpload(const std::string& key) override {
    return Do<absl::StatusOr<MultipartUpload>>([&] { return behind_->BeginUpload(key); });
  }
  absl::StatusOr<UploadedPart> PutPart(const MultipartUpload& upload, int number,
                                       std::span<const std::byte> bytes, uint32_t crc32c) override {
    return Do<absl::StatusOr<UploadedPart>>([&] { return behind_->PutPart(upload, number, bytes, crc32c); });
  }
  absl::Status CompleteUpload(const MultipartUpload& upload,
                              const std::vector<UploadedPart>& parts) override {
    return Do<absl::Status>([&] { return behind_->CompleteUpload(upload, parts); });
  }
  absl::Status AbortUpload(const MultipartUpload& upload) override {
    return Do<absl::Status>([&] { return behind_->AbortUpload(upload); });
  }
  absl::StatusOr<std::vector<UploadedPart>> ListParts(const MultipartUpload& upload) override {
    return Do<absl::StatusOr<std::vector<UploadedPart>>>([&] { return behind_->ListParts(upload); });
  }
  absl::StatusOr<std::vector<MultipartUpload>> ListUploads(const std::string& prefix) override {
    return Do<absl::StatusOr<std::vector<MultipartUpload>>>([&] { return behind_->ListUploads(prefix); });
  }

 private:
  template <typename Result, typename Request>
  Result Do(Request request) {
    const int number = ++requests_;
    const bool is_alive = at_ == 0 || number < at_ || (number == at_ && when_ == When::kAfter);
    const absl::Status killed = MakeError(absl::StatusCode::kCancelled, "STORE_TIMEOUT", "killed here");
    if (!is_alive) return killed;
    Result result = request();
    if (number == at_) return killed;
    return result;
  }

  ObjectStore* const behind_;
  const int at_;
  const When when_;
  std::atomic<int> requests_ = 0;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_KILLING_OBJECT_STORE_H_
