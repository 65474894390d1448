// The manifest of a save of several nodes: what is read of their records, and what becomes of them.
#include "storage/commit/shared/save/shared_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "storage/base/errors.h"
#include "storage/commit/shared/run/look_again.h"
#include "storage/commit/shared/save/shared_publish.h"
#include "storage/format/frame.h"
#include "storage/format/names.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/shared_root_fixture.h"

namespace ckptd {
namespace {

using storage::v1::FileRecord;
using storage::v1::NodePartRecord;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

const SharedInflight kSave{"step_1", 5, "step_1.5.00000000000000aa"};
const std::string kOurs = ".ckptd/shared/inflight/" + kSave.name + "/.ckptd";
using Digests = std::map<std::string, std::string>;

LedgerFacts Facts() {
  return {.tag = "step_1", .sequence = 5, .attempt = 1, .ordinal = 1, .times = {.this_us = 1234}};
}

// The parts of three ranks on two nodes.
std::vector<NodePartRecord> Parts() {
  return {SharedRecordOf(kSave, "a", {1, 2}, 3, "i"), SharedRecordOf(kSave, "b", {0}, 3, "j")};
}

Digests WriteParts(CrashDisk& disk) {
  PlantAt(disk, kOurs, FileType::kDirectory);
  const SharedLayout layout = OpenShared(disk, disk.root());
  Digests digests;
  for (const NodePartRecord& part : Parts()) {
    const auto digest = WriteSharedPart(disk, layout, kSave, part);
    EXPECT_TRUE(digest.ok()) << digest.status();
    if (digest.ok()) digests[part.node()] = *digest;
  }
  return digests;
}

TEST(ReadNodePartsTest, ReadsTheRecordsOfAllNodes) {
  CrashDisk disk;
  const Digests digests = WriteParts(disk);
  const auto parts = ReadNodeParts(OpenShared(disk, disk.root()), kSave, digests);
  ASSERT_TRUE(parts.ok()) << parts.status();
  ASSERT_EQ(parts->size(), 2U);
  EXPECT_EQ((*parts)[0].SerializeAsString(), Parts()[0].SerializeAsString());
  EXPECT_EQ((*parts)[1].SerializeAsString(), Parts()[1].SerializeAsString());
}

TEST(ReadNodePartsTest, RecordThatIsStaleOrAbsentIsLookedForAgain) {
  CrashDisk disk;
  Digests digests = WriteParts(disk);
  const SharedLayout layout = OpenShared(disk, disk.root());
  // A late daemon's record, which the ledger does not know.
  const auto other = WriteSharedPart(disk, layout, kSave, SharedRecordOf(kSave, "a", {1, 2}, 3, "late"),
                                     EarlierDaemon::kMayHaveWritten);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(ReadNodeParts(layout, kSave, digests)->front().incarnation(), "i");

  digests["a"] = "00000000-77";
  const auto absent = ReadNodeParts(layout, kSave, digests);
  EXPECT_EQ(ReasonOf(absent.status()), kLookAgain);
  EXPECT_THAT(std::string(absent.status().message()), HasSubstr("node a"));
  // What this node reads is older than what has this name.
  for (const std::string& stale : {std::string("cut"), EncodeNodePartRecord(Parts()[0])}) {
    disk.Plant(kOurs + "/" + NodePartRecordName("a", digests["a"]), stale);
    EXPECT_EQ(ReasonOf(ReadNodeParts(layout, kSave, digests).status()), kLookAgain);
  }
  const SharedInflight gone{"step_1", 5, "step_1.5.00000000000000bb"};
  EXPECT_EQ(ReasonOf(ReadNodeParts(layout, gone, digests).status()), kLookAgain);
}

TEST(ReadNodePartsTest, RefusesWhatIsNoNameOfARecord) {
  CrashDisk disk;
  WriteParts(disk);
  const SharedLayout layout = OpenShared(disk, disk.root());
  EXPECT_EQ(ReasonOf(ReadNodeParts(layout, kSave, {{"a", "../../x"}}).status()), "INVALID_TAG");
  EXPECT_EQ(ReasonOf(ReadNodeParts(layout, kSave, {{"../a", "00000000-77"}}).status()), "INVALID_TAG");
}

TEST(ReadNodePartsTest, RecordOfAnotherSaveOrNodeIsDamage) {
  CrashDisk disk;
  WriteParts(disk);
  const SharedLayout layout = OpenShared(disk, disk.root());
  const SharedInflight younger{"step_1", 6, kSave.name};
  for (const NodePartRecord& wrong :
       {SharedRecordOf(younger, "a", {1, 2}, 3, "i"), SharedRecordOf(kSave, "c", {1, 2}, 3, "i")}) {
    const std::string bytes = EncodeNodePartRecord(wrong);
    disk.Plant(kOurs + "/" + NodePartRecordName("a", DigestOf(bytes)), bytes);
    EXPECT_EQ(ReasonOf(ReadNodeParts(layout, kSave, {{"a", DigestOf(bytes)}}).status()),
              "CORRUPT_PART_RECORD");
  }
}

// An error of the disk says neither that a record is absent nor that it is damaged.
TEST(ReadNodePartsTest, EveryFailedCallIsItself) {
  const Digests digests = [] {
    CrashDisk disk;
    return WriteParts(disk);
  }();
  const std::map<int, std::string> reasons = {{EIO, "IO_ERROR"}, {EMFILE, "EMFILE"}, {ESTALE, kLookAgain}};
  for (const auto& fault : reasons) {
    for (const FsOp operation : {FsOp::kOpen, FsOp::kStat, FsOp::kReadAt}) {
      int failed = 0;
      const int faults = FailEachCall(
          operation, fault.first, [](CrashDisk& disk) { WriteParts(disk); },
          [&](FaultyFileSystem& faulty, CrashDisk& disk) {
            const auto layout = OpenSharedLayout(&faulty, disk.root());
            if (!layout.ok()) {
              ++failed;
              return;
            }
            const auto parts = ReadNodeParts(*layout, kSave, digests);
            if (parts.ok()) return;
            EXPECT_EQ(ReasonOf(parts.status()), fault.second) << parts.status();
            ++failed;
          });
      EXPECT_GE(faults, 2) << FsOpName(operation);
      EXPECT_EQ(failed, faults) << FsOpName(operation);
    }
  }
}

// ---- the manifest

TEST(BuildSharedManifestTest, ListsAllFilesOfAllRanksByPath) {
  const auto manifest = BuildSharedManifest(Facts(), Parts());
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->summary.file_count(), 9);
  EXPECT_EQ(manifest->summary.commit_time_us(), 1234);
  EXPECT_EQ(manifest->summary.world_size(), 3);
  int64_t size = 0;
  for (const FileRecord& file : manifest->body.files()) {
    size += file.size_bytes();
    EXPECT_THAT(file.path(), HasSubstr(std::to_string(file.rank())));
  }
  EXPECT_EQ(manifest->summary.size_bytes(), size);
  const auto decoded = DecodeManifest(EncodeManifest(*manifest).value());
  EXPECT_TRUE(decoded.ok()) << decoded.status();
}

// Whatever order the records come in, and whoever builds it.
TEST(BuildSharedManifestTest, EveryCoordinatorMakesTheSameBytes) {
  std::vector<NodePartRecord> parts = Parts();
  for (size_t i = 0; i < parts.size(); ++i) {
    auto& summary = *parts[i].mutable_checkpoint();
    summary.set_create_time_us(100 + static_cast<int64_t>(i));
    summary.set_step(static_cast<int64_t>(i));
    (*summary.mutable_metrics())["loss"] = static_cast<double>(i);
    (*summary.mutable_pointers())["latest"] = "of " + std::to_string(i);
    (*summary.mutable_pointers())["best_" + std::to_string(i)] = "step_1";
  }
  LedgerFacts facts = Facts();
  facts.inherited_pointers = {{"old", "step_1"}, {"latest", "inherited"}};
  const auto one = BuildSharedManifest(facts, parts);
  std::reverse(parts.begin(), parts.end());
  const auto other = BuildSharedManifest(facts, parts);
  ASSERT_TRUE(one.ok() && other.ok()) << one.status() << other.status();
  EXPECT_EQ(EncodeManifest(*one).value(), EncodeManifest(*other).value());
  // Rank 0 is on node b, which was the second.
  EXPECT_EQ(one->summary.create_time_us(), 101);
  EXPECT_EQ(one->summary.step(), 1);
  EXPECT_THAT(one->summary.pointers(), UnorderedElementsAre(Pair("latest", "of 1"), Pair("best_0", "step_1"),
                                                            Pair("best_1", "step_1"), Pair("old", "step_1")));
}

// Two nodes whose clocks are apart begin one save after the other.
TEST(BuildSharedManifestTest, TimeOfItsBeginFollowsTheSequenceWhateverTheClocksOfTheNodesShow) {
  const auto begun = [](int64_t by_its_node) {
    std::vector<NodePartRecord> parts = Parts();
    for (NodePartRecord& part : parts) part.mutable_checkpoint()->set_create_time_us(by_its_node);
    LedgerFacts facts = Facts();
    facts.times = {.earlier_us = 1000, .this_us = 2000};
    return BuildSharedManifest(facts, parts)->summary.create_time_us();
  };
  EXPECT_EQ(begun(1500), 1500);
  EXPECT_EQ(begun(10), 1001);
  EXPECT_EQ(begun(9999), 2000);
}

TEST(BuildSharedManifestTest, SuspectSaveNamesNoPointer) {
  std::vector<NodePartRecord> parts = Parts();
  (*parts[1].mutable_checkpoint()->mutable_pointers())["latest"] = "step_1";
  parts[0].mutable_checkpoint()->set_suspect("NaN on rank 1");
  LedgerFacts facts = Facts();
  facts.inherited_pointers = {{"old", "step_1"}};
  const auto manifest = BuildSharedManifest(facts, parts);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->summary.suspect(), "NaN on rank 1");
  EXPECT_TRUE(manifest->summary.pointers().empty());
}

