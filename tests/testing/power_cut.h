// What a disk may lose in a power cut: the model that CrashDisk follows. Two kinds of changes are remembered
// until they are synced, and each may be lost by itself:
//
//   the bytes of a file, in sectors of 512 bytes, and its size     UnsyncedBytes
//   changes of names: create, rename, exchange, unlink             UnsyncedNames
//
// After a power cut
//
// - a sector is as it was at the last sync of its file, or as after any one write to it since: writes are
//   torn between sectors and reordered, within a file and between files, but never inside a sector;
// - a file's size is that of the last sync or any since, independently of its bytes. Space whose bytes were
//   lost holds zeros or garbage;
// - any subset of the name changes has happened. Each one that happened set its names as it did originally,
//   whether or not earlier ones happened. A change is atomic, also a rename between two directories or an
//   exchange;
// - a name change is durable when every directory that it touches was synced after it. So a rename between
//   two directories needs two syncs, and syncing a file does not make its name durable;
// - a sync makes durable what was complete when it began. Writes that were still in flight (in an I/O queue)
//   may be lost.
//
// This loses more than ext4, xfs or btrfs do: they keep name changes in order (never a later one without an
// earlier one), make both sides of a rename durable with either directory, make the name of a new file
// durable with its fsync, and return zeros for allocated space that was never written. It loses less than the
// worst case: no file system here forgets half of a rename, loses what it reported as synced (a disk that
// ignores flushes), damages what was not being written, or loses a directory's changes when one sync failed
// and a later one succeeded (a journaling file system stops for good when it cannot write its journal). The
// bytes of a file are lost that way: see UnsyncedBytes::FailSync.
#ifndef CKPTD_TESTS_TESTING_POWER_CUT_H_
#define CKPTD_TESTS_TESTING_POWER_CUT_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace ckptd {

// Which part of the unsynced state is lost.
enum class Loss {
  kNothing,
  kEverything,
  kData,     // Bytes and sizes; name changes survive.
  kBytes,    // Only bytes: files keep their sizes and hold garbage.
  kEntries,  // Only name changes.
  kRandom,   // Depends on the seed: few, half or most of each kind.
};
std::string NameOf(Loss loss);

// The choices of one power cut. The same loss and seed choose the same.
class PowerCut {
 public:
  PowerCut(Loss loss, uint64_t seed);
  bool KeepsName();
  // 0: the synced version; `versions`: the newest.
  size_t PickBytes(size_t versions);
  size_t PickSize(size_t versions);
  char filler() const { return filler_; }  // Fills bytes that were lost and never synced.

 private:
  bool Chance(uint64_t eighths) { return random_() % 8 < eighths; }
  size_t Pick(size_t versions, uint64_t keep_eighths);

  const Loss loss_;
  std::mt19937_64 random_;
  uint64_t keep_names_, keep_bytes_, keep_sizes_;  // Eighths.
  char filler_;
};

// The contents of a regular file.
class UnsyncedBytes {
 public:
  static constexpr size_t kSector = 512;

  UnsyncedBytes() = default;
  explicit UnsyncedBytes(std::string synced) : now_(synced), synced_(std::move(synced)) {}

  const std::string& now() const { return now_; }  // What a process reads.
  void Write(size_t offset, std::span<const std::byte> bytes);
  void Resize(size_t size);
  void Sync();
  // A sync failed: what was unsynced at that time can still be read, but no later sync writes it.
  void FailSync();
  bool unsynced() const { return !sectors_.empty() || !sizes_.empty(); }
  std::string After(PowerCut& cut) const;

 private:
  struct Version {
    std::string bytes;  // A whole sector.
    bool forgotten = false;
  };
  struct Size {
    size_t size;
    bool forgotten = false;
  };
  void Remember(size_t from, size_t to);  // Records that these bytes have changed.

  std::string now_;
  std::string synced_;
  std::map<size_t, std::vector<Version>> sectors_;  // Unsynced versions, oldest first.
  std::vector<Size> sizes_;
};

using Inode = uint64_t;  // 0: none.

struct Slot {
  Inode directory;
  std::string name;
  auto operator<=>(const Slot&) const = default;
};
using Names = std::map<Slot, Inode>;

// The names of a whole file system.
class UnsyncedNames {
 public:
  UnsyncedNames() = default;
  explicit UnsyncedNames(Names synced) : synced_(std::move(synced)) {}

  // One change: the inodes that it sets at some names, and the inodes that it moved and that have no other
  // name.
  void Change(std::vector<std::pair<Slot, Inode>> sets, std::vector<Inode> moved = {});
  void Sync(Inode directory);
  bool unsynced() const { return !log_.empty(); }
  Names After(PowerCut& cut) const;

 private:
  struct Entry {
    std::vector<std::pair<Slot, Inode>> sets;
    std::vector<Inode> moved;
    std::set<Inode> unsynced;  // Directories not synced since; empty: the change is durable.
  };

  Names synced_;
  std::deque<Entry> log_;  // The first entry is not durable; later ones may be.
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_POWER_CUT_H_
