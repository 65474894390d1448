// A root that several daemons share, on a CrashDisk: parts of saves, losses to try, an actor that is paused
// while another one acts, and a fault at every call.
#ifndef CKPTD_TESTS_TESTING_SHARED_ROOT_FIXTURE_H_
#define CKPTD_TESTS_TESTING_SHARED_ROOT_FIXTURE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/commit/shared/run/shared_layout.h"
#include "storage/commit/shared/save/shared_part.h"
#include "storage/commit/shared/save/shared_publish.h"
#include "storage/format/names.h"
#include "storage/fs/file_system.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/power_cut.h"

namespace ckptd {

inline const std::vector<Loss> kLosses = {Loss::kNothing, Loss::kEverything, Loss::kData,
                                          Loss::kBytes,   Loss::kEntries,    Loss::kRandom};
inline constexpr int32_t kSharedChunkBytes = 4096;

// Plants a file or an empty directory, with the directories above it.
template <typename What>
void PlantAt(CrashDisk& disk, const std::string& path, What what) {
  for (const std::string& parent : ParentDirectories(path)) disk.Plant(parent, FileType::kDirectory);
  disk.Plant(path, what);
}

// Fails the test on error.
SharedLayout OpenShared(FileSystem& fs, Handle root);

// The files of a rank: two in a directory that it shares with other ranks, of two chunks and of none, and one
// beside.
std::vector<std::string> SharedFilesOf(int rank);
// `flavour` stands for what a daemon writes: the same for all in reality.
std::string SharedBytesOf(const SharedInflight& save, const std::string& path, char flavour = 'a');
// The record of a node's part, as its daemon makes it.
storage::v1::NodePartRecord SharedRecordOf(const SharedInflight& save, const std::string& node,
                                           const std::vector<int>& ranks, int world_size,
                                           const std::string& incarnation, char flavour = 'a');
// Writes files, durably, and the record. Returns its digest.
absl::StatusOr<std::string> WriteSharedPart(FileSystem& fs, const SharedLayout& layout,
                                            const SharedInflight& save,
                                            const storage::v1::NodePartRecord& record,
                                            EarlierDaemon earlier = EarlierDaemon::kNone);

// Runs `first`; at its `pause`th change, `other` runs from beginning to end. False: it has fewer changes.
bool RunPaused(CrashDisk& disk, int pause, const std::function<void()>& first,
               const std::function<void()>& other);

// The same with any number of actors: the first is paused at its `pauses[0]`th change, where the second
// begins, which is paused at its `pauses[1]`th, and so on; the last one runs to its end. Returns how many
// were paused.
size_t RunPausedInTurn(CrashDisk& disk, const std::vector<int>& pauses,
                       const std::vector<std::function<void()>>& actors);

// What is left by a crash after each change of `operation`: power cuts with all losses, and a kill.
std::vector<std::unique_ptr<CrashDisk>> CrashEverywhere(CrashDisk& disk,
                                                        const std::function<void()>& operation);

// Prepares a disk and runs `body`, once for each call of `operation` that `body` makes; that call fails.
// Returns the number of calls that failed.
int FailEachCall(FsOp operation, int error, const std::function<void(CrashDisk&)>& prepare,
                 const std::function<void(FaultyFileSystem&, CrashDisk&)>& body);

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_SHARED_ROOT_FIXTURE_H_
