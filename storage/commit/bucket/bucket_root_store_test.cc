// A root in a bucket against the store in memory: what is listed, what is refused, and what daemons leave
// behind that die at each of their requests, or that another one has taken the root over from.
#include "storage/commit/bucket/bucket_root_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/bucket/index.h"
#include "storage/bucket/list.h"
#include "storage/bucket/object_file_system.h"
#include "storage/commit/checkpoint/verify.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/file_images.h"
#include "tests/testing/killing_object_store.h"
#include "tests/testing/memory_object_store.h"

namespace ckptd {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using When = KillingObjectStore::When;

constexpr int32_t kChunkBytes = 1 << 20;

class BucketRootStoreTest : public ::testing::Test {
 protected:
  BucketRootStoreTest() {
    big_.Add("big.pt", kMinPartBytes + 12345, 'a');
    big_.Add("folder/small.pt", 77, 'b');
    small_.Add("rank_1.pt", 4096, 'c');
    small_.Add("empty", 0, 'd');
    tiny_.Add("tiny.pt", 100, 'e');
  }

  absl::StatusOr<std::unique_ptr<BucketRootStore>> Open(ObjectStore& store,
                                                        const std::string& owner = "node-a") {
    BucketRootOptions options{"run", owner, {}};
    options.transfer.part_bytes = kMinPartBytes;
    options.transfer.threads = 1;  // The order of the requests is then always the same.
    return BucketRootStore::Open(&store, &store, &clock_, std::move(options));
  }

  static storage::v1::ManifestSummary SummaryOf(const std::string& tag, int64_t sequence) {
    storage::v1::ManifestSummary summary;
    summary.set_tag(tag);
    summary.set_sequence(sequence);
    summary.set_attempt(1);
    summary.set_ordinal(1);
    summary.set_world_size(2);
    summary.set_chunk_bytes(kChunkBytes);
    summary.set_commit_time_us(1000 + sequence);
    return summary;
  }

  static absl::StatusOr<std::vector<storage::v1::PartRecord>> Write(BucketRootStore& root,
                                                                    const BucketSave& save,
                                                                    const Images& first,
                                                                    const Images& second) {
    std::vector<storage::v1::PartRecord> parts;
    for (int rank = 0; rank < 2; ++rank) {
      storage::v1::PartRecord record;
      record.set_format_version(1);
      record.set_rank(rank);
      record.set_sequence(save.id.sequence);
      *record.mutable_checkpoint() = SummaryOf(save.id.tag, save.id.sequence);
      std::atomic<int64_t> sent = 0;
      absl::StatusOr<storage::v1::PartRecord> part =
          root.WritePart(save, record, (rank == 0 ? first : second).files(), kChunkBytes, &sent);
      if (!part.ok()) return part.status();
      parts.push_back(*std::move(part));
    }
    return parts;
  }

  // A whole save. As the engine does it: what fails is discarded.
  absl::Status Save(BucketRootStore& root, const std::string& tag, int64_t sequence) {
    return Save(root, tag, sequence, big_);
  }
  absl::Status Save(BucketRootStore& root, const std::string& tag, int64_t sequence, const Images& first) {
    absl::StatusOr<std::shared_ptr<BucketSave>> save = root.Begin(tag, sequence);
    if (!save.ok()) return save.status();
    const auto parts = Write(root, **save, first, small_);
    PublishResult result{PublishOutcome::kFailed, parts.status()};
    if (parts.ok()) result = root.Publish(**save, SummaryOf(tag, sequence), *parts);
    if (result.outcome == PublishOutcome::kFailed) root.Discard(**save).IgnoreError();
    return result.status;
  }

