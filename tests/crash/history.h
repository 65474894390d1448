// A history: what a daemon does with one root, by the real RootStore and PartWriter on a CrashDisk, while the
// oracle records every message and the explorer simulates a crash after every operation and every message.
#ifndef CKPTD_TESTS_CRASH_HISTORY_H_
#define CKPTD_TESTS_CRASH_HISTORY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/commit/local/root_store.h"
#include "storage/io/part_writer.h"
#include "tests/crash/explorer.h"
#include "tests/crash/oracle.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/root_store_fixture.h"

namespace ckptd {

class History {
 public:
  History(CrashDiskOptions disk, ExplorerOptions explorer);
  ~History();

  CrashDisk& disk() { return *disk_; }
  RootStore& store() { return *store_; }
  Oracle& oracle() { return oracle_; }
  const Explorer& explorer() const { return explorer_; }

  // From now on every operation is a crash point (or none is).
  void Explore(bool on);

  void Open();
  // Ends the daemon, by its death or a power cut; the next daemon opens the root.
  void Restart(std::optional<Loss> power_cut = std::nullopt, uint64_t seed = 1);

  struct Begun {
    SaveSpec save;
    Inflight inflight;
    std::vector<storage::v1::PartRecord> parts;
    absl::Status status;  // Why a part was not written.
  };
  // Does steps 1 to 3 for the first `ranks` ranks (all if negative), whose files are written concurrently.
  // The save gets the next sequence.
  // `pointed`: the save names the pointer `latest`.
  Begun Begin(const std::string& tag, int ranks = -1, int world_size = 2, bool pointed = false);
  // Does steps 4 to 6; a failed save is discarded.
  SaveVerdict Publish(Begun begun);
  SaveVerdict Save(const std::string& tag) { return Publish(Begin(tag)); }
  SaveVerdict SavePointed(const std::string& tag) { return Publish(Begin(tag, -1, 2, true)); }
  void Discard(const Begun& begun);
  // Saves, evicts all but the newest `keep` checkpoints, and empties the trash.
  void SaveAndRetain(const std::string& tag, size_t keep);
  void Evict(const std::string& tag, int64_t sequence);
  // Brings it back from the trash.
  void Undelete(const std::string& tag, int64_t sequence);
  void EmptyTrash();
  void Pin(const std::string& tag, int64_t sequence, bool pinned);
  void SaveRunRecord(const std::string& run_id);
  void Rescan();

  int64_t last_sequence() const { return last_sequence_; }

 private:
  void Said(const std::string& what);
  absl::StatusOr<std::vector<std::vector<WrittenFile>>> WriteFiles(const Begun& begun, int ranks);
  void StartWriter();

  Explorer explorer_;
  Oracle oracle_;
  FakeClock clock_;
  std::unique_ptr<CrashDisk> disk_;
  std::unique_ptr<RootStore> store_;
  std::unique_ptr<IoThread> io_;
  std::unique_ptr<ChecksumPool> checksums_;
  std::unique_ptr<PartWriter> writer_;
  bool exploring_ = false;
  int64_t last_sequence_ = 0;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_CRASH_HISTORY_H_
