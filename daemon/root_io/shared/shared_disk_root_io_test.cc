// Tests of SharedFilesIo on real directories: three nodes, each with its own threads, share one root.
#include "daemon/root_io/shared/shared_disk_root_io.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/event_loop.h"
#include "daemon/root_io/threaded_root_io.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "storage/fs/posix_file_system.h"
#include "tests/testing/file_images.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr seconds kTimeout{60};
constexpr int kWorld = 3;

std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// A rank's only file, of a size of its own.
Images ImagesOf(int rank, const std::string& path) {
  Images images;
  images.Add(path, 100'000 * (rank + 1) + rank, static_cast<char>('a' + rank));
  return images;
}

struct Node {
  std::string name;
  std::unique_ptr<EventLoop> loop;
  std::unique_ptr<ThreadedRootIoFactory> factory;
  std::unique_ptr<SharedFilesIo> io;
  std::shared_ptr<CheckpointReader> base;  // Of the parts that it writes.
};

class SharedDiskRootIoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < kWorld; ++i) {
      Node& node = nodes_[static_cast<size_t>(i)];
      node.name = absl::StrCat("node", i);
      node.loop = std::make_unique<EventLoop>("engine");
      ThreadedRootIoOptions options;
      options.backend = IoBackend::kThreads;
      options.writer.chunk_bytes = 64 << 10;
      options.staleness = milliseconds(300);
      node.factory = std::make_unique<ThreadedRootIoFactory>(
          options, &SystemClock(),
          [&node](absl::AnyInvocable<void()> work) { node.loop->Post(std::move(work)); });
      node.io = node.factory
                    ->MakeShared(UniqueFd(open(dir_.path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)),
                                 std::nullopt, {.node = node.name, .incarnation = "of " + node.name})
                    .value();
    }
  }
  void TearDown() override {
    for (Node& node : nodes_) {
      node.io.reset();
      EXPECT_THAT(node.factory->Close(kTimeout), IsEmpty());
      node.factory.reset();
      node.loop.reset();
    }
  }
  Node& node(int i) { return nodes_[static_cast<size_t>(i)]; }

  // Calls `ask` with a callback on the node's engine thread. Returns what the callback gets.
  template <typename T, typename Ask>
  T Wait(Node& node, Ask ask) {
    auto promise = std::make_shared<std::promise<T>>();
    std::future<T> answer = promise->get_future();
    node.loop->Post([promise, ask] { ask([promise](T result) { promise->set_value(std::move(result)); }); });
    EXPECT_EQ(answer.wait_for(kTimeout), std::future_status::ready) << "no answer";
    return answer.get();
  }
  absl::StatusOr<RootSnapshot> Open(Node& node) {
    return Wait<absl::StatusOr<RootSnapshot>>(node, [&](auto done) { node.io->Open(std::move(done)); });
  }
  void OpenAll() {
    for (Node& node : nodes_) {
      const auto snapshot = Open(node);
      ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    }
  }
  absl::StatusOr<RootSnapshot> Rescan(Node& node) {
    return Wait<absl::StatusOr<RootSnapshot>>(node, [&](auto done) { node.io->Rescan(std::move(done)); });
  }
  absl::StatusOr<std::string> RunId(Node& node) {
    const auto run = Wait<absl::StatusOr<SharedFilesIo::RunOfRoot>>(
        node, [&](auto done) { node.io->RunId(std::move(done)); });
    if (!run.ok()) return run.status();
    struct stat found {};
    EXPECT_EQ(stat(dir_.path().c_str(), &found), 0);
    EXPECT_EQ(run->inode, found.st_ino);
    EXPECT_EQ(run->uid, found.st_uid);
    return run->id;
  }
  absl::Status BeginTerm(Node& node, int64_t term) {
    return Wait<absl::Status>(node, [&](auto done) { node.io->BeginTerm(term, std::move(done)); });
  }
  // With all nodes.
  std::future<absl::StatusOr<NodesTried>> Try(Node& node, Duration patience = kTimeout) {
    auto promise = std::make_shared<std::promise<absl::StatusOr<NodesTried>>>();
    NodesToTry trying;
    trying.self = node.name;
    trying.nodes = {"node0", "node1", "node2"};
    trying.attempt = 1;
    trying.visibility = seconds(10);
    trying.patience = trying.longest = patience;
    node.loop->Post([&node, promise, trying] {
      node.io->TryNodes(
          trying, [promise](absl::StatusOr<NodesTried> tried) { promise->set_value(std::move(tried)); });
    });
    return promise->get_future();
  }
  SharedInflight MakeInflight(Node& node, const std::string& tag, int64_t sequence) {
    const auto name = Wait<absl::StatusOr<std::string>>(
        node, [&](auto done) { node.io->MakeInflight(tag, sequence, std::move(done)); });
    EXPECT_TRUE(name.ok()) << name.status();
    return {tag, sequence, name.value_or("")};
  }
  absl::Status OpenPart(Node& node, const SharedInflight& save) {
    return Wait<absl::Status>(node, [&](auto done) {
      node.io->OpenPart(save.sequence, save.tag, save.sequence, save.name, std::move(done));
    });
  }
  absl::StatusOr<storage::v1::PartRecord> Write(Node& node, const SharedInflight& save, int rank,
                                                const std::string& path = "") {
    storage::v1::PartRecord record;
    record.set_format_version(1);
    record.set_rank(rank);
    record.set_sequence(save.sequence);
    storage::v1::ManifestSummary& checkpoint = *record.mutable_checkpoint();
    checkpoint.set_format_version(1);
    checkpoint.set_run_id("run");
    checkpoint.set_tag(save.tag);
    checkpoint.set_sequence(save.sequence);
    checkpoint.set_attempt(1);
    checkpoint.set_ordinal(1);
    checkpoint.set_world_size(kWorld);
    checkpoint.set_chunk_bytes(64 << 10);
    (*checkpoint.mutable_pointers())["latest"] = save.tag;
    if (!only_here_.empty()) (*checkpoint.mutable_pointers())[only_here_] = save.tag;
    const Images images = ImagesOf(rank, path.empty() ? PathOf(rank) : path);
    return Wait<absl::StatusOr<storage::v1::PartRecord>>(node, [&](auto done) {
      node.io->WritePart(save.sequence, record, images.files(), node.base, nullptr, std::move(done));
    });
  }
  absl::StatusOr<std::string> Finish(Node& node, const SharedInflight& save,
                                     std::vector<storage::v1::PartRecord> parts) {
    return Wait<absl::StatusOr<std::string>>(
        node, [&](auto done) { node.io->FinishPart(save.sequence, parts, std::move(done)); });
  }
  static std::string PathOf(int rank) { return absl::StrCat("model/rank_", rank, ".pt"); }
  // Each node writes the part of its rank. Returns the digests by node.
  std::map<std::string, std::string> WriteAll(const SharedInflight& save) {
    std::map<std::string, std::string> digests;
    for (int rank = 0; rank < kWorld; ++rank) {
      const absl::Status opened = OpenPart(node(rank), save);
      EXPECT_TRUE(opened.ok()) << opened;
      const auto part = Write(node(rank), save, rank);
      EXPECT_TRUE(part.ok()) << part.status();
      if (!part.ok()) continue;
      const auto digest = Finish(node(rank), save, {*part});
      EXPECT_TRUE(digest.ok()) << digest.status();
      digests[node(rank).name] = digest.value_or("");
    }
    return digests;
  }
  static SharedRootIo::Publication PublicationOf(const SharedInflight& save,
                                                 const std::map<std::string, std::string>& digests) {
    return {.save = save,
            .attempt = 1,
            .ordinal = 1,
            .ranks = {},
            .times = {.this_us = 1'700'000'000'000'000},
            .digests = digests};
  }
  absl::StatusOr<SharedRootIo::Published> Publish(Node& node, const SharedInflight& save,
                                                  const std::map<std::string, std::string>& digests) {
    return Wait<absl::StatusOr<SharedRootIo::Published>>(node, [&](auto done) {
      static_cast<SharedRootIo&>(*node.io).Publish(PublicationOf(save, digests), std::move(done));
    });
  }
  absl::StatusOr<int64_t> FindReplaced(Node& node, const SharedInflight& save,
                                       const std::map<std::string, std::string>& digests) {
    const auto found = Wait<absl::StatusOr<SharedRootIo::Replaced>>(
        node, [&](auto done) { node.io->FindReplaced(PublicationOf(save, digests), std::move(done)); });
    if (!found.ok()) return found.status();
    return found->sequence;
  }
  void Save(Node& coordinator, const std::string& tag, int64_t sequence) {
    const SharedInflight save = MakeInflight(coordinator, tag, sequence);
    const auto published = Publish(coordinator, save, WriteAll(save));
    ASSERT_TRUE(published.ok()) << published.status();
    ASSERT_TRUE(published->given_up.ok()) << published->given_up;
    ASSERT_EQ(published->in_the_way, 0);
  }
  absl::StatusOr<LoadedCheckpoint> Load(Node& node, const std::string& tag, int64_t sequence) {
    return Wait<absl::StatusOr<LoadedCheckpoint>>(
        node, [&](auto done) { node.io->LoadCheckpoint(tag, sequence, std::move(done)); });
  }
  absl::StatusOr<std::shared_ptr<CheckpointReader>> OpenCheckpoint(Node& node, const std::string& tag,
                                                                   int64_t sequence) {
    return Wait<absl::StatusOr<std::shared_ptr<CheckpointReader>>>(
        node, [&](auto done) { node.io->OpenCheckpoint(tag, sequence, std::move(done)); });
  }
  std::set<std::string> NamesIn(const std::string& path) const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path() + "/" + path))
      names.insert(entry.path().filename());
    return names;
  }

  TempDir dir_;
  std::array<Node, kWorld> nodes_;
  std::string only_here_;  // A pointer of the saves from now on.
};

