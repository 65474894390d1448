// Tests that the model loses what it should, and nothing else. An outcome that "may" happen must occur for at
// least one of many seeds.
#include "tests/testing/crash_disk.h"

#include <cerrno>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/fs/file_system.h"
#include "tests/testing/crash_io_queue.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr int kSeeds = 300;

class CrashDiskTest : public ::testing::Test {
 protected:
  ScopedHandle Create(const std::string& path) {
    return *OpenScoped(disk_, disk_.root(), path, OpenMode::kCreate);
  }
  void Write(const ScopedHandle& file, const std::string& bytes, int64_t at = 0) {
    ASSERT_TRUE(WriteFully(disk_, file.get(), at, std::as_bytes(std::span(bytes))).ok());
  }
  void SyncDir(const std::string& path = ".") {
    const auto dir = OpenScoped(disk_, disk_.root(), path, OpenMode::kDirectory);
    ASSERT_TRUE(disk_.Sync(dir->get(), SyncMode::kAll).ok());
  }
  void Rename(const std::string& from, const std::string& to, RenameMode mode = RenameMode::kReplace) {
    ASSERT_TRUE(disk_.Rename(disk_.root(), from, disk_.root(), to, mode).ok());
  }
  // Returns the results of `look` over all seeds of random loss.
  std::set<std::string> Outcomes(const std::function<std::string(const CrashDisk&)>& look) {
    std::set<std::string> seen;
    for (int seed = 0; seed < kSeeds; ++seed) seen.insert(look(*disk_.CutPower(Loss::kRandom, seed)));
    return seen;
  }
  std::set<std::string> Trees() {
    return Outcomes([](const CrashDisk& disk) {
      std::string tree;
      for (const std::string& name : disk.NamesIn("")) {
        tree += name;
        for (const std::string& below : disk.NamesIn(name)) tree += "(" + below + ")";
        tree += " ";
      }
      return tree;
    });
  }
  std::set<std::string> Contents(const std::string& path) {
    return Outcomes([&](const CrashDisk& disk) { return disk.Content(path).value_or("gone"); });
  }

  CrashDisk disk_;
};

TEST_F(CrashDiskTest, SyncedDataSurvivesPowerCut) {
  const ScopedHandle file = Create("file");
  Write(file, "abc");
  ASSERT_TRUE(disk_.Sync(file.get(), SyncMode::kData).ok());
  SyncDir();
  EXPECT_FALSE(disk_.anything_unsynced());
  EXPECT_THAT(Contents("file"), ElementsAre("abc"));
  EXPECT_EQ(disk_.CutPower(Loss::kEverything, 1)->Content("file"), "abc");
}

TEST_F(CrashDiskTest, SyncedFileCanLoseItsNameAndNameItsBytes) {
  const ScopedHandle file = Create("file");
  Write(file, "abc");
  ASSERT_TRUE(disk_.Sync(file.get(), SyncMode::kAll).ok());
  EXPECT_THAT(Contents("file"), UnorderedElementsAre("abc", "gone"));
  const ScopedHandle other = Create("other");
  Write(other, "abc");
  SyncDir();
  EXPECT_THAT(Contents("other"),
              UnorderedElementsAre("", "abc", std::string(3, '\0'), std::string(3, '\xa5')));
}

TEST_F(CrashDiskTest, EachLossLosesWhatItsNameSays) {
  const ScopedHandle synced = Create("synced");
  Write(synced, "old");
  ASSERT_TRUE(disk_.Sync(synced.get(), SyncMode::kData).ok());
  SyncDir();
  Write(synced, "newer");
  Create("unsynced");
  const auto left = [&](Loss loss) {
    const auto disk = disk_.CutPower(loss, 1);
    return *disk->Content("synced") + (disk->Exists("unsynced") ? "+" : "-");
  };
  EXPECT_EQ(left(Loss::kNothing), "newer+");
  EXPECT_EQ(left(Loss::kEverything), "old-");
  EXPECT_EQ(left(Loss::kData), "old+");
  EXPECT_EQ(left(Loss::kBytes), "old\xa5\xa5+");
  EXPECT_EQ(left(Loss::kEntries), "newer-");
}

