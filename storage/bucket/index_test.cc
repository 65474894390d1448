// Lists of a bucket by its index: how many requests they cost, and what a wrong or missing name does not hide.
#include "storage/bucket/index.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"
#include "storage/bucket/fetch.h"
#include "storage/bucket/list.h"
#include "storage/bucket/object_file_system.h"
#include "storage/bucket/remove.h"
#include "storage/bucket/upload.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/format/manifest.h"
#include "storage/fs/posix_file_system.h"
#include "tests/testing/killing_object_store.h"
#include "tests/testing/memory_object_store.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using storage::v1::ManifestSummary;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kConfirmed = 64;  // Newest names, which are compared with their manifests.
constexpr int kSome = 100;
constexpr int kMany = 2500;
constexpr int32_t kChunkBytes = 1 << 20;

std::string Tag(int64_t number) { return absl::StrCat("step_", number); }
std::string ManifestKey(const std::string& tag) { return absl::StrCat("run/", tag, "/.ckptd/manifest"); }

// Of a checkpoint with one file. A later save of a tag has a higher sequence, and was begun later.
Manifest ManifestOf(const std::string& tag, int64_t sequence) {
  Manifest manifest;
  const std::string content = absl::StrCat("of ", sequence);
  storage::v1::FileRecord& file = *manifest.body.add_files();
  file.set_path("model.pt");
  file.set_size_bytes(static_cast<int64_t>(content.size()));
  file.add_chunk_crc32c(Crc32c(std::as_bytes(std::span(content))));
  ManifestSummary& summary = manifest.summary;
  summary.set_format_version(1);
  summary.set_run_id("run-of-tests");
  summary.set_tag(tag);
  summary.set_sequence(sequence);
  summary.set_attempt(1);
  summary.set_ordinal(1);
  summary.set_world_size(1);
  summary.set_chunk_bytes(kChunkBytes);
  summary.set_file_count(1);
  summary.set_size_bytes(file.size_bytes());
  summary.set_create_time_us(1'700'000'000'000'000 + sequence * 1'000'000);
  summary.set_commit_time_us(summary.create_time_us() + 500'000);
  return manifest;
}

class IndexTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(fs_.ok()); }

  // What an earlier version of ckptd, or a copy by hand, leaves: no name.
  void PutUnnamed(const std::string& tag, int64_t sequence) {
    const std::string bytes = EncodeManifest(ManifestOf(tag, sequence)).value();
    ASSERT_EQ(PutText(store_, ManifestKey(tag), bytes, PutMode::kReplace), absl::OkStatus());
    ASSERT_EQ(PutText(store_, absl::StrCat("run/", tag, "/model.pt"), "x", PutMode::kReplace),
              absl::OkStatus());
  }
  void PutNamed(int64_t number) {
    PutUnnamed(Tag(number), number);
    ASSERT_EQ(PutIndexName(store_, "run", {ManifestOf(Tag(number), number).summary}), absl::OkStatus());
  }
  void PutNamed(int64_t first, int64_t last) {
    for (int64_t number = first; number <= last; ++number) PutNamed(number);
  }
  // Everything beneath the tag, and not its name.
  void RemoveByHand(const std::string& tag) {
    for (const auto& [key, bytes] : store_.objects()) {
      if (!absl::StartsWith(key, absl::StrCat("run/", tag, "/"))) continue;
      ASSERT_EQ(store_.Delete(key), absl::OkStatus());
    }
  }

  void WriteCheckpoint(const std::string& tag, int64_t sequence) {
    const std::filesystem::path at = std::filesystem::path(root_.path()) / tag;
    std::filesystem::create_directories(at / ".ckptd");
    const Manifest manifest = ManifestOf(tag, sequence);
    storage::v1::PartRecord record;
    record.set_format_version(1);
    record.set_sequence(sequence);
    record.set_chunk_bytes(kChunkBytes);
    *record.mutable_files() = manifest.body.files();
    *record.mutable_checkpoint() = manifest.summary;
    std::ofstream(at / "model.pt") << "of " << sequence;
    std::ofstream(at / ".ckptd" / "part-00000") << EncodePartRecord(record);
    std::ofstream(at / ".ckptd" / "manifest") << EncodeManifest(manifest).value();
  }
  absl::Status Upload(ObjectStore& store, const std::string& tag, int64_t sequence) {
    WriteCheckpoint(tag, sequence);
    TransferOptions options;
    options.threads = 1;
    return UploadCheckpoint(**fs_, root_.fd(), tag, store, "run", options, sequence).status();
  }
  absl::Status Remove(ObjectStore& store, const std::string& tag, int64_t sequence) {
    return RemoveUploaded(store, "run", tag, sequence, ManifestOf(tag, sequence).summary.commit_time_us());
  }

  BucketList List(ListDetail detail = ListDetail::kComplete) {
    absl::StatusOr<BucketList> list = ListBucket(store_, "run", 4, detail);
    EXPECT_TRUE(list.ok()) << list.status();
    return list.ok() ? *std::move(list) : BucketList();
  }
  std::map<std::string, int64_t> Listed() {
    std::map<std::string, int64_t> sequences;
    for (const BucketCheckpoint& found : List().checkpoints)
      sequences[found.summary.tag()] = found.summary.sequence();
    return sequences;
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const auto& [key, bytes] : store_.objects())
      if (absl::StartsWith(key, "run/.ckptd/index/"))
        names.push_back(key.substr(std::string("run/.ckptd/index/").size()));
    return names;
  }
  // Requests by what they are called in object_store.h.
  std::map<std::string, int> Requests(const std::function<void()>& work) {
    std::map<std::string, int> requests;
    Mutex mutex;
    store_.SetHook([&](const std::string& request, const std::string&) {
      MutexLock lock(mutex);
      ++requests[request];
      return absl::OkStatus();
    });
    work();
    store_.SetHook(nullptr);
    return requests;
  }
  std::map<std::string, int> RequestsOfAList() {
    return Requests([this] { List(); });
  }

  absl::StatusOr<std::unique_ptr<FileSystem>> fs_ = MakePosixFileSystem();
  MemoryObjectStore store_;
  TempDir root_;
};

