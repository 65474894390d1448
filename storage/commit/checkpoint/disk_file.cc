#include "storage/commit/checkpoint/disk_file.h"

#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/verify.h"
#include "storage/io/verified_read.h"

namespace ckptd {
namespace {

void ByThreads(int shares, void (*work)(void*, int), void* context) {
  std::atomic<int> next{0};
  const auto run = [&] {
    for (int share = next++; share < shares; share = next++) work(context, share);
  };
  std::vector<std::thread> threads;
  try {
    for (int i = 1; i < shares; ++i) threads.emplace_back(run);
  } catch (const std::system_error&) {
    // The system allows no more threads: those that there are do all of the work.
  }
  run();
  for (std::thread& thread : threads) thread.join();
}

// The slow reader, which gives errors in full detail.
absl::Status ReadSlowly(FileSystem& fs, Handle checkpoint_dir, const storage::v1::FileRecord& record,
                        int32_t chunk_bytes, std::span<const FilePiece> pieces) {
  for (const FilePiece& piece : pieces)
    CKPTD_RETURN_IF_ERROR(ReadVerified(fs, checkpoint_dir, record, chunk_bytes, piece.offset, piece.into));
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadFromDisk(FileSystem& fs, Handle checkpoint_dir, const storage::v1::FileRecord& record,
                          int32_t chunk_bytes, int64_t offset, std::span<const std::span<std::byte>> runs,
                          int threads, const int32_t* stop) {
  std::vector<FilePiece> pieces;
  for (const std::span<std::byte> run : runs) {
    pieces.push_back({offset, run});
    offset += static_cast<int64_t>(run.size());
  }
  return ReadFromDisk(fs, checkpoint_dir, record, chunk_bytes, pieces, threads, stop);
}

absl::Status ReadFromDisk(FileSystem& fs, Handle checkpoint_dir, const storage::v1::FileRecord& record,
                          int32_t chunk_bytes, std::span<const FilePiece> pieces, int threads,
                          const int32_t* stop, uint64_t* done) {
  const auto size = static_cast<uint64_t>(record.size_bytes());
  const uint64_t chunks = chunk_bytes < 1 ? 0 : (size + chunk_bytes - 1) / chunk_bytes;
  std::vector<uint64_t> offsets, addresses, lengths;
  uint64_t end = 0;
  bool inside = chunks > 0 && static_cast<uint64_t>(record.chunk_crc32c_size()) == chunks;
  for (const auto& [offset, into] : pieces) {
    const auto at = static_cast<uint64_t>(offset);
    inside = inside && offset >= 0 && at >= end && at <= size && into.size() <= size - at;
    if (!inside) break;
    end = at + into.size();
    if (into.empty()) continue;
    offsets.push_back(at);
    addresses.push_back(reinterpret_cast<uint64_t>(into.data()));
    lengths.push_back(into.size());
  }
  if (!inside) return ReadSlowly(fs, checkpoint_dir, record, chunk_bytes, pieces);
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file,
                         OpenScoped(fs, checkpoint_dir, record.path(), OpenMode::kRead));
  const std::vector<uint32_t> expected(record.chunk_crc32c().begin(), record.chunk_crc32c().end());
  const VerifiedRead read{.fd = file.get(),
                          .file_size = size,
                          .chunk_bytes = static_cast<uint64_t>(chunk_bytes),
                          .expected = expected.data(),
                          .offsets = offsets.data(),
                          .addresses = addresses.data(),
                          .lengths = lengths.data(),
                          .count = offsets.size(),
                          .threads = threads,
                          .done = done,
                          .stop = stop};
  const int error = ReadVerifiedChunks(read, ByThreads).error;
  if (error == 0) return absl::OkStatus();
  if (error == ECANCELED) return absl::CancelledError("the read was stopped");
  const absl::Status slowly = ReadSlowly(fs, checkpoint_dir, record, chunk_bytes, pieces);
  // A read through the page cache reports every failure as EIO. A direct read tells a medium error apart.
  if (CouldNotFindOut(slowly) && (error == ENODATA || error == EILSEQ)) {
    return MakeError(
        absl::StatusCode::kDataLoss, "CORRUPT_FILE",
        absl::StrCat("the disk has lost bytes of ", record.path(), ": ", std::string(slowly.message())),
        {{"path", record.path()}});
  }
  return slowly;
}

}  // namespace ckptd
