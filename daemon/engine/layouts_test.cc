// Begins that name the files of the session's last part instead of listing them, and Seals "as placed".
#include <map>
#include <string>
#include <vector>

#include "storage/base/errors.h"
#include "tests/testing/engine_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LayoutsTest : public EngineTest {
 protected:
  Answer<v1::BeginResponse> Begun(SessionId session, const v1::BeginRequest& request) {
    Answer<v1::BeginResponse> begun = Begin(session, request);
    RunQueued([&] { return begun.has(); });
    return begun;
  }
  v1::BeginRequest BeginOfFiles(int rank, const std::string& tag,
                                const std::vector<std::pair<std::string, int64_t>>& files) {
    v1::BeginRequest request;
    *request.mutable_key() = Key(rank, tag);
    request.set_layout(-1);
    for (const auto& [path, size] : files) {
      v1::FileSpec& file = *request.add_files();
      file.set_path(path);
      file.set_size_bytes(size);
    }
    return request;
  }
  v1::BeginRequest BeginAs(int rank, const std::string& tag, int64_t layout) {
    v1::BeginRequest request;
    *request.mutable_key() = Key(rank, tag);
    request.set_layout(layout);
    return request;
  }
  Answer<v1::SealResponse> SealAsPlaced(SessionId session, const v1::SaveKey& key) {
    v1::SealRequest request;
    *request.mutable_key() = key;
    request.set_as_placed(true);
    Answer<v1::SealResponse> answer;
    engine_->Seal(As(session), request, answer.reply());
    RunQueued();
    return answer;
  }
  // The files of a save in flight or of a checkpoint: "path size rank".
  std::vector<std::string> FilesOf(const std::string& tag) {
    v1::GetCheckpointRequest request;
    request.set_name(run_ + "/checkpoints/" + tag);
    request.set_view(v1::FULL);
    Answer<v1::Checkpoint> answer;
    engine_->GetCheckpoint(Caller{0, 0, true}, request, answer.reply());
    RunQueued([&] { return answer.has(); });
    std::vector<std::string> files;
    for (const auto& file : answer.get().files()) {
      files.push_back(file.path() + " " + std::to_string(file.size_bytes()) + " " +
                      std::to_string(file.rank()));
    }
    return files;
  }
  static std::vector<int64_t> OffsetsOf(const v1::BeginResponse& begun) {
    std::vector<int64_t> offsets;
    for (const auto& place : begun.placements()) offsets.push_back(place.offset());
    return offsets;
  }
};

TEST_F(LayoutsTest, SavesTheFilesThatALayoutNames) {
  auto sessions = Launch("a", 1);
  auto listed = Begun(sessions[0], BeginOfFiles(0, "one", {{"b", 5000}, {"a", 0}, {"c/d", 3}}));
  const int64_t layout = listed.get().layout();
  ASSERT_GT(layout, 0);
  EXPECT_THAT(OffsetsOf(listed.get()), ElementsAre(0, 8192, 8192));
  ASSERT_TRUE(SealAsPlaced(sessions[0], Key(0, "one")).status().ok());
  for (const char* tag : {"two", "three"}) {
    auto named = Begun(sessions[0], BeginAs(0, tag, layout));
    ASSERT_TRUE(named.status().ok()) << named.status();
    EXPECT_EQ(named.get().layout(), layout);
    EXPECT_THAT(named.get().placements(), IsEmpty());
    EXPECT_EQ(named.get().segments_size(), listed.get().segments_size());
    ASSERT_TRUE(SealAsPlaced(sessions[0], Key(0, tag)).status().ok());
  }
  for (const char* tag : {"one", "two", "three"}) {
    EXPECT_EQ(Wait(sessions[0], Key(0, tag)).get().checkpoint().level(), v1::COMMITTED);
    EXPECT_THAT(FilesOf(tag), testing::UnorderedElementsAre("b 5000 0", "a 0 0", "c/d 3 0"));
  }
}

