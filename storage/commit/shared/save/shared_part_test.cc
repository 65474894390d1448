// One node's part of a save of several nodes, written by the real PartWriter: power cuts, kills with late
// writes, and daemons that are paused at every step while their successors act.
#include "storage/commit/shared/save/shared_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/shared/run/look_again.h"
#include "storage/commit/shared/save/shared_inflight.h"
#include "storage/commit/shared/save/shared_manifest.h"
#include "storage/commit/shared/save/shared_publish.h"
#include "storage/commit/shared/save/shared_removal.h"
#include "storage/fs/posix_file_system.h"
#include "storage/io/io_queue.h"
#include "storage/io/part_writer.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/crash_io_queue.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/shared_root_fixture.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using storage::v1::NodePartRecord;
using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

const SharedInflight kSave{"step_1", 5, "step_1.5.00000000000000aa"};
const std::string kInflight = ".ckptd/shared/inflight/" + kSave.name;

void PlantInflight(CrashDisk& disk, const SharedInflight& save = kSave) {
  PlantAt(disk, ".ckptd/shared/inflight/" + save.name + "/.ckptd", FileType::kDirectory);
  PlantAt(disk, ".ckptd/shared/trash", FileType::kDirectory);
}

// The files of a part as segments hold them.
class Images {
 public:
  Images(const std::vector<std::string>& paths, char flavour) {
    for (const std::string& path : paths) {
      const std::string bytes = SharedBytesOf(kSave, path, flavour);
      const size_t room = (bytes.size() / 4096 + 1) * 4096;
      auto& memory =
          memory_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(4096, room)), &std::free);
      std::memset(memory.get(), 0, room);
      std::memcpy(memory.get(), bytes.data(), bytes.size());
      FileImage image{path, static_cast<int64_t>(bytes.size()), {}};
      if (!bytes.empty()) image.runs = {{memory.get(), bytes.size()}};
      images_.push_back(std::move(image));
    }
  }
  const std::vector<FileImage>& images() const { return images_; }

 private:
  std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> memory_;
  std::vector<FileImage> images_;
};

// A daemon of a node. `flavour`: what its writes look like, to tell them from those of other daemons.
struct Daemon {
  std::string node = "a";
  std::vector<int> ranks = {0, 1};
  int world_size = 2;
  char flavour = 'a';
  EarlierDaemon earlier = EarlierDaemon::kNone;
};

// Writes the files of all ranks through the part writer and a queue.
absl::Status WriteFiles(FileSystem& fs, IoQueueFactory queue, Handle target, const Daemon& daemon) {
  auto io = IoThread::Start("shared-part", std::move(queue));
  CKPTD_RETURN_IF_ERROR(io.status());
  ChecksumPool checksums(1);
  PartWriter writer(io->get(), &checksums, {.chunk_bytes = kSharedChunkBytes, .depth = 4});
  std::atomic<int64_t> written_bytes = 0;
  std::vector<std::string> paths;
  for (const int rank : daemon.ranks) {
    for (const std::string& path : SharedFilesOf(rank)) paths.push_back(path);
  }
  const Images images(paths, daemon.flavour);
  std::promise<absl::Status> done;
  std::future<absl::Status> answer = done.get_future();
  writer.Write(
      &fs, target, images.images(), &written_bytes,
      [&done](absl::StatusOr<std::vector<WrittenFile>> written) { done.set_value(written.status()); });
  if (answer.wait_for(std::chrono::minutes(5)) != std::future_status::ready)
    std::abort();  // It has the images.
  return answer.get();
}

