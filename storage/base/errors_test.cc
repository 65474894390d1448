#include "storage/base/errors.h"

#include <cerrno>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(ErrorsTest, KeepsReasonAndDetails) {
  const absl::Status status = MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_LOCKED", "in use",
                                        {{"path", "/data/a=b"}, {"tag", ""}});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "in use");
  EXPECT_EQ(ReasonOf(status), "ROOT_LOCKED");
  EXPECT_THAT(DetailsOf(status), ElementsAre(Pair("path", "/data/a=b"), Pair("tag", "")));
}

TEST(ErrorsTest, StatusWithoutAReasonHasNone) {
  EXPECT_EQ(ReasonOf(absl::InternalError("x")), "");
  EXPECT_THAT(DetailsOf(absl::InternalError("x")), IsEmpty());
  EXPECT_EQ(ErrnoOf(absl::InternalError("x")), 0);
  EXPECT_EQ(ReasonOf(absl::OkStatus()), "");
}

TEST(ErrorsTest, AnnotateKeepsReasonAndDetails) {
  const absl::Status status = Annotate(ErrnoError(EIO, "syncing"), "part 3");
  EXPECT_THAT(std::string(status.message()), HasSubstr("part 3: syncing: Input/output error"));
  EXPECT_EQ(ReasonOf(status), "IO_ERROR");
  EXPECT_EQ(ErrnoOf(status), EIO);
  EXPECT_TRUE(Annotate(absl::OkStatus(), "part 3").ok());
}

TEST(ErrorsTest, MapsErrnosToCodesAndReasons) {
  struct Case {
    int error;
    absl::StatusCode code;
    const char* reason;
  };
  for (const Case& c : {Case{ENOSPC, absl::StatusCode::kResourceExhausted, "NO_SPACE"},
                        Case{EDQUOT, absl::StatusCode::kResourceExhausted, "NO_SPACE"},
                        Case{EIO, absl::StatusCode::kDataLoss, "IO_ERROR"},
                        Case{EROFS, absl::StatusCode::kFailedPrecondition, "EROFS"},
                        Case{EACCES, absl::StatusCode::kPermissionDenied, "EACCES"},
                        Case{ENOENT, absl::StatusCode::kNotFound, "ENOENT"},
                        Case{EEXIST, absl::StatusCode::kAlreadyExists, "EEXIST"}}) {
    const absl::Status status = ErrnoError(c.error, "doing it");
    EXPECT_EQ(status.code(), c.code) << c.reason;
    EXPECT_EQ(ReasonOf(status), c.reason);
    EXPECT_EQ(ErrnoOf(status), c.error) << c.reason;
  }
}

TEST(ErrorsTest, OnlyWrongOrLostBytesProveDamage) {
  for (const char* reason : {"CORRUPT_MANIFEST", "CORRUPT_PART_RECORD", "CORRUPT_FILE", "SHORT_FILE"}) {
    const absl::Status status = MakeError(absl::StatusCode::kDataLoss, reason, "it is not what was written");
    EXPECT_TRUE(ProvesDamage(status)) << reason;
    EXPECT_FALSE(CouldNotFindOut(status)) << reason;
  }
  for (const int error : {ENODATA, EILSEQ}) {
    EXPECT_TRUE(ProvesDamage(ErrnoError(error, "reading"))) << error;
    EXPECT_FALSE(CouldNotFindOut(ErrnoError(error, "reading"))) << error;
  }
  for (const int error : {EIO, ENODEV, ENXIO, ESTALE, ETIMEDOUT, EREMOTEIO, ENOLINK, ENOMEM, EMFILE, ENFILE,
                          EINTR, EAGAIN, EBUSY, EBADF, EINVAL, EUCLEAN, EBADMSG, EHOSTDOWN}) {
    const absl::Status status = Annotate(ErrnoError(error, "reading"), "the manifest");
    EXPECT_FALSE(ProvesDamage(status)) << error;
    EXPECT_TRUE(CouldNotFindOut(status)) << error;
  }
  for (const int error : {ENOENT, ENOTDIR, EISDIR, ELOOP, EEXIST, EACCES, EPERM, EROFS, ENOSPC}) {
    EXPECT_FALSE(ProvesDamage(ErrnoError(error, "opening"))) << error;
    EXPECT_FALSE(CouldNotFindOut(ErrnoError(error, "opening"))) << error;
  }
  const absl::Status from_the_daemon = MakeError(absl::StatusCode::kDataLoss, "IO_ERROR", "reading chunk 3");
  EXPECT_FALSE(ProvesDamage(from_the_daemon));
  EXPECT_TRUE(CouldNotFindOut(from_the_daemon));
  const absl::Status on_its_way = MakeError(absl::StatusCode::kDataLoss, "CORRUPT_TRANSFER", "BadDigest");
  EXPECT_FALSE(ProvesDamage(on_its_way));
  EXPECT_TRUE(CouldNotFindOut(on_its_way));
  EXPECT_FALSE(ProvesDamage(absl::OkStatus()));
  EXPECT_FALSE(CouldNotFindOut(absl::OkStatus()));
}

TEST(ErrorsTest, ConvertsRanksToTextAndBack) {
  EXPECT_EQ(JoinRanks({0, 3, 17}), "0,3,17");
  EXPECT_EQ(JoinRanks({}), "");
  EXPECT_THAT(SplitRanks("0,3,17"), ElementsAre(0, 3, 17));
  EXPECT_THAT(SplitRanks(""), IsEmpty());
}

TEST(ErrorsTest, FirstBytesEndsBetweenCharacters) {
  EXPECT_EQ(FirstBytes("abc", 3), "abc");
  EXPECT_EQ(FirstBytes("abcd", 3), "abc");
  EXPECT_EQ(FirstBytes("ab\xc3\xbc", 3), "ab");
  EXPECT_EQ(FirstBytes("\xc3\xbc", 1), "");
}

}  // namespace
}  // namespace ckptd
