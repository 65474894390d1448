#include "storage/format/names.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

using std::string_literals::operator""s;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(TagTest, AcceptsNamesThatFrameworksMake) {
  for (const std::string& tag : {"step_100"s, "global_step500"s, "epoch_0_train_step_2_train_loss=1e-05"s,
                                 "a"s, "0"s, "_tmp"s, "v1.2+rc,3@x"s, "latest_step"s, "Latest"s, "LATEST"s,
                                 "a..b"s, "a."s, "=x"s, "+1"s, "@"s, ","s, std::string(200, 'x')}) {
    EXPECT_EQ(CheckTag(tag), absl::OkStatus()) << tag;
  }
}

TEST(TagTest, RefusesEverythingElse) {
  for (const std::string& tag : {""s,
                                 "."s,
                                 ".."s,
                                 "a/../b"s,
                                 "../x"s,
                                 "/abs"s,
                                 "a/b"s,
                                 "a\0b"s,
                                 "\0"s,
                                 "a\nb"s,
                                 "a\n"s,
                                 std::string(201, 'x'),
                                 std::string(255, 'x'),
                                 std::string(256, 'x'),
                                 std::string(300, 'x'),
                                 std::string(4096, 'x'),
                                 "\xff\xfe"s,
                                 "st\xc3\xa9p"s,
                                 "\xd1\x95tep"s,
                                 "latest"s,
                                 ".tmp"s,
                                 ".ckptd"s,
                                 "-"s,
                                 "-rf"s,
                                 "a b"s,
                                 "a:b"s,
                                 "a*"s,
                                 "a\\b"s,
                                 "a%b"s,
                                 "~"s,
                                 "a\x7f"s,
                                 "a\tb"s}) {
    const absl::Status status = CheckTag(tag);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << tag;
    EXPECT_EQ(ReasonOf(status), "INVALID_TAG") << tag;
    EXPECT_LT(status.message().size(), 700u) << "a long tag is cut";
  }
}

TEST(TagTest, TagsDifferByCase) {
  EXPECT_TRUE(CheckTag("Step_1").ok());
  EXPECT_TRUE(CheckTag("step_1").ok());
  EXPECT_NE(InflightName("Step_1", 1, 1), InflightName("step_1", 1, 1));
}

TEST(TagTest, ErrorShowsTheEscapedValueAndTheRule) {
  EXPECT_THAT(std::string(CheckTag("a\nb").message()),
              HasSubstr("\"a\\nb\" has a character that a tag may not have"));
  EXPECT_THAT(std::string(CheckTag("latest").message()), HasSubstr("is reserved"));
  EXPECT_THAT(std::string(CheckTag("-x").message()), HasSubstr("begins with . or -"));
}

TEST(FilePathTest, AcceptsNamesThatFrameworksMake) {
  for (const std::string& path :
       {"model_0.pt"s, "model/dp_rank_00_tp_rank_00_pp_rank_00.pt"s, "mp_rank_00_model_states.pt"s,
        ".metadata"s, "__0_0.distcp"s, "a b.pt"s, "-x"s, "checkpoint"s, "done"s, "a/.ckptd/b"s, ".ckptd2"s,
        "a.ckptd"s, "caf\xc3\xa9/\xe6\x97\xa5.pt"s, "\xf0\x9f\x98\x80"s, std::string(255, 'x'),
        std::string(249, 'a') + "/" + std::string(249, 'b') + "/" + std::string(249, 'c') + "/" +
            std::string(250, 'd')}) {
    EXPECT_EQ(CheckFilePath(path), absl::OkStatus()) << path;
  }
}

TEST(FilePathTest, RefusesPathsOutOfTheDirectoryAndInvalidNames) {
  for (const std::string& path : {""s,
                                  "/"s,
                                  "/abs"s,
                                  "a//b"s,
                                  "a/"s,
                                  "."s,
                                  ".."s,
                                  "a/.."s,
                                  "../a"s,
                                  "a/../b"s,
                                  "./a"s,
                                  "a/./b"s,
                                  "a\0b"s,
                                  "a\nb"s,
                                  "a\x7f"s,
                                  "a\xc2\x85z"s,
                                  std::string(256, 'x'),
                                  "a/" + std::string(256, 'x'),
                                  std::string(1001, 'x'),
                                  ".ckptd"s,
                                  ".ckptd/manifest"s,
                                  "\xff"s,
                                  "\x80"s,
                                  "\xc0\xaf"s,
                                  "\xe0\x80\xaf"s,
                                  "\xed\xa0\x80"s,
                                  "\xf4\x90\x80\x80"s,
                                  "\xf8\x88\x80\x80\x80"s,
                                  "\xc3"s,
                                  "a\xe2\x82"s}) {
    const absl::Status status = CheckFilePath(path);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_EQ(ReasonOf(status), "INVALID_PATH") << path;
  }
}

