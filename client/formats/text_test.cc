#include "client/formats/text.h"

#include <string>

#include "gtest/gtest.h"

namespace ckptd {
namespace {

TEST(TextTest, AcceptsOneFormForEachCharacter) {
  for (const char* good : {"", "a", "\xc3\xbc", "\xe6\x97\xa5", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(good)) << good;
    EXPECT_TRUE(IsPythonText(good)) << good;
  }
  for (const char* bad : {"\x80", "\xc3", "\xc0\xaf", "\xe0\x80\xaf", "\xf0\x80\x80\xaf", "\xf4\x90\x80\x80",
                          "\xff", "\xc3\x28", "\xe6\x97"}) {
    EXPECT_FALSE(IsUtf8(bad)) << bad;
    EXPECT_FALSE(IsPythonText(bad)) << bad;
  }
}

TEST(TextTest, PythonTextMayHoldASurrogate) {
  EXPECT_TRUE(IsPythonText("a\xed\xa0\x80"));
  EXPECT_FALSE(IsUtf8("a\xed\xa0\x80"));
}

TEST(TextTest, DecodesEscapesOfProtocol0) {
  EXPECT_EQ(FromRawUnicodeEscape("a\\u00fc\\U0001f600\xfc\\n"), "a\xc3\xbc\xf0\x9f\x98\x80\xc3\xbc\\n");
  for (const char* bad : {"\\u12", "\\u12g4", "\\U00110000", "\\U1234567"}) {
    EXPECT_EQ(FromRawUnicodeEscape(bad), std::nullopt) << bad;
  }
}

TEST(TextTest, ConvertsLatin1BothWays) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  EXPECT_EQ(ToLatin1(FromLatin1(all)), all);
  EXPECT_EQ(ToLatin1("\xc4\x80"), std::nullopt);  // U+0100
}

}  // namespace
}  // namespace ckptd
