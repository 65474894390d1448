#include "tests/testing/shared_root_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/status_macros.h"

namespace ckptd {

SharedLayout OpenShared(FileSystem& fs, Handle root) {
  auto layout = OpenSharedLayout(&fs, root);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.ok() ? *std::move(layout) : SharedLayout();
}

std::vector<std::string> SharedFilesOf(int rank) {
  return {absl::StrCat("model/rank_", rank, ".pt"), absl::StrCat("model/empty_", rank),
          absl::StrCat("state_", rank, ".pt")};
}

std::string SharedBytesOf(const SharedInflight& save, const std::string& path, char flavour) {
  if (path.find("empty") != std::string::npos) return "";
  std::string bytes = absl::StrCat(path, " of ", save.sequence, std::string(1, flavour));
  if (path.starts_with("model/")) bytes.resize(kSharedChunkBytes + 777, flavour);
  return bytes;
}

storage::v1::NodePartRecord SharedRecordOf(const SharedInflight& save, const std::string& node,
                                           const std::vector<int>& ranks, int world_size,
                                           const std::string& incarnation, char flavour) {
  storage::v1::NodePartRecord record;
  record.set_format_version(1);
  record.set_node(node);
  record.set_incarnation(incarnation);
  storage::v1::ManifestSummary& summary = *record.mutable_checkpoint();
  summary.set_format_version(1);
  summary.set_run_id("run");
  summary.set_tag(save.tag);
  summary.set_sequence(save.sequence);
  summary.set_attempt(1);
  summary.set_ordinal(1);
  summary.set_world_size(world_size);
  summary.set_chunk_bytes(kSharedChunkBytes);
  for (const int rank : ranks) {
    record.add_ranks(rank);
    for (const std::string& path : SharedFilesOf(rank)) {
      storage::v1::FileRecord& file = *record.add_files();
      const std::string bytes = SharedBytesOf(save, path, flavour);
      file.set_path(path);
      file.set_rank(rank);
      file.set_size_bytes(static_cast<int64_t>(bytes.size()));
      for (size_t at = 0; at < bytes.size(); at += kSharedChunkBytes) {
        const std::string_view chunk = std::string_view(bytes).substr(at, kSharedChunkBytes);
        file.add_chunk_crc32c(Crc32c(std::as_bytes(std::span(chunk.data(), chunk.size()))));
      }
    }
  }
  return record;
}

absl::StatusOr<std::string> WriteSharedPart(FileSystem& fs, const SharedLayout& layout,
                                            const SharedInflight& save,
                                            const storage::v1::NodePartRecord& record,
                                            EarlierDaemon earlier) {
  CKPTD_ASSIGN_OR_RETURN(const NodePart part, BeginNodePart(layout, save, record.node(), earlier));
  std::vector<std::string> paths;
  for (const auto& file : record.files()) paths.push_back(file.path());
  CKPTD_RETURN_IF_ERROR(MakeRoomFor(fs, part, paths));
  for (const std::string& path : paths)
    CKPTD_RETURN_IF_ERROR(WriteNewFile(fs, part.target(), path, SharedBytesOf(save, path)));
  return FinishNodePart(fs, part, record);
}

bool RunPaused(CrashDisk& disk, int pause, const std::function<void()>& first,
               const std::function<void()>& other) {
  return RunPausedInTurn(disk, {pause}, {first, other}) == 1;
}

size_t RunPausedInTurn(CrashDisk& disk, const std::vector<int>& pauses,
                       const std::vector<std::function<void()>>& actors) {
  size_t running = 0;  // The latest actor that began.
  int changes = 0;     // Its own.
  bool resumed = false;
  disk.OnChange([&](const std::string&) {
    if (resumed || running == pauses.size() || ++changes != pauses[running]) return;
    changes = 0;
    actors[++running]();
    resumed = true;  // Who goes on is not paused again.
  });
  actors[0]();
  disk.OnChange(nullptr);
  return running;
}

std::vector<std::unique_ptr<CrashDisk>> CrashEverywhere(CrashDisk& disk,
                                                        const std::function<void()>& operation) {
  std::vector<std::unique_ptr<CrashDisk>> left;
  disk.OnChange([&](const std::string&) {
    for (const Loss loss : kLosses) left.push_back(disk.CutPower(loss, left.size()));
    left.push_back(disk.Kill());
  });
  operation();
  disk.OnChange(nullptr);
  return left;
}

int FailEachCall(FsOp operation, int error, const std::function<void(CrashDisk&)>& prepare,
                 const std::function<void(FaultyFileSystem&, CrashDisk&)>& body) {
  for (int nth = 1;; ++nth) {
    CrashDisk disk;
    prepare(disk);
    FaultyFileSystem faulty(&disk);
    faulty.Fail({.op = operation, .nth = nth, .error = error});
    body(faulty, disk);
    if (faulty.Count(operation) < nth) return nth - 1;
  }
}

}  // namespace ckptd