TEST(BuildSharedManifestTest, InheritedPointersWithoutRoomAreLeftOut) {
  LedgerFacts facts = Facts();
  for (int i = 0; i < 12; ++i) facts.inherited_pointers["pointer_" + std::to_string(i)] = "step_1";
  const auto manifest = BuildSharedManifest(facts, Parts());
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->summary.pointers_size(), static_cast<int>(kMaxPointers));
}

TEST(BuildSharedManifestTest, TwoRanksWithOnePlaceAreAConflict) {
  for (const std::string& path :
       {std::string("model/rank_0.pt"), std::string("model/rank_0.pt/x"), std::string("model")}) {
    std::vector<NodePartRecord> parts = Parts();
    parts[0].mutable_files(0)->set_path(path);
    const absl::Status refused = BuildSharedManifest(Facts(), parts).status();
    EXPECT_EQ(ReasonOf(refused), "FILE_CONFLICT") << path;
    EXPECT_EQ(DetailsOf(refused).count("ranks"), 1U);
  }
}

TEST(BuildSharedManifestTest, NodesWithoutAnythingToSaveHaveNoPart) {
  LedgerFacts facts = Facts();
  const NodePartRecord part = Parts()[0];
  facts.ranks = {part.ranks().begin(), part.ranks().end()};
  const auto manifest = BuildSharedManifest(facts, {part});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->body.files_size(), part.files_size());
  facts.ranks.push_back(part.ranks(part.ranks_size() - 1) + 1);
  EXPECT_EQ(ReasonOf(BuildSharedManifest(facts, {part}).status()), "INVALID_ARGUMENT");
}

