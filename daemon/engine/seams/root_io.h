// Seam: what the engine asks of a root's file system on each node of its run, as asynchronous requests. Real:
// ThreadedRootIo (daemon/root_io), with one metadata worker and one I/O thread for each file system; fake:
// tests/testing. What only the coordinator of the run does is in coordinator_io.h, what only a run of one node
// does in local_root_io.h.
//
// Called on the engine's thread; every callback runs there, once, never inside the call. A hung file system
// never calls back: then pending_since() tells.
#ifndef CKPTD_DAEMON_ENGINE_SEAMS_ROOT_IO_H_
#define CKPTD_DAEMON_ENGINE_SEAMS_ROOT_IO_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/base/clock.h"
#include "storage/commit/checkpoint/foreign.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/commit/steps/types.h"
#include "storage/format/manifest.h"
#include "storage/io/part_writer.h"
#include "storage/io/probe.h"

namespace ckptd {

template <typename T>
using Callback = absl::AnyInvocable<void(T)>;

// What is known of a root once it is open.
struct RootSnapshot {
  ProbeResult probe;
  std::vector<RecoveredSave> recovered;
  std::map<int64_t, CommittedCheckpoint> committed;
  std::vector<DamagedCheckpoint> damaged;
  PointerFiles pointers;
  storage::v1::RunRecord run_record;
  int64_t highest_sequence = 0;
  int64_t highest_term = 0;  // In a root of several nodes: of the coordinators that have written in it.
  int64_t trash_bytes = 0;
  std::vector<ForeignTag> foreign;
  // In a root of several nodes: sequences of checkpoints that are being removed, while a newer one is on its
  // way to the tag of one of them.
  std::set<int64_t> leaving;
  std::vector<HalfRemoved> half_removed;
};

// A checkpoint that has just been published.
struct LoadedCheckpoint {
  CommittedCheckpoint checkpoint;
  PointerFiles pointers;
};

// A checkpoint that is being written; the engine names it by this number.
using InflightId64 = int64_t;

// A committed checkpoint that is open for reading: its files stay until it is destroyed, by any thread.
class CheckpointReader {
 public:
  virtual ~CheckpointReader() = default;
  virtual const Manifest& manifest() const = 0;
  // Reads and checks. Blocks; thread-safe; for a thread of the service's own, never the engine's.
  virtual absl::Status Read(const std::string& path, int64_t offset, std::span<std::byte> into) = 0;
};

// Where the bytes of a file go: memory that follows one another, as much as the file has.
struct FileTarget {
  std::string path;
  std::vector<std::span<std::byte>> runs;
};

class RootIo {
 public:
  virtual ~RootIo() = default;

  // First. Probes, locks, recovers, scans.
  virtual void Open(Callback<absl::StatusOr<RootSnapshot>> done) = 0;
  // Whether a save may have this tag and these pointers, as RootStore::CheckTarget says.
  virtual void CheckTarget(std::string tag, std::vector<std::string> pointers,
                           Callback<absl::Status> done) = 0;
  virtual void FreeBytes(Callback<absl::StatusOr<int64_t>> done) = 0;

  // Files on disk and synced, then the part record (record.files is filled in here). The images stay valid
  // until `done`. `base`: a checkpoint of this root; the files that it has with the same bytes, byte by byte, are
  // shared with it and not written. Null: all are written.
  virtual void WritePart(InflightId64 id, storage::v1::PartRecord record, std::vector<FileImage> files,
                         std::shared_ptr<CheckpointReader> base,
                         std::shared_ptr<std::atomic<int64_t>> written_bytes,
                         Callback<absl::StatusOr<storage::v1::PartRecord>> done) = 0;
  // Durably out of the way; only after every WritePart of it has called back.
  virtual void Discard(InflightId64 id, Callback<absl::Status> done) = 0;

  virtual void SetPinned(std::string tag, int64_t sequence, bool pinned, Callback<absl::Status> done) = 0;
  // As RootStore::SetDamage.
  virtual void SetDamage(std::string tag, int64_t sequence, std::optional<storage::v1::Damage> damage,
                         Callback<absl::StatusOr<PointerFiles>> done) = 0;
  // As RootStore::ReleasePointers.
  virtual void ReleasePointers(std::string tag, int64_t sequence,
                               Callback<absl::StatusOr<PointerFiles>> done) = 0;
  // DATA_LOSS when its manifest is damaged, or a file is not there or has another size; NOT_FOUND, reason
  // NO_CHECKPOINT, when its directory is gone.
  virtual void OpenCheckpoint(std::string tag, int64_t sequence,
                              Callback<absl::StatusOr<std::shared_ptr<CheckpointReader>>> done) = 0;
  virtual void Rescan(Callback<absl::StatusOr<RootSnapshot>> done) = 0;
  // Reads and checks what is on disk, and passes the bytes to no caller: at low priority, on a thread that
  // nothing else waits for.
  virtual void ReadBack(std::shared_ptr<CheckpointReader> reader, std::string path, int64_t offset,
                        int64_t size, Callback<absl::Status> done) = 0;
  // Reads whole files, and checks them, at the disk's speed: on the same thread, before what has a low
  // priority there. The targets stay valid until `done`. CANCELLED when the daemon ends.
  virtual void ReadFiles(std::shared_ptr<CheckpointReader> reader, std::vector<FileTarget> files,
                         Callback<absl::Status> done) = 0;
  // Whether what was written is in memory still, as it was then: see storage/io/check_images.h. The images
  // stay valid until `done`. Does not wait for the file system.
  virtual void CheckImages(std::vector<FileImage> images, std::vector<storage::v1::FileRecord> records,
                           int32_t chunk_bytes, Callback<absl::Status> done) = 0;

  // Checkpoints of other programs (storage/commit/checkpoint/foreign.h), oldest first. On the thread of
  // ReadBack: it may take long.
  virtual void ListForeign(Callback<absl::StatusOr<std::vector<ForeignCheckpoint>>> done) = 0;
  // There, too: reads one through, step by step.
  virtual void SurveyForeign(std::string tag, uid_t owner, int32_t chunk_bytes,
                             std::shared_ptr<SurveyProgress> progress,
                             Callback<absl::StatusOr<ForeignSurvey>> done) = 0;

  // When the operation that the metadata worker or the I/O thread is busy with began; nullopt when they are
  // idle.
  virtual std::optional<Instant> pending_since() const = 0;
  // Whether a callback is outstanding. An implementation that does not know says true: then its root is never
  // closed for being idle.
  virtual bool has_pending() const { return true; }
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SEAMS_ROOT_IO_H_
