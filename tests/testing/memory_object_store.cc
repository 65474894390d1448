#include "tests/testing/memory_object_store.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr size_t kPageSize = 1000;

std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

absl::Status NoObject(const std::string& key) {
  return MakeError(absl::StatusCode::kNotFound, "NO_OBJECT", absl::StrCat("no object or upload ", key));
}

}  // namespace

void MemoryObjectStore::Damage(const std::string& key, size_t at) {
  MutexLock lock(mutex_);
  objects_.at(key).at(at) ^= 1;
}

std::map<std::string, std::string> MemoryObjectStore::objects() {
  MutexLock lock(mutex_);
  return objects_;
}

size_t MemoryObjectStore::uploads_in_flight() {
  MutexLock lock(mutex_);
  return uploads_.size();
}

absl::Status MemoryObjectStore::CheckSum(std::span<const std::byte> bytes, uint32_t crc32c) const {
  if (lacks_.checksums || Crc32c(bytes) == crc32c) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_TRANSFER", "the CRC32C is another one");
}

absl::StatusOr<std::string*> MemoryObjectStore::Find(const std::string& key) {
  const auto found = objects_.find(key);
  if (found == objects_.end()) return NoObject(key);
  return &found->second;
}

absl::StatusOr<MemoryObjectStore::Parts*> MemoryObjectStore::FindUpload(const MultipartUpload& upload) {
  const auto found = uploads_.find({upload.key, upload.id});
  if (found == uploads_.end()) return NoObject(upload.key);
  return &found->second;
}

absl::Status MemoryObjectStore::Put(const std::string& key, std::span<const std::byte> bytes, uint32_t crc32c,
                                    PutMode mode) {
  CKPTD_RETURN_IF_ERROR(Begin("Put", key));
  CKPTD_RETURN_IF_ERROR(CheckSum(bytes, crc32c));
  MutexLock lock(mutex_);
  if (mode == PutMode::kIfAbsent && !lacks_.conditional_put && objects_.contains(key))
    return MakeError(absl::StatusCode::kAlreadyExists, "OBJECT_EXISTS", key);
  objects_[key] = TextOf(bytes);
  return absl::OkStatus();
}

absl::Status MemoryObjectStore::Get(const std::string& key, int64_t offset, std::span<std::byte> into) {
  CKPTD_RETURN_IF_ERROR(Begin("Get", key));
  MutexLock lock(mutex_);
  CKPTD_ASSIGN_OR_RETURN(const std::string* const object, Find(key));
  if (offset + into.size() > object->size()) {
    return MakeError(absl::StatusCode::kOutOfRange, "SHORT_OBJECT",
                     absl::StrCat(key, " has ", object->size(), " bytes"));
  }
  object->copy(reinterpret_cast<char*>(into.data()), into.size(), offset);
  return absl::OkStatus();
}

absl::StatusOr<ObjectInfo> MemoryObjectStore::Head(const std::string& key) {
  CKPTD_RETURN_IF_ERROR(Begin("Head", key));
  MutexLock lock(mutex_);
  CKPTD_ASSIGN_OR_RETURN(const std::string* const object, Find(key));
  return ObjectInfo{key, static_cast<int64_t>(object->size())};
}

// A page's name is the last entry of the page before.
absl::StatusOr<ObjectPage> MemoryObjectStore::List(const std::string& prefix, const std::string& delimiter,
                                                   const std::string& page) {
  CKPTD_RETURN_IF_ERROR(Begin("List", prefix));
  MutexLock lock(mutex_);
  ObjectPage result;
  std::string last = page;
  for (auto at = objects_.lower_bound(std::max(prefix, page)); at != objects_.end(); ++at) {
    const auto& [key, bytes] = *at;
    if (!absl::StartsWith(key, prefix)) break;
    const size_t end = delimiter.empty() ? key.npos : key.find(delimiter, prefix.size());
    const std::string entry = end == key.npos ? key : key.substr(0, end + delimiter.size());
    if (entry <= last) continue;
    if (result.objects.size() + result.folders.size() == kPageSize) {
      result.next = last;
      break;
    }
    if (end == key.npos) {
      result.objects.push_back({key, static_cast<int64_t>(bytes.size())});
    } else {
      result.folders.push_back(entry);
    }
    last = entry;
  }
  return result;
}