TEST_F(LayoutsTest, KnowsOnlyTheLastLayoutOfTheSession) {
  auto sessions = Launch("a", 1);
  const int64_t first = Begun(sessions[0], BeginOfFiles(0, "one", {{"a", 1}})).get().layout();
  const int64_t second = Begun(sessions[0], BeginOfFiles(0, "two", {{"b", 1}})).get().layout();
  EXPECT_NE(first, second);
  EXPECT_EQ(Begun(sessions[0], BeginAs(0, "three", first)).reason(), "UNKNOWN_LAYOUT");
  EXPECT_EQ(Begun(sessions[0], BeginAs(0, "three", second + 1)).reason(), "UNKNOWN_LAYOUT");
  EXPECT_EQ(Begun(sessions[0], BeginAs(0, "three", -2)).reason(), "INVALID_ARGUMENT");
  // The refusal has begun nothing: the same save begins with its files.
  EXPECT_TRUE(Begun(sessions[0], BeginOfFiles(0, "three", {{"a", 1}})).status().ok());
  EXPECT_THAT(FilesOf("three"), ElementsAre("a 1 0"));
}

TEST_F(LayoutsTest, AnotherSessionOfTheRankKnowsNoLayout) {
  auto sessions = Launch("a", 1);
  const int64_t layout = Begun(sessions[0], BeginOfFiles(0, "one", {{"a", 1}})).get().layout();
  const SessionId again = Trainer("a/0");
  ASSERT_TRUE(Join(again, 0, 1, "a").status().ok());
  EXPECT_EQ(Begun(again, BeginAs(0, "two", layout)).reason(), "UNKNOWN_LAYOUT");
}

TEST_F(LayoutsTest, ALayoutBelongsToOneRank) {
  auto sessions = Launch("a", 2);
  Begin(sessions[0], BeginOfFiles(0, "one", {{"a", 1}}));
  auto other = Begun(sessions[1], BeginOfFiles(1, "one", {{"b", 1}}));
  EXPECT_EQ(Begun(sessions[0], BeginAs(0, "two", other.get().layout())).reason(), "UNKNOWN_LAYOUT");
}

TEST_F(LayoutsTest, RefusesALayoutWhoseFilesAnotherRankHasClaimed) {
  auto sessions = Launch("a", 2);
  auto zero = Begin(sessions[0], BeginOfFiles(0, "one", {{"a", 1}}));
  Begun(sessions[1], BeginOfFiles(1, "one", {{"b", 1}}));
  RunQueued([&] { return zero.has(); });
  const int64_t layout = zero.get().layout();
  Begin(sessions[1], BeginOfFiles(1, "two", {{"a", 1}}));
  EXPECT_EQ(Begun(sessions[0], BeginAs(0, "two", layout)).reason(), "FILE_CONFLICT");
  Begin(sessions[1], BeginOfFiles(1, "three", {{"a/below", 1}}));
  EXPECT_EQ(Begun(sessions[0], BeginAs(0, "three", layout)).reason(), "FILE_CONFLICT");
}

TEST_F(LayoutsTest, FilesOfALayoutCountForTheLimits) {
  engine_options_.limits.files_per_uid = 3;
  Start(16);
  auto sessions = Launch("a", 1);
  const int64_t layout = Begun(sessions[0], BeginOfFiles(0, "one", {{"a", 1}, {"b", 1}})).get().layout();
  EXPECT_EQ(Begun(sessions[0], BeginAs(0, "two", layout)).reason(), "LIMIT_EXCEEDED");
}

TEST_F(LayoutsTest, RepeatedBeginsOfASaveGetTheSameAnswer) {
  auto sessions = Launch("a", 1);
  const auto files = BeginOfFiles(0, "one", {{"a", 1}, {"b", 1}});
  auto one = Begun(sessions[0], files), again = Begun(sessions[0], files);
  EXPECT_EQ(one.get().SerializeAsString(), again.get().SerializeAsString());
  const int64_t layout = one.get().layout();
  auto named = Begun(sessions[0], BeginAs(0, "two", layout)),
       repeated = Begun(sessions[0], BeginAs(0, "two", layout));
  EXPECT_EQ(named.get().SerializeAsString(), repeated.get().SerializeAsString());
  // Listed or named by a later number, the same files get their places.
  auto as_list = Begun(sessions[0], BeginOfFiles(0, "two", {{"a", 1}, {"b", 1}}));
  EXPECT_THAT(OffsetsOf(as_list.get()), ElementsAre(0, 4096));
  EXPECT_EQ(as_list.get().layout(), layout);
  const int64_t later = Begun(sessions[0], BeginOfFiles(0, "three", {{"a", 1}, {"b", 1}})).get().layout();
  auto by_later = Begun(sessions[0], BeginAs(0, "two", later));
  EXPECT_EQ(by_later.get().layout(), layout);
  EXPECT_THAT(OffsetsOf(by_later.get()), ElementsAre(0, 4096));
}

