// The seal journal: the checkpoints that every rank has sealed and that are not committed yet. It is a memfd
// that the service manager keeps for the next daemon, beside the segments that hold the bytes. Each change
// writes the whole journal, which is small: the records into the area that is not in use, then a head that
// makes this area the current one, then zeros over the other head. So at whichever instruction the daemon is
// killed, the next one finds the state before the change or the state after it. Since the old head is zeroed,
// a damaged head is detected and never brings back an older state, whose memory may have been lent again.
//
//   0         head of area 0    magic "CKPTDJNL", u32 version, u32 records, u64 generation, u64 length of the
//   4 KiB     head of area 1    records, u32 CRC32C of the 32 bytes before it (all little-endian)
//   1 MiB     area 0            records: SealedSave messages one after the other, each in a frame
//   17 MiB    area 1            (storage/format/frame.h) of magic "CKPTDSLD"
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

// Used on one thread, except for size().
class SealJournal {
 public:
  static constexpr int64_t kHeadBytes = 36;
  static constexpr int64_t kHeadOffset[2] = {0, 4 << 10};
  static constexpr int64_t kAreaOffset[2] = {1 << 20, 17 << 20};
  static constexpr int64_t kAreaBytes = 16 << 20;
  static constexpr int64_t kFileBytes = 33 << 20;  // Sparse: only written pages take memory.

  // Makes a new, empty journal.
  static absl::StatusOr<std::unique_ptr<SealJournal>> Create();

  struct Found {
    std::unique_ptr<SealJournal> journal;
    std::vector<storage::v1::SealedSave> saves;  // Ordered by sequence within each root.
    std::vector<std::string> damaged;            // One message for each record that is lost.
  };
  // Opens the journal of an earlier daemon, to continue it. DATA_LOSS, reason CORRUPT_JOURNAL, when no head
  // is intact; FAILED_PRECONDITION, reason NEWER_FORMAT, when a newer daemon has written it.
  static absl::StatusOr<Found> Open(UniqueFd file);

  int fd() const { return file_.get(); }

  // When this returns OK, the next daemon finds `save`. RESOURCE_EXHAUSTED when there is no room; the journal
  // is unchanged then.
  absl::Status Keep(const storage::v1::SealedSave& save);
  // When this returns, no daemon finds `save` any more. If writing fails (the machine is out of memory), the
  // journal is emptied instead, and the error says how many other saves it lost.
  absl::Status Drop(const storage::v1::SealedSave& save);
  // Number of saves in the journal. Thread-safe.
  int size() const { return size_.load(std::memory_order_relaxed); }

  // For tests: called before each write.
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