TEST_F(SharedDiskRootIoTest, ThreeNodesWriteOneCheckpointAndEachReadsIt) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  Save(node(0), "step_1", 1);
  for (Node& reads : nodes_) {
    const auto loaded = Load(reads, "step_1", 1);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->checkpoint.summary.file_count(), kWorld);
    EXPECT_EQ(loaded->checkpoint.summary.world_size(), kWorld);
    const auto reader = OpenCheckpoint(reads, "step_1", 1);
    ASSERT_TRUE(reader.ok()) << reader.status();
    for (int rank = 0; rank < kWorld; ++rank) {
      const std::string saved = ImagesOf(rank, PathOf(rank)).Bytes(PathOf(rank));
      std::string bytes(saved.size(), '\0');
      const absl::Status read = (*reader)->Read(PathOf(rank), 0, std::as_writable_bytes(std::span(bytes)));
      ASSERT_TRUE(read.ok()) << read;
      EXPECT_TRUE(bytes == saved) << "rank " << rank << " on " << reads.name;
    }
    const auto snapshot =
        Wait<absl::StatusOr<RootSnapshot>>(reads, [&](auto done) { reads.io->Rescan(std::move(done)); });
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    EXPECT_EQ(snapshot->committed.count(1), 1u);
    EXPECT_EQ(snapshot->highest_sequence, 1);
  }
  // The coordinator alone writes the pointer file, when it loads what it has published.
  EXPECT_EQ(ReadWhole(dir_.path() + "/latest"), "step_1");
  EXPECT_THAT(Load(node(0), "step_1", 1)->pointers.holders, ElementsAre(1));
  EXPECT_THAT(NamesIn(".ckptd/shared/inflight"), IsEmpty());
}

