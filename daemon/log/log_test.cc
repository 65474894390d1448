#include "daemon/log/log.h"

#include <gtest/gtest.h>

#include <string>

namespace ckptd {
namespace {

TEST(Log, TextQuotesOnlyWhatNeedsIt) {
  EXPECT_EQ(
      FormatText("checkpoint committed",
                 {{"run", "runs/1"}, {"reason", "a b=\"c\"\n"}, {"empty", ""}, {"bytes", int64_t{5} << 32}}),
      "checkpoint committed run=runs/1 reason=\"a b=\\\"c\\\"\\n\" empty=\"\" bytes=21474836480");
}

TEST(Log, KeepsAMessageOnOneLine) { EXPECT_EQ(FormatText("a\nb\tc", {}), "a b c"); }

TEST(Log, JsonKeepsNumbersAndEscapesText) {
  EXPECT_EQ(FormatJson("it \"is\"", {{"tag", "\x01\\"}, {"rank", -1}}),
            R"("message":"it \"is\"","tag":"\u0001\\","rank":-1)");
}

TEST(Log, DropsLinesBelowTheLevel) {
  StartLog("warning", "json");
  ::testing::internal::CaptureStderr();
  Log(LogLevel::kInfo, "quiet");
  Log(LogLevel::kWarning, "loud {}", {{"n", 1}});
  const std::string out = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(out.find("quiet"), std::string::npos) << out;
  EXPECT_NE(out.find("\"level\":\"warning\",\"message\":\"loud {}\",\"n\":1}\n"), std::string::npos) << out;
  EXPECT_EQ(out.find("{\"time\":\"20"), 0u) << out;
}

}  // namespace
}  // namespace ckptd
