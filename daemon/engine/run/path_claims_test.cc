#include "daemon/engine/run/path_claims.h"

#include <gtest/gtest.h>

namespace ckptd {
namespace {

std::string Found(const PathClaims& claims, const std::string& path) {
  const auto claim = claims.Find(path);
  return claim ? claim->path + " of " + std::to_string(claim->rank) : "";
}

TEST(PathClaimsTest, FindsAFileAndTheDirectoriesThatItImplies) {
  PathClaims claims;
  claims.Add("a/b/file", 3);
  EXPECT_EQ(Found(claims, "a/b/file"), "a/b/file of 3");
  EXPECT_EQ(Found(claims, "a/b"), "a/b/file of 3");
  EXPECT_EQ(Found(claims, "a"), "a/b/file of 3");
  EXPECT_EQ(Found(claims, "a/b/file/below"), "a/b/file of 3");
  EXPECT_EQ(Found(claims, "a/b/file/far/below"), "a/b/file of 3");
}

TEST(PathClaimsTest, NamesThatOnlyBeginAlikeAreFree) {
  PathClaims claims;
  claims.Add("a/b/file", 0);
  claims.Add("top", 1);
  for (const char* free : {"a/b/file2", "a/b/fil", "a/bc", "a/b2/file", "to", "top2", "b/file"})
    EXPECT_EQ(Found(claims, free), "") << free;
}

TEST(PathClaimsTest, FilesOfDirectoriesInTurnsAreFound) {
  PathClaims claims;
  for (const char* path : {"x/1", "y/1", "x/2", "top", "y/deep/1", "x/3"}) {
    EXPECT_EQ(Found(claims, path), "") << path;
    claims.Add(path, 0);
  }
  for (const char* path : {"x/1", "y/1", "x/2", "top", "y/deep/1", "x/3"})
    EXPECT_EQ(Found(claims, path), std::string(path) + " of 0");
  EXPECT_EQ(Found(claims, "y/deep"), "y/deep/1 of 0");
  EXPECT_EQ(Found(claims, "x/3/below"), "x/3 of 0");
  EXPECT_EQ(Found(claims, "top/below"), "top of 0");
}

TEST(PathClaimsTest, CountsPathsAndBytesUntilItIsCleared) {
  PathClaims claims;
  claims.Add("a/1", 0);
  claims.Add("a/22", 0);
  EXPECT_EQ(claims.size(), 2u);
  EXPECT_EQ(claims.path_bytes(), 7);
  claims.Clear();
  EXPECT_EQ(claims.size(), 0u);
  EXPECT_EQ(claims.path_bytes(), 0);
  EXPECT_EQ(Found(claims, "a"), "");
  claims.Add("a", 1);
  EXPECT_EQ(Found(claims, "a/1"), "a of 1");
}

}  // namespace
}  // namespace ckptd