TEST(PointersTest, AcceptsAFewSmallFilesInTheRootOnly) {
  for (const char* name :
       {"latest", "latest_checkpointed_iteration.txt", ".newest", "-x", "zuletzt \xc3\xa4"}) {
    EXPECT_EQ(CheckPointerName(name), absl::OkStatus()) << name;
  }
  for (const std::string& name : {""s, "."s, ".."s, "a/b"s, "/abs"s, "../a"s, ".ckptd"s, ".ckptd/pins"s,
                                  "a\nb"s, "\xff"s, std::string(256, 'x')}) {
    EXPECT_EQ(ReasonOf(CheckPointerName(name)), "INVALID_POINTER") << name;
  }
  using Pointers = std::map<std::string, std::string>;
  EXPECT_EQ(CheckPointers("t", {}), absl::OkStatus());
  EXPECT_EQ(CheckPointers("t", {{"latest", "t"}, {"best", "other"}}), absl::OkStatus());
  EXPECT_EQ(CheckPointers("t", {{"p", std::string(kMaxPointerBytes - 1, 'x')}}), absl::OkStatus());
  Pointers many;
  while (many.size() < kMaxPointers) many[std::string(many.size() + 1, 'p')] = "t";
  EXPECT_EQ(CheckPointers("t", many), absl::OkStatus());
  many["one more"] = "t";
  for (const Pointers& bad : {many, Pointers{{"p", std::string(kMaxPointerBytes, 'x')}}, Pointers{{"t", "t"}},
                              Pointers{{"latest", ""}}, Pointers{{"a/b", "t"}}}) {
    const absl::Status status = CheckPointers("t", bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(status), "INVALID_POINTER");
  }
}

TEST(FilePathTest, ParentsAreOutermostFirst) {
  EXPECT_THAT(ParentDirectories("a/b/c.pt"), ElementsAre("a", "a/b"));
  EXPECT_THAT(ParentDirectories("c.pt"), IsEmpty());
}

TEST(PartRecordNameTest, IsReadBackExactly) {
  EXPECT_EQ(PartRecordName(0), "part-00000");
  EXPECT_EQ(PartRecordName(123456), "part-123456");
  EXPECT_EQ(ParsePartRecordName("part-00007"), 7);
  EXPECT_EQ(ParsePartRecordName("part-123456"), 123456);
  for (const char* name : {"part-7", "part-", "part-0000x", "part-00007.tmp", "part--0001", "manifest",
                           "part-000007", "part-99999999999"}) {
    EXPECT_EQ(ParsePartRecordName(name), std::nullopt) << name;
  }
}

TEST(InflightNameTest, IsReadBackExactlyAndFitsIntoAName) {
  const std::string tag(200, 'x');
  const std::string name = InflightName(tag, INT64_MAX, UINT64_MAX);
  EXPECT_LE(name.size(), 255u);
  const std::optional<InflightId> id = ParseInflightName(name);
  ASSERT_TRUE(id.has_value());
  EXPECT_EQ(id->tag, tag);
  EXPECT_EQ(id->sequence, INT64_MAX);
  EXPECT_EQ(InflightName("v1.2", 7, 0xab), "v1.2.7.00000000000000ab");
  EXPECT_EQ(ParseInflightName("v1.2.7.00000000000000ab")->tag, "v1.2");
}

TEST(InflightNameTest, RejectsAnythingElse) {
  for (const char* name :
       {"", "x", "step_1", "step_1.7", "step_1.7.ab", "step_1.7.00000000000000AB",
        "step_1.0.00000000000000ab", "step_1.-7.00000000000000ab", "step_1.07.00000000000000ab",
        ".7.00000000000000ab", "-x.7.00000000000000ab", "latest.7.00000000000000ab",
        "step_1.7.00000000000000abc", "step_1.7.0000000000000-ab", "..", "a b.7.00000000000000ab"}) {
    EXPECT_EQ(ParseInflightName(name).has_value(), false) << name;
  }
}

TEST(SharedNamesTest, AreReadBackExactly) {
  EXPECT_EQ(SharedRecordName(12), "record.12");
  EXPECT_EQ(ParseSharedRecordName("record.12"), 12);
  EXPECT_EQ(ParseTermName(TermName(7)), 7);
  EXPECT_EQ(ParseRemovedName(RemovedName(INT64_MAX)), INT64_MAX);
  for (const char* name : {"record", "record.", "record.0", "record.-1", "record.01", "record.1.tmp",
                           ".record.1.tmp", "record.99999999999999999999", "term.1", "xrecord.1"}) {
    EXPECT_EQ(ParseSharedRecordName(name), std::nullopt) << name;
  }
}

TEST(SharedNamesTest, TellNewFilesOfANodeFromThoseOfOthers) {
  const std::string name = NewFilesName("a", 0xab);
  EXPECT_EQ(name, "new.a.00000000000000ab");
  EXPECT_TRUE(IsNewFilesName(name, "a"));
  EXPECT_FALSE(IsNewFilesName(name, "b"));
  EXPECT_FALSE(IsNewFilesName(NewFilesName("a.b", 0xab), "a"));
  EXPECT_FALSE(IsNewFilesName("new.a.ab", "a"));
  EXPECT_FALSE(IsNewFilesName("new", "a"));
  EXPECT_EQ(NodePartRecordName("a", "0123abcd-77"), "node.a.0123abcd-77");
  const std::string longest = "." + NodePartRecordName(std::string(200, 'x'), "0123abcd-1073741824") + ".tmp";
  EXPECT_LE(longest.size(), 255u);
}

}  // namespace
}  // namespace ckptd