TEST_F(LayoutsTest, AClientThatDoesNotAskGetsNoLayout) {
  auto sessions = Launch("a", 1);
  auto request = BeginOfFiles(0, "one", {{"a", 1}});
  request.clear_layout();
  EXPECT_EQ(Begun(sessions[0], request).get().layout(), 0);
  ASSERT_TRUE(Seal(sessions[0], request).status().ok());
}

TEST_F(LayoutsTest, AGrowingPartHasNoLayout) {
  auto sessions = Launch("a", 1);
  auto growing = GrowingBeginOf("one");
  EXPECT_EQ(Begun(sessions[0], growing).get().layout(), 0);
  auto with_files = BeginOfFiles(0, "two", {{"a", 1}});
  with_files.set_growing(true);
  EXPECT_EQ(Begun(sessions[0], with_files).get().layout(), 0);
}

TEST_F(LayoutsTest, RefusesALayoutBesideFilesOrInAGrowingPart) {
  auto sessions = Launch("a", 1);
  const int64_t layout = Begun(sessions[0], BeginOfFiles(0, "one", {{"a", 1}})).get().layout();
  auto with_files = BeginOfFiles(0, "two", {{"a", 1}});
  with_files.set_layout(layout);
  EXPECT_EQ(Begun(sessions[0], with_files).reason(), "INVALID_ARGUMENT");
  auto growing = BeginAs(0, "two", layout);
  growing.set_growing(true);
  EXPECT_EQ(Begun(sessions[0], growing).reason(), "INVALID_ARGUMENT");
  v1::SealRequest seal;
  *seal.mutable_key() = Key(0, "one");
  seal.set_as_placed(true);
  *seal.mutable_files() = with_files.files();
  Answer<v1::SealResponse> sealed;
  engine_->Seal(As(sessions[0]), seal, sealed.reply());
  RunQueued();
  EXPECT_EQ(sealed.reason(), "INVALID_ARGUMENT");
}

TEST_F(LayoutsTest, APartOfALayoutMaySealFewerAndSmallerFiles) {
  auto sessions = Launch("a", 1);
  auto request = BeginOfFiles(0, "one", {{"a", 10}, {"b", 20}, {"c", 30}});
  const int64_t layout = Begun(sessions[0], request).get().layout();
  Begun(sessions[0], BeginAs(0, "two", layout));
  auto fewer = BeginOfFiles(0, "two", {{"c", 30}, {"a", 5}});
  ASSERT_TRUE(Seal(sessions[0], fewer).status().ok());
  Begun(sessions[0], BeginAs(0, "three", layout));
  ASSERT_TRUE(SealAsPlaced(sessions[0], Key(0, "three")).status().ok());
  ASSERT_TRUE(SealAsPlaced(sessions[0], Key(0, "one")).status().ok());
  Wait(sessions[0], Key(0, "three"));
  EXPECT_THAT(FilesOf("two"), testing::UnorderedElementsAre("c 30 0", "a 5 0"));
  EXPECT_THAT(FilesOf("three"), testing::UnorderedElementsAre("a 10 0", "b 20 0", "c 30 0"));
}

TEST_F(LayoutsTest, KeepsNoMoreFilesOfAUserThanItsLimit) {
  engine_options_.limits.files_per_uid = 2;
  Start(16);
  auto sessions = Launch("a", 1);
  EXPECT_GT(Begun(sessions[0], BeginOfFiles(0, "one", {{"a", 1}, {"b", 1}})).get().layout(), 0);
  ASSERT_TRUE(SealAsPlaced(sessions[0], Key(0, "one")).status().ok());
  const SessionId other = Trainer("b");
  ASSERT_TRUE(Join(other, 0, 1, "b").status().ok());
  RunQueued();
  auto begun = Begun(other, BeginOfFiles(0, "two", {{"a", 1}}));
  ASSERT_TRUE(begun.status().ok()) << begun.status();
  EXPECT_EQ(begun.get().layout(), 0) << "the first session keeps two";
}

}  // namespace
}  // namespace ckptd