// `fs`: `disk`, or what wraps it.
absl::StatusOr<std::string> WritePart(FileSystem& fs, CrashDisk& disk, const Daemon& daemon) {
  CKPTD_ASSIGN_OR_RETURN(const SharedLayout layout, OpenSharedLayout(&fs, disk.root()));
  CKPTD_ASSIGN_OR_RETURN(const NodePart part, BeginNodePart(layout, kSave, daemon.node, daemon.earlier));
  const NodePartRecord record =
      SharedRecordOf(kSave, daemon.node, daemon.ranks, daemon.world_size,
                     "incarnation of " + std::string(1, daemon.flavour), daemon.flavour);
  for (const int rank : daemon.ranks) CKPTD_RETURN_IF_ERROR(MakeRoomFor(fs, part, SharedFilesOf(rank)));
  CKPTD_RETURN_IF_ERROR(WriteFiles(fs, CrashQueueFactory(&disk), part.target(), daemon));
  return FinishNodePart(fs, part, record);
}

absl::StatusOr<std::string> WritePart(CrashDisk& disk, const Daemon& daemon) {
  return WritePart(disk, disk, daemon);
}

Daemon Successor(char flavour) { return {.flavour = flavour, .earlier = EarlierDaemon::kMayHaveWritten}; }

// All files of these ranks are what this daemon has written, and its record is read.
void ExpectPart(CrashDisk& disk, const std::string& digest, const Daemon& daemon) {
  for (const int rank : daemon.ranks) {
    for (const std::string& path : SharedFilesOf(rank)) {
      EXPECT_EQ(disk.Content(kInflight + "/" + path), SharedBytesOf(kSave, path, daemon.flavour)) << path;
    }
  }
  const SharedLayout layout = OpenShared(disk, disk.root());
  const auto records = ReadNodeParts(layout, kSave, {{daemon.node, digest}});
  ASSERT_TRUE(records.ok()) << records.status();
  EXPECT_EQ(records->front().incarnation(), "incarnation of " + std::string(1, daemon.flavour));
}

LedgerFacts Facts() {
  return {.tag = "step_1", .sequence = 5, .attempt = 1, .ordinal = 1, .times = {.this_us = 1000}};
}

// What the coordinator does when the node is durable.
absl::StatusOr<int64_t> Publish(const SharedLayout& layout, const std::string& digest, int64_t term) {
  CKPTD_ASSIGN_OR_RETURN(const auto parts, ReadNodeParts(layout, kSave, {{"a", digest}}));
  CKPTD_ASSIGN_OR_RETURN(const Manifest manifest, BuildSharedManifest(Facts(), parts));
  return PublishShared(layout, kSave, manifest, term);
}

void ExpectPublished(CrashDisk& disk, char flavour) {
  const auto manifest = ReadWholeManifest(disk, disk.root(), "step_1");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->body.files_size(), 6);
  for (const auto& file : manifest->body.files())
    EXPECT_EQ(disk.Content("step_1/" + file.path()), SharedBytesOf(kSave, file.path(), flavour))
        << file.path();
}

TEST(SharedPartTest, FilesAndRecordAreDurableOnReturn) {
  for (const EarlierDaemon earlier : {EarlierDaemon::kNone, EarlierDaemon::kMayHaveWritten}) {
    CrashDisk disk;
    PlantInflight(disk);
    const Daemon daemon{.earlier = earlier};
    const auto digest = WritePart(disk, daemon);
    ASSERT_TRUE(digest.ok()) << digest.status();
    for (const Loss loss : kLosses) ExpectPart(*disk.CutPower(loss, 1), *digest, daemon);
    EXPECT_THAT(disk.NamesIn(kInflight + "/.ckptd"), Each(Not(StartsWith("new."))));
    ExpectPart(disk, *digest, daemon);
  }
}

// Also below directories that the other node has made and not synced.
TEST(SharedPartTest, NodesShareTheDirectoriesOfTheirFiles) {
  CrashDisk disk;
  PlantInflight(disk);
  const Daemon a{.node = "a", .ranks = {0}}, b{.node = "b", .ranks = {1}};
  const SharedLayout layout = OpenShared(disk, disk.root());
  const auto part = BeginNodePart(layout, kSave, "a", EarlierDaemon::kNone);
  ASSERT_TRUE(part.ok()) << part.status();
  ASSERT_TRUE(MakeRoomFor(disk, *part, SharedFilesOf(0)).ok());
  const auto digest = WritePart(disk, b);
  ASSERT_TRUE(digest.ok()) << digest.status();
  ExpectPart(*disk.CutPower(Loss::kEverything, 1), *digest, b);
  const auto other = WritePart(disk, a);
  ASSERT_TRUE(other.ok()) << other.status();
  ExpectPart(*disk.CutPower(Loss::kEverything, 1), *other, a);
}

