// Uploads and fetches against the store in memory: what arrives, what is refused, and what a process that
// dies at each of its requests leaves behind.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/errors.h"
#include "storage/bucket/fetch.h"
#include "storage/bucket/index.h"
#include "storage/bucket/list.h"
#include "storage/bucket/object_file_system.h"
#include "storage/bucket/remove.h"
#include "storage/bucket/upload.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/commit/checkpoint/verify.h"
#include "storage/format/manifest.h"
#include "storage/format/names.h"
#include "storage/fs/posix_file_system.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/faulty_file_system.h"
#include "tests/testing/killing_object_store.h"
#include "tests/testing/memory_object_store.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int32_t kChunkBytes = 1 << 20;
constexpr char kTag[] = "step_10";

class BucketTest : public ::testing::Test {
 protected:
  BucketTest() {
    options_.part_bytes = kMinPartBytes;
    options_.threads = 1;  // The order of the requests is then always the same.
    EXPECT_TRUE(fs_.ok());
  }

  FileSystem& fs() { return **fs_; }

  // Writes a committed checkpoint into the root `dir`: a file of two parts, a small one in a folder, an empty
  // one.
  void WriteCheckpoint(const TempDir& dir, int64_t sequence) {
    const std::filesystem::path at = std::filesystem::path(dir.path()) / kTag;
    std::filesystem::create_directories(at / ".ckptd");
    std::filesystem::create_directories(at / "folder");
    Manifest manifest;
    storage::v1::PartRecord record;
    const std::string fill(1, static_cast<char>('a' + sequence));
    for (const auto& [path, size] : std::vector<std::pair<std::string, size_t>>{
             {"big.pt", kMinPartBytes + 12345}, {"empty", 0}, {"folder/small.pt", 77}}) {
      std::string content;
      while (content.size() < size) absl::StrAppend(&content, fill, content.size());
      content.resize(size);
      storage::v1::FileRecord& file = *manifest.body.add_files();
      file.set_path(path);
      file.set_size_bytes(static_cast<int64_t>(size));
      for (size_t i = 0; i < size; i += kChunkBytes)
        file.add_chunk_crc32c(
            Crc32c(std::as_bytes(std::span(content)).subspan(i, std::min<size_t>(kChunkBytes, size - i))));
      std::ofstream(at / path) << content;
      manifest.summary.set_size_bytes(manifest.summary.size_bytes() + file.size_bytes());
    }
    manifest.summary.set_format_version(1);
    manifest.summary.set_tag(kTag);
    manifest.summary.set_sequence(sequence);
    manifest.summary.set_attempt(1);
    manifest.summary.set_ordinal(1);
    manifest.summary.set_world_size(1);
    manifest.summary.set_chunk_bytes(kChunkBytes);
    manifest.summary.set_file_count(3);
    record.set_format_version(1);
    record.set_sequence(sequence);
    record.set_chunk_bytes(kChunkBytes);
    *record.mutable_files() = manifest.body.files();
    *record.mutable_checkpoint() = manifest.summary;
    std::ofstream(at / ".ckptd" / "part-00000") << EncodePartRecord(record);
    std::ofstream(at / ".ckptd" / "manifest") << EncodeManifest(manifest).value();
  }

