// The seal journal: which checkpoints every rank has sealed and that are not on disk yet, in a memfd that the
// service manager keeps for the next daemon, beside the segments with the bytes.
//
// Each change writes the whole of it, for it is small: into the area that is not in use, then a head that
// makes this area the one in use, then zeros over the other head. So it is what it was before a change or
// what it is after it, at whichever instruction the daemon is killed; and a damaged head is seen, and never
// makes an older state, whose memory may have been lent again, the valid one.
//
//   0         head of area 0    magic "CKPTDJNL", u32 version, u32 records, u64 generation, u64 length of the
//   4 KiB     head of area 1    records, u32 CRC32C of the 32 bytes before it (all little-endian)
//   1 MiB     area 0            records: SealedSave, each in a frame (storage/format/frame.h) of magic
//   17 MiB    area 1            "CKPTDSLD", one behind the other
#ifndef CKPTD_DAEMON_SUCCESSION_SEAL_JOURNAL_H_
#define CKPTD_DAEMON_SUCCESSION_SEAL_JOURNAL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/base/unique_fd.h"

namespace ckptd {

// Used on one thread, but for size().
class SealJournal {
 public:
  static constexpr int64_t kHeadBytes = 36;
  static constexpr int64_t kHeadOffset[2] = {0, 4 << 10};
  static constexpr int64_t kAreaOffset[2] = {1 << 20, 17 << 20};
  static constexpr int64_t kAreaBytes = 16 << 20;
  static constexpr int64_t kFileBytes = 33 << 20;  // Only what is written takes memory.

  // A new and empty one.
  static absl::StatusOr<std::unique_ptr<SealJournal>> Create();

  struct Found {
    std::unique_ptr<SealJournal> journal;
    std::vector<storage::v1::SealedSave> saves;  // By sequence within a root.
    std::vector<std::string> damaged;            // What of it cannot be believed, in words.
  };
  // The one of an earlier daemon, which goes on with it. DATA_LOSS, reason CORRUPT_JOURNAL, when nothing in
  // it can be believed; FAILED_PRECONDITION, reason NEWER_FORMAT, when a newer daemon has written it.
  static absl::StatusOr<Found> Open(UniqueFd file);

  int fd() const { return file_.get(); }

  // On return the next daemon finds it. RESOURCE_EXHAUSTED when there is no room: then it is as before.
  absl::Status Keep(const storage::v1::SealedSave& save);
  // On return no daemon finds it any more. When the machine has not even the memory for that, the journal is
  // emptied, and the error says how many others went with it.
  absl::Status Drop(const storage::v1::SealedSave& save);
  // How many it holds. Thread-safe.
  int size() const { return size_.load(std::memory_order_relaxed); }

  // For tests: hears of each write before it happens.
  void OnWrite(std::function<void(int64_t offset, std::string_view bytes)> hook) { hook_ = std::move(hook); }

 private:
  using Key = std::tuple<uint64_t, uint64_t, int64_t>;  // Device, inode, sequence.
  explicit SealJournal(UniqueFd file) : file_(std::move(file)) {}
  static Key KeyOf(const storage::v1::SealedSave& save);
  absl::Status WriteAt(int64_t offset, std::string_view bytes);
  absl::Status WriteAll();

  const UniqueFd file_;
  std::map<Key, std::string> records_;  // Framed.
  uint64_t generation_ = 0;
  int area_ = 1;  // In use.
  std::atomic<int> size_ = 0;
  std::function<void(int64_t, std::string_view)> hook_;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_SUCCESSION_SEAL_JOURNAL_H_