TEST_F(CrashDiskTest, WritesTearOnlyBetweenSectors) {
  const ScopedHandle file = Create("file");
  Write(file, std::string(1024, 'a'));
  ASSERT_TRUE(disk_.Sync(file.get(), SyncMode::kData).ok());
  SyncDir();
  Write(file, std::string(1024, 'b'));
  Write(file, std::string(512, 'c'), 512);
  std::set<std::string> seen;
  for (const std::string& content : Contents("file")) {
    EXPECT_EQ(content, std::string(512, content[0]) + std::string(512, content[512]));
    seen.insert({content[0], content[512]});
  }
  EXPECT_THAT(seen, UnorderedElementsAre("aa", "ab", "ac", "ba", "bb", "bc"));
}

TEST_F(CrashDiskTest, TruncatedFileCanBeLongAgainAfterPowerCut) {
  const ScopedHandle file = Create("file");
  Write(file, "abcdef");
  ASSERT_TRUE(disk_.Sync(file.get(), SyncMode::kData).ok());
  SyncDir();
  ASSERT_TRUE(disk_.Truncate(file.get(), 2).ok());
  EXPECT_THAT(Contents("file"), UnorderedElementsAre("abcdef", "ab"));
  ASSERT_TRUE(disk_.Sync(file.get(), SyncMode::kData).ok());
  EXPECT_THAT(Contents("file"), ElementsAre("ab"));
  ASSERT_TRUE(disk_.Truncate(file.get(), 4).ok());
  ASSERT_TRUE(disk_.Sync(file.get(), SyncMode::kData).ok());
  EXPECT_THAT(Contents("file"), ElementsAre(std::string("ab\0\0", 4))) << "truncated bytes are gone";
}

TEST_F(CrashDiskTest, FailedSyncDropsDataAndLaterSyncDoesNotHelp) {
  const ScopedHandle file = Create("file");
  SyncDir();
  Write(file, "abc");
  disk_.FailNextSync("file");
  EXPECT_EQ(ErrnoOf(disk_.Sync(file.get(), SyncMode::kData)), EIO);
  EXPECT_TRUE(disk_.Sync(file.get(), SyncMode::kData).ok());
  EXPECT_EQ(disk_.Content("file"), "abc") << "it can still be read";
  EXPECT_EQ(disk_.CutPower(Loss::kEverything, 1)->Content("file"), "");
}

TEST_F(CrashDiskTest, DirectoryChangesReachDiskInAnyOrder) {
  Create("a");
  Create("b");
  EXPECT_THAT(Trees(), UnorderedElementsAre("", "a ", "b ", "a b "));
}

TEST_F(CrashDiskTest, RenameIsAtomic) {
  ASSERT_TRUE(disk_.MakeDir(disk_.root(), "from").ok());
  ASSERT_TRUE(disk_.MakeDir(disk_.root(), "to").ok());
  Create("from/x");
  SyncDir();
  SyncDir("from");
  Rename("from/x", "to/x");
  EXPECT_THAT(Trees(), UnorderedElementsAre("from(x) to ", "from to(x) "));
  SyncDir("to");
  EXPECT_THAT(Trees(), UnorderedElementsAre("from(x) to ", "from to(x) "))
      << "one of two directories is synced";
  SyncDir("from");
  EXPECT_THAT(Trees(), ElementsAre("from to(x) "));
}

TEST_F(CrashDiskTest, ExchangeIsAtomic) {
  Write(Create("a"), "1");
  Write(Create("b"), "2");
  for (const char* path : {"a", "b"}) {
    const auto file = OpenScoped(disk_, disk_.root(), path, OpenMode::kRead);
    ASSERT_TRUE(disk_.Sync(file->get(), SyncMode::kData).ok());
  }
  SyncDir();
  Rename("a", "b", RenameMode::kExchange);
  EXPECT_THAT(Outcomes([](const CrashDisk& disk) { return *disk.Content("a") + *disk.Content("b"); }),
              UnorderedElementsAre("12", "21"));
}