TEST(SharedPartTest, SecondNodeDoesNotWriteOverAFileOfTheFirst) {
  CrashDisk disk;
  PlantInflight(disk);
  const Daemon a{.node = "a", .ranks = {0}};
  const auto digest = WritePart(disk, a);
  ASSERT_TRUE(digest.ok());
  const auto second = WritePart(disk, {.node = "b", .ranks = {0}, .flavour = 'b'});
  EXPECT_EQ(ErrnoOf(second.status()), EEXIST) << second.status();
  ExpectPart(disk, *digest, a);
}

TEST(SharedPartTest, RefusesARecordThatIsNotOfThisPart) {
  CrashDisk disk;
  PlantInflight(disk);
  const SharedLayout layout = OpenShared(disk, disk.root());
  const auto part = BeginNodePart(layout, kSave, "a", EarlierDaemon::kNone);
  ASSERT_TRUE(part.ok());
  const SharedInflight other{"step_2", 6, "step_2.6.00000000000000bb"}, younger{"step_1", 6, kSave.name};
  for (const NodePartRecord& record :
       {SharedRecordOf(kSave, "b", {0}, 1, "i"), SharedRecordOf(other, "a", {0}, 1, "i"),
        SharedRecordOf(younger, "a", {0}, 1, "i")}) {
    EXPECT_EQ(ReasonOf(FinishNodePart(disk, *part, record).status()), "INVALID_ARGUMENT");
  }
  NodePartRecord bad = SharedRecordOf(kSave, "a", {0}, 1, "i");
  bad.mutable_files(0)->set_rank(1);
  EXPECT_EQ(ReasonOf(FinishNodePart(disk, *part, bad).status()), "CORRUPT_PART_RECORD");
  EXPECT_THAT(disk.NamesIn(kInflight + "/.ckptd"), IsEmpty());
}

TEST(SharedPartTest, PartOfASaveThatIsNotInFlightIsLookedForAgain) {
  CrashDisk disk;
  const SharedLayout layout = OpenShared(disk, disk.root());
  for (const EarlierDaemon earlier : {EarlierDaemon::kNone, EarlierDaemon::kMayHaveWritten})
    EXPECT_EQ(ReasonOf(BeginNodePart(layout, kSave, "a", earlier).status()), kLookAgain);
  EXPECT_EQ(ReasonOf(BeginNodePart(layout, kSave, "../b", EarlierDaemon::kNone).status()), "INVALID_TAG");
}

// Each call fails once: then there is no digest, or all is durable.
TEST(SharedPartTest, FailedCallIsAnErrorOrChangesNothing) {
  for (const EarlierDaemon earlier : {EarlierDaemon::kNone, EarlierDaemon::kMayHaveWritten}) {
    for (const FsOp operation : {FsOp::kOpen, FsOp::kMakeDir, FsOp::kRename, FsOp::kSync, FsOp::kWriteAt,
                                 FsOp::kList, FsOp::kTruncate, FsOp::kAllocate}) {
      int failed = 0;
      const int faults = FailEachCall(
          operation, EIO, [](CrashDisk& disk) { PlantInflight(disk); },
          [&](FaultyFileSystem& faulty, CrashDisk& disk) {
            const Daemon daemon{.earlier = earlier};
            const auto digest = WritePart(faulty, disk, daemon);
            if (digest.ok()) return ExpectPart(*disk.CutPower(Loss::kEverything, 1), *digest, daemon);
            EXPECT_EQ(ErrnoOf(digest.status()), EIO) << digest.status();
            ++failed;
          });
      const bool makes_names = earlier == EarlierDaemon::kMayHaveWritten || operation != FsOp::kList;
      if (makes_names) {
        EXPECT_GE(faults, 1) << FsOpName(operation);
      }
      if (operation == FsOp::kSync) {
        EXPECT_EQ(failed, faults);
      }
    }
  }
}

