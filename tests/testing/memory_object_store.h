// An ObjectStore in memory, that lacks what a test says, and fails where a test says so.
#ifndef CKPTD_TESTS_TESTING_MEMORY_OBJECT_STORE_H_
#define CKPTD_TESTS_TESTING_MEMORY_OBJECT_STORE_H_

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "storage/base/mutex.h"
#include "storage/object/object_store.h"

namespace ckptd {

struct MemoryStoreLacks {
  bool conditional_put = false;  // kIfAbsent replaces.
  bool checksums = false;        // A wrong CRC32C is accepted.
};

class MemoryObjectStore : public ObjectStore {
 public:
  explicit MemoryObjectStore(MemoryStoreLacks lacks = {}) : lacks_(lacks) {}

  // Called before each request with its name and key ("PutPart", "run/step_1/a.pt"), while no lock is held;
  // an error that it returns is the request's, which is not done.
  using Hook = std::function<absl::Status(const std::string& request, const std::string& key)>;
  void SetHook(Hook hook) { hook_ = std::move(hook); }
  // Changes a stored object, as a fault of the store would.
  void Damage(const std::string& key, size_t at);
  std::map<std::string, std::string> objects();
  size_t uploads_in_flight();

  absl::Status Put(const std::string& key, std::span<const std::byte> bytes, uint32_t crc32c,
                   PutMode mode) override;
  absl::Status Get(const std::string& key, int64_t offset, std::span<std::byte> into) override;
  absl::StatusOr<ObjectInfo> Head(const std::string& key) override;
  absl::StatusOr<ObjectPage> List(const std::string& prefix, const std::string& delimiter,
                                  const std::string& page) override;
  absl::Status Delete(const std::string& key) override;
  absl::Status Copy(const std::string& from, const std::string& to) override;
  absl::StatusOr<MultipartUpload> BeginUpload(const std::string& key) override;
  absl::StatusOr<UploadedPart> PutPart(const MultipartUpload& upload, int number,
                                       std::span<const std::byte> bytes, uint32_t crc32c) override;
  absl::Status CompleteUpload(const MultipartUpload& upload, const std::vector<UploadedPart>& parts) override;
  absl::Status AbortUpload(const MultipartUpload& upload) override;
  absl::StatusOr<std::vector<UploadedPart>> ListParts(const MultipartUpload& upload) override;
  absl::StatusOr<std::vector<MultipartUpload>> ListUploads(const std::string& prefix) override;

 private:
  struct Part {
    UploadedPart info;
    std::string bytes;
  };
  using Parts = std::map<int, Part>;

  absl::Status Begin(const char* request, const std::string& key) {
    return hook_ == nullptr ? absl::OkStatus() : hook_(request, key);
  }
  absl::Status CheckSum(std::span<const std::byte> bytes, uint32_t crc32c) const;
  absl::StatusOr<std::string*> Find(const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Parts*> FindUpload(const MultipartUpload& upload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const MemoryStoreLacks lacks_;
  Hook hook_;
  Mutex mutex_;
  std::map<std::string, std::string> objects_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<std::string, std::string>, Parts> uploads_ ABSL_GUARDED_BY(mutex_);  // By key and id.
  int last_upload_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_MEMORY_OBJECT_STORE_H_
