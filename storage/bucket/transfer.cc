#include "storage/bucket/transfer.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/format/manifest.h"

namespace ckptd {
namespace {

constexpr int kGetTries = 3;

}  // namespace

std::string CheckpointKey(const std::string& prefix, const std::string& tag) {
  return prefix.empty() ? tag + "/" : absl::StrCat(prefix, "/", tag, "/");
}

std::vector<FilePart> PartsOf(size_t file, int64_t file_size, int32_t chunk_bytes,
                              const TransferOptions& options) {
  const int64_t least = std::max(options.part_bytes, (file_size + kMaxParts - 1) / kMaxParts);
  const int64_t part_size = (least + chunk_bytes - 1) / chunk_bytes * chunk_bytes;
  std::vector<FilePart> parts;
  int64_t offset = 0;
  do {
    const int64_t size = std::min(part_size, file_size - offset);
    parts.push_back({file, static_cast<int>(parts.size()) + 1, offset, size});
    offset += size;
  } while (offset < file_size);
  return parts;
}

absl::Status CheckChunks(const storage::v1::FileRecord& record, int32_t chunk_bytes, int64_t offset,
                         std::span<const std::byte> bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const int64_t index = (offset + static_cast<int64_t>(done)) / chunk_bytes;
    const auto chunk = bytes.subspan(done, std::min<size_t>(chunk_bytes, bytes.size() - done));
    const uint32_t expected = record.chunk_crc32c(static_cast<int>(index)), found = Crc32c(chunk);
    if (found != expected) {
      return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_FILE",
                       absl::StrFormat("%s: chunk %d: CRC32C is 0x%08x, the manifest has 0x%08x",
                                       record.path(), index, found, expected),
                       {{"path", record.path()}, {"chunk", absl::StrCat(index)}});
    }
    done += chunk.size();
  }
  return absl::OkStatus();
}

absl::Status GetChecked(ObjectStore& store, const std::string& key, const storage::v1::FileRecord& record,
                        int32_t chunk_bytes, int64_t offset, std::span<std::byte> into) {
  return GetUndamaged([&]() -> absl::Status {
    CKPTD_RETURN_IF_ERROR(store.Get(key, offset, into));
    return CheckChunks(record, chunk_bytes, offset, into);
  });
}

absl::Status GetUndamaged(const std::function<absl::Status()>& get) {
  absl::Status status = get();
  for (int tries = 1; tries < kGetTries && ProvesDamage(status); ++tries) status = get();
  return status;
}

absl::Status PartBuffers::With(int64_t size, const std::function<absl::Status(std::span<std::byte>)>& use) {
  const size_t needed = static_cast<size_t>(size);
  Buffer buffer;
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      buffer = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (buffer.size < needed) buffer = {std::make_unique_for_overwrite<std::byte[]>(needed), needed};
  const absl::Status status = use(std::span(buffer.bytes.get(), needed));
  MutexLock lock(mutex_);
  idle_.push_back(std::move(buffer));
  return status;
}

absl::Status RunParallel(int threads, size_t count, const std::function<absl::Status(size_t)>& job) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  Mutex mutex;
  absl::Status first;
  const auto work = [&] {
    for (size_t i = next++; i < count && !failed; i = next++) {
      const absl::Status status = job(i);
      if (status.ok()) continue;
      failed = true;
      MutexLock lock(mutex);
      if (first.ok()) first = status;
    }
  };
  std::vector<std::thread> pool;
  for (size_t i = 1; i < std::min<size_t>(threads, count); ++i) pool.emplace_back(work);
  work();
  for (std::thread& thread : pool) thread.join();
  return first;
}

absl::StatusOr<std::set<std::string>> KeysBeneath(ObjectStore& store, const std::string& folder) {
  std::set<std::string> keys;
  std::string page;
  do {
    CKPTD_ASSIGN_OR_RETURN(const ObjectPage listed, store.List(folder, "", page));
    for (const ObjectInfo& object : listed.objects) keys.insert(object.key);
    page = listed.next;
  } while (!page.empty());
  return keys;
}

absl::StatusOr<bool> ComparesChecksums(ObjectStore& store, const std::string& key) {
  const absl::Status put = store.Put(key, {}, 1, PutMode::kReplace);
  if (ReasonOf(put) == "CORRUPT_TRANSFER") return true;
  CKPTD_RETURN_IF_ERROR(put);
  CKPTD_RETURN_IF_ERROR(store.Delete(key));
  return false;
}

absl::StatusOr<std::string> GetText(ObjectStore& store, const std::string& key) {
  CKPTD_ASSIGN_OR_RETURN(const ObjectInfo info, store.Head(key));
  std::string text(static_cast<size_t>(info.size), '\0');
  CKPTD_RETURN_IF_ERROR(store.Get(key, 0, std::as_writable_bytes(std::span(text))));
  return text;
}

absl::StatusOr<std::string> GetManifestText(ObjectStore& store, const std::string& key) {
  absl::StatusOr<std::string> text;
  GetUndamaged([&] {
    text = GetText(store, key);
    return text.ok() ? DecodeManifest(*text).status() : text.status();
  }).IgnoreError();
  return text;
}

absl::Status PutText(ObjectStore& store, const std::string& key, const std::string& text, PutMode mode) {
  const auto bytes = std::as_bytes(std::span(text));
  return store.Put(key, bytes, Crc32c(bytes), mode);
}

}  // namespace ckptd
