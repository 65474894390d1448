#include "storage/commit/checkpoint/verify.h"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/format/manifest.h"
#include "tests/testing/root_store_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class VerifyTest : public ::testing::Test {
 protected:
  VerifyTest() {
    EXPECT_EQ(Save(root_.fs(), *store_, spec_), SaveVerdict::kCommitted);
    store_.reset();  // Verifying needs no store.
  }
  VerifyReport Verify() {
    absl::StatusOr<VerifyReport> report = VerifyCheckpoint(root_.fs(), root_.handle(), spec_.tag);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *std::move(report) : VerifyReport{};
  }
  // The text "path chunk message" of the only problem.
  std::string OnlyProblem() {
    const VerifyReport report = Verify();
    EXPECT_THAT(report.problems, SizeIs(1));
    if (report.problems.size() != 1) return "";
    return absl::StrCat(report.problems[0].path, " ", report.problems[0].chunk, " ",
                        report.problems[0].message);
  }
  std::string In(const std::string& path) const { return spec_.tag + "/" + path; }

  const SaveSpec spec_{"step_10", 1};
  TemporaryRoot root_;
  std::unique_ptr<RootStore> store_ = root_.Open();
};

TEST_F(VerifyTest, FindsNoProblemInAWholeCheckpoint) {
  int64_t heard = 0;
  const auto report = VerifyCheckpoint(root_.fs(), root_.handle(), "step_10", [&](int64_t bytes) {
    EXPECT_GT(bytes, heard);
    heard = bytes;
  });
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(report->problems, IsEmpty());
  EXPECT_EQ(report->verified_bytes, report->manifest.summary.size_bytes());
  EXPECT_EQ(heard, report->verified_bytes);
}

TEST_F(VerifyTest, NamesFileAndChunkOfAFlippedByte) {
  root_.FlipByte(In("model_1.pt"), 5000);
  EXPECT_THAT(OnlyProblem(), HasSubstr("model_1.pt 1 chunk 1 (bytes 4096 to 8191): CRC32C is 0x"));
}

TEST_F(VerifyTest, ChecksAnOddTail) {
  const int64_t size = static_cast<int64_t>(ContentOf(spec_, "model_0.pt").size());
  ASSERT_NE(size % kTestChunkBytes, 0);
  root_.FlipByte(In("model_0.pt"), size - 1);
  EXPECT_THAT(OnlyProblem(), HasSubstr(absl::StrCat("model_0.pt 2 chunk 2 (bytes 8192 to ", size - 1, ")")));
}

TEST_F(VerifyTest, ChecksEveryByteOfTheManifest) {
  for (const int64_t at : {0, 9, 20, 35, 36, 60, 2000, 4095, 4096, 4150}) {
    root_.FlipByte(In(".ckptd/manifest"), at);
    EXPECT_THAT(OnlyProblem(), HasSubstr(".ckptd/manifest -1 damaged manifest")) << at;
    root_.FlipByte(In(".ckptd/manifest"), at);
  }
  EXPECT_THAT(Verify().problems, IsEmpty());
}

TEST_F(VerifyTest, ChecksPartRecords) {
  root_.FlipByte(In(".ckptd/part-00001"), 40);
  EXPECT_THAT(OnlyProblem(), HasSubstr(".ckptd/part-00001 -1 damaged part record"));
  std::filesystem::remove(root_.path(In(".ckptd/part-00001")));
  EXPECT_THAT(OnlyProblem(), HasSubstr(".ckptd/part-00001 -1 the part record is not there"));
}