using Counts = std::map<std::string, int>;

TEST_F(IndexTest, NameSaysWhatTheManifestDoes) {
  ManifestSummary summary = ManifestOf("step=1,+@-._", 7).summary;
  (*summary.mutable_metrics())["loss"] = 0.25;
  (*summary.mutable_pointers())["latest"] = "step=1,+@-._";
  summary.set_suspect("loss is not finite");
  for (const bool by_daemon : {false, true}) {
    const std::string key = IndexKey("run", {summary, by_daemon}).value();
    const std::string folder = "run/.ckptd/index/";
    ASSERT_TRUE(absl::StartsWith(key, folder + "step=1,+@-._!"));
    const std::optional<IndexName> parsed = ParseIndexName(key.substr(folder.size()));
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(parsed->summary.SerializeAsString(), summary.SerializeAsString());
    EXPECT_EQ(parsed->by_daemon, by_daemon);
    EXPECT_TRUE(parsed->is_complete);
  }
  EXPECT_TRUE(absl::StartsWith(IndexKey("", {summary}).value(), ".ckptd/index/"));
}

// As in tests/python/test_bucket_index.py.
TEST_F(IndexTest, NameIsTheOneThatPythonKnows) {
  ManifestSummary summary;
  summary.set_tag("step_1");
  summary.set_sequence(1);
  EXPECT_EQ(IndexKey("run", {summary, true}).value(), "run/.ckptd/index/step_1!8-zfHAEoAQ");
}

TEST_F(IndexTest, DamagedAndForeignNamesAreNoNames) {
  const std::string key = IndexKey("", {ManifestOf("step_1", 1).summary}).value();
  const std::string name = key.substr(std::string(".ckptd/index/").size());
  ASSERT_TRUE(ParseIndexName(name).has_value());
  for (size_t i = 0; i + 1 < name.size(); ++i) {  // The last digit has bits that say nothing.
    std::string damaged = name;
    damaged[i] = damaged[i] == 'x' ? 'y' : 'x';
    EXPECT_FALSE(ParseIndexName(damaged).has_value()) << i;
  }
  for (const char* other :
       {"", "!", "step_1", "step_1!", "step_1!AAAA", "latest!AAAAAAAAAA", "step_1!AAAAAAAA!"})
    EXPECT_FALSE(ParseIndexName(other).has_value()) << other;
}