TEST_F(CrashDiskTest, LaterRenameCanSurviveWithoutEarlierOne) {
  ASSERT_TRUE(disk_.MakeDir(disk_.root(), "old").ok());
  ASSERT_TRUE(disk_.MakeDir(disk_.root(), "new").ok());
  Create("old/1");
  Create("new/2");
  for (const char* path : {".", "old", "new"}) SyncDir(path);
  Rename("old", "away");
  Rename("new", "old");
  EXPECT_THAT(Trees(),
              UnorderedElementsAre("new(2) old(1) ", "away(1) new(2) ", "away(1) old(2) ", "old(2) "));
}

TEST_F(CrashDiskTest, FilesBelowLostNameAreLost) {
  ASSERT_TRUE(disk_.MakeDir(disk_.root(), "dir").ok());
  Create("dir/file");
  SyncDir("dir");
  EXPECT_THAT(Trees(), UnorderedElementsAre("", "dir(file) "));
}

TEST_F(CrashDiskTest, ExchangeFailsWhenUnsupported) {
  CrashDisk disk({.can_exchange = false});
  disk.Plant("a", "1");
  disk.Plant("b", "2");
  EXPECT_EQ(ErrnoOf(disk.Rename(disk.root(), "a", disk.root(), "b", RenameMode::kExchange)), EINVAL);
}

TEST_F(CrashDiskTest, WriteInFlightMayLandAndSyncDoesNotWaitForIt) {
  const ScopedHandle file = Create("file");
  Write(file, "old");
  ASSERT_TRUE(disk_.Sync(file.get(), SyncMode::kData).ok());
  SyncDir();
  const std::string bytes = "new";
  auto queue = *CrashQueueFactory(&disk_)();
  queue->Write(file.get(), std::as_bytes(std::span(bytes)), 0, [](int64_t result) { EXPECT_EQ(result, 3); });
  ASSERT_TRUE(disk_.Sync(file.get(), SyncMode::kData).ok());
  EXPECT_THAT(Contents("file"), UnorderedElementsAre("old", "new"));
  queue->Poll(Duration::zero());
  EXPECT_THAT(Contents("file"), UnorderedElementsAre("old", "new")) << "complete, but not synced";
}

TEST_F(CrashDiskTest, KilledProcessReleasesLocksAndItsWritesMayLandLate) {
  const ScopedHandle file = Create("file");
  const ScopedHandle lock = *OpenScoped(disk_, disk_.root(), "lock", OpenMode::kLock);
  ASSERT_TRUE(disk_.Lock(lock.get()).ok());
  const std::string bytes = "late";
  auto queue = *CrashQueueFactory(&disk_)();
  queue->Write(file.get(), std::as_bytes(std::span(bytes)), 0, [](int64_t) {});
  const std::unique_ptr<CrashDisk> left = disk_.Kill();
  EXPECT_EQ(left->late_writes(), 1);
  EXPECT_EQ(left->Content("file"), "");
  EXPECT_EQ(ErrnoOf(left->Close(file.get())), EBADF);
  const ScopedHandle again = *OpenScoped(*left, left->root(), "lock", OpenMode::kLock);
  EXPECT_TRUE(left->Lock(again.get()).ok());
  left->LandLateWrites();
  EXPECT_EQ(left->Content("file"), "late");
}

TEST_F(CrashDiskTest, ReportsEachChange) {
  std::vector<std::string> told;
  disk_.OnChange([&](const std::string& what) { told.push_back(what); });
  {
    const ScopedHandle file = Create("a");
    Write(file, "x");
    ASSERT_TRUE(disk_.Sync(file.get(), SyncMode::kData).ok());
  }
  Rename("a", "b");
  EXPECT_EQ(ErrnoOf(disk_.Remove(disk_.root(), "a", FileType::kRegular)), ENOENT);
  EXPECT_THAT(told, ElementsAre("Create a", "Write a", "Sync a", "Rename a b"));
}

}  // namespace
}  // namespace ckptd