// What the nodes "a" (rank 0) and "b" (the others) would have written in the place of the ranks' records.
class VerifySharedTest : public VerifyTest {
 protected:
  VerifySharedTest() {
    for (const auto& entry : std::filesystem::directory_iterator(root_.path(In(".ckptd")))) {
      if (entry.path().filename() != "manifest") std::filesystem::remove(entry.path());
    }
    Manifest manifest = Verify().manifest;
    a_.set_node("a");
    b_.set_node("b");
    for (storage::v1::NodePartRecord* record : {&a_, &b_}) {
      record->set_format_version(1);
      *record->mutable_checkpoint() = manifest.summary;
    }
    a_.add_ranks(0);
    for (int rank = 1; rank < manifest.summary.world_size(); ++rank) b_.add_ranks(rank);
    for (const storage::v1::FileRecord& file : manifest.body.files())
      *(file.rank() == 0 ? a_ : b_).add_files() = file;
    Write("node.a.1-1", a_);
    Write("node.b.2-2", b_);
  }
  void Write(const std::string& name, const storage::v1::NodePartRecord& record) {
    root_.Write(In(".ckptd/" + name), EncodeNodePartRecord(record));
  }

  storage::v1::NodePartRecord a_, b_;
};

TEST_F(VerifySharedTest, FindsNoProblemInAWholeCheckpointOfTwoNodes) {
  const VerifyReport report = Verify();
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_EQ(report.verified_bytes, report.manifest.summary.size_bytes());
}

// etcd says which record counts; others of a node are of daemons that have not finished.
TEST_F(VerifySharedTest, RecordsBesideThoseThatFitAreNoProblem) {
  storage::v1::NodePartRecord late = a_;
  late.mutable_files()->RemoveLast();
  Write("node.a.3-3", late);
  root_.Write(In(".ckptd/node.b.4-4"), "torn");
  EXPECT_THAT(Verify().problems, IsEmpty());
}

TEST_F(VerifySharedTest, NamesTheRecordThatDoesNotFit) {
  root_.FlipByte(In(".ckptd/node.b.2-2"), 40);
  EXPECT_THAT(OnlyProblem(), HasSubstr(".ckptd/node.b.2-2 -1 damaged record of a node's part"));
  b_.mutable_files(0)->set_size_bytes(b_.files(0).size_bytes() + 1);
  Write("node.b.2-2", b_);
  EXPECT_THAT(OnlyProblem(),
              HasSubstr(".ckptd/node.b.2-2 -1 the record and the manifest do not say the same"));
  b_.mutable_checkpoint()->set_sequence(77);
  Write("node.b.2-2", b_);
  EXPECT_THAT(OnlyProblem(),
              HasSubstr(".ckptd/node.b.2-2 -1 the record is of sequence 77, the manifest of 1"));
}

TEST_F(VerifySharedTest, NamesRanksThatNoRecordHas) {
  std::filesystem::remove(root_.path(In(".ckptd/node.b.2-2")));
  EXPECT_THAT(OnlyProblem(), HasSubstr(".ckptd -1 no record of a node has the files of rank 1"));
}

TEST_F(VerifyTest, FindsAPartRecordOfAnotherSave) {
  store_ = root_.Open();
  ASSERT_EQ(Save(root_.fs(), *store_, {"step_20", 2}), SaveVerdict::kCommitted);
  std::filesystem::copy_file(root_.path("step_20/.ckptd/part-00000"), root_.path(In(".ckptd/part-00000")),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(OnlyProblem(), HasSubstr("is of sequence 2, the manifest of 1"));
}

TEST_F(VerifyTest, NamesMissingShortAndLongFiles) {
  std::filesystem::remove(root_.path(In("empty_0")));
  EXPECT_THAT(OnlyProblem(), HasSubstr("empty_0 -1 the file is not there"));
  root_.Write(In("empty_0"), "x");
  EXPECT_THAT(OnlyProblem(), HasSubstr("empty_0 -1 the file has 1 bytes, the manifest says 0"));
  root_.Write(In("empty_0"), "");
  std::filesystem::resize_file(root_.path(In("model_0.pt")), 5000);
  EXPECT_THAT(OnlyProblem(), HasSubstr("model_0.pt -1 the file has 5000 bytes"));
}

// Retention moves the checkpoint to trash and unlinks its files while they are read.
TEST_F(VerifyTest, ReportsAnEvictedCheckpointAsGoneNotDamaged) {
  const auto report = VerifyCheckpoint(root_.fs(), root_.handle(), "step_10", [&](int64_t) {
    std::filesystem::rename(root_.path("step_10"), root_.path(".ckptd/gone"));
    std::filesystem::remove_all(root_.path(".ckptd/gone"));
  });
  EXPECT_EQ(ReasonOf(report.status()), "NO_CHECKPOINT");
}

// A coordinator removes the checkpoint where it is, while its files are read.
TEST_F(VerifySharedTest, ReportsARemovedCheckpointAsGoneNotDamaged) {
  bool removed = false;
  const auto report = VerifyCheckpoint(root_.fs(), root_.handle(), "step_10", [&](int64_t) {
    if (std::exchange(removed, true)) return;
    std::filesystem::rename(root_.path(In(".ckptd")), root_.path(In(".ckptd.removed.1")));
    for (const auto& entry : std::filesystem::directory_iterator(root_.path("step_10"))) {
      if (entry.path().filename() != ".ckptd.removed.1") std::filesystem::remove_all(entry.path());
    }
  });
  EXPECT_TRUE(removed);
  EXPECT_EQ(ReasonOf(report.status()), "NO_CHECKPOINT");
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("was removed while it was being verified"));
}