  absl::StatusOr<UploadResult> Upload(const TempDir& from, ObjectStore& store) {
    return UploadCheckpoint(fs(), from.fd(), kTag, store, "run", options_);
  }
  absl::Status Remove(ObjectStore& store, int64_t sequence = 1) {
    return RemoveUploaded(store, "run", kTag, sequence, /*commit_time_us=*/0);
  }
  absl::Status Fetch(const TempDir& to, ObjectStore& store) {
    return FetchCheckpoint(store, "run", kTag, fs(), to.fd(), options_).status();
  }
  std::vector<std::string> Verify(FileSystem& at, Handle root) {
    const absl::StatusOr<VerifyReport> report = VerifyCheckpoint(at, root, kTag);
    if (!report.ok()) return {report.status().ToString()};
    std::vector<std::string> problems;
    for (const VerifyProblem& problem : report->problems)
      problems.push_back(absl::StrCat(problem.path, ": ", problem.message));
    return problems;
  }
  // Of the bucket's list, with its index and without, which must have no damaged one.
  size_t Listed(ObjectStore& store) {
    const std::unique_ptr<FileSystem> bucket = MakeObjectFileSystem(&store, "run");
    const absl::StatusOr<RootScan> scan = ScanRoot(*bucket, kObjectRoot);
    EXPECT_TRUE(scan.ok()) << scan.status();
    EXPECT_THAT(scan->damaged, IsEmpty());
    const absl::StatusOr<BucketList> list = ListBucket(store, "run", 1);
    EXPECT_TRUE(list.ok()) << list.status();
    EXPECT_THAT(list->checkpoints, SizeIs(scan->checkpoints.size()));
    return scan->checkpoints.size();
  }

  absl::StatusOr<std::unique_ptr<FileSystem>> fs_ = MakePosixFileSystem();
  TransferOptions options_;
  TempDir root_;
};

TEST_F(BucketTest, ACheckpointComesBackAsItWas) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  options_.threads = 4;
  const absl::StatusOr<UploadResult> result = Upload(root_, store);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->arrived_bytes, 0);
  EXPECT_EQ(Listed(store), 1u);
  EXPECT_THAT(Verify(*MakeObjectFileSystem(&store, "run"), kObjectRoot), IsEmpty());
  EXPECT_EQ(store.uploads_in_flight(), 0u);
  // What lies in the bucket is the checkpoint's directory, and its name in the index.
  EXPECT_THAT(store.objects(), SizeIs(6));
  TempDir other;
  ASSERT_EQ(Fetch(other, store), absl::OkStatus());
  EXPECT_THAT(Verify(fs(), other.fd()), IsEmpty());
  EXPECT_EQ(Fetch(other, store), absl::OkStatus()) << "it is there already";
}

TEST_F(BucketTest, SecondUploadSendsNothing) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  const absl::StatusOr<UploadResult> again = Upload(root_, store);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->sent_bytes, 0);
  EXPECT_THAT(store.objects(), SizeIs(6));
}

TEST_F(BucketTest, AnotherCheckpointOfTheTagIsRefused) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  const auto before = store.objects();
  TempDir other;
  WriteCheckpoint(other, 2);
  EXPECT_EQ(ReasonOf(Upload(other, store).status()), "OBJECT_EXISTS");
  EXPECT_EQ(store.objects(), before);
  EXPECT_EQ(ReasonOf(Fetch(other, store)), "TAG_TAKEN");
}

TEST_F(BucketTest, ServerWithoutConditionalPutsIsRefused) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store({.conditional_put = true, .checksums = false});
  EXPECT_EQ(ReasonOf(Upload(root_, store).status()), "STORE_UNSUITABLE");
  EXPECT_THAT(store.objects(), IsEmpty());
}

TEST_F(BucketTest, WithoutChecksumsWhatWasSentIsComparedBeforeTheCommit) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store({.conditional_put = false, .checksums = true});
  ASSERT_TRUE(Upload(root_, store).ok());
  EXPECT_EQ(Listed(store), 1u);

  int gets = 0;
  MemoryObjectStore bad({.conditional_put = false, .checksums = true});
  bad.SetHook([&](const std::string& request, const std::string& key) {
    if (request == "Get" && key == "run/step_10/folder/small.pt" && gets++ == 0) bad.Damage(key, 5);
    return absl::OkStatus();
  });
  EXPECT_EQ(ReasonOf(Upload(root_, bad).status()), "CORRUPT_TRANSFER");
  EXPECT_EQ(Listed(bad), 0u);
  ASSERT_TRUE(Upload(root_, bad).ok()) << "the next one sends it again";
  EXPECT_EQ(Listed(bad), 1u);
  EXPECT_THAT(Verify(*MakeObjectFileSystem(&bad, "run"), kObjectRoot), IsEmpty());
}