// Local folders share by shared blocks or hard links, and so does each node's part of a checkpoint.
TEST_F(SharedDiskRootIoTest, EachNodeSharesItsUnchangedFilesWithTheBase) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  Save(node(0), "step_1", 1);
  for (int rank = 0; rank < kWorld - 1; ++rank) node(rank).base = *OpenCheckpoint(node(rank), "step_1", 1);
  Save(node(0), "step_2", 2);
  for (Node& each : nodes_) each.base = nullptr;
  const auto inode = [&](const std::string& tag, int rank) {
    struct stat info {};
    EXPECT_EQ(::stat(absl::StrCat(dir_.path(), "/", tag, "/", PathOf(rank)).c_str(), &info), 0);
    return info.st_ino;
  };
  const SpaceInfo space = *(*MakePosixFileSystem())->Space(dir_.fd());
  const bool has_links = space.type != "xfs" && space.type != "btrfs";
  for (int rank = 0; rank < kWorld; ++rank)
    EXPECT_EQ(inode("step_1", rank) == inode("step_2", rank), has_links && rank < kWorld - 1) << rank;
  std::filesystem::remove_all(dir_.path() + "/step_1");
  const auto reader = OpenCheckpoint(node(1), "step_2", 2);
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (int rank = 0; rank < kWorld; ++rank) {
    const std::string saved = ImagesOf(rank, PathOf(rank)).Bytes(PathOf(rank));
    std::string bytes(saved.size(), '\0');
    const absl::Status read = (*reader)->Read(PathOf(rank), 0, std::as_writable_bytes(std::span(bytes)));
    ASSERT_TRUE(read.ok()) << read;
    EXPECT_TRUE(bytes == saved) << rank;
  }
}

TEST_F(SharedDiskRootIoTest, AllNodesFindOneRunWhoeverOpensTheRootFirst) {
  EXPECT_EQ(ReasonOf(RunId(node(0)).status()), "ROOT_UNREADABLE") << "it is not open yet";
  OpenAll();
  std::vector<std::future<absl::StatusOr<SharedFilesIo::RunOfRoot>>> ids;
  for (Node& asks : nodes_) {
    auto promise = std::make_shared<std::promise<absl::StatusOr<SharedFilesIo::RunOfRoot>>>();
    ids.push_back(promise->get_future());
    asks.loop->Post([&asks, promise] {
      asks.io->RunId(
          [promise](absl::StatusOr<SharedFilesIo::RunOfRoot> id) { promise->set_value(std::move(id)); });
    });
  }
  std::set<std::string> different;
  for (auto& id : ids) {
    ASSERT_EQ(id.wait_for(kTimeout), std::future_status::ready);
    const auto answer = id.get();
    ASSERT_TRUE(answer.ok()) << answer.status();
    different.insert(answer->id);
  }
  EXPECT_EQ(different.size(), 1u);
}

TEST_F(SharedDiskRootIoTest, TwoNodesThatWriteOneFileAreRefusedBeforeTheManifest) {
  OpenAll();
  const SharedInflight save = MakeInflight(node(0), "step_1", 1);
  ASSERT_TRUE(OpenPart(node(0), save).ok());
  ASSERT_TRUE(OpenPart(node(1), save).ok());
  ASSERT_TRUE(Write(node(0), save, 0, "model.pt").ok());
  EXPECT_EQ(ReasonOf(Write(node(1), save, 1, "model.pt").status()), "FILE_CONFLICT");
  EXPECT_TRUE(ReadWhole(dir_.path() + "/.ckptd/shared/inflight/" + save.name + "/model.pt") ==
              ImagesOf(0, "model.pt").Bytes("model.pt"));
}

TEST_F(SharedDiskRootIoTest, PartsThatMakeNoCheckpointAreGivenUpForGood) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  const SharedInflight save = MakeInflight(node(0), "step_1", 1);
  std::map<std::string, std::string> digests = WriteAll(save);
  digests.erase(node(2).name);  // A rank has no part.
  const auto published = Publish(node(0), save, digests);
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_EQ(ReasonOf(published->given_up), "INVALID_ARGUMENT") << published->given_up;
  EXPECT_THAT(NamesIn(".ckptd/shared/inflight"), IsEmpty());
  EXPECT_THAT(NamesIn(".ckptd/shared/trash"), ElementsAre(save.name));
  const auto place =
      Wait<absl::StatusOr<SharedPlace>>(node(1), [&](auto done) { node(1).io->Find(save, std::move(done)); });
  EXPECT_EQ(place.value(), SharedPlace::kInTrash);
}