TEST_F(VerifyTest, VerifiesAgainWhatIsSavedAgainMeanwhile) {
  store_ = root_.Open();
  int64_t sequence = 1;
  const auto save_anew = [&](int64_t) {
    ASSERT_EQ(Save(root_.fs(), *store_, {"step_10", ++sequence}), SaveVerdict::kCommitted);
    while (*store_->EmptyTrashStep({})) {
    }
  };
  const auto once = VerifyCheckpoint(root_.fs(), root_.handle(), "step_10", [&](int64_t bytes) {
    if (sequence == 1) save_anew(bytes);
  });
  ASSERT_TRUE(once.ok()) << once.status();
  EXPECT_THAT(once->problems, IsEmpty());
  EXPECT_EQ(once->manifest.summary.sequence(), 2);
  const auto always = VerifyCheckpoint(root_.fs(), root_.handle(), "step_10", save_anew);
  EXPECT_EQ(ReasonOf(always.status()), "CHECKPOINT_REPLACED");
}

TEST_F(VerifyTest, DoesNotReadThroughASymbolicLink) {
  std::filesystem::rename(root_.path(In("model_0.pt")), root_.path("elsewhere"));
  std::filesystem::create_symlink("../elsewhere", root_.path(In("model_0.pt")));
  EXPECT_THAT(OnlyProblem(), HasSubstr("model_0.pt -1"));
}

TEST_F(VerifyTest, IgnoresAUsersOwnFileBesideThoseOfTheCheckpoint) {
  root_.Write(In("zero_to_fp32.py"), "print()");
  EXPECT_THAT(Verify().problems, IsEmpty());
}

TEST_F(VerifyTest, ReportsARenamedDirectoryAndFailsForAMissingOne) {
  std::filesystem::rename(root_.path("step_10"), root_.path("renamed"));
  const auto renamed = VerifyCheckpoint(root_.fs(), root_.handle(), "renamed");
  ASSERT_TRUE(renamed.ok());
  ASSERT_THAT(renamed->problems, SizeIs(1));
  EXPECT_THAT(renamed->problems[0].message, HasSubstr("the manifest is of tag step_10"));
  EXPECT_EQ(VerifyCheckpoint(root_.fs(), root_.handle(), "step_10").status().code(),
            absl::StatusCode::kNotFound);
  root_.Write("plain/file", "x");
  const auto plain = VerifyCheckpoint(root_.fs(), root_.handle(), "plain");
  ASSERT_TRUE(plain.ok());
  EXPECT_THAT(plain->problems, SizeIs(1));
}

