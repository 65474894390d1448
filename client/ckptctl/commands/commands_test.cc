// Tests the commands that need no daemon on real directories, and the others' errors when there is no daemon.
#include "client/ckptctl/commands/commands.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "ckptd/v1/messages.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/errors.h"
#include "storage/commit/shared/run/shared_layout.h"
#include "storage/commit/shared/run/shared_record.h"
#include "storage/commit/steps/run_marks.h"
#include "storage/format/manifest.h"
#include "storage/format/names.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd::ctl {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class CommandsTest : public testing::Test {
 protected:
  CommandsTest() {
    char folder[] = "/tmp/ckptctl_test_XXXXXX";
    EXPECT_NE(mkdtemp(folder), nullptr);
    root_ = folder;
    context_.out = &out_;
    context_.err = &err_;
  }
  ~CommandsTest() override { std::filesystem::remove_all(root_); }

  static void Write(const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }

  // Makes a committed checkpoint of one rank by docs/storage_format.md, with one file of two chunks.
  void MakeCheckpoint(const std::string& tag, int64_t sequence) {
    const std::string data = std::string(4096, 'a') + "tail";
    storage::v1::ManifestSummary summary;
    summary.set_format_version(1);
    summary.set_tag(tag);
    summary.set_sequence(sequence);
    summary.set_attempt(1);
    summary.set_ordinal(1);
    summary.set_world_size(1);
    summary.set_size_bytes(static_cast<int64_t>(data.size()));
    summary.set_file_count(1);
    summary.set_chunk_bytes(4096);
    storage::v1::FileRecord file;
    file.set_path("dir/model.bin");
    file.set_size_bytes(static_cast<int64_t>(data.size()));
    for (const size_t at : {size_t{0}, size_t{4096}}) {
      const std::string chunk = data.substr(at, 4096);
      file.add_chunk_crc32c(Crc32c(std::as_bytes(std::span(chunk))));
    }
    Manifest manifest;
    manifest.summary = summary;
    *manifest.body.add_files() = file;
    storage::v1::PartRecord part;
    part.set_format_version(1);
    part.set_sequence(sequence);
    part.set_chunk_bytes(4096);
    *part.add_files() = file;
    *part.mutable_checkpoint() = summary;
    const std::filesystem::path directory = root_ / tag;
    std::filesystem::create_directories(root_ / ".ckptd");
    Write(directory / "dir/model.bin", data);
    Write(directory / ".ckptd/manifest", *EncodeManifest(manifest));
    Write(directory / ".ckptd" / PartRecordName(0), EncodePartRecord(part));
  }

  std::filesystem::path root_;
  std::ostringstream out_, err_;
  Context context_;
};

TEST_F(CommandsTest, VerifyPassesAWholeRoot) {
  MakeCheckpoint("step_1", 1);
  MakeCheckpoint("step_2", 2);
  EXPECT_EQ(*Verify(context_, root_), kOk);
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("step_1"), HasSubstr("step_2"),
                                HasSubstr("2 checkpoints, 8.0 KiB read, 0 damaged")));
}

TEST_F(CommandsTest, VerifyNamesTheDamagedChunk) {
  MakeCheckpoint("step_1", 1);
  MakeCheckpoint("step_2", 2);
  std::fstream file(root_ / "step_2/dir/model.bin", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4097);
  file.put('X');
  file.close();
  EXPECT_EQ(*Verify(context_, root_), kNotSo);
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("step_2/dir/model.bin: chunk 1"), HasSubstr("1 damaged")));
  out_.str("");
  EXPECT_EQ(*Verify(context_, root_ / "step_1"), kOk);  // A whole checkpoint of a root with a damaged one.
  EXPECT_THAT(out_.str(), HasSubstr("1 checkpoint, 4.0 KiB read, 0 damaged"));
}

TEST_F(CommandsTest, VerifyReportsADamagedManifest) {
  MakeCheckpoint("step_1", 1);
  std::fstream file(root_ / "step_1/.ckptd/manifest", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(20);
  file.put('X');
  file.close();
  EXPECT_EQ(*Verify(context_, root_), kNotSo);
  EXPECT_THAT(out_.str(), HasSubstr("1 damaged"));
}

TEST_F(CommandsTest, VerifyPrintsJson) {
  MakeCheckpoint("step_1", 7);
  context_.json = true;
  EXPECT_EQ(*Verify(context_, root_), kOk);
  google::protobuf::Struct json;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(out_.str(), &json).ok()) << out_.str();
  EXPECT_TRUE(json.fields().at("ok").bool_value());
  const auto& checkpoint = json.fields().at("checkpoints").list_value().values(0).struct_value().fields();
  EXPECT_EQ(checkpoint.at("tag").string_value(), "step_1");
  EXPECT_EQ(checkpoint.at("sequence").number_value(), 7);
  EXPECT_EQ(checkpoint.at("verified_bytes").number_value(), 4100);
}