// The record of the marking rank comes before that of the node's other rank, which has no mark, or after it.
TEST_F(SharedDiskRootIoTest, MarkOfOneRankIsInTheRecordOfItsNode) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  for (const int suspect : {0, 1}) {
    const SharedInflight save = MakeInflight(node(0), absl::StrCat("step_", suspect), suspect + 1);
    ASSERT_TRUE(OpenPart(node(0), save).ok());
    ASSERT_TRUE(OpenPart(node(2), save).ok());
    std::vector<storage::v1::PartRecord> parts = {*Write(node(0), save, 0), *Write(node(0), save, 1)};
    parts[static_cast<size_t>(suspect)].mutable_checkpoint()->set_suspect("NaN");
    const std::map<std::string, std::string> digests = {
        {node(0).name, *Finish(node(0), save, parts)},
        {node(2).name, *Finish(node(2), save, {*Write(node(2), save, 2)})}};
    ASSERT_EQ(Publish(node(0), save, digests)->in_the_way, 0);
    const auto loaded = Load(node(0), save.tag, save.sequence);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->checkpoint.summary.suspect(), "NaN");
    EXPECT_TRUE(loaded->checkpoint.summary.pointers().empty());
  }
}

TEST_F(SharedDiskRootIoTest, AResaveWhosePartsMakeNoCheckpointReplacesNone) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  Save(node(0), "step_1", 1);
  const SharedInflight again = MakeInflight(node(0), "step_1", 2);
  std::map<std::string, std::string> digests = WriteAll(again);
  digests.erase(node(2).name);  // A rank has no part.
  EXPECT_EQ(FindReplaced(node(0), again, digests).value(), 0);
  EXPECT_EQ(ReasonOf(Publish(node(0), again, digests)->given_up), "INVALID_ARGUMENT");
  EXPECT_TRUE(OpenCheckpoint(node(1), "step_1", 1).ok());
}

TEST_F(SharedDiskRootIoTest, AResaveWhosePartsAreNotSeenReplacesNoneYet) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  Save(node(0), "step_1", 1);
  const SharedInflight again = MakeInflight(node(0), "step_1", 2);
  const std::map<std::string, std::string> digests = WriteAll(again);
  const std::string there = dir_.path() + "/.ckptd/shared/inflight/" + again.name;
  const std::string hidden = dir_.path() + "/hidden";
  std::filesystem::rename(there, hidden);
  EXPECT_FALSE(FindReplaced(node(0), again, digests).ok());
  std::filesystem::rename(hidden, there);
  EXPECT_EQ(FindReplaced(node(0), again, digests).value(), 1);
}

TEST_F(SharedDiskRootIoTest, WhatAnotherProgramHasAtTheTagGivesTheSaveUp) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  const SharedInflight save = MakeInflight(node(0), "step_1", 1);
  const auto digests = WriteAll(save);
  std::filesystem::create_directories(dir_.path() + "/step_1/theirs");
  const auto published = Publish(node(0), save, digests);
  ASSERT_TRUE(published.ok()) << published.status();
  EXPECT_EQ(ReasonOf(published->given_up), "TAG_FOREIGN") << published->given_up;
  EXPECT_TRUE(std::filesystem::exists(dir_.path() + "/step_1/theirs"));
}

TEST_F(SharedDiskRootIoTest, ErrorOfTheDiskGivesNothingUp) {
  OpenAll();
  const SharedInflight save = MakeInflight(node(0), "step_1", 1);
  const auto digests = WriteAll(save);
  // No term has begun: the coordinator may not publish yet.
  EXPECT_FALSE(Publish(node(0), save, digests).ok());
  EXPECT_THAT(NamesIn(".ckptd/shared/inflight"), ElementsAre(save.name));
}

TEST_F(SharedDiskRootIoTest, AResaveHasItsOwnCheckpointInTheWayUntilThatIsRemoved) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  Save(node(0), "step_1", 1);
  const SharedInflight again = MakeInflight(node(0), "step_1", 2);
  const auto digests = WriteAll(again);
  EXPECT_EQ(FindReplaced(node(1), again, digests).value(), 1);
  EXPECT_EQ(Publish(node(0), again, digests)->in_the_way, 1);
  const auto gone = Wait<absl::StatusOr<bool>>(
      node(0), [&](auto done) { node(0).io->Remove("step_1", 1, 0, std::move(done)); });
  ASSERT_TRUE(gone.ok()) << gone.status();
  EXPECT_TRUE(*gone);
  EXPECT_EQ(FindReplaced(node(1), again, digests).value(), 0);
  EXPECT_EQ(ReasonOf(OpenCheckpoint(node(1), "step_1", 1).status()), "NO_CHECKPOINT");
  const auto published = Publish(node(0), again, digests);
  EXPECT_EQ(published->in_the_way, 0);
  EXPECT_TRUE(published->given_up.ok()) << published->given_up;
  EXPECT_EQ(FindReplaced(node(2), again, digests).value(), 0) << "not itself";
}