TEST_F(BucketTest, WithoutChecksumsTheManifestIsComparedToo) {
  WriteCheckpoint(root_, 1);
  for (const char* name : {"manifest", "manifest.new"}) {
    MemoryObjectStore bad({.conditional_put = false, .checksums = true});
    bool is_damaged = false;
    bad.SetHook([&](const std::string& request, const std::string&) {
      const std::string damaged = absl::StrCat("run/step_10/.ckptd/", name);
      if (!is_damaged && request != "Put" && bad.objects().contains(damaged)) {
        bad.Damage(damaged, 40);
        is_damaged = true;
      }
      return absl::OkStatus();
    });
    const absl::Status first = Upload(root_, bad).status();
    EXPECT_TRUE(is_damaged);
    EXPECT_EQ(ReasonOf(first), "CORRUPT_TRANSFER") << name;
    ASSERT_TRUE(Upload(root_, bad).ok()) << name;
    EXPECT_EQ(Listed(bad), 1u) << name;
  }
}

TEST_F(BucketTest, DamagedClaimBesideFilesIsLeft) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  const std::map<std::string, std::string> all = store.objects();
  ASSERT_EQ(store.Delete("run/step_10/.ckptd/manifest"), absl::OkStatus());
  const std::string damaged = "not a manifest";
  const auto bytes = std::as_bytes(std::span(damaged));
  ASSERT_EQ(store.Put("run/step_10/.ckptd/manifest.new", bytes, Crc32c(bytes), PutMode::kReplace),
            absl::OkStatus());
  EXPECT_EQ(ReasonOf(Upload(root_, store).status()), "OBJECT_EXISTS");
  EXPECT_EQ(store.objects().size(), all.size());
}

TEST_F(BucketTest, ClaimOfANewerVersionIsLeft) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  std::ifstream file(absl::StrCat(root_.path(), "/", kTag, "/.ckptd/manifest"));
  std::string claim((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  claim[8] = 2;  // The format's version.
  const std::string head = claim.substr(0, 32);
  const uint32_t crc = Crc32c(std::as_bytes(std::span(head)));
  for (int i = 0; i < 4; ++i) claim[32 + static_cast<size_t>(i)] = static_cast<char>(crc >> (8 * i));
  ASSERT_EQ(ReasonOf(DecodeManifest(claim).status()), "NEWER_FORMAT");
  const auto bytes = std::as_bytes(std::span(claim));
  ASSERT_EQ(store.Put("run/step_10/.ckptd/manifest.new", bytes, Crc32c(bytes), PutMode::kReplace),
            absl::OkStatus());
  EXPECT_EQ(ReasonOf(Upload(root_, store).status()), "OBJECT_EXISTS");
  EXPECT_EQ(store.objects().at("run/step_10/.ckptd/manifest.new"), claim);
}

TEST_F(BucketTest, FileThatIsNotAsInTheManifestIsNotUploaded) {
  WriteCheckpoint(root_, 1);
  std::ofstream(absl::StrCat(root_.path(), "/", kTag, "/folder/small.pt"), std::ios::in | std::ios::out)
      << "!";
  MemoryObjectStore store;
  const absl::Status status = Upload(root_, store).status();
  EXPECT_EQ(ReasonOf(status), "CORRUPT_FILE");
  EXPECT_THAT(std::string(status.message()), HasSubstr("folder/small.pt: chunk 0"));
  EXPECT_EQ(Listed(store), 0u);
}

TEST_F(BucketTest, DamageInTheBucketIsFoundAndNothingIsFetched) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  store.Damage("run/step_10/big.pt", kMinPartBytes + 1);
  const auto problems = Verify(*MakeObjectFileSystem(&store, "run"), kObjectRoot);
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_THAT(problems[0], HasSubstr("big.pt: chunk 5 "));
  TempDir other;
  EXPECT_EQ(ReasonOf(Fetch(other, store)), "CORRUPT_FILE");
  EXPECT_FALSE(std::filesystem::exists(absl::StrCat(other.path(), "/", kTag)));
}