TEST_F(IndexTest, MetricsForWhichANameHasNoRoomAreReadFromTheManifest) {
  Manifest manifest = ManifestOf("step_1", 1);
  for (int i = 0; i < 60; ++i) (*manifest.summary.mutable_metrics())[absl::StrCat("metric", i)] = i;
  ASSERT_EQ(PutText(store_, ManifestKey("step_1"), EncodeManifest(manifest).value(), PutMode::kReplace),
            absl::OkStatus());
  ASSERT_EQ(PutIndexName(store_, "run", {manifest.summary}), absl::OkStatus());
  ASSERT_THAT(Names(), SizeIs(1));
  EXPECT_FALSE(ParseIndexName(Names()[0])->is_complete);
  PutNamed(10, 10 + kSome);  // It is not one of the newest, which are read anyway.
  const auto metrics = [&](ListDetail detail) {
    for (const BucketCheckpoint& found : List(detail).checkpoints)
      if (found.summary.tag() == "step_1") return found.summary.metrics_size();
    return -1;
  };
  EXPECT_EQ(metrics(ListDetail::kComplete), 60);
  EXPECT_EQ(metrics(ListDetail::kAsNamed), 0);
}

TEST_F(IndexTest, CheckpointWithoutRoomForANameIsListedNevertheless) {
  const std::string prefix(1000, 'p');
  const Manifest manifest = ManifestOf("s", 1);
  EXPECT_FALSE(IndexKey(prefix, {manifest.summary}).has_value());
  EXPECT_EQ(PutIndexName(store_, prefix, {manifest.summary}), absl::OkStatus());
  EXPECT_THAT(store_.objects(), IsEmpty());
  ASSERT_EQ(PutText(store_, absl::StrCat(prefix, "/s/.ckptd/manifest"), EncodeManifest(manifest).value(),
                    PutMode::kReplace),
            absl::OkStatus());
  EXPECT_THAT(ListBucket(store_, prefix, 2)->checkpoints, SizeIs(1));
}

// ---- what it costs

TEST_F(IndexTest, ListCostsPagesAndNotRequestsForEachCheckpoint) {
  PutNamed(1, 10);
  EXPECT_EQ(RequestsOfAList(), (Counts{{"List", 2}, {"Get", 10}}));
  PutNamed(11, kSome);
  EXPECT_EQ(RequestsOfAList(), (Counts{{"List", 2}, {"Get", kConfirmed}}));
  PutNamed(kSome + 1, kMany);
  EXPECT_EQ(RequestsOfAList(), (Counts{{"List", 6}, {"Get", kConfirmed}}));
  const BucketList list = List();
  EXPECT_THAT(list.checkpoints, SizeIs(kMany));
  EXPECT_THAT(list.repairs.missing, IsEmpty());
  EXPECT_THAT(list.repairs.wrong, IsEmpty());
}

TEST_F(IndexTest, UploadAndRemovalCostTheSameBesideManyCheckpoints) {
  const auto upload = [this] { ASSERT_EQ(Upload(store_, "new", 9999), absl::OkStatus()); };
  const auto remove = [this] { ASSERT_EQ(Remove(store_, "new", 9999), absl::OkStatus()); };
  PutNamed(1, 10);
  const Counts uploaded = Requests(upload), removed = Requests(remove);
  PutNamed(11, kMany);
  EXPECT_EQ(Requests(upload), uploaded);
  EXPECT_EQ(Requests(remove), removed);
  // As the table in docs/buckets.md says; a missing object costs S3Store a Get besides its Head.
  EXPECT_EQ(uploaded,
            (Counts{{"Put", 8}, {"Head", 2}, {"Get", 1}, {"List", 2}, {"ListUploads", 2}, {"Delete", 1}}));
  EXPECT_EQ(removed,
            (Counts{{"Put", 1}, {"Head", 1}, {"Get", 1}, {"List", 2}, {"ListUploads", 1}, {"Delete", 6}}));
}

TEST_F(IndexTest, FetchAsksForTheCheckpointAlone) {
  PutNamed(1, 10);
  ASSERT_EQ(Upload(store_, "new", 9999), absl::OkStatus());
  TempDir other;
  const auto fetch = [&] {
    ASSERT_EQ(FetchCheckpoint(store_, "run", "new", **fs_, other.fd(), {}).status(), absl::OkStatus());
  };
  EXPECT_EQ(Requests(fetch), (Counts{{"List", 2}, {"Head", 2}, {"Get", 3}}));
}