// As an etcd that was restored from a backup may ask for it.
TEST_F(SharedDiskRootIoTest, SaveThatWasPublishedAndReplacedReplacesNothing) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  const SharedInflight save = MakeInflight(node(0), "last", 1);
  const auto digests = WriteAll(save);
  ASSERT_TRUE(Publish(node(0), save, digests).ok());
  const auto place = [&] {
    return Wait<absl::StatusOr<SharedPlace>>(node(1),
                                             [&](auto done) { node(1).io->Find(save, std::move(done)); })
        .value();
  };
  EXPECT_EQ(place(), SharedPlace::kPublished);
  const auto gone = Wait<absl::StatusOr<bool>>(
      node(0), [&](auto done) { node(0).io->Remove("last", 1, 0, std::move(done)); });
  ASSERT_TRUE(gone.ok() && *gone) << gone.status();
  EXPECT_EQ(place(), SharedPlace::kNowhere);
  Save(node(0), "last", 2);
  EXPECT_EQ(place(), SharedPlace::kSuperseded);
  EXPECT_EQ(FindReplaced(node(1), save, digests).value(), 0);
  EXPECT_THAT(Rescan(node(1))->committed, ElementsAre(::testing::Key(2)));
}

TEST_F(SharedDiskRootIoTest, PublicationFindsACheckpointThatWasMovedIn) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  Save(node(0), "step_1", 1);
  Save(node(0), "moved", 100);
  const std::string elsewhere = dir_.path() + ".elsewhere";
  std::filesystem::rename(dir_.path() + "/moved", elsewhere);
  ASSERT_TRUE(Rescan(node(0)).ok());
  std::filesystem::create_directory(dir_.path() + "/foreign");
  const auto publish = [this](const std::string& tag, int64_t sequence) {
    const SharedInflight save = MakeInflight(node(0), tag, sequence);
    return Publish(node(0), save, WriteAll(save));
  };
  EXPECT_EQ(publish("step_2", 2)->moved_in, 0) << "what others have made is no checkpoint";
  std::filesystem::rename(elsewhere, dir_.path() + "/moved");
  EXPECT_EQ(publish("step_3", 3)->moved_in, 100);
  ASSERT_TRUE(Rescan(node(0)).ok());
  EXPECT_EQ(publish("step_101", 101)->moved_in, 0) << "it is known";
}

TEST_F(SharedDiskRootIoTest, SweepRemovesWhatHasEndedAndNothingElse) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  const SharedInflight ended = MakeInflight(node(0), "step_1", 1),
                       goes_on = MakeInflight(node(0), "step_2", 2),
                       later = MakeInflight(node(0), "step_3", 3);
  ASSERT_TRUE(OpenPart(node(1), ended).ok());
  ASSERT_TRUE(Write(node(1), ended, 1).ok());
  const absl::Status swept =
      Wait<absl::Status>(node(0), [&](auto done) { node(0).io->Sweep(2, {2}, std::move(done)); });
  ASSERT_TRUE(swept.ok()) << swept;
  EXPECT_THAT(NamesIn(".ckptd/shared/inflight"), ElementsAre(goes_on.name, later.name));
  // Work of the same thread, behind the removal.
  const auto gone = Wait<absl::StatusOr<bool>>(
      node(0), [&](auto done) { node(0).io->Remove("none", 9, 0, std::move(done)); });
  ASSERT_TRUE(gone.ok()) << gone.status();
  EXPECT_THAT(NamesIn(".ckptd/shared/trash"), IsEmpty());
  // The late node gets an error for its part, or writes into a directory that no node reads.
  Finish(node(1), ended, {}).status().IgnoreError();
  EXPECT_THAT(NamesIn(".ckptd/shared/inflight"), ElementsAre(goes_on.name, later.name));
}