absl::Status MemoryObjectStore::Delete(const std::string& key) {
  CKPTD_RETURN_IF_ERROR(Begin("Delete", key));
  MutexLock lock(mutex_);
  objects_.erase(key);
  return absl::OkStatus();
}

absl::Status MemoryObjectStore::Copy(const std::string& from, const std::string& to) {
  CKPTD_RETURN_IF_ERROR(Begin("Copy", to));
  MutexLock lock(mutex_);
  CKPTD_ASSIGN_OR_RETURN(const std::string* const object, Find(from));
  objects_[to] = std::string(*object);
  return absl::OkStatus();
}

absl::StatusOr<MultipartUpload> MemoryObjectStore::BeginUpload(const std::string& key) {
  CKPTD_RETURN_IF_ERROR(Begin("BeginUpload", key));
  MutexLock lock(mutex_);
  MultipartUpload upload{key, absl::StrCat("upload-", ++last_upload_)};
  uploads_[{upload.key, upload.id}];
  return upload;
}

absl::StatusOr<UploadedPart> MemoryObjectStore::PutPart(const MultipartUpload& upload, int number,
                                                        std::span<const std::byte> bytes, uint32_t crc32c) {
  CKPTD_RETURN_IF_ERROR(Begin("PutPart", upload.key));
  CKPTD_RETURN_IF_ERROR(CheckSum(bytes, crc32c));
  MutexLock lock(mutex_);
  CKPTD_ASSIGN_OR_RETURN(Parts* const parts, FindUpload(upload));
  UploadedPart part{number, static_cast<int64_t>(bytes.size()), crc32c, absl::StrCat("\"", crc32c, "\"")};
  (*parts)[number] = {part, TextOf(bytes)};
  return part;
}

absl::Status MemoryObjectStore::CompleteUpload(const MultipartUpload& upload,
                                               const std::vector<UploadedPart>& parts) {
  CKPTD_RETURN_IF_ERROR(Begin("CompleteUpload", upload.key));
  MutexLock lock(mutex_);
  CKPTD_ASSIGN_OR_RETURN(Parts* const arrived, FindUpload(upload));
  std::string object;
  for (const UploadedPart& part : parts) {
    const auto found = arrived->find(part.number);
    const bool is_last = part.number == parts.back().number;
    if (found == arrived->end() || found->second.info.etag != part.etag ||
        (!is_last && part.size < kMinPartBytes)) {
      return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_REFUSED",
                       absl::StrCat("part ", part.number, " has not arrived like that, or is too small"));
    }
    object += found->second.bytes;
  }
  objects_[upload.key] = std::move(object);
  uploads_.erase({upload.key, upload.id});
  return absl::OkStatus();
}

absl::Status MemoryObjectStore::AbortUpload(const MultipartUpload& upload) {
  CKPTD_RETURN_IF_ERROR(Begin("AbortUpload", upload.key));
  MutexLock lock(mutex_);
  uploads_.erase({upload.key, upload.id});
  return absl::OkStatus();
}

absl::StatusOr<std::vector<UploadedPart>> MemoryObjectStore::ListParts(const MultipartUpload& upload) {
  CKPTD_RETURN_IF_ERROR(Begin("ListParts", upload.key));
  MutexLock lock(mutex_);
  CKPTD_ASSIGN_OR_RETURN(const Parts* const arrived, FindUpload(upload));
  std::vector<UploadedPart> parts;
  for (const auto& [number, part] : *arrived) parts.push_back(part.info);
  return parts;
}

absl::StatusOr<std::vector<MultipartUpload>> MemoryObjectStore::ListUploads(const std::string& prefix) {
  CKPTD_RETURN_IF_ERROR(Begin("ListUploads", prefix));
  MutexLock lock(mutex_);
  std::vector<MultipartUpload> uploads;
  for (const auto& [id, parts] : uploads_)
    if (absl::StartsWith(id.first, prefix)) uploads.push_back({id.first, id.second});
  return uploads;
}

}  // namespace ckptd
