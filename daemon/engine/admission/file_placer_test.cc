#include "daemon/engine/admission/file_placer.h"

#include "storage/base/errors.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

class FilePlacerTest : public ClassTest {
 protected:
  static v1::FileSpec File(const std::string& path, int64_t bytes) {
    v1::FileSpec file;
    file.set_path(path);
    file.set_size_bytes(bytes);
    return file;
  }
  std::string Place(Save* save, int rank, const std::string& path, int64_t bytes) {
    FilePlacer::Files files;
    *files.Add() = File(path, bytes);
    return ReasonOf(placer_.Place(save, save->PartOf(rank), files));
  }

  EngineLimits limits_{.files_per_part = 3, .files_per_uid = 4};
  FilePlacer placer_{limits_, 8 << 20};
};

TEST_F(FilePlacerTest, FilesFollowOneAnotherOnWholePages) {
  Save* save = AddSave(AddRun(1000), 2, 0);
  EXPECT_EQ(Place(save, 0, "a", 1), "");
  EXPECT_EQ(Place(save, 0, "b", 4097), "");
  EXPECT_EQ(save->PartOf(0).placed->Find("b")->offset, 4096);
  EXPECT_EQ(save->PartOf(0).end, 3 * 4096);
}

TEST_F(FilePlacerTest, ARetryKeepsThePlaceAndAnotherSizeIsAConflict) {
  Save* save = AddSave(AddRun(1000), 2, 0);
  EXPECT_EQ(Place(save, 0, "a", 1), "");
  EXPECT_EQ(Place(save, 0, "a", 1), "");
  EXPECT_EQ(save->PartOf(0).end, 4096);
  EXPECT_EQ(Place(save, 0, "a", 2), "SAVE_CONFLICT");
}

TEST_F(FilePlacerTest, APathAndItsDirectoriesBelongToOneRank) {
  Save* save = AddSave(AddRun(1000), 2, 0);
  EXPECT_EQ(Place(save, 0, "dir/file", 1), "");
  EXPECT_EQ(Place(save, 1, "dir/file", 1), "FILE_CONFLICT");
  EXPECT_EQ(Place(save, 1, "dir", 1), "FILE_CONFLICT");
  EXPECT_EQ(Place(save, 1, "dir/file/below", 1), "FILE_CONFLICT");
  EXPECT_EQ(Place(save, 1, "dir/other", 1), "");
}

TEST_F(FilePlacerTest, FilesCountForTheirUserUntilTheSaveEnds) {
  Run* run = AddRun(1000);
  Save* first = AddSave(run, 2, 0);
  for (const char* path : {"a", "b", "c"}) EXPECT_EQ(Place(first, 0, path, 1), "");
  EXPECT_EQ(Place(first, 0, "d", 1), "LIMIT_EXCEEDED") << "files_per_part";
  Save* second = AddSave(run, 2, 0);
  EXPECT_EQ(Place(second, 0, "a", 1), "");
  EXPECT_EQ(Place(second, 0, "b", 1), "LIMIT_EXCEEDED") << "files_per_uid";
  placer_.Forget(*first);
  EXPECT_EQ(Place(second, 0, "b", 1), "");
}

}  // namespace
}  // namespace ckptd