TEST_F(SharedDiskRootIoTest, DirectoryThatANodeDoesNotSeeYetIsLookedForAgain) {
  OpenAll();
  const SharedInflight save = MakeInflight(node(0), "step_1", 1);
  const std::string there = dir_.path() + "/.ckptd/shared/inflight/" + save.name;
  const std::string hidden = dir_.path() + "/hidden";
  std::filesystem::rename(there, hidden);
  auto promise = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> opened = promise->get_future();
  node(1).loop->Post([&] {
    node(1).io->OpenPart(1, save.tag, 1, save.name,
                         [promise](absl::Status status) { promise->set_value(status); });
  });
  // Work behind it on the same thread: it has looked once by then.
  ASSERT_TRUE(RunId(node(1)).ok());
  EXPECT_NE(opened.wait_for(seconds(0)), std::future_status::ready);
  std::filesystem::rename(hidden, there);
  ASSERT_EQ(opened.wait_for(kTimeout), std::future_status::ready);
  const absl::Status status = opened.get();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(SharedDiskRootIoTest, DirectoryThatNeverAppearsIsAnErrorThatNamesIt) {
  OpenAll();
  const SharedInflight save{"step_1", 1, "step_1.1.00000000000000aa"};
  const absl::Status opened = OpenPart(node(1), save);
  EXPECT_EQ(ReasonOf(opened), "ROOT_CHANGED");
  EXPECT_THAT(std::string(opened.message()), HasSubstr(save.name));
  EXPECT_EQ(opened.code(), absl::StatusCode::kAborted);
}

TEST_F(SharedDiskRootIoTest, DiscardEndsThisNodesPartAndLeavesTheDirectory) {
  OpenAll();
  const SharedInflight save = MakeInflight(node(0), "step_1", 1);
  ASSERT_TRUE(OpenPart(node(1), save).ok());
  const auto part = Write(node(1), save, 1);
  ASSERT_TRUE(part.ok()) << part.status();
  const auto discard = [&] {
    return Wait<absl::Status>(node(1), [&](auto done) { node(1).io->Discard(1, std::move(done)); });
  };
  EXPECT_TRUE(discard().ok());
  EXPECT_TRUE(discard().ok()) << "also of a part that was never made";
  EXPECT_TRUE(absl::IsNotFound(Finish(node(1), save, {*part}).status()));
  EXPECT_THAT(NamesIn(".ckptd/shared/inflight"), ElementsAre(save.name));
}

TEST_F(SharedDiskRootIoTest, DamageThatTheNodesKnowIsInTheRecordOfTheRunUntilItIsRepaired) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  Save(node(0), "step_1", 1);
  Save(node(0), "step_2", 2);
  ASSERT_TRUE(Load(node(0), "step_1", 1).ok());
  ASSERT_TRUE(Load(node(0), "step_2", 2).ok());
  EXPECT_EQ(ReadWhole(dir_.path() + "/latest"), "step_2");
  storage::v1::Damage damage;
  damage.set_tag("step_2");
  damage.set_sequence(2);
  damage.set_message("a wrong checksum");
  const auto rescan = [this](Node& scans) {
    return Wait<absl::StatusOr<RootSnapshot>>(scans, [&](auto done) { scans.io->Rescan(std::move(done)); });
  };
  const auto marked = Wait<absl::StatusOr<PointerFiles>>(
      node(0), [&](auto done) { node(0).io->SetDamage("step_2", 2, damage, std::move(done)); });
  ASSERT_TRUE(marked.ok()) << marked.status();
  EXPECT_THAT(marked->holders, ElementsAre(1));
  EXPECT_EQ(ReadWhole(dir_.path() + "/latest"), "step_1");
  // Node 1 was told no mark, as for a run that moves to another etcd.
  for (int i : {0, 1}) {
    const auto snapshot = rescan(node(i));
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    ASSERT_TRUE(snapshot->committed.at(2).damage.has_value()) << i;
    EXPECT_EQ(snapshot->committed.at(2).damage->message(), "a wrong checksum");
    EXPECT_FALSE(snapshot->committed.at(1).damage.has_value());
  }
  const auto repair = [this](Node& repairs) {
    return Wait<absl::StatusOr<PointerFiles>>(
        repairs, [&](auto done) { repairs.io->SetDamage("step_2", 2, std::nullopt, std::move(done)); });
  };
  ASSERT_TRUE(repair(node(1)).ok());
  EXPECT_FALSE(rescan(node(1))->committed.at(2).damage.has_value()) << "what the nodes know counts";
  EXPECT_TRUE(rescan(node(2))->committed.at(2).damage.has_value()) << "the coordinator has not heard it";
  ASSERT_TRUE(repair(node(0)).ok());
  EXPECT_FALSE(rescan(node(2))->committed.at(2).damage.has_value());
  EXPECT_EQ(ReadWhole(dir_.path() + "/latest"), "step_2");
}

TEST_F(SharedDiskRootIoTest, NextCoordinatorWritesDownWhatItHasHeardBefore) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  Save(node(0), "step_1", 1);
  storage::v1::Damage damage;
  damage.set_tag("step_1");
  damage.set_sequence(1);
  ASSERT_TRUE(Wait<absl::StatusOr<PointerFiles>>(node(1), [&](auto done) {
                node(1).io->SetDamage("step_1", 1, damage, std::move(done));
              }).ok());
  const auto is_damaged = [this](Node& scans) {
    const auto root =
        Wait<absl::StatusOr<RootSnapshot>>(scans, [&](auto done) { scans.io->Rescan(std::move(done)); });
    return root->committed.at(1).damage.has_value();
  };
  EXPECT_FALSE(is_damaged(node(2)));
  ASSERT_TRUE(BeginTerm(node(1), 2).ok());
  EXPECT_TRUE(is_damaged(node(1)));
  EXPECT_TRUE(is_damaged(node(2)));
  // The mark of a checkpoint that the coordinator removes leaves the record.
  ASSERT_TRUE(Wait<absl::StatusOr<bool>>(node(1), [&](auto done) {
                node(1).io->Remove("step_1", 1, 0, std::move(done));
              }).ok());
  Save(node(1), "step_1", 2);
  ASSERT_TRUE(Wait<absl::StatusOr<RootSnapshot>>(node(1), [&](auto done) {
                node(1).io->Rescan(std::move(done));
              }).ok());
  EXPECT_THAT(NamesIn(".ckptd/shared"), ::testing::Contains("record.2"));
  EXPECT_THAT(ReadWhole(dir_.path() + "/.ckptd/shared/record.2"), ::testing::Not(HasSubstr("step_1")));
}