TEST(SharedPartTest, BothBackEndsWriteOnARealFileSystem) {
  for (const IoQueueFactory& queue :
       std::vector<IoQueueFactory>{[] { return MakeUringQueue(4); }, [] { return MakeThreadQueue(2); }}) {
    if (ReasonOf(queue().status()) == "IO_URING_UNAVAILABLE") continue;
    const TempDir root;
    const auto fs = MakePosixFileSystem();
    ASSERT_TRUE(fs.ok()) << fs.status();
    ASSERT_TRUE(MakeDirsDurably(**fs, root.fd(), kInflight + "/.ckptd").ok());
    const SharedLayout layout = OpenShared(**fs, root.fd());
    for (const Daemon& daemon : {Daemon{.flavour = 'x'}, Successor('b')}) {
      const auto part = BeginNodePart(layout, kSave, "a", daemon.earlier);
      ASSERT_TRUE(part.ok()) << part.status();
      for (const int rank : daemon.ranks) ASSERT_TRUE(MakeRoomFor(**fs, *part, SharedFilesOf(rank)).ok());
      const absl::Status written = WriteFiles(**fs, queue, part->target(), daemon);
      ASSERT_TRUE(written.ok()) << written;
      const auto digest =
          FinishNodePart(**fs, *part, SharedRecordOf(kSave, "a", {0, 1}, 2, "i", daemon.flavour));
      ASSERT_TRUE(digest.ok()) << digest.status();
      if (daemon.flavour == 'x') continue;
      ASSERT_EQ(Publish(layout, *digest, 1).value(), 0);
    }
    for (const std::string& path : SharedFilesOf(1))
      EXPECT_EQ(ReadSmallFile(**fs, root.fd(), "step_1/" + path, 1 << 20).value(),
                SharedBytesOf(kSave, path, 'b'));
  }
}

// ---- daemons that died, and daemons that are late

// A killed daemon's writes land when its successor is durable.
TEST(SharedPartTest, SuccessorOfADaemonThatCrashedAtAnyStepWritesAnew) {
  for (const EarlierDaemon earlier : {EarlierDaemon::kNone, EarlierDaemon::kMayHaveWritten}) {
    CrashDisk disk;
    PlantInflight(disk);
    const auto left = CrashEverywhere(disk, [&] {
      const auto written = WritePart(disk, Daemon{.flavour = 'x', .earlier = earlier});
      ASSERT_TRUE(written.ok()) << written.status();
    });
    EXPECT_GT(left.size(), 30 * kLosses.size());
    int late_writes = 0;
    for (const auto& after : left) {
      const auto digest = WritePart(*after, Successor('b'));
      ASSERT_TRUE(digest.ok()) << digest.status();
      late_writes += after->late_writes();
      after->LandLateWrites();
      ExpectPart(*after, *digest, Successor('b'));
      const auto cut = after->CutPower(Loss::kEverything, 1);
      ExpectPart(*cut, *digest, Successor('b'));
      EXPECT_THAT(cut->NamesIn(kInflight + "/.ckptd"), Each(Not(StartsWith("new."))));
    }
    EXPECT_GT(late_writes, 0);
  }
}

TEST(SharedPartTest, DaemonThatWasPausedWhileItWroteLeavesItsSuccessorsPartAlone) {
  for (int pause = 1;; ++pause) {
    CrashDisk disk;
    PlantInflight(disk);
    absl::StatusOr<std::string> digest = absl::UnknownError("no successor");
    const bool paused = RunPaused(
        disk, pause, [&] { WritePart(disk, Daemon{.flavour = 'x'}).status().IgnoreError(); },
        [&] { digest = WritePart(disk, Successor('b')); });
    if (!paused) {
      EXPECT_GT(pause, 30);
      return;
    }
    ASSERT_TRUE(digest.ok()) << "pause " << pause << ": " << digest.status();
    ExpectPart(disk, *digest, Successor('b'));
    ExpectPart(*disk.CutPower(Loss::kEverything, 1), *digest, Successor('b'));
  }
}