  // The tags of the whole checkpoints that readers without a daemon find, each of which is verified.
  std::vector<std::string> Listed(ObjectStore& store) {
    const absl::StatusOr<BucketList> list = ListBucket(store, "run", 1);
    EXPECT_TRUE(list.ok()) << list.status();
    EXPECT_THAT(list->damaged, IsEmpty());
    const std::unique_ptr<FileSystem> bucket = MakeObjectFileSystem(&store, "run");
    std::set<std::string> tags;
    for (const BucketCheckpoint& found : list->checkpoints) {
      tags.insert(found.summary.tag());
      const absl::StatusOr<VerifyReport> report = VerifyCheckpoint(*bucket, kObjectRoot, found.summary.tag());
      EXPECT_TRUE(report.ok()) << report.status();
      if (!report.ok()) continue;
      for (const VerifyProblem& problem : report->problems)
        ADD_FAILURE() << found.summary.tag() << "/" << problem.path << ": " << problem.message;
    }
    return {tags.begin(), tags.end()};
  }
  static std::vector<std::string> Tags(const BucketRootStore& root) {
    std::vector<std::string> tags;
    for (const auto& [sequence, checkpoint] : root.contents().committed)
      tags.push_back(checkpoint.summary.tag());
    return tags;
  }
  // What lies beneath a tag, without what keeps a save that was given up from its commit.
  static std::vector<std::string> Beneath(MemoryObjectStore& store, const std::string& tag) {
    std::vector<std::string> keys;
    for (const auto& [key, bytes] : store.objects()) {
      const bool is_no_manifest = bytes.empty() && absl::EndsWith(key, "/.ckptd/manifest");
      if (absl::StartsWith(key, absl::StrCat("run/", tag, "/")) && !is_no_manifest) keys.push_back(key);
    }
    return keys;
  }
  static bool HasUnended(MemoryObjectStore& store) {
    for (const auto& [key, bytes] : store.objects())
      if (absl::StartsWith(key, "run/.ckptd/unended/")) return true;
    return false;
  }

