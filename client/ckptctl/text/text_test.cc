#include "client/ckptctl/text/text.h"

#include "gtest/gtest.h"

namespace ckptd::ctl {
namespace {

TEST(HumanBytes, KeepsThreeDigits) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.0 KiB");
  EXPECT_EQ(HumanBytes(1536 << 20), "1.5 GiB");
  EXPECT_EQ(HumanBytes(int64_t{812} << 20), "812 MiB");
  EXPECT_EQ(HumanBytes((int64_t{1} << 40) - 1), "1.0 TiB");  // Never "1024 GiB".
  EXPECT_EQ(HumanBytes(int64_t{1} << 62), "4.0 EiB");
}

TEST(HumanSeconds, NamesTheTwoLargestUnits) {
  EXPECT_EQ(HumanSeconds(-1), "0 s");
  EXPECT_EQ(HumanSeconds(0.25), "0.25 s");
  EXPECT_EQ(HumanSeconds(12.3), "12 s");
  EXPECT_EQ(HumanSeconds(59.7), "1 min 0 s");
  EXPECT_EQ(HumanSeconds(192), "3 min 12 s");
  EXPECT_EQ(HumanSeconds(7500), "2 h 5 min");
  EXPECT_EQ(HumanSeconds(3 * 86400 + 4 * 3600), "3 d 4 h");
}

TEST(Printable, ReplacesControlCharacters) { EXPECT_EQ(Printable("a\x1b[2Jb\nc\x7f"), "a?[2Jb?c?"); }

TEST(OneLine, JoinsLinesAndReplacesControlCharacters) {
  EXPECT_EQ(OneLine("\n first:\n\tsecond  third\x1b[2J\r\n"), "first: second third?[2J");
  EXPECT_EQ(OneLine(""), "");
}

TEST(Highlight, ColorsWholeWordsForBadStates) {
  EXPECT_EQ(Highlight("a  FAILED: x\nWARNING"), "a  \x1b[31mFAILED\x1b[0m: x\n\x1b[33mWARNING\x1b[0m");
  EXPECT_EQ(Highlight("node NOT REGISTERED"), "node \x1b[31mNOT REGISTERED\x1b[0m");
  EXPECT_EQ(Highlight("UNFAILED FAILED_1 failed"), "UNFAILED FAILED_1 failed");
}

TEST(Table, AlignsColumnsByCharactersAndTrimsLines) {
  Table table({"TAG", "SIZE", ""});
  EXPECT_TRUE(table.empty());
  table.Add({"step_1", "1 B", ""});
  table.Add({"größe", "20 B", "pinned"});
  EXPECT_EQ(table.ToString(2),
            "  TAG     SIZE\n"
            "  step_1  1 B\n"
            "  größe   20 B  pinned\n");
}

TEST(Nearest, FindsTheWordWithTheFewestWrongCharacters) {
  const std::vector<std::string> commands = {"status", "list", "wait", "watch", "verify"};
  EXPECT_EQ(Nearest("lst", commands), "list");
  EXPECT_EQ(Nearest("stauts", commands), "status");
  EXPECT_EQ(Nearest("wiat", commands), "wait");  // "list" has as many letters in their places.
  EXPECT_EQ(Nearest("watc", commands), "watch");
  EXPECT_EQ(Nearest("verify", commands), "verify");
  EXPECT_EQ(Nearest("delete", commands), "");
  EXPECT_EQ(Nearest("x", commands), "");
}

}  // namespace
}  // namespace ckptd::ctl