TEST_F(BucketTest, BytesThatArriveDamagedOnceAreFetchedAgain) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  int gets = 0;
  store.SetHook([&](const std::string& request, const std::string& key) {
    // Wrong for the first get, and right again from the second on.
    if (request == "Get" && key == "run/step_10/folder/small.pt" && ++gets <= 2) store.Damage(key, 3);
    return absl::OkStatus();
  });
  TempDir other;
  EXPECT_EQ(Fetch(other, store), absl::OkStatus());
  EXPECT_EQ(gets, 2);
}

// Wrong for the first get of the object, and right again from the second on.
MemoryObjectStore::Hook DamageFirstGet(MemoryObjectStore& store, const std::string& what, size_t at) {
  return [&store, what, at, gets = std::make_shared<std::atomic<int>>(0)](const std::string& request,
                                                                          const std::string& key) {
    if (request == "Get" && key == what && ++*gets <= 2) store.Damage(key, at);
    return absl::OkStatus();
  };
}

TEST_F(BucketTest, ManifestsAndRecordsThatArriveDamagedOnceAreFetchedAgain) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  for (const char* name : {"manifest", "part-00000"}) {
    store.SetHook(DamageFirstGet(store, absl::StrCat("run/step_10/.ckptd/", name), 40));
    TempDir other;
    EXPECT_EQ(Fetch(other, store), absl::OkStatus()) << name;
    EXPECT_THAT(Verify(fs(), other.fd()), IsEmpty()) << name;
  }
}

TEST_F(BucketTest, RecordThatIsDamagedInTheBucketDoesNotKeepTheFilesFromBeingFetched) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  store.Damage("run/step_10/.ckptd/part-00000", 40);
  TempDir other;
  EXPECT_EQ(Fetch(other, store), absl::OkStatus());
  EXPECT_THAT(Verify(fs(), other.fd()), SizeIs(1));
}

TEST_F(BucketTest, ManifestThatArrivesDamagedOnceHidesNoCheckpointFromAList) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  for (const char* what : {"with its name", "without a name"}) {
    store.SetHook(DamageFirstGet(store, "run/step_10/.ckptd/manifest", 40));
    const absl::StatusOr<BucketList> list = ListBucket(store, "run", 2);
    ASSERT_TRUE(list.ok()) << what << ": " << list.status();
    EXPECT_THAT(list->checkpoints, SizeIs(1)) << what;
    ASSERT_EQ(RemoveIndexNames(store, "run", kTag), absl::OkStatus());
  }
}

TEST_F(BucketTest, ManifestThatIsReplacedWhileItIsListedIsNotTakenForDamaged) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  ASSERT_EQ(RemoveIndexNames(store, "run", kTag), absl::OkStatus());
  const std::string manifest = "run/step_10/.ckptd/manifest", replaced = store.objects()[manifest];
  const std::string shorter = replaced.substr(0, replaced.size() - 1);
  ASSERT_EQ(PutText(store, manifest, shorter, PutMode::kReplace), absl::OkStatus());
  store.SetHook([&](const std::string& request, const std::string&) {
    const bool is_first = request == "Get" && store.objects()[manifest] == shorter;
    return is_first ? PutText(store, manifest, replaced, PutMode::kReplace) : absl::OkStatus();
  });
  const absl::StatusOr<BucketList> list = ListBucket(store, "run", 2);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(list->checkpoints, SizeIs(1));
}

TEST_F(BucketTest, ManifestThatArrivesDamagedOnceIsRemovedNevertheless) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  store.SetHook(DamageFirstGet(store, "run/step_10/.ckptd/manifest", 40));
  EXPECT_EQ(Remove(store), absl::OkStatus());
  EXPECT_THAT(store.objects(), IsEmpty());
}

TEST_F(BucketTest, FetchLeavesForeignDirectoriesUntouched) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  TempDir other;
  std::filesystem::create_directories(absl::StrCat(other.path(), "/", kTag, "/mine"));
  EXPECT_EQ(ReasonOf(Fetch(other, store)), "TAG_FOREIGN");
}