  FakeClock clock_;
  Images big_, small_, tiny_;
};

TEST_F(BucketRootStoreTest, SavedCheckpointIsThatOfAnUpload) {
  MemoryObjectStore store;
  auto root = Open(store);
  ASSERT_TRUE(root.ok()) << root.status();
  ASSERT_EQ(Save(**root, "step_1", 1), absl::OkStatus());
  EXPECT_THAT(Listed(store), ElementsAre("step_1"));
  EXPECT_THAT(Beneath(store, "step_1"),
              ElementsAre("run/step_1/.ckptd/manifest", "run/step_1/.ckptd/part-00000",
                          "run/step_1/.ckptd/part-00001", "run/step_1/big.pt", "run/step_1/empty",
                          "run/step_1/folder/small.pt", "run/step_1/rank_1.pt"));
  EXPECT_EQ(store.objects().at("run/step_1/big.pt"), big_.Bytes("big.pt"));
  EXPECT_EQ(store.uploads_in_flight(), 0u);
  EXPECT_FALSE(HasUnended(store));
}

TEST_F(BucketRootStoreTest, EachCheckpointHasItsNameInTheIndexUntilItIsRemoved) {
  MemoryObjectStore store;
  const auto named = [&store] {
    std::vector<std::string> tags;
    const auto index = ReadIndex(store, "run");
    EXPECT_TRUE(index.ok()) << index.status();
    for (const auto& [tag, names] : *index)
      if (names.agreed.has_value()) tags.push_back(tag);
    return tags;
  };
  const auto root = Open(store).value();
  ASSERT_TRUE(Save(*root, "step_1", 1).ok());
  ASSERT_TRUE(Save(*root, "step_2", 2).ok());
  EXPECT_THAT(named(), ElementsAre("step_1", "step_2"));
  ASSERT_TRUE(root->Evict("step_1", 1).ok());
  EXPECT_THAT(named(), ElementsAre("step_2"));
  ASSERT_TRUE(RemoveIndexNames(store, "run", "step_2").ok());
  const auto next = Open(store).value();
  EXPECT_THAT(named(), ElementsAre("step_2"));
}

TEST_F(BucketRootStoreTest, NextDaemonListsWhatIsThereAndGoesOnAboveIt) {
  MemoryObjectStore store;
  auto root = Open(store);
  ASSERT_EQ(Save(**root, "step_1", 7), absl::OkStatus());
  storage::v1::RunRecord record;
  record.set_format_version(1);
  record.set_run_id("one");
  ASSERT_EQ((*root)->SaveRunRecord(record), absl::OkStatus());
  ASSERT_EQ((*root)->SetPinned("step_1", 7, true), absl::OkStatus());
  auto next = Open(store);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_THAT(Tags(**next), ElementsAre("step_1"));
  EXPECT_EQ((*next)->contents().highest_sequence, 7);
  EXPECT_EQ((*next)->contents().run_record.run_id(), "one");
  EXPECT_TRUE((*next)->contents().committed.at(7).pinned);
  EXPECT_EQ((*next)->term(), 2);
  EXPECT_EQ(store.objects().count("run/.ckptd/record.1"), 0u) << "it does not count any more";
}

TEST_F(BucketRootStoreTest, FileOfSeveralSegmentsArrivesWhole) {
  MemoryObjectStore store;
  auto root = Open(store);
  auto save = (*root)->Begin("step_1", 1);
  ASSERT_TRUE(save.ok());
  Images whole;
  whole.Add("cut.pt", 3 * kMinPartBytes, 'x');
  FileImage image = whole.files()[0];
  const std::span<const std::byte> all = image.runs[0];
  image.runs = {all.first(4096), all.subspan(4096, kMinPartBytes), all.subspan(4096 + kMinPartBytes)};
  storage::v1::PartRecord record;
  record.set_sequence(1);
  std::atomic<int64_t> sent = 0;
  ASSERT_TRUE((*root)->WritePart(**save, record, {image}, kChunkBytes, &sent).ok());
  EXPECT_EQ(sent, 3 * kMinPartBytes);
  EXPECT_EQ(store.objects().at("run/step_1/cut.pt"), whole.Bytes("cut.pt"));
}

TEST_F(BucketRootStoreTest, TagOfACheckpointIsRefused) {
  MemoryObjectStore store;
  auto root = Open(store);
  EXPECT_EQ((*root)->CheckTarget("step_1"), absl::OkStatus());
  ASSERT_EQ(Save(**root, "step_1", 1), absl::OkStatus());
  EXPECT_EQ(ReasonOf((*root)->CheckTarget("step_1")), "TAG_TAKEN");
  EXPECT_EQ(ReasonOf(Save(**root, "step_1", 2)), "TAG_TAKEN");
  EXPECT_THAT(Listed(store), ElementsAre("step_1"));
  ASSERT_EQ((*root)->Evict("step_1", 1), absl::OkStatus());
  EXPECT_EQ((*root)->CheckTarget("step_1"), absl::OkStatus());
  ASSERT_EQ(Save(**root, "step_1", 3), absl::OkStatus()) << "its files were not removed yet";
  EXPECT_THAT(Listed(store), ElementsAre("step_1"));
  EXPECT_FALSE(HasUnended(store));
}

TEST_F(BucketRootStoreTest, CheckpointFromWhichNobodyResumesGivesWay) {
  MemoryObjectStore store;
  auto root = Open(store);
  ASSERT_EQ(Save(**root, "step_1", 1), absl::OkStatus());
  ASSERT_EQ((*root)->SetPinned("step_1", 1, true), absl::OkStatus());
  storage::v1::Damage damage;
  damage.set_message("found by a reader");
  ASSERT_EQ((*root)->SetDamage("step_1", 1, damage), absl::OkStatus());
  EXPECT_EQ(ReasonOf((*root)->CheckTarget("step_1")), "TAG_TAKEN") << "it is pinned";
  ASSERT_EQ((*root)->SetPinned("step_1", 1, false), absl::OkStatus());
  EXPECT_EQ((*root)->CheckTarget("step_1"), absl::OkStatus());
  ASSERT_EQ(Save(**root, "step_1", 2), absl::OkStatus());
  EXPECT_THAT(Listed(store), ElementsAre("step_1"));
  EXPECT_EQ((*root)->contents().committed.size(), 1u);
  EXPECT_FALSE((*root)->contents().committed.at(2).damage.has_value());
  EXPECT_FALSE(HasUnended(store));
}

TEST_F(BucketRootStoreTest, ObjectsOfOthersAreLeft) {
  MemoryObjectStore store;
  ASSERT_EQ(PutText(store, "run/step_1/notes.txt", "mine", PutMode::kReplace), absl::OkStatus());
  auto root = Open(store);
  EXPECT_EQ(ReasonOf((*root)->CheckTarget("step_1")), "TAG_FOREIGN");
  ASSERT_EQ(Save(**root, "step_2", 2), absl::OkStatus());
  ASSERT_EQ(PutText(store, "run/step_2/notes.txt", "mine", PutMode::kReplace), absl::OkStatus());
  ASSERT_EQ((*root)->Evict("step_2", 2), absl::OkStatus());
  EXPECT_EQ(*(*root)->RemoveLeft({}), true);
  EXPECT_THAT(Beneath(store, "step_2"), ElementsAre("run/step_2/notes.txt"));
}

TEST_F(BucketRootStoreTest, UnfinishedUploadHoldsItsTag) {
  MemoryObjectStore store;
  Manifest upload{SummaryOf("step_1", 1), {}};
  ASSERT_EQ(PutText(store, "run/step_1/.ckptd/manifest.new", *EncodeManifest(upload), PutMode::kReplace),
            absl::OkStatus());
  auto root = Open(store);
  EXPECT_EQ(ReasonOf(Save(**root, "step_1", 1)), "TAG_TAKEN");
  EXPECT_THAT(Beneath(store, "step_1"), ElementsAre("run/step_1/.ckptd/manifest.new"))
      << "also of the same sequence";
  auto next = Open(store);
  EXPECT_THAT(Beneath(store, "step_1"), ElementsAre("run/step_1/.ckptd/manifest.new"));
}

TEST_F(BucketRootStoreTest, DiscardedSaveLeavesNothing) {
  MemoryObjectStore store;
  auto root = Open(store);
  auto save = (*root)->Begin("step_1", 1);
  ASSERT_TRUE(Write(**root, **save, big_, small_).ok());
  ASSERT_EQ((*root)->Discard(**save), absl::OkStatus());
  EXPECT_THAT(Beneath(store, "step_1"), IsEmpty());
  EXPECT_FALSE(HasUnended(store));
  EXPECT_EQ(store.objects().count("run/step_1/.ckptd/manifest"), 0u);
}

TEST_F(BucketRootStoreTest, RemovedCheckpointLeavesNothingAndAPinnedOneStays) {
  MemoryObjectStore store;
  auto root = Open(store);
  ASSERT_EQ(Save(**root, "step_1", 1), absl::OkStatus());
  ASSERT_EQ((*root)->SetPinned("step_1", 1, true), absl::OkStatus());
  EXPECT_EQ(ReasonOf((*root)->Evict("step_1", 1)), "PINNED");
  ASSERT_EQ((*root)->SetPinned("step_1", 1, false), absl::OkStatus());
  ASSERT_EQ((*root)->Evict("step_1", 1), absl::OkStatus());
  EXPECT_THAT(Listed(store), IsEmpty());
  EXPECT_GT((*root)->contents().removing_bytes, 0);
  EXPECT_EQ(*(*root)->RemoveLeft({1}), false) << "it is being read";
  EXPECT_EQ(*(*root)->RemoveLeft({}), true);
  EXPECT_EQ(*(*root)->RemoveLeft({}), false);
  EXPECT_THAT(Beneath(store, "step_1"), IsEmpty());
  EXPECT_FALSE(HasUnended(store));
}

TEST_F(BucketRootStoreTest, DaemonThatWasTakenOverFromChangesNothingAndNamesTheOther) {
  MemoryObjectStore store;
  auto root = Open(store, "node-a");
  ASSERT_EQ(Save(**root, "step_1", 1), absl::OkStatus());
  auto save = (*root)->Begin("step_2", 2);
  const auto parts = Write(**root, **save, big_, small_);
  auto other = Open(store, "node-b, process 12");
  ASSERT_TRUE(other.ok());
  EXPECT_THAT(Beneath(store, "step_2"), IsEmpty());
  const PublishResult result = (*root)->Publish(**save, SummaryOf("step_2", 2), *parts);
  EXPECT_EQ(result.outcome, PublishOutcome::kFailed);
  EXPECT_FALSE(result.retryable);
  EXPECT_EQ(ReasonOf(result.status), "ROOT_TAKEN_OVER");
  EXPECT_THAT(std::string(result.status.message()), HasSubstr("node-b, process 12"));
  EXPECT_EQ((*root)->Discard(**save), absl::OkStatus());
  EXPECT_EQ(ReasonOf((*root)->Begin("step_3", 3).status()), "ROOT_TAKEN_OVER");
  EXPECT_EQ(ReasonOf((*root)->CheckTarget("step_3")), "ROOT_TAKEN_OVER");
  EXPECT_EQ(ReasonOf((*root)->Evict("step_1", 1)), "ROOT_TAKEN_OVER");
  EXPECT_EQ(ReasonOf((*root)->SaveRunRecord({})), "ROOT_TAKEN_OVER");
  EXPECT_THAT(Listed(store), ElementsAre("step_1"));
  ASSERT_EQ(Save(**other, "step_2", 3), absl::OkStatus());
  EXPECT_THAT(Listed(store), ElementsAre("step_1", "step_2"));
}

// The other daemon opens the root between the look at the term and the put of the manifest.
TEST_F(BucketRootStoreTest, LatePutOfAManifestAfterATakeOverCommitsNothing) {
  MemoryObjectStore store;
  auto root = Open(store);
  auto save = (*root)->Begin("step_1", 1);
  const auto parts = Write(**root, **save, big_, small_);
  std::unique_ptr<BucketRootStore> other;
  bool has_come = false;
  store.SetHook([&](const std::string& request, const std::string& key) {
    if (request == "Put" && key == "run/step_1/.ckptd/manifest" && !has_come) {
      has_come = true;
      other = *Open(store, "node-b");
    }
    return absl::OkStatus();
  });
  const PublishResult result = (*root)->Publish(**save, SummaryOf("step_1", 1), *parts);
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(ReasonOf(result.status), "ROOT_TAKEN_OVER");
  EXPECT_THAT(Listed(store), IsEmpty());
  ASSERT_EQ(Save(*other, "step_1", 2), absl::OkStatus());
  EXPECT_THAT(Listed(store), ElementsAre("step_1"));
}

TEST_F(BucketRootStoreTest, BucketThatIsAwayDelaysTheCommitAndLosesNothing) {
  MemoryObjectStore store;
  auto root = Open(store);
  auto save = (*root)->Begin("step_1", 1);
  const auto parts = Write(**root, **save, big_, small_);
  const absl::Status away =
      MakeError(absl::StatusCode::kDeadlineExceeded, "STORE_TIMEOUT", "PUT s3://b/k: away");
  store.SetHook([&](const std::string&, const std::string&) { return away; });
  const PublishResult late = (*root)->Publish(**save, SummaryOf("step_1", 1), *parts);
  EXPECT_EQ(late.outcome, PublishOutcome::kFailed);
  EXPECT_TRUE(late.retryable);
  EXPECT_EQ(ReasonOf((*root)->Begin("step_2", 2).status()), "STORE_TIMEOUT");
  store.SetHook(nullptr);
  EXPECT_EQ((*root)->Publish(**save, SummaryOf("step_1", 1), *parts).outcome, PublishOutcome::kCommitted);
  ASSERT_EQ(Save(**root, "step_2", 3), absl::OkStatus());
  EXPECT_THAT(Listed(store), ElementsAre("step_1", "step_2"));
  EXPECT_FALSE(HasUnended(store));
}

TEST_F(BucketRootStoreTest, CommitThatIsNotAnsweredForAnHourIsGivenUp) {
  MemoryObjectStore store;
  auto root = Open(store);
  auto save = (*root)->Begin("step_1", 1);
  const auto parts = Write(**root, **save, tiny_, small_);
  const absl::Status denied =
      MakeError(absl::StatusCode::kPermissionDenied, "STORE_DENIED", "PUT s3://b/k: expired");
  store.SetHook([&](const std::string&, const std::string&) { return denied; });
  EXPECT_TRUE((*root)->Publish(**save, SummaryOf("step_1", 1), *parts).retryable);
  clock_.Advance(std::chrono::minutes(59));
  EXPECT_TRUE((*root)->Publish(**save, SummaryOf("step_1", 1), *parts).retryable);
  clock_.Advance(std::chrono::minutes(2));
  const PublishResult last = (*root)->Publish(**save, SummaryOf("step_1", 1), *parts);
  EXPECT_FALSE(last.retryable);
  EXPECT_EQ(ReasonOf(last.status), "STORE_DENIED");
}

// Its answer is lost: the next try finds it, with another commit time.
TEST_F(BucketRootStoreTest, ManifestThatHasArrivedWithoutAnAnswerIsFoundByTheNextTry) {
  MemoryObjectStore store;
  auto root = Open(store);
  auto save = (*root)->Begin("step_1", 1);
  const auto parts = Write(**root, **save, big_, small_);
  bool has_arrived = false;
  store.SetHook([&](const std::string& request, const std::string& key) {
    if (request != "Put" || key != "run/step_1/.ckptd/manifest" || has_arrived) return absl::OkStatus();
    has_arrived = true;
    EXPECT_EQ((*root)->Publish(**save, SummaryOf("step_1", 1), *parts).outcome, PublishOutcome::kCommitted);
    return MakeError(absl::StatusCode::kDeadlineExceeded, "STORE_TIMEOUT", "no answer");
  });
  storage::v1::ManifestSummary summary = SummaryOf("step_1", 1);
  EXPECT_TRUE((*root)->Publish(**save, summary, *parts).retryable);
  summary.set_commit_time_us(5'000'000);
  EXPECT_EQ((*root)->Publish(**save, summary, *parts).outcome, PublishOutcome::kCommitted);
  EXPECT_THAT(Listed(store), ElementsAre("step_1"));
  EXPECT_EQ((*root)->contents().committed.at(1).summary.commit_time_us(), 1001);
  ASSERT_EQ((*root)->Evict("step_1", 1), absl::OkStatus());
  EXPECT_EQ(*(*root)->RemoveLeft({}), true);
  EXPECT_THAT(Beneath(store, "step_1"), IsEmpty());
}

// A rank has aborted it, and the answer to its manifest is missing: it may be there.
TEST_F(BucketRootStoreTest, SaveThatWasGivenUpAfterItsManifestIsNoCheckpoint) {
  MemoryObjectStore store;
  auto root = Open(store);
  auto save = (*root)->Begin("step_1", 1);
  const auto parts = Write(**root, **save, big_, small_);
  store.SetHook([&](const std::string& request, const std::string& key) {
    const bool is_claim = request == "Delete" && key == "run/step_1/.ckptd/manifest.new";
    return is_claim ? MakeError(absl::StatusCode::kDeadlineExceeded, "STORE_TIMEOUT", "no answer")
                    : absl::OkStatus();
  });
  ASSERT_EQ((*root)->Publish(**save, SummaryOf("step_1", 1), *parts).outcome, PublishOutcome::kCommitted);
  store.SetHook(nullptr);
  ASSERT_EQ((*root)->Discard(**save), absl::OkStatus());
  EXPECT_THAT(Listed(store), IsEmpty());
  EXPECT_THAT(Beneath(store, "step_1"), IsEmpty());
}

TEST_F(BucketRootStoreTest, ServerWithoutConditionalPutsIsRefused) {
  MemoryObjectStore store({.conditional_put = true, .checksums = false});
  EXPECT_EQ(ReasonOf(Open(store).status()), "STORE_UNSUITABLE");
  EXPECT_THAT(store.objects(), IsEmpty());
}

TEST_F(BucketRootStoreTest, WithoutChecksumsEverythingIsReadBackBeforeTheCommit) {
  for (const char* name : {"big.pt", "folder/small.pt", ".ckptd/manifest.new", ".ckptd/manifest"}) {
    MemoryObjectStore store({.conditional_put = false, .checksums = true});
    auto root = Open(store);
    ASSERT_TRUE(root.ok()) << root.status();
    const std::string damaged = absl::StrCat("run/step_1/", name);
    bool is_damaged = false;
    store.SetHook([&](const std::string& request, const std::string& key) {
      if (!is_damaged && (request == "Get" || request == "Head") && key == damaged &&
          store.objects().contains(key)) {
        store.Damage(key, 50);
        is_damaged = true;
      }
      return absl::OkStatus();
    });
    EXPECT_EQ(ReasonOf(Save(**root, "step_1", 1)), "CORRUPT_TRANSFER") << name;
    EXPECT_TRUE(is_damaged) << name;
    EXPECT_THAT(Listed(store), IsEmpty()) << name;
    ASSERT_EQ(Save(**root, "step_1", 2), absl::OkStatus()) << name;
    EXPECT_THAT(Listed(store), ElementsAre("step_1")) << name;
  }
}

TEST_F(BucketRootStoreTest, OpenedCheckpointHasAllFiles) {
  MemoryObjectStore store;
  auto root = Open(store);
  ASSERT_EQ(Save(**root, "step_1", 1), absl::OkStatus());
  const auto manifest = (*root)->OpenCheckpoint("step_1", 1);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->body.files_size(), 4);
  EXPECT_EQ(ReasonOf((*root)->OpenCheckpoint("step_1", 2).status()), "NO_CHECKPOINT");
  EXPECT_EQ(ReasonOf((*root)->OpenCheckpoint("step_9", 1).status()), "NO_CHECKPOINT");
  ASSERT_EQ(store.Delete("run/step_1/rank_1.pt"), absl::OkStatus());
  const absl::Status missing = (*root)->OpenCheckpoint("step_1", 1).status();
  EXPECT_TRUE(ProvesDamage(missing)) << missing;
  EXPECT_EQ(DetailsOf(missing)["path"], "rank_1.pt");
}