TEST_F(SharedDiskRootIoTest, NextCoordinatorWritesNoPointerToWhatTheFirstHasRemoved) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  only_here_ = "best";
  Save(node(0), "step_1", 1);
  for (Node& loads : nodes_) ASSERT_TRUE(Load(loads, "step_1", 1).ok());
  EXPECT_EQ(ReadWhole(dir_.path() + "/best"), "step_1");
  const auto released = Wait<absl::StatusOr<PointerFiles>>(
      node(0), [&](auto done) { node(0).io->ReleasePointers("step_1", 1, std::move(done)); });
  ASSERT_TRUE(released.ok()) << released.status();
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/best"));
  ASSERT_TRUE(Wait<absl::StatusOr<bool>>(node(0), [&](auto done) {
                node(0).io->Remove("step_1", 1, 0, std::move(done));
              }).value());
  only_here_.clear();
  ASSERT_TRUE(BeginTerm(node(1), 2).ok());
  Save(node(1), "step_2", 2);
  const auto loaded = Load(node(1), "step_2", 2);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(loaded->pointers.holders, ElementsAre(2));
  EXPECT_EQ(ReadWhole(dir_.path() + "/latest"), "step_2");
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/best"));
}

TEST_F(SharedDiskRootIoTest, ScanOfTheNextCoordinatorWritesThePointersThatTheFirstHasNotWritten) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  Save(node(0), "step_1", 1);  // And it ends.
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/latest"));
  ASSERT_TRUE(BeginTerm(node(1), 2).ok());
  const auto scanned = Rescan(node(1));
  ASSERT_TRUE(scanned.ok()) << scanned.status();
  EXPECT_THAT(scanned->pointers.holders, ElementsAre(1));
  EXPECT_EQ(ReadWhole(dir_.path() + "/latest"), "step_1");
}

// Also in a term in which the root was not scanned yet.
TEST_F(SharedDiskRootIoTest, CoordinatorFindsThatAPointerFileKeepsACheckpoint) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  only_here_ = "best";
  Save(node(0), "step_1", 1);
  only_here_.clear();
  Save(node(0), "step_2", 2);
  Save(node(0), "step_3", 3);
  const auto check = [&](Node& by, const std::string& tag, int64_t sequence) {
    return Wait<absl::StatusOr<uint64_t>>(
        by, [&](auto done) { by.io->CheckRemovable(tag, sequence, std::move(done)); });
  };
  EXPECT_TRUE(absl::IsUnavailable(check(node(1), "step_2", 2).status())) << "it has begun no term";
  EXPECT_FALSE(Rescan(node(1))->pointers.known) << "the coordinator writes them";
  ASSERT_TRUE(BeginTerm(node(1), 2).ok());
  EXPECT_EQ(ReasonOf(check(node(1), "step_1", 1).status()), "POINTED");
  EXPECT_EQ(ReasonOf(check(node(1), "step_3", 3).status()), "POINTED");
  EXPECT_EQ(ReasonOf(check(node(1), "step_4", 4).status()), "NO_CHECKPOINT");
  struct stat found {};
  ASSERT_EQ(stat((dir_.path() + "/step_2").c_str(), &found), 0);
  EXPECT_EQ(check(node(1), "step_2", 2).value_or(0), found.st_ino);
  EXPECT_TRUE(Rescan(node(1))->pointers.known);
}

TEST_F(SharedDiskRootIoTest, NodeThatNoLongerCoordinatesWritesNoPointers) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  Save(node(0), "step_1", 1);
  ASSERT_TRUE(Load(node(0), "step_1", 1).ok());
  ASSERT_TRUE(Rescan(node(0))->pointers.known);
  node(0).loop->Post([this] { node(0).io->EndTerm(); });
  EXPECT_FALSE(Rescan(node(0))->pointers.known) << "it leaves them to the next coordinator";
  ASSERT_TRUE(BeginTerm(node(1), 2).ok());
  Save(node(1), "step_2", 2);
  ASSERT_TRUE(Load(node(0), "step_2", 2).ok());
  EXPECT_EQ(ReadWhole(dir_.path() + "/latest"), "step_1") << "it is the next coordinator's";
  ASSERT_TRUE(Load(node(1), "step_2", 2).ok());
  EXPECT_EQ(ReadWhole(dir_.path() + "/latest"), "step_2");
}

TEST_F(SharedDiskRootIoTest, RemovalLeavesADirectoryThatWasPutBackSinceTheDecision) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  Save(node(0), "step_1", 1);
  Save(node(0), "step_2", 2);
  const auto inode = Wait<absl::StatusOr<uint64_t>>(
      node(0), [&](auto done) { node(0).io->CheckRemovable("step_1", 1, std::move(done)); });
  ASSERT_TRUE(inode.ok()) << inode.status();
  const std::filesystem::path at_tag = dir_.path() + "/step_1", copy = dir_.path() + "/.ckptd/copy";
  std::filesystem::copy(at_tag, copy, std::filesystem::copy_options::recursive);
  const auto remove = [&] {
    return Wait<absl::StatusOr<bool>>(
        node(0), [&](auto done) { node(0).io->Remove("step_1", 1, *inode, std::move(done)); });
  };
  EXPECT_TRUE(remove().value_or(false));
  EXPECT_FALSE(std::filesystem::exists(at_tag));
  std::filesystem::rename(copy, at_tag);
  EXPECT_TRUE(remove().value_or(false)) << "what was decided on is gone";
  EXPECT_THAT(Rescan(node(0))->committed, ElementsAre(::testing::Key(1), ::testing::Key(2)));
}