TEST_F(BucketTest, FetchOfWhatIsNotThereSaysSo) {
  MemoryObjectStore store;
  EXPECT_EQ(ReasonOf(Fetch(root_, store)), "NO_CHECKPOINT");
}

// A process dies at each request of an upload, before it is done or after. Nothing torn may be listed or
// fetched; the next upload completes it, and sends only what has not arrived.
TEST_F(BucketTest, UploadKilledAtEachRequestLeavesNothingTornAndGoesOn) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore whole;
  KillingObjectStore counting(&whole);
  ASSERT_TRUE(Upload(root_, counting).ok());
  const int requests = counting.requests();
  ASSERT_GT(requests, 12);
  int resumed = 0;
  for (int at = 1; at <= requests; ++at) {
    for (const auto when : {KillingObjectStore::When::kBefore, KillingObjectStore::When::kAfter}) {
      SCOPED_TRACE(
          absl::StrCat("killed at request ", at, when == KillingObjectStore::When::kAfter ? ", done" : ""));
      MemoryObjectStore store;
      KillingObjectStore dying(&store, at, when);
      const absl::Status killed = Upload(root_, dying).status();
      EXPECT_FALSE(killed.ok());
      const size_t listed = Listed(store);
      TempDir other;
      const absl::Status fetched = Fetch(other, store);
      EXPECT_EQ(fetched.ok(), listed == 1);
      if (listed == 1) {
        EXPECT_THAT(Verify(fs(), other.fd()), IsEmpty());
      }
      const absl::StatusOr<UploadResult> next = Upload(root_, store);
      ASSERT_TRUE(next.ok()) << next.status();
      resumed += next->arrived_bytes > 0;
      EXPECT_EQ(Listed(store), 1u);
      EXPECT_THAT(Verify(*MakeObjectFileSystem(&store, "run"), kObjectRoot), IsEmpty());
      EXPECT_EQ(store.uploads_in_flight(), 0u);
      EXPECT_EQ(store.objects(), whole.objects());
    }
  }
  EXPECT_GT(resumed, requests / 2);
}

// The tag was saved again after an upload had died. The other checkpoint's upload must not take its files.
TEST_F(BucketTest, UnfinishedUploadOfAnotherCheckpointIsNeverCompletedWithOtherFiles) {
  WriteCheckpoint(root_, 1);
  TempDir other;
  WriteCheckpoint(other, 2);
  MemoryObjectStore whole;
  KillingObjectStore counting(&whole);
  ASSERT_TRUE(Upload(root_, counting).ok());
  for (int at = 2; at <= counting.requests(); ++at) {
    SCOPED_TRACE(at);
    MemoryObjectStore store;
    KillingObjectStore dying(&store, at);
    EXPECT_FALSE(Upload(root_, dying).ok());
    EXPECT_EQ(ReasonOf(Upload(other, store).status()), "OBJECT_EXISTS");
    ASSERT_TRUE(Upload(root_, store).ok());
    EXPECT_EQ(store.objects(), whole.objects());
  }
}

TEST_F(BucketTest, UploadOfASequenceThatTheTagDoesNotHaveIsRefused) {
  WriteCheckpoint(root_, 2);
  MemoryObjectStore store;
  EXPECT_EQ(ReasonOf(UploadCheckpoint(fs(), root_.fd(), kTag, store, "run", options_, 1).status()),
            "NO_CHECKPOINT");
  EXPECT_THAT(store.objects(), IsEmpty());
  EXPECT_TRUE(UploadCheckpoint(fs(), root_.fd(), kTag, store, "run", options_, 2).ok());
}

TEST_F(BucketTest, AdmitIsAskedBeforeEachPartAndEndsTheUpload) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  int64_t admitted = 0;
  options_.admit = [&](int64_t bytes) {
    admitted += bytes;
    return admitted > kMinPartBytes ? absl::CancelledError("enough") : absl::OkStatus();
  };
  EXPECT_TRUE(absl::IsCancelled(Upload(root_, store).status()));
  EXPECT_EQ(Listed(store), 0u);
}