TEST_F(BucketRootStoreTest, DamagedRecordIsAnErrorAndNoEmptyOne) {
  MemoryObjectStore store;
  ASSERT_TRUE(Open(store).ok());
  store.Damage("run/.ckptd/record.1", 21);
  const absl::Status opened = Open(store).status();
  EXPECT_EQ(ReasonOf(opened), "ROOT_UNREADABLE");
  EXPECT_THAT(std::string(opened.message()), HasSubstr("run/.ckptd/record.1"));
}

// ---- a daemon that dies at each of its requests

class BucketRootKillTest : public BucketRootStoreTest {
 protected:
  // Runs `work` with a daemon that dies at each of its requests in turn, on a bucket that `prepare` has made,
  // and calls `check` after the next daemon has opened the root.
  void KillAtEachRequest(const std::function<void(MemoryObjectStore&)>& prepare,
                         const std::function<void(ObjectStore&)>& work,
                         const std::function<void(MemoryObjectStore&, BucketRootStore&)>& check) {
    int requests = 0;
    {
      MemoryObjectStore store;
      prepare(store);
      KillingObjectStore counted(&store);
      work(counted);
      requests = counted.requests();
    }
    ASSERT_GT(requests, 5);
    for (const When when : {When::kBefore, When::kAfter}) {
      for (int at = 1; at <= requests; ++at) {
        SCOPED_TRACE(absl::StrCat("dies ", when == When::kBefore ? "before" : "after", " request ", at));
        MemoryObjectStore store;
        prepare(store);
        KillingObjectStore dying(&store, at, when);
        work(dying);
        auto next = Open(store, "the next");
        ASSERT_TRUE(next.ok()) << next.status();
        EXPECT_FALSE(HasUnended(store));
        EXPECT_EQ(store.uploads_in_flight(), 0u);
        EXPECT_EQ(Listed(store), Tags(**next));
        check(store, **next);
      }
    }
  }
  void SaveFirst(MemoryObjectStore& store) {
    auto root = Open(store);
    ASSERT_EQ(Save(**root, "step_1", 1, tiny_), absl::OkStatus());
  }
};

