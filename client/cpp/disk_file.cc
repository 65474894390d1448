#include "client/cpp/disk_file.h"

#include <vector>

#include "client/cpp/copy.h"
#include "storage/base/status_macros.h"
#include "storage/commit/verify.h"
#include "storage/io/verified_read.h"

namespace ckptd::client {
namespace {

void InParallel(int shares, void (*work)(void*, int), void* context) {
  ParallelFor(shares, shares, [=](int share) { work(context, share); });
}

}  // namespace

absl::Status ReadFromDisk(FileSystem& fs, Handle checkpoint_dir, const storage::v1::FileRecord& record,
                          int32_t chunk_bytes, int64_t offset, std::span<std::byte> into, int threads) {
  const auto size = static_cast<uint64_t>(record.size_bytes());
  const uint64_t chunks = chunk_bytes < 1 ? 0 : (size + chunk_bytes - 1) / chunk_bytes;
  const auto offset_in_file = static_cast<uint64_t>(offset);
  // Whatever else there is to say about a file, a reader that has the time says it.
  if (chunks == 0 || offset < 0 || static_cast<uint64_t>(record.chunk_crc32c_size()) != chunks ||
      offset_in_file > size || into.size() > size - offset_in_file) {
    return ReadVerified(fs, checkpoint_dir, record, chunk_bytes, offset, into);
  }
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file,
                         OpenScoped(fs, checkpoint_dir, record.path(), OpenMode::kRead));
  const std::vector<uint32_t> expected(record.chunk_crc32c().begin(), record.chunk_crc32c().end());
  const auto address = reinterpret_cast<uint64_t>(into.data());
  const uint64_t length = into.size();
  const VerifiedRead read{.fd = file.get(),
                          .file_size = size,
                          .chunk_bytes = static_cast<uint64_t>(chunk_bytes),
                          .expected = expected.data(),
                          .offsets = &offset_in_file,
                          .addresses = &address,
                          .lengths = &length,
                          .count = 1,
                          .threads = threads};
  if (ReadVerifiedChunks(read, InParallel).error == 0) return absl::OkStatus();
  return ReadVerified(fs, checkpoint_dir, record, chunk_bytes, offset, into);
}

}  // namespace ckptd::client