TEST_F(BucketTest, RemoveDeletesWhatCkptdHasWrittenAndNothingElse) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  ASSERT_EQ(PutText(store, "run/step_10/mine.txt", "mine", PutMode::kReplace), absl::OkStatus());
  ASSERT_EQ(PutText(store, "run/step_100/x", "other", PutMode::kReplace), absl::OkStatus());
  ASSERT_EQ(Remove(store), absl::OkStatus());
  EXPECT_EQ(Listed(store), 0u);
  EXPECT_THAT(store.objects(), SizeIs(2));
  EXPECT_EQ(Remove(store), absl::OkStatus()) << "it is gone";
}

TEST_F(BucketTest, RemoveLeavesAnotherCheckpointOfTheTag) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  const auto before = store.objects();
  EXPECT_EQ(Remove(store, /*sequence=*/2), absl::OkStatus());
  EXPECT_EQ(store.objects(), before);
}

TEST_F(BucketTest, RemoveOfWhatIsUnfinishedLeavesAWholeCheckpoint) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  EXPECT_EQ(ReasonOf(RemoveUploaded(store, "run", kTag, 1, 0, RemoveWhat::kUnfinished)), "OBJECT_EXISTS");
  EXPECT_EQ(Listed(store), 1u);
}

TEST_F(BucketTest, RemoveKilledAtEachRequestLeavesNothingTornAndGoesOn) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore whole;
  ASSERT_TRUE(Upload(root_, whole).ok());
  KillingObjectStore counting(&whole);
  ASSERT_EQ(Remove(counting), absl::OkStatus());
  ASSERT_THAT(whole.objects(), IsEmpty());
  ASSERT_GT(counting.requests(), 8);
  for (int at = 1; at <= counting.requests(); ++at) {
    for (const auto when : {KillingObjectStore::When::kBefore, KillingObjectStore::When::kAfter}) {
      SCOPED_TRACE(at);
      MemoryObjectStore store;
      ASSERT_TRUE(Upload(root_, store).ok());
      KillingObjectStore dying(&store, at, when);
      EXPECT_FALSE(Remove(dying).ok());
      if (Listed(store) == 1) {
        EXPECT_THAT(Verify(*MakeObjectFileSystem(&store, "run"), kObjectRoot), IsEmpty());
      }
      ASSERT_EQ(Remove(store), absl::OkStatus());
      EXPECT_THAT(store.objects(), IsEmpty());
    }
  }
}

TEST_F(BucketTest, RemoveClearsWhatAnUploadHasLeft) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore whole;
  KillingObjectStore counting(&whole);
  ASSERT_TRUE(Upload(root_, counting).ok());
  for (int at = 1; at <= counting.requests(); ++at) {
    SCOPED_TRACE(at);
    MemoryObjectStore store;
    KillingObjectStore dying(&store, at);
    EXPECT_FALSE(Upload(root_, dying).ok());
    ASSERT_EQ(Remove(store), absl::OkStatus());
    EXPECT_THAT(store.objects(), IsEmpty());
    EXPECT_EQ(store.uploads_in_flight(), 0u);
  }
}

TEST_F(BucketTest, FetchKilledAtEachRequestLeavesNoCheckpointAndTheNextOneCompletes) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  TempDir whole;
  KillingObjectStore counting(&store);
  ASSERT_EQ(Fetch(whole, counting), absl::OkStatus());
  for (int at = 1; at <= counting.requests(); ++at) {
    SCOPED_TRACE(at);
    TempDir other;
    KillingObjectStore dying(&store, at);
    EXPECT_FALSE(Fetch(other, dying).ok());
    EXPECT_FALSE(std::filesystem::exists(absl::StrCat(other.path(), "/", kTag)));
    EXPECT_EQ(Fetch(other, store), absl::OkStatus());
    EXPECT_THAT(Verify(fs(), other.fd()), IsEmpty());
  }
}