TEST_F(IndexTest, ScanOfTheRestOfABucketReadsNoManifestAgain) {
  const auto scan = [this] {
    std::set<std::string> listed;
    for (const BucketCheckpoint& found : List().checkpoints) listed.insert(found.summary.tag());
    const std::unique_ptr<FileSystem> rest = MakeObjectFileSystem(&store_, "run", listed);
    const absl::StatusOr<RootScan> found = ScanRoot(*rest, kObjectRoot);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_THAT(found->checkpoints, IsEmpty());
  };
  PutNamed(1, kSome);
  EXPECT_EQ(Requests(scan), (Counts{{"List", 3}, {"Get", kConfirmed}}));
  PutNamed(kSome + 1, kMany);
  EXPECT_EQ(Requests(scan), (Counts{{"List", 9}, {"Get", kConfirmed}}));
}

// ---- what has no name, or a wrong one

TEST_F(IndexTest, BucketOfAnEarlierVersionIsListed) {
  for (int64_t number = 1; number <= 20; ++number) PutUnnamed(Tag(number), number);
  EXPECT_THAT(Listed(), SizeIs(20));
  const BucketList list = List();
  ASSERT_EQ(RepairIndex(store_, "run", list.repairs, 2), absl::OkStatus());
  EXPECT_THAT(Names(), SizeIs(20));
  EXPECT_THAT(Listed(), SizeIs(20));
  EXPECT_EQ(RequestsOfAList(), (Counts{{"List", 2}, {"Get", 20}}));
}

TEST_F(IndexTest, CheckpointThatWasCopiedByHandIsListed) {
  PutNamed(1, kSome);
  PutUnnamed("copied", 400);
  EXPECT_EQ(Listed()["copied"], 400);
}

// By an earlier version, which does not know of the index: the name is of a checkpoint that is gone.
TEST_F(IndexTest, CheckpointThatHasTakenATagWithoutItsNameIsNotHiddenByTheOldName) {
  PutNamed(1, kSome);
  for (const int64_t replaced : {100, 80, 37}) {  // Among the newest.
    PutUnnamed(Tag(replaced), 1000 + replaced);
    EXPECT_EQ(Listed()[Tag(replaced)], 1000 + replaced);
  }
  for (const int64_t replaced : {100, 80, 37}) PutUnnamed(Tag(replaced), replaced);
  PutUnnamed(Tag(3), 2000);
  PutUnnamed("fresh", 2001);  // It tells that there is something that keeps no names.
  EXPECT_EQ(Listed()[Tag(3)], 2000);
  const BucketList list = List();
  ASSERT_EQ(RepairIndex(store_, "run", list.repairs, 2), absl::OkStatus());
  EXPECT_EQ(RequestsOfAList(), (Counts{{"List", 2}, {"Get", kConfirmed}}));
  EXPECT_EQ(Listed()[Tag(3)], 2000);
  EXPECT_THAT(Names(), SizeIs(kSome + 1));
}

TEST_F(IndexTest, SeveralNamesOfATagLetTheManifestDecide) {
  PutNamed(1, kSome);
  PutUnnamed(Tag(2), 999);
  ASSERT_EQ(PutIndexName(store_, "run", {ManifestOf(Tag(2), 999).summary}), absl::OkStatus());
  EXPECT_EQ(Listed()[Tag(2)], 999);
  EXPECT_EQ(RequestsOfAList(), (Counts{{"List", 3}, {"Get", kConfirmed + 1}}));
  ASSERT_EQ(RepairIndex(store_, "run", List().repairs, 2), absl::OkStatus());
  EXPECT_THAT(Names(), SizeIs(kSome));
  EXPECT_EQ(Listed()[Tag(2)], 999);
}

TEST_F(IndexTest, NameOfALaterVersionIsNotTakenForNone) {
  PutNamed(1, kSome);
  RemoveByHand(Tag(2));
  PutUnnamed(Tag(2), 999);
  ASSERT_EQ(PutText(store_, absl::StrCat("run/.ckptd/index/", Tag(2), "!LATER"), "", PutMode::kReplace),
            absl::OkStatus());
  EXPECT_EQ(Listed()[Tag(2)], 999);
}