TEST_F(BucketRootKillTest, SaveIsWholeOrNotThere) {
  KillAtEachRequest([&](MemoryObjectStore& store) { SaveFirst(store); },
                    [&](ObjectStore& store) {
                      auto root = Open(store);
                      if (root.ok()) Save(**root, "step_2", 2).IgnoreError();
                    },
                    [&](MemoryObjectStore& store, BucketRootStore& next) {
                      EXPECT_THAT(Tags(next), AnyOf(ElementsAre("step_1"), ElementsAre("step_1", "step_2")));
                      if (Tags(next).size() == 2) return;
                      EXPECT_THAT(Beneath(store, "step_2"), IsEmpty());
                      ASSERT_EQ(Save(next, "step_2", 3, tiny_), absl::OkStatus());
                      EXPECT_THAT(Listed(store), ElementsAre("step_1", "step_2"));
                    });
}

TEST_F(BucketRootKillTest, CommitThatWasAnsweredIsThere) {
  bool is_committed = false;
  KillAtEachRequest([&](MemoryObjectStore&) {},
                    [&](ObjectStore& store) {
                      auto root = Open(store);
                      is_committed = root.ok() && Save(**root, "step_1", 1).ok();
                    },
                    [&](MemoryObjectStore&, BucketRootStore& next) {
                      if (!is_committed) return;
                      EXPECT_THAT(Tags(next), ElementsAre("step_1"));
                    });
}