// Both write what the ranks had sealed, so their files have the same bytes; their records are their own.
TEST(SharedPartTest, SuccessorThatWasPausedLeavesTheCheckpointOfALaterOneWhole) {
  for (int pause = 1;; ++pause) {
    CrashDisk disk;
    PlantInflight(disk);
    const auto late = [&] { WritePart(disk, Successor('b')).status().IgnoreError(); };
    const bool paused = RunPaused(disk, pause, late, [&] {
      const SharedLayout layout = OpenShared(disk, disk.root());
      const NodePartRecord record = SharedRecordOf(kSave, "a", {0, 1}, 2, "the last one", 'b');
      const auto part = BeginNodePart(layout, kSave, "a", EarlierDaemon::kMayHaveWritten);
      ASSERT_TRUE(part.ok()) << part.status();
      for (const int rank : {0, 1}) ASSERT_TRUE(MakeRoomFor(disk, *part, SharedFilesOf(rank)).ok());
      ASSERT_TRUE(WriteFiles(disk, CrashQueueFactory(&disk), part->target(), Successor('b')).ok());
      const auto digest = FinishNodePart(disk, *part, record);
      ASSERT_TRUE(digest.ok()) << digest.status();
      ASSERT_EQ(Publish(layout, *digest, 1).value(), 0);
    });
    if (!paused) {
      EXPECT_GT(pause, 30);
      return;
    }
    ExpectPublished(disk, 'b');
    ExpectPublished(*disk.CutPower(Loss::kEverything, 1), 'b');
  }
}

// The save is published, removed again, and another one has its tag.
TEST(SharedPartTest, LateDaemonBringsNothingBack) {
  const SharedInflight younger{"step_1", 9, "step_1.9.00000000000000cc"};
  for (const Daemon& late : {Daemon{.flavour = 'x'}, Successor('b')}) {
    for (int pause = 1;; ++pause) {
      CrashDisk disk;
      PlantInflight(disk);
      PlantInflight(disk, younger);
      const auto first = [&] { WritePart(disk, late).status().IgnoreError(); };
      const bool paused = RunPaused(disk, pause, first, [&] {
        const SharedLayout layout = OpenShared(disk, disk.root());
        const auto digest = WritePart(disk, Successor('b'));
        ASSERT_TRUE(digest.ok()) << digest.status();
        ASSERT_EQ(Publish(layout, *digest, 1).value(), 0);
        RemovalBudget budget;
        ASSERT_TRUE(RemoveShared(layout, "step_1", 5, budget).value());
        const NodePartRecord record = SharedRecordOf(younger, "a", {0, 1}, 2, "i");
        const auto next = WriteSharedPart(disk, layout, younger, record);
        ASSERT_TRUE(next.ok()) << next.status();
        const auto parts = ReadNodeParts(layout, younger, {{"a", *next}});
        ASSERT_TRUE(parts.ok()) << parts.status();
        LedgerFacts facts = Facts();
        facts.sequence = 9;
        ASSERT_EQ(PublishShared(layout, younger, BuildSharedManifest(facts, *parts).value(), 1).value(), 0);
      });
      if (!paused) break;
      EXPECT_EQ(ReadSummary(disk, disk.root(), "step_1")->sequence(), 9) << "pause " << pause;
      for (const std::string& path : SharedFilesOf(0))
        EXPECT_EQ(disk.Content("step_1/" + path), SharedBytesOf(younger, path)) << path;
      EXPECT_THAT(disk.NamesIn(".ckptd/shared/inflight"), IsEmpty());
    }
  }
}

}  // namespace
}  // namespace ckptd