TEST_F(IndexTest, NameWithoutItsTagIsNoCheckpoint) {
  PutNamed(1, kSome);
  RemoveByHand(Tag(kSome));
  RemoveByHand(Tag(4));
  EXPECT_THAT(Listed(), SizeIs(kSome - 2));
  ASSERT_EQ(RepairIndex(store_, "run", List().repairs, 2), absl::OkStatus());
  EXPECT_THAT(Names(), SizeIs(kSome - 2));
}

TEST_F(IndexTest, CheckpointWhoseManifestWasRemovedFirstIsNotTheNewest) {
  PutNamed(1, kSome);
  ASSERT_EQ(store_.Delete(ManifestKey(Tag(kSome))), absl::OkStatus());
  ASSERT_EQ(store_.Delete(ManifestKey(Tag(5))), absl::OkStatus());
  const std::map<std::string, int64_t> listed = Listed();
  EXPECT_FALSE(listed.contains(Tag(kSome)));
  EXPECT_FALSE(listed.contains(Tag(5))) << "all are read once a name was wrong";
  EXPECT_THAT(listed, SizeIs(kSome - 2));
}

TEST_F(IndexTest, DamagedManifestOfTheNewestIsTold) {
  PutNamed(1, kSome);
  store_.Damage(ManifestKey(Tag(kSome)), 40);
  const BucketList list = List();
  ASSERT_THAT(list.damaged, SizeIs(1));
  EXPECT_EQ(list.damaged[0].first, Tag(kSome));
  EXPECT_THAT(list.checkpoints, SizeIs(kSome - 1));
}

TEST_F(IndexTest, ListFailsIfTheServerDoesNotAnswerAndHidesNothing) {
  PutNamed(1, 12);
  PutUnnamed("unnamed", 20);
  KillingObjectStore counting(&store_);
  ASSERT_TRUE(ListBucket(counting, "run", 1).ok());
  for (int at = 1; at <= counting.requests(); ++at) {
    KillingObjectStore dying(&store_, at);
    EXPECT_FALSE(ListBucket(dying, "run", 1).ok()) << at;
  }
}

// ---- what uploads and removals leave

TEST_F(IndexTest, UploadNamesTheCheckpointAndRemovalTakesTheNameAway) {
  ASSERT_EQ(Upload(store_, "step_1", 1), absl::OkStatus());
  ASSERT_THAT(Names(), SizeIs(1));
  const std::optional<IndexName> name = ParseIndexName(Names()[0]);
  ASSERT_TRUE(name.has_value());
  EXPECT_TRUE(name->by_daemon);
  EXPECT_EQ(name->summary.SerializeAsString(), ManifestOf("step_1", 1).summary.SerializeAsString());
  ASSERT_EQ(Remove(store_, "step_1", 1), absl::OkStatus());
  EXPECT_THAT(store_.objects(), IsEmpty());
}

TEST_F(IndexTest, UploadOfATagRemovesTheNameThatARemovalByHandHasLeft) {
  ASSERT_EQ(Upload(store_, "step_1", 1), absl::OkStatus());
  RemoveByHand("step_1");
  ASSERT_EQ(Upload(store_, "step_1", 2), absl::OkStatus());
  ASSERT_THAT(Names(), SizeIs(1));
  EXPECT_EQ(ParseIndexName(Names()[0])->summary.sequence(), 2);
}

TEST_F(IndexTest, UploadByHandAfterThatOfADaemonLeavesItsMark) {
  ASSERT_EQ(Upload(store_, "step_1", 1), absl::OkStatus());
  const auto by_hand = [this] {
    return UploadCheckpoint(**fs_, root_.fd(), "step_1", store_, "run", {}, /*sequence=*/0).status();
  };
  ASSERT_EQ(by_hand(), absl::OkStatus());
  EXPECT_TRUE(List().checkpoints.at(0).by_daemon);
  for (const std::string& name : Names())
    ASSERT_EQ(store_.Delete(absl::StrCat("run/.ckptd/index/", name)), absl::OkStatus());
  ASSERT_EQ(by_hand(), absl::OkStatus());
  EXPECT_TRUE(List().checkpoints.at(0).by_daemon);
  EXPECT_THAT(Names(), SizeIs(1));
}

