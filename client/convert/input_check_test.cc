#include "client/convert/input_check.h"

#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/fs/file_system.h"
#include "tests/testing/root_store_fixture.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;

class InputCheckTest : public ::testing::Test {
 protected:
  InputCheckTest() {
    const std::unique_ptr<RootStore> store = root_.Open();
    EXPECT_EQ(Save(root_.fs(), *store, spec_), SaveVerdict::kCommitted);
  }
  absl::StatusOr<InputCheck> Check(const std::string& directory) {
    absl::StatusOr<ScopedHandle> dir =
        OpenScoped(root_.fs(), root_.handle(), directory, OpenMode::kDirectory);
    if (!dir.ok()) return dir.status();
    return CheckInput(root_.fs(), dir->get(), [&](int64_t total, int64_t bytes) {
      EXPECT_LE(bytes, total);
      last_ = bytes;
      return go_on_;
    });
  }
  void ExpectError(const absl::StatusOr<InputCheck>& check, const std::string& reason,
                   const std::string& text) {
    EXPECT_EQ(ReasonOf(check.status()), reason) << check.status();
    EXPECT_THAT(std::string(check.status().message()), HasSubstr(text));
  }
  std::string In(const std::string& path) const { return spec_.tag + "/" + path; }

  const SaveSpec spec_{"step_10", 1};
  TemporaryRoot root_;
  bool go_on_ = true;
  int64_t last_ = 0;
};

TEST_F(InputCheckTest, VerifiesEveryByteOfACommittedCheckpoint) {
  const absl::StatusOr<InputCheck> check = Check("step_10");
  ASSERT_TRUE(check.ok()) << check.status();
  EXPECT_TRUE(check->committed);
  int64_t size = 0;
  for (int rank = 0; rank < spec_.world_size; ++rank) {
    for (const std::string& path : PathsOf(rank)) size += static_cast<int64_t>(ContentOf(spec_, path).size());
  }
  EXPECT_EQ(check->verified_bytes, size);
  EXPECT_EQ(last_, size);
}

TEST_F(InputCheckTest, RefusesAFlippedByteWithFileAndChunk) {
  root_.FlipByte(In("model_1.pt"), kTestChunkBytes + 7);
  const absl::StatusOr<InputCheck> check = Check("step_10");
  ExpectError(check, "CORRUPT_FILE", "model_1.pt: chunk 1");
  EXPECT_EQ(DetailsOf(check.status())["path"], "model_1.pt");
}

TEST_F(InputCheckTest, RefusesAMissingFile) {
  std::filesystem::remove(root_.path(In("model_1.pt")));
  ExpectError(Check("step_10"), "CORRUPT_FILE", "model_1.pt: the file is not there");
}

TEST_F(InputCheckTest, RefusesAFileThatIsCutOff) {
  std::filesystem::resize_file(root_.path(In("model_0.pt")), 100);
  ExpectError(Check("step_10"), "CORRUPT_FILE", "model_0.pt: the file has 100 bytes");
}

TEST_F(InputCheckTest, RefusesAPtFileThatTheManifestDoesNotName) {
  root_.Write(In("optim/dp_rank_07.pt"), "of another save");
  ExpectError(Check("step_10"), "MIXED_CHECKPOINT", "optim/dp_rank_07.pt");
}

TEST_F(InputCheckTest, AllowsOtherFilesThatUsersAdd) {
  root_.Write(In("README.txt"), "mine");
  EXPECT_TRUE(Check("step_10").ok());
}

TEST_F(InputCheckTest, RefusesADamagedAndAMissingManifest) {
  root_.FlipByte(In(".ckptd/manifest"), 50);
  ExpectError(Check("step_10"), "CORRUPT_MANIFEST", "");
  std::filesystem::remove(root_.path(In(".ckptd/manifest")));
  ExpectError(Check("step_10"), "CORRUPT_MANIFEST", "no .ckptd/manifest");
}

TEST_F(InputCheckTest, VerifiesACopyUnderAnotherName) {
  std::filesystem::copy(root_.path("step_10"), root_.path("a_copy"),
                        std::filesystem::copy_options::recursive);
  EXPECT_TRUE(Check("a_copy").ok()) << Check("a_copy").status();
  root_.FlipByte("a_copy/model_0.pt", 3);
  ExpectError(Check("a_copy"), "CORRUPT_FILE", "model_0.pt: chunk 0");
}

TEST_F(InputCheckTest, SaysThatACheckpointOfAnotherProgramIsNotVerified) {
  root_.Write("foreign/model.pt", "x");
  const absl::StatusOr<InputCheck> check = Check("foreign");
  ASSERT_TRUE(check.ok()) << check.status();
  EXPECT_FALSE(check->committed);
  EXPECT_EQ(check->verified_bytes, 0);
}

TEST_F(InputCheckTest, StopsWhenTheUserWantsTo) {
  go_on_ = false;
  ExpectError(Check("step_10"), "INTERRUPTED", "");
}

}  // namespace
}  // namespace ckptd