TEST_F(BucketRootKillTest, RemovalIsCompletedOrHasNotBegun) {
  KillAtEachRequest(
      [&](MemoryObjectStore& store) {
        SaveFirst(store);
        auto root = Open(store);
        ASSERT_EQ(Save(**root, "step_2", 2, tiny_), absl::OkStatus());
      },
      [&](ObjectStore& store) {
        auto root = Open(store);
        if (!root.ok() || !(*root)->Evict("step_1", 1).ok()) return;
        (*root)->RemoveLeft({}).status().IgnoreError();
      },
      [&](MemoryObjectStore& store, BucketRootStore& next) {
        EXPECT_THAT(Tags(next), AnyOf(ElementsAre("step_2"), ElementsAre("step_1", "step_2")));
        if (Tags(next).size() == 2) return;
        EXPECT_THAT(Beneath(store, "step_1"), IsEmpty());
      });
}

TEST_F(BucketRootKillTest, SaveInThePlaceOfARemovedCheckpointIsWholeOrNotThere) {
  KillAtEachRequest([&](MemoryObjectStore& store) { SaveFirst(store); },
                    [&](ObjectStore& store) {
                      auto root = Open(store);
                      if (root.ok() && (*root)->Evict("step_1", 1).ok())
                        Save(**root, "step_1", 2).IgnoreError();
                    },
                    [&](MemoryObjectStore& store, BucketRootStore& next) {
                      if (!Tags(next).empty()) return;
                      EXPECT_THAT(Beneath(store, "step_1"), IsEmpty());
                      ASSERT_EQ(Save(next, "step_1", 5, tiny_), absl::OkStatus());
                      EXPECT_THAT(Listed(store), ElementsAre("step_1"));
                    });
}