TEST_F(VerifyTest, ListsNewestFirstAndNamesDamagedOnes) {
  store_ = root_.Open();
  ASSERT_EQ(Save(root_.fs(), *store_, {"a_later_one", 2}), SaveVerdict::kCommitted);
  ASSERT_EQ(Save(root_.fs(), *store_, {"broken", 3}), SaveVerdict::kCommitted);
  root_.FlipByte("broken/.ckptd/manifest", 50);
  root_.Write("foreign/x", "x");
  const absl::StatusOr<RootListing> listing = ListRoot(root_.fs(), root_.handle());
  ASSERT_TRUE(listing.ok()) << listing.status();
  ASSERT_THAT(listing->checkpoints, SizeIs(2));
  EXPECT_EQ(listing->checkpoints[0].tag(), "a_later_one");
  EXPECT_EQ(listing->checkpoints[1].tag(), "step_10");
  ASSERT_THAT(listing->damaged, SizeIs(1));
  EXPECT_EQ(listing->damaged[0].first, "broken");
}

class ReadVerifiedTest : public VerifyTest {
 protected:
  ReadVerifiedTest() {
    record_ = Verify().manifest.body.files(4);
    EXPECT_EQ(record_.path(), "model_0.pt");
    absl::StatusOr<ScopedHandle> dir =
        OpenScoped(root_.fs(), root_.handle(), "step_10", OpenMode::kDirectory);
    EXPECT_TRUE(dir.ok());
    dir_ = *std::move(dir);
  }
  absl::StatusOr<std::string> Read(int64_t offset, size_t size) {
    std::string bytes(size, '\0');
    const absl::Status read = ReadVerified(root_.fs(), dir_.get(), record_, kTestChunkBytes, offset,
                                           std::as_writable_bytes(std::span(bytes)));
    if (!read.ok()) return read;
    return bytes;
  }

  storage::v1::FileRecord record_;
  ScopedHandle dir_;
};

TEST_F(ReadVerifiedTest, ReadsAnyRange) {
  const std::string content = ContentOf(spec_, "model_0.pt");
  const auto size = static_cast<int64_t>(content.size());
  for (const int64_t from :
       {int64_t{0}, int64_t{1}, int64_t{4095}, int64_t{4096}, int64_t{8191}, size - 1, size}) {
    for (const int64_t to : {int64_t{1}, int64_t{4096}, int64_t{4097}, int64_t{8192}, size - 1, size}) {
      if (to < from) continue;
      const absl::StatusOr<std::string> bytes = Read(from, static_cast<size_t>(to - from));
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      EXPECT_EQ(*bytes, content.substr(static_cast<size_t>(from), static_cast<size_t>(to - from)));
    }
  }
}

TEST_F(ReadVerifiedTest, RefusesARangeOutsideTheFile) {
  const int64_t size = record_.size_bytes();
  for (const int64_t offset : {int64_t{-1}, size, size + 1, INT64_MAX}) {
    EXPECT_EQ(Read(offset, 1).status().code(), absl::StatusCode::kInvalidArgument) << offset;
  }
}

TEST_F(ReadVerifiedTest, NamesADamagedChunkAndReadsTheOthers) {
  root_.FlipByte(In("model_0.pt"), 5000);
  const absl::Status read = Read(4097, 1).status();  // Another byte of the damaged chunk.
  EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReasonOf(read), "CORRUPT_FILE");
  EXPECT_EQ(DetailsOf(read).at("path"), "model_0.pt");
  EXPECT_EQ(DetailsOf(read).at("chunk"), "1");
  EXPECT_EQ(DetailsOf(read).at("expected"),
            absl::StrCat("0x", absl::Hex(record_.chunk_crc32c(1), absl::kZeroPad8)));
  EXPECT_NE(DetailsOf(read).at("found"), DetailsOf(read).at("expected"));
  EXPECT_TRUE(Read(0, 4096).ok());
  EXPECT_TRUE(Read(8192, 10).ok());
}

TEST_F(ReadVerifiedTest, ShorterFileIsDataLoss) {
  std::filesystem::resize_file(root_.path(In("model_0.pt")), 100);
  EXPECT_EQ(Read(0, 200).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace ckptd
