// What a disk may lose when the power goes: the model that CrashDisk follows. Two kinds of things are
// remembered until they are synced, and each may be lost by itself:
//
//   the bytes of a file, in sectors of 512 bytes, and its size     UnsyncedBytes
//   changes of names: create, rename, exchange, unlink             UnsyncedNames
//
// After a cut
//
//   - a sector is as it was at the last sync of its file, or as after any one write to it since: writes are
//     torn between sectors and reordered, within a file and between files, and never inside a sector;
//   - a file's size is that of the last sync or any since, whatever became of the bytes. Space whose bytes
//     were lost holds zeros or garbage;
//   - any subset of the changes of names has happened. One that has left its names as it left them, whatever
//     came of those before it. One change is whole or not at all, also a rename between two directories or an
//     exchange;
//   - a change of names is safe when every directory that it touches was synced after it. So a rename between
//     two directories needs two syncs, and syncing a file says nothing about its name;
//   - a sync makes safe what was complete when it began. What its file still had under way (an I/O queue) may
//     be lost.
//
// More than ext4, xfs or btrfs ever lose: they keep changes of names in their order (a later one never
// without an earlier one), make both sides of a rename safe with either directory, make the name of a new
// file safe with its fsync, and return zeros for allocated space that was never written. Less than the worst
// that there is: no file system here forgets half of one rename, loses what it said was synced (a disk that
// lies about its flush), damages what was not being written, or loses a directory's changes when a sync of it
// failed and a later one succeeded (a file system that keeps a journal stops for good when it cannot write
// it). A file's bytes are lost that way: see UnsyncedBytes::FailSync.
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

// What of that which was not synced is lost.
enum class Loss {
  kNothing,
  kEverything,
  kData,     // Bytes and sizes; names are as they were left.
  kBytes,    // Only bytes: files have their sizes and hold garbage.
  kEntries,  // Only changes of names.
  kRandom,   // By the seed: a few, half or most of each kind.
};
std::string NameOf(Loss loss);

// The choices of one cut. The same loss and seed choose the same.
class PowerCut {
 public:
  PowerCut(Loss loss, uint64_t seed);
  bool KeepsName();
  // 0: as synced; `versions`: the newest.
  size_t PickBytes(size_t versions);
  size_t PickSize(size_t versions);
  char filler() const { return filler_; }  // Where bytes were lost that were never synced.

 private:
  bool Chance(uint64_t eighths) { return random_() % 8 < eighths; }
  size_t Pick(size_t versions, uint64_t keep_eighths);

  const Loss loss_;
  std::mt19937_64 random_;
  uint64_t keep_names_, keep_bytes_, keep_sizes_;  // Eighths.
  char filler_;
};

// A regular file.
class UnsyncedBytes {
 public:
  static constexpr size_t kSector = 512;

  UnsyncedBytes() = default;
  explicit UnsyncedBytes(std::string synced) : now_(synced), synced_(std::move(synced)) {}

  const std::string& now() const { return now_; }  // What a process reads.
  void Write(size_t offset, std::span<const std::byte> bytes);
  void Resize(size_t size);
  void Sync();
  // The sync said no: what was not synced then is forgotten, and no later sync writes it. It is read, until
  // it is lost.
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
  void Remember(size_t from, size_t to);  // That these bytes have changed.

  std::string now_;
  std::string synced_;
  std::map<size_t, std::vector<Version>> sectors_;  // Unsynced ones, oldest version first.
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

  // One change: what it leaves at some names, and which inodes are nowhere else afterwards.
  void Change(std::vector<std::pair<Slot, Inode>> sets, std::vector<Inode> moved = {});
  void Sync(Inode directory);
  bool unsynced() const { return !log_.empty(); }
  Names After(PowerCut& cut) const;

 private:
  struct Entry {
    std::vector<std::pair<Slot, Inode>> sets;
    std::vector<Inode> moved;
    std::set<Inode> unsynced;  // Directories that were not synced since; empty: it is safe.
  };

  Names synced_;
  std::deque<Entry> log_;  // The first one is not safe; later ones may be.
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_POWER_CUT_H_