TEST_F(BucketRootKillTest, OpenThatWasCutShortIsRepeated) {
  KillAtEachRequest(
      [&](MemoryObjectStore& store) {
        SaveFirst(store);
        auto root = Open(store);
        auto save = (*root)->Begin("step_2", 2);
        ASSERT_TRUE(Write(**root, **save, big_, small_).ok());
        ASSERT_EQ(Save(**root, "step_3", 3, tiny_), absl::OkStatus());
        ASSERT_EQ((*root)->Evict("step_3", 3), absl::OkStatus());
      },
      [&](ObjectStore& store) { Open(store).status().IgnoreError(); },
      [&](MemoryObjectStore& store, BucketRootStore& next) {
        EXPECT_THAT(Tags(next), ElementsAre("step_1"));
        EXPECT_THAT(Beneath(store, "step_2"), IsEmpty());
        EXPECT_THAT(Beneath(store, "step_3"), IsEmpty());
      });
}

// One request fails, and the daemon lives on: the save fails or becomes a checkpoint, and the next one is as
// any other.
TEST_F(BucketRootStoreTest, AfterAnyFaultASaveOfTheTagSucceedsOrIsThere) {
  for (int at = 1;; ++at) {
    SCOPED_TRACE(absl::StrCat("fault at request ", at));
    MemoryObjectStore store;
    auto root = Open(store);
    int number = 0;
    store.SetHook([&](const std::string&, const std::string&) {
      return ++number == at ? MakeError(absl::StatusCode::kDeadlineExceeded, "STORE_TIMEOUT", "once")
                            : absl::OkStatus();
    });
    const absl::Status first = Save(**root, "step_1", 1);
    if (number < at) break;
    store.SetHook(nullptr);
    if (!first.ok()) {
      ASSERT_EQ(Save(**root, "step_1", 2), absl::OkStatus());
    }
    EXPECT_THAT(Listed(store), ElementsAre("step_1"));
    while (*(*root)->RemoveLeft({})) {
    }
    EXPECT_FALSE(HasUnended(store));
    EXPECT_EQ(store.objects().count("run/step_1/.ckptd/manifest.new"), 0u);
  }
}

}  // namespace
}  // namespace ckptd