TEST_F(CommandsTest, VerifyRefusesADirectoryThatIsNoRoot) {
  const absl::Status no_root =
      Verify(context_, root_).status();  // An empty directory must not count as verified.
  EXPECT_EQ(ReasonOf(no_root), "NO_CHECKPOINT");
  EXPECT_EQ(ExitCodeFor(no_root), kNotSo);
  EXPECT_EQ(ExitCodeFor(Verify(context_, root_ / "missing").status()), kNotSo);
}

TEST_F(CommandsTest, DoctorProbesARootAndLeavesNothingBehind) {
  EXPECT_EQ(*Doctor(context_, root_), kOk);
  EXPECT_THAT(out_.str(), AllOf(HasSubstr("file system"), HasSubstr("huge pages"), HasSubstr("io_uring"),
                                HasSubstr("locked memory"), HasSubstr("free space")));
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

TEST_F(CommandsTest, DoctorPrintsJson) {
  context_.json = true;
  EXPECT_EQ(*Doctor(context_, root_), kOk);
  google::protobuf::Struct json;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(out_.str(), &json).ok()) << out_.str();
  EXPECT_GT(json.fields().at("findings").list_value().values_size(), 5);
}

TEST_F(CommandsTest, MissingRootIsNotFound) {
  EXPECT_EQ(ExitCodeFor(Doctor(context_, root_ / "missing").status()), kNotSo);
}

TEST_F(CommandsTest, EveryCommandFailsAtOnceWithoutADaemon) {
  context_.endpoint = "unix:" + (root_ / "no.sock").string();
  for (const absl::StatusOr<ExitCode>& result :
       {ShowStatus(context_, false), List(context_, "", false), Describe(context_, "step_1"),
        Wait(context_, "step_1", "committed"), Abort(context_, "step_1", ""),
        SetPinned(context_, "step_1", true), Watch(context_, "", true, 0.5)}) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(ExitCodeFor(result.status()), kUnreachable) << result.status();
    EXPECT_NE(result.status().message().find("no.sock"), absl::string_view::npos);
  }
}

TEST_F(CommandsTest, ListsAndDescribesARootFromDiskWithoutADaemon) {
  MakeCheckpoint("step_1", 1);
  MakeCheckpoint("step_2", 2);
  MakeCheckpoint("step_3", 3);
  Write(root_ / "step_3/.ckptd/manifest", "torn");
  Write(root_ / "foreign/done", "");
  context_.endpoint = "unix:" + (root_ / "no.sock").string();
  EXPECT_EQ(*List(context_, root_, false), kOk);
  EXPECT_THAT(out_.str(),
              testing::ContainsRegex("^[^\n]+  \\(uid [0-9]+\\)\nTAG [^\n]+\nstep_2 [^\n]+COMMITTED\nstep_1 "
                                     "[^\n]+COMMITTED\nstep_3 [^\n]+DAMAGED[^\n]+\n"));
  EXPECT_THAT(err_.str(), AllOf(HasSubstr("from disk"), HasSubstr("no.sock"), testing::EndsWith("\n")));
  const std::string remark = err_.str();
  EXPECT_EQ(std::count(remark.begin(), remark.end(), '\n'), 1) << remark;
  for (const std::string tag : {"step_2", "latest", "step_2/"}) {
    out_.str("");
    EXPECT_EQ(*Describe(context_, root_ / tag), kOk) << tag;
    EXPECT_THAT(out_.str(), AllOf(HasSubstr("/checkpoints/step_2\n"), HasSubstr("dir/model.bin"),
                                  HasSubstr("4.0 KiB (4100 bytes) in 1 file of 1 rank")));
  }
}