// The old checkpoint of the tag goes, and the new one comes. A process dies at each request. Whatever is listed has the
// sequence of the manifest that is there, and what is committed is listed.
TEST_F(IndexTest, TagThatIsUploadedAgainIsListedAsItsManifestSaysWhereverAProcessDies) {
  const auto replace = [this](ObjectStore& store) -> absl::Status {
    if (const absl::Status removed = Remove(store, "step_1", 1); !removed.ok()) return removed;
    return Upload(store, "step_1", 2);
  };
  ASSERT_EQ(Upload(store_, "step_1", 1), absl::OkStatus());
  KillingObjectStore counting(&store_);
  ASSERT_EQ(replace(counting), absl::OkStatus());
  ASSERT_GT(counting.requests(), 20);
  const std::map<std::string, std::string> whole = store_.objects();
  for (int at = 1; at <= counting.requests(); ++at) {
    for (const auto when : {KillingObjectStore::When::kBefore, KillingObjectStore::When::kAfter}) {
      SCOPED_TRACE(absl::StrCat("at request ", at, when == KillingObjectStore::When::kAfter ? ", done" : ""));
      for (const auto& [key, bytes] : store_.objects()) ASSERT_EQ(store_.Delete(key), absl::OkStatus());
      ASSERT_EQ(Upload(store_, "step_1", 1), absl::OkStatus());
      KillingObjectStore dying(&store_, at, when);
      EXPECT_FALSE(replace(dying).ok());
      const std::map<std::string, std::string> left = store_.objects();
      const auto manifest = left.find(ManifestKey("step_1"));
      std::map<std::string, int64_t> expected;
      if (manifest != left.end()) expected["step_1"] = DecodeManifest(manifest->second)->summary.sequence();
      EXPECT_EQ(Listed(), expected);
      for (const std::string& name : Names())
        EXPECT_EQ(ParseIndexName(name)->summary.sequence(), expected["step_1"])
            << "a name without its manifest";
      ASSERT_EQ(replace(store_), absl::OkStatus());
      EXPECT_EQ(store_.objects(), whole);
    }
  }
}

// A removal and an upload come as far as to each request between the two listings of a list.
TEST_F(IndexTest, ListBesideAnUploadOfATagSeesWhatIsThere) {
  for (int64_t number = 100; number < 120; ++number) PutNamed(number);
  ASSERT_EQ(Upload(store_, "step_1", 1), absl::OkStatus());
  const std::map<std::string, std::string> before = store_.objects();
  int count = 0;
  {
    KillingObjectStore counting(&store_);
    ASSERT_EQ(Remove(counting, "step_1", 1), absl::OkStatus());
    ASSERT_EQ(Upload(counting, "step_1", 2), absl::OkStatus());
    count = counting.requests();
  }
  for (int at = 1; at <= count; ++at) {
    SCOPED_TRACE(at);
    ASSERT_EQ(Remove(store_, "step_1", 2), absl::OkStatus());
    ASSERT_EQ(Upload(store_, "step_1", 1), absl::OkStatus());
    KillingObjectStore dying(&store_, at);
    bool is_first = true, is_changed = false;
    store_.SetHook([&](const std::string& request, const std::string& key) {
      if (request == "List" && key == "run/.ckptd/index/" && is_first) {
        is_first = false;
        is_changed = Remove(dying, "step_1", 1).ok() && Upload(dying, "step_1", 2).ok();
      }
      return absl::OkStatus();
    });
    const std::map<std::string, int64_t> listed = Listed();
    store_.SetHook(nullptr);
    EXPECT_FALSE(is_changed);
    EXPECT_THAT(listed, SizeIs(::testing::AllOf(::testing::Ge(20u), ::testing::Le(21u))));
    if (listed.contains("step_1")) {
      const std::string manifest = store_.objects()[ManifestKey("step_1")];
      EXPECT_EQ(listed.at("step_1"), DecodeManifest(manifest)->summary.sequence());
    } else {
      EXPECT_FALSE(store_.objects().contains(ManifestKey("step_1")));
    }
    ASSERT_EQ(Remove(store_, "step_1", 1), absl::OkStatus());
    ASSERT_EQ(Upload(store_, "step_1", 2), absl::OkStatus());
  }
}

}  // namespace
}  // namespace ckptd
