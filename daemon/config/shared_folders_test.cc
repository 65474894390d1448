#include "daemon/config/shared_folders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

SharedFolders Folders(std::initializer_list<std::string> paths) {
  SharedFolders folders;
  for (const std::string& path : paths) *folders.Add() = path;
  return folders;
}
std::vector<std::string> Check(std::initializer_list<std::string> paths) {
  return CheckSharedFolders(Folders(paths));
}

TEST(SharedFolders, AcceptsFoldersThatHaveNothingInCommon) {
  EXPECT_THAT(Check({}), IsEmpty());
  EXPECT_THAT(Check({"/shared/a", "/shared/b", "/shared/ab", "/lustre"}), IsEmpty());
}

TEST(SharedFolders, RefusesWhatIsNoPlainAbsolutePathAndSaysWhatToWrite) {
  EXPECT_THAT(Check({""}), ElementsAre(HasSubstr("\"\" is not an absolute path")));
  EXPECT_THAT(Check({"shared"}), ElementsAre(HasSubstr("\"shared\" is not an absolute path")));
  EXPECT_THAT(Check({std::string("/a\0b", 4)}), ElementsAre(HasSubstr("is not an absolute path")));
  for (const char* path : {"/shared/", "//shared", "/./shared", "/x/../shared", "/shared//"})
    EXPECT_THAT(Check({path}), ElementsAre(HasSubstr("write \"/shared\""))) << path;
}

TEST(SharedFolders, RefusesTheWholeMachine) {
  for (const char* path : {"/", "//", "/x/.."})
    EXPECT_THAT(Check({path}), ElementsAre(HasSubstr("is all of this machine"))) << path;
}

TEST(SharedFolders, RefusesAFolderThatAnotherOneShares) {
  EXPECT_THAT(Check({"/shared", "/other", "/shared/runs"}),
              ElementsAre("\"/shared/runs\" is shared already, by \"/shared\"; remove one of the two lines"));
  EXPECT_THAT(Check({"/shared/runs", "/shared"}),
              ElementsAre(HasSubstr("\"/shared/runs\" is shared already, by \"/shared\"")));
  EXPECT_THAT(Check({"/shared", "/shared"}),
              ElementsAre(HasSubstr("\"/shared\" is shared already, by \"/shared\"")));
}

TEST(SharedFolders, RefusesMoreThanItCanCompareForEachRoot) {
  SharedFolders folders;
  for (int i = 0; i < 65; ++i) *folders.Add() = "/shared/" + std::to_string(i);
  EXPECT_THAT(CheckSharedFolders(folders), ElementsAre(HasSubstr("65 folders; at most 64")));
}

TEST(SharedFolders, HasTheRootsThatAreOneOfThemOrBeneathOne) {
  const SharedFolders folders = Folders({"/shared/a", "/lustre"});
  for (const char* in : {"/shared/a", "/shared/a/run", "/lustre/x/y"})
    EXPECT_TRUE(IsInSharedFolder(folders, in)) << in;
  for (const char* out : {"", "/", "/shared", "/shared/ab", "/shared/b/run", "/home/lustre", "lustre/x"})
    EXPECT_FALSE(IsInSharedFolder(folders, out)) << out;
  EXPECT_FALSE(IsInSharedFolder({}, "/shared"));
}

// ---- what is there

TEST(SharedFolders, DirectoryAtItsOwnPathIsFound) {
  const TempDir folder;
  const std::string path = std::filesystem::canonical(folder.path()).string();
  EXPECT_EQ(LookAtSharedFolder(path), absl::OkStatus());
}

TEST(SharedFolders, LinkIsRefusedWithThePathToWrite) {
  const TempDir folder;
  const std::string path = std::filesystem::canonical(folder.path()).string();
  std::filesystem::create_directory(path + "/real");
  std::filesystem::create_symlink("real", path + "/link");
  const absl::Status looked = LookAtSharedFolder(path + "/link");
  EXPECT_EQ(looked.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(looked.message()), AllOf(HasSubstr("\"" + path + "/link\" has a symbolic link"),
                                                   HasSubstr("write \"" + path + "/real\"")));
}

TEST(SharedFolders, WhatIsMissingOrNoDirectoryIsNamed) {
  const TempDir folder;
  const std::string path = std::filesystem::canonical(folder.path()).string();
  EXPECT_THAT(
      std::string(LookAtSharedFolder(path + "/gone").message()),
      AllOf(HasSubstr("/gone\" cannot be looked at (No such file or directory)"), HasSubstr("mount")));
  std::ofstream(path + "/file") << "x";
  EXPECT_THAT(std::string(LookAtSharedFolder(path + "/file").message()),
              HasSubstr("/file\" is not a directory"));
}

}  // namespace
}  // namespace ckptd