TEST_F(CommandsTest, DescribeFromDiskPassesOverWhatTheNodesOfASharedRootCallDamaged) {
  MakeCheckpoint("step_1", 1);
  MakeCheckpoint("step_2", 2);
  const absl::StatusOr<std::unique_ptr<FileSystem>> fs = MakePosixFileSystem();
  ASSERT_TRUE(fs.ok()) << fs.status();
  const absl::StatusOr<Handle> root = OpenRootDirectory(root_, std::nullopt);
  ASSERT_TRUE(root.ok()) << root.status();
  const ScopedHandle owned((*fs).get(), *root);
  const absl::StatusOr<SharedLayout> layout = OpenSharedLayout((*fs).get(), *root);
  ASSERT_TRUE(layout.ok()) << layout.status();
  storage::v1::SharedRunRecord record;
  storage::v1::Damage damage;
  damage.set_message("a wrong checksum");
  SetDamage(record, "step_2", 2, damage);
  ASSERT_TRUE(SharedRecords(&*layout).Store(record, 1).ok());
  context_.endpoint = "unix:" + (root_ / "no.sock").string();
  EXPECT_EQ(*Describe(context_, root_ / "latest"), kOk);
  EXPECT_THAT(out_.str(), HasSubstr("/checkpoints/step_1\n"));
}

TEST_F(CommandsTest, ListFromDiskPrintsTheSameJsonAsADaemon) {
  MakeCheckpoint("step_1", 7);
  context_.endpoint = "unix:" + (root_ / "no.sock").string();
  context_.json = true;
  EXPECT_EQ(*List(context_, root_, true), kOk);
  v1::ListCheckpointsResponse list;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(out_.str(), &list).ok()) << out_.str();
  ASSERT_EQ(list.checkpoints_size(), 1);
  EXPECT_EQ(list.checkpoints(0).sequence(), 7);
  EXPECT_EQ(list.checkpoints(0).level(), v1::COMMITTED);
  EXPECT_EQ(list.checkpoints(0).directory(), (root_ / "step_1").string());
}

TEST_F(CommandsTest, SaysThatADirectoryIsNoRootAndNamesTheNearestTag) {
  context_.endpoint = "unix:" + (root_ / "no.sock").string();
  EXPECT_EQ(ReasonOf(List(context_, root_, false).status()), "NO_CHECKPOINT");
  EXPECT_EQ(err_.str(), "");
  MakeCheckpoint("step_10", 1);
  const absl::Status near = Describe(context_, root_ / "step_1O").status();
  EXPECT_EQ(ReasonOf(near), "NO_CHECKPOINT");
  EXPECT_THAT(std::string(near.message()), HasSubstr("did you mean step_10?"));
  const absl::Status far = Describe(context_, root_ / "best").status();
  EXPECT_THAT(std::string(far.message()), HasSubstr("see ckptctl list " + root_.string()));
  std::filesystem::remove_all(root_ /
                              ".ckptd");  // Checkpoints that were copied without their root's records.
  EXPECT_EQ(*List(context_, root_, false), kOk);
  EXPECT_FALSE(std::filesystem::exists(root_ / ".ckptd"));  // Reading makes nothing.
}

TEST_F(CommandsTest, ColorsBadStatesOnlyWhereTheyAreShown) {
  MakeCheckpoint("step_1", 1);
  Write(root_ / "step_1/.ckptd/manifest", "torn");
  EXPECT_EQ(*Verify(context_, root_), kNotSo);
  EXPECT_EQ(out_.str().find('\x1b'), std::string::npos);
  context_.color = true;
  EXPECT_EQ(*Verify(context_, root_), kNotSo);
  EXPECT_THAT(out_.str(), HasSubstr("\x1b[31mDAMAGED\x1b[0m"));
}

TEST_F(CommandsTest, BadLevelOrEndpointIsAUsageError) {
  EXPECT_EQ(ExitCodeFor(Wait(context_, "step_1", "durable").status()), kUsage);
  context_.endpoint = "localhost:80";
  EXPECT_EQ(ExitCodeFor(ShowStatus(context_, false).status()), kUsage);
}

TEST(ExitCodes, MatchTheMeaningOfTheError) {
  EXPECT_EQ(ExitCodeFor(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeFor(MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT", "")), 1);
  EXPECT_EQ(ExitCodeFor(MakeError(absl::StatusCode::kDeadlineExceeded, "WAIT_TIMEOUT", "")), 1);
  EXPECT_EQ(ExitCodeFor(absl::DeadlineExceededError("the daemon hangs")), 3);
  EXPECT_EQ(ExitCodeFor(absl::UnavailableError("")), 3);
  EXPECT_EQ(ExitCodeFor(MakeError(absl::StatusCode::kFailedPrecondition, "PINNED", "")), 4);
  EXPECT_EQ(ExitCodeFor(MakeError(absl::StatusCode::kAlreadyExists, "TAG_TAKEN", "")), 4);
  EXPECT_EQ(ExitCodeFor(MakeError(absl::StatusCode::kPermissionDenied, "WRONG_UID", "")), 4);
}

}  // namespace
}  // namespace ckptd::ctl