TEST_F(BucketTest, PowerCutAtAnyMomentOfAFetchLeavesAWholeCheckpointOrNone) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  CrashDisk disk;
  uint64_t cuts = 0;
  int whole = 0;
  disk.OnChange([&](const std::string& what) {
    for (const Loss loss :
         {Loss::kNothing, Loss::kEverything, Loss::kData, Loss::kBytes, Loss::kEntries, Loss::kRandom}) {
      const std::unique_ptr<CrashDisk> left = disk.CutPower(loss, ++cuts);
      if (!left->Exists(kTag)) continue;
      ++whole;
      EXPECT_THAT(Verify(*left, left->root()), IsEmpty()) << what << ", loses " << NameOf(loss);
    }
  });
  ASSERT_EQ(FetchCheckpoint(store, "run", kTag, disk, disk.root(), options_).status(), absl::OkStatus());
  EXPECT_GT(whole, 0);
  const std::unique_ptr<CrashDisk> left = disk.CutPower(Loss::kEverything, 1);
  EXPECT_THAT(Verify(*left, left->root()), IsEmpty());
}

TEST_F(BucketTest, FetchRemovesWhatAnotherOneHasLeft) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  TempDir other;
  const std::string left = absl::StrCat(other.path(), "/.fetch/step_9/deep");
  std::filesystem::create_directories(left);
  ASSERT_EQ(Fetch(other, store), absl::OkStatus());
  EXPECT_FALSE(std::filesystem::exists(absl::StrCat(other.path(), "/.fetch/step_9")));
}

TEST_F(BucketTest, FetchThatFailsGivesTheRoomBack) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  store.Damage("run/step_10/big.pt", kMinPartBytes + 1);
  TempDir other;
  ASSERT_EQ(ReasonOf(Fetch(other, store)), "CORRUPT_FILE");
  EXPECT_FALSE(std::filesystem::exists(absl::StrCat(other.path(), "/.fetch/", kTag)));
}

TEST_F(BucketTest, FetchIntoASharedRootTakesNoLockAndIsMovedAwayByTheNextCoordinator) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  TempDir other;
  const std::string term = absl::StrCat(other.path(), "/.ckptd/shared/term.1");
  std::filesystem::create_directories(term);
  FetchTerm of{1};
  const auto fetch = [&] {
    return FetchCheckpoint(store, "run", kTag, fs(), other.fd(), options_, of).status();
  };
  of.may_commit = [&] { return absl::CancelledError("it coordinates no longer"); };
  EXPECT_TRUE(absl::IsCancelled(fetch()));
  EXPECT_TRUE(std::filesystem::is_empty(term)) << "what a fetch has brought that fails is removed";
  of.may_commit = [&] {
    const auto fetched = std::filesystem::directory_iterator(term)->path();
    EXPECT_EQ(ParseInflightName(fetched.filename().string())->sequence, 1) << "a sweep removes it";
    std::filesystem::rename(fetched, absl::StrCat(other.path(), "/moved"));
    return absl::OkStatus();
  };
  EXPECT_FALSE(fetch().ok()) << "it was paused here";
  EXPECT_FALSE(std::filesystem::exists(absl::StrCat(other.path(), "/", kTag)));
  EXPECT_FALSE(std::filesystem::exists(absl::StrCat(other.path(), "/.fetch")));
  of.may_commit = nullptr;
  EXPECT_EQ(fetch(), absl::OkStatus());
  EXPECT_TRUE(std::filesystem::exists(absl::StrCat(other.path(), "/", kTag, "/.ckptd/manifest")));
}

TEST_F(BucketTest, FetchThatTheDiskHasNoRoomForEndsBeforeTheFirstByte) {
  class FullDisk : public FaultyFileSystem {
   public:
    using FaultyFileSystem::FaultyFileSystem;
    absl::StatusOr<SpaceInfo> Space(Handle) override { return SpaceInfo{1000, 2000, "small"}; }
  };
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  store.SetHook([](const std::string& request, const std::string& key) {
    EXPECT_FALSE(request == "Get" && key == "run/step_10/big.pt");
    return absl::OkStatus();
  });
  TempDir other;
  FullDisk full(&fs());
  const absl::Status refused = FetchCheckpoint(store, "run", kTag, full, other.fd(), options_).status();
  EXPECT_EQ(ReasonOf(refused), "NO_SPACE");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("1000 free"));
}