TEST_F(SharedDiskRootIoTest, ScanFindsWhatIsHalfRemoved) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  Save(node(0), "step_1", 1);
  Save(node(0), "step_2", 2);
  const std::filesystem::path tag = dir_.path() + "/step_1";
  std::filesystem::rename(tag / ".ckptd", tag / ".ckptd.removed.1");  // And the coordinator ends.
  const auto scanned = Rescan(node(1));
  ASSERT_TRUE(scanned.ok()) << scanned.status();
  EXPECT_THAT(scanned->committed, ElementsAre(::testing::Key(2)));
  ASSERT_EQ(scanned->half_removed.size(), 1U);
  const HalfRemoved& half_removed = scanned->half_removed[0];
  EXPECT_EQ(half_removed.tag, "step_1");
  EXPECT_EQ(half_removed.sequence, 1);
  struct stat found = {};
  ASSERT_EQ(stat(tag.c_str(), &found), 0);
  EXPECT_EQ(half_removed.inode, found.st_ino);
  EXPECT_THAT(scanned->foreign, IsEmpty());
}

TEST_F(SharedDiskRootIoTest, PinThatTheNodesKnowIsInTheRecordOfTheRunUntilItIsTakenBack) {
  OpenAll();
  ASSERT_TRUE(BeginTerm(node(0), 1).ok());
  Save(node(0), "step_1", 1);
  Save(node(0), "step_2", 2);  // Which the pointer file names.
  const auto set = [this](Node& on, bool pinned) {
    return Wait<absl::Status>(on, [&](auto done) { on.io->SetPinned("step_1", 1, pinned, std::move(done)); });
  };
  const auto is_pinned = [this](Node& scans) {
    const auto root =
        Wait<absl::StatusOr<RootSnapshot>>(scans, [&](auto done) { scans.io->Rescan(std::move(done)); });
    return root.ok() && root->committed.at(1).pinned;
  };
  const auto check_target = [this](Node& on) {
    return ReasonOf(
        Wait<absl::Status>(on, [&](auto done) { on.io->CheckTarget("step_1", {}, std::move(done)); }));
  };
  const auto check_removable = [this](Node& on) {
    const auto inode = Wait<absl::StatusOr<uint64_t>>(
        on, [&](auto done) { on.io->CheckRemovable("step_1", 1, std::move(done)); });
    return ReasonOf(inode.status());
  };
  ASSERT_TRUE(set(node(1), true).ok());
  EXPECT_TRUE(is_pinned(node(1))) << "what the nodes know counts";
  EXPECT_EQ(check_target(node(1)), "PINNED");
  EXPECT_FALSE(is_pinned(node(2))) << "the coordinator has not learnt of it";
  ASSERT_TRUE(set(node(0), true).ok());
  EXPECT_EQ(check_removable(node(0)), "PINNED");
  EXPECT_TRUE(is_pinned(node(2))) << "as for a run that moves to another etcd";
  EXPECT_EQ(check_target(node(2)), "PINNED");
  // The next coordinator has learnt first that it was taken back.
  ASSERT_TRUE(set(node(1), false).ok());
  ASSERT_TRUE(BeginTerm(node(1), 2).ok());
  EXPECT_FALSE(is_pinned(node(1)));
  EXPECT_EQ(check_removable(node(1)), "");
  EXPECT_FALSE(is_pinned(node(2)));
  EXPECT_EQ(check_target(node(2)), "");
}

// ---- trials

TEST_F(SharedDiskRootIoTest, NodesTryTheRootTogetherAndOtherRequestsDoNotWait) {
  OpenAll();
  std::future<absl::StatusOr<NodesTried>> first = Try(node(0));
  EXPECT_TRUE(Rescan(node(0)).ok());
  EXPECT_EQ(first.wait_for(milliseconds(0)), std::future_status::timeout) << "it waits for the other nodes";
  std::future<absl::StatusOr<NodesTried>> second = Try(node(1)), third = Try(node(2));
  for (auto* answer : {&first, &second, &third}) {
    ASSERT_EQ(answer->wait_for(kTimeout), std::future_status::ready);
    const absl::StatusOr<NodesTried> tried = answer->get();
    ASSERT_TRUE(tried.ok()) << tried.status();
    EXPECT_THAT(tried->unsuitable, IsEmpty());
  }
  EXPECT_THAT(ReadWhole(dir_.path() + "/.ckptd/shared/tried"), HasSubstr("node2\t"));
  EXPECT_TRUE(Rescan(node(0)).ok()) << "the record is no checkpoint";
}

TEST_F(SharedDiskRootIoTest, ARootThatIsClosedWaitsForNoTrial) {
  OpenAll();
  const std::future<absl::StatusOr<NodesTried>> never = Try(node(0), std::chrono::hours(1));
  while (!std::filesystem::exists(dir_.path() + "/.ckptd/shared/trial.1.1/node0.here"))
    ASSERT_TRUE(Rescan(node(0)).ok());
  node(0).io.reset();
  EXPECT_THAT(node(0).factory->Close(kTimeout), IsEmpty());
}

}  // namespace
}  // namespace ckptd