TEST(BuildSharedManifestTest, RefusesPartsThatAreNotThoseOfAllRanks) {
  EXPECT_EQ(ReasonOf(BuildSharedManifest(Facts(), {}).status()), "INVALID_ARGUMENT");
  EXPECT_THAT(std::string(BuildSharedManifest(Facts(), {Parts()[0]}).status().message()),
              HasSubstr("rank 0"));
  std::vector<NodePartRecord> twice = Parts();
  twice.push_back(SharedRecordOf(kSave, "c", {0}, 3, "k"));
  EXPECT_THAT(std::string(BuildSharedManifest(Facts(), twice).status().message()), HasSubstr("two parts"));
}

TEST(BuildSharedManifestTest, RefusesPartsOfOtherSaves) {
  using Spoil = std::function<void(storage::v1::ManifestSummary&)>;
  for (const Spoil& spoil :
       std::vector<Spoil>{[](auto& s) { s.set_tag("step_2"); }, [](auto& s) { s.set_sequence(6); },
                          [](auto& s) { s.set_attempt(2); }, [](auto& s) { s.set_ordinal(2); },
                          [](auto& s) { s.set_world_size(4); }, [](auto& s) { s.set_run_id("other"); }}) {
    std::vector<NodePartRecord> parts = Parts();
    spoil(*parts[0].mutable_checkpoint());
    const absl::Status refused = BuildSharedManifest(Facts(), parts).status();
    EXPECT_EQ(ReasonOf(refused), "INVALID_ARGUMENT");
    EXPECT_THAT(std::string(refused.message()), HasSubstr("node a"));
  }
  std::vector<NodePartRecord> parts = Parts();
  parts[0].mutable_checkpoint()->set_chunk_bytes(8192);
  EXPECT_THAT(std::string(BuildSharedManifest(Facts(), parts).status().message()),
              HasSubstr("io.chunk_bytes"));
}

}  // namespace
}  // namespace ckptd