TEST_F(BucketTest, ListHasWholeCheckpointsAndSaysWhichADaemonHasUploaded) {
  MemoryObjectStore store;
  EXPECT_THAT(ListBucket(store, "run", 4)->checkpoints, IsEmpty());
  WriteCheckpoint(root_, 1);
  ASSERT_TRUE(Upload(root_, store).ok());
  // Neither an unfinished upload nor a folder of somebody's is a checkpoint, and a damaged one is told.
  ASSERT_EQ(PutText(store, "run/step_11/.ckptd/manifest.new", "x", PutMode::kReplace), absl::OkStatus());
  ASSERT_EQ(PutText(store, "run/notes/a.txt", "x", PutMode::kReplace), absl::OkStatus());
  ASSERT_EQ(PutText(store, "run/step_9/.ckptd/manifest", "x", PutMode::kReplace), absl::OkStatus());
  absl::StatusOr<BucketList> list = ListBucket(store, "run", 4);
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_THAT(list->checkpoints, SizeIs(1));
  EXPECT_EQ(list->checkpoints[0].summary.tag(), kTag);
  EXPECT_FALSE(list->checkpoints[0].by_daemon);
  ASSERT_THAT(list->damaged, SizeIs(1));
  EXPECT_EQ(list->damaged[0].first, "step_9");
  ASSERT_TRUE(UploadCheckpoint(fs(), root_.fd(), kTag, store, "run", options_, /*sequence=*/1).ok());
  list = ListBucket(store, "run", 4);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_TRUE(list->checkpoints[0].by_daemon);
  ASSERT_EQ(Remove(store), absl::OkStatus());
  EXPECT_THAT(ListBucket(store, "run", 4)->checkpoints, IsEmpty());
  EXPECT_FALSE(store.objects().contains("run/step_10/.ckptd/by-daemon"));
}

TEST_F(BucketTest, ListFailsIfTheServerDoesNotAnswerAndHidesNothing) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  KillingObjectStore counting(&store);
  ASSERT_TRUE(ListBucket(counting, "run", 1).ok());
  ASSERT_GT(counting.requests(), 2);
  for (int at = 1; at <= counting.requests(); ++at) {
    KillingObjectStore dying(&store, at);
    EXPECT_FALSE(ListBucket(dying, "run", 1).ok()) << at;
  }
}

TEST_F(BucketTest, ServerThatDoesNotAnswerEndsAListAndHidesNothing) {
  WriteCheckpoint(root_, 1);
  MemoryObjectStore store;
  ASSERT_TRUE(Upload(root_, store).ok());
  KillingObjectStore counting(&store);
  ASSERT_TRUE(ScanRoot(*MakeObjectFileSystem(&counting, "run"), kObjectRoot).ok());
  for (int at = 1; at <= counting.requests(); ++at) {
    KillingObjectStore dying(&store, at);
    const std::unique_ptr<FileSystem> bucket = MakeObjectFileSystem(&dying, "run");
    EXPECT_FALSE(ScanRoot(*bucket, kObjectRoot).ok()) << at;
  }
}

TEST(PartsTest, AFileHasAtMostTenThousandPartsOfWholeChunks) {
  const int64_t size = int64_t{3} << 40;
  const std::vector<FilePart> parts = PartsOf(0, size, 8 << 20, {});
  EXPECT_LE(parts.size(), static_cast<size_t>(kMaxParts));
  EXPECT_EQ(parts[0].size % (8 << 20), 0);
  EXPECT_EQ(parts.back().offset + parts.back().size, size);
  EXPECT_THAT(PartsOf(0, 0, 8 << 20, {}), SizeIs(1));
}

}  // namespace
}  // namespace ckptd
