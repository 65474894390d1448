// A daemon validates everything that it inherits.
#include "daemon/succession/inheritance.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kSegment = 2 << 20;
constexpr unsigned kSizeLocked = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

UniqueFd Memory(int64_t size = kSegment, unsigned seals = kSizeLocked, bool populated = true) {
  UniqueFd fd(::memfd_create("segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), size), 0);
  if (populated) {
    const std::string bytes(static_cast<size_t>(size), 'x');
    EXPECT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), 0), size);
  }
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

// Two ranks; rank 1 has two segments.
storage::v1::SealedSave Save() {
  storage::v1::SealedSave save;
  save.set_format_version(1);
  save.mutable_checkpoint()->set_tag("step_1");
  save.mutable_checkpoint()->set_sequence(5);
  save.mutable_checkpoint()->set_attempt(1);
  save.mutable_checkpoint()->set_ordinal(1);
  save.mutable_checkpoint()->set_world_size(2);
  for (int rank = 0; rank < 2; ++rank) {
    storage::v1::SealedPart& part = *save.add_parts();
    part.set_rank(rank);
    for (int file = 0; file < 2; ++file) {
      storage::v1::SealedFile& sealed = *part.add_files();
      sealed.set_path("r" + std::to_string(rank) + "/f" + std::to_string(file));
      sealed.set_size_bytes(5000);
      sealed.set_offset(file * 8192);
    }
    for (int segment = 0; segment <= rank; ++segment) {
      storage::v1::SealedSegment& sealed = *part.add_segments();
      sealed.set_id(rank + segment + 1);
      sealed.set_size_bytes(kSegment);
    }
  }
  return save;
}

std::vector<NamedDescriptor> With(const std::vector<storage::v1::SealedSave>& saves,
                                  std::vector<SegmentId> segments) {
  std::vector<NamedDescriptor> descriptors;
  auto journal = SealJournal::Create().value();
  for (const auto& save : saves) EXPECT_TRUE(journal->Keep(save).ok());
  descriptors.push_back({kJournalName, UniqueFd(::fcntl(journal->fd(), F_DUPFD_CLOEXEC, 0))});
  for (SegmentId id : segments) descriptors.push_back({SegmentName(id), Memory()});
  return descriptors;
}

std::vector<SegmentId> Ids(const std::vector<KeptSegment>& segments) {
  std::vector<SegmentId> ids;
  for (const KeptSegment& segment : segments) ids.push_back(segment.id);
  return ids;
}

TEST(InheritanceTest, InheritsSealedSavesAndFreesOtherSegments) {
  Inheritance inheritance = TakeInheritance(With({Save()}, {1, 2, 3, 4, 9}));
  ASSERT_EQ(inheritance.saves.size(), 1u);
  EXPECT_EQ(inheritance.saves[0].SerializeAsString(), Save().SerializeAsString());
  EXPECT_THAT(Ids(inheritance.used), ElementsAre(1, 2, 3));
  EXPECT_THAT(Ids(inheritance.unused), ElementsAre(4, 9));
  EXPECT_THAT(inheritance.problems, IsEmpty());
  EXPECT_THAT(inheritance.useless, IsEmpty());
  EXPECT_EQ(inheritance.journal->size(), 1);
}

TEST(InheritanceTest, FreesEverySegmentWithoutAJournal) {
  std::vector<NamedDescriptor> descriptors = With({Save()}, {1, 2, 3});
  descriptors.erase(descriptors.begin());
  Inheritance inheritance = TakeInheritance(std::move(descriptors));
  EXPECT_EQ(inheritance.journal, nullptr);
  EXPECT_THAT(inheritance.used, IsEmpty());
  EXPECT_THAT(Ids(inheritance.unused), ElementsAre(1, 2, 3));
}

TEST(InheritanceTest, DropsOnlyTheSaveThatMissesASegment) {
  storage::v1::SealedSave other = Save();
  other.mutable_checkpoint()->set_sequence(6);
  for (auto& part : *other.mutable_parts()) {
    for (auto& segment : *part.mutable_segments()) segment.set_id(segment.id() + 10);
  }
  Inheritance inheritance = TakeInheritance(With({Save(), other}, {1, 3, 11, 12, 13}));
  ASSERT_EQ(inheritance.saves.size(), 1u);
  EXPECT_EQ(inheritance.saves[0].checkpoint().sequence(), 6);
  EXPECT_THAT(Ids(inheritance.used), ElementsAre(11, 12, 13));
  EXPECT_THAT(Ids(inheritance.unused), ElementsAre(1, 3));
  EXPECT_THAT(inheritance.problems, ElementsAre(HasSubstr("segment 2 is missing")));
  EXPECT_EQ(inheritance.journal->size(), 1) << "the lost one stays in the journal";
}

TEST(InheritanceTest, RefusesASegmentThatTwoSavesName) {
  storage::v1::SealedSave twin = Save();
  twin.mutable_checkpoint()->set_sequence(6);
  Inheritance inheritance = TakeInheritance(With({Save(), twin}, {1, 2, 3}));
  ASSERT_EQ(inheritance.saves.size(), 1u);
  EXPECT_EQ(inheritance.saves[0].checkpoint().sequence(), 5);
}

TEST(InheritanceTest, RefusesASegmentWithHoles) {
  std::vector<NamedDescriptor> descriptors = With({Save()}, {1, 2});
  descriptors.push_back({SegmentName(3), Memory(kSegment, kSizeLocked, /*populated=*/false)});
  Inheritance inheritance = TakeInheritance(std::move(descriptors));
  EXPECT_THAT(inheritance.saves, IsEmpty());
  EXPECT_THAT(inheritance.problems, ElementsAre(HasSubstr("has lost its bytes")));
}

TEST(InheritanceTest, RejectsDescriptorsThatCannotBeSegments) {
  std::vector<NamedDescriptor> descriptors;
  descriptors.push_back({SegmentName(1), Memory(kSegment, 0)});
  descriptors.push_back({SegmentName(2), Memory(kSegment, F_SEAL_SHRINK)});
  descriptors.push_back({SegmentName(3), Memory(kSegment, kSizeLocked | F_SEAL_WRITE)});
  descriptors.push_back({SegmentName(4), Memory(kSegment + 4096)});
  descriptors.push_back({SegmentName(5), Memory(0, kSizeLocked, false)});
  descriptors.push_back({SegmentName(6), UniqueFd(::open("/dev/zero", O_RDWR | O_CLOEXEC))});
  descriptors.push_back({SegmentName(7), UniqueFd(::open("/", O_PATH | O_CLOEXEC))});
  Inheritance inheritance = TakeInheritance(std::move(descriptors));
  EXPECT_THAT(inheritance.used, IsEmpty());
  EXPECT_THAT(inheritance.unused, IsEmpty());
  EXPECT_EQ(inheritance.useless.size(), 7u);
  EXPECT_EQ(inheritance.problems.size(), 7u);
}

TEST(InheritanceTest, ClosesDescriptorsWithOtherNames) {
  UniqueFd memory = Memory();
  const int number = memory.get();
  std::vector<NamedDescriptor> descriptors;
  descriptors.push_back({"ckptd-segment-01", std::move(memory)});
  TakeInheritance(std::move(descriptors));
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
  for (const char* name :
       {"", "stored", "ckptd-segment-", "ckptd-segment-0", "ckptd-segment--1", "ckptd-segment-1x"}) {
    EXPECT_EQ(SegmentOfName(name), std::nullopt) << name;
  }
  EXPECT_EQ(SegmentOfName(SegmentName(1234567)), 1234567);
}

TEST(InheritanceTest, FreesEverySegmentWhenTheJournalIsDamaged) {
  std::vector<NamedDescriptor> descriptors = With({Save()}, {1, 2, 3});
  for (int64_t offset : SealJournal::kHeadOffset)
    ASSERT_EQ(::pwrite(descriptors[0].fd.get(), "x", 1, offset), 1);
  Inheritance inheritance = TakeInheritance(std::move(descriptors));
  EXPECT_EQ(inheritance.journal, nullptr);
  EXPECT_THAT(inheritance.useless, ElementsAre(kJournalName));
  EXPECT_THAT(inheritance.problems, ElementsAre(HasSubstr("the sealed saves of an earlier daemon are lost")));
  EXPECT_THAT(Ids(inheritance.unused), ElementsAre(1, 2, 3));
}

TEST(InheritanceTest, RejectsRecordsThatCannotHaveBeenSealed) {
  ASSERT_TRUE(CheckSealedSave(Save()).ok()) << CheckSealedSave(Save());
  const std::vector<std::pair<const char*, std::function<void(storage::v1::SealedSave&)>>> lies = {
      {"tag", [](auto& s) { s.mutable_checkpoint()->set_tag("../x"); }},
      {"sequence", [](auto& s) { s.mutable_checkpoint()->set_sequence(0); }},
      {"attempt", [](auto& s) { s.mutable_checkpoint()->set_attempt(-1); }},
      {"ordinal", [](auto& s) { s.mutable_checkpoint()->clear_ordinal(); }},
      {"world", [](auto& s) { s.mutable_checkpoint()->set_world_size(3); }},
      {"no parts", [](auto& s) { s.clear_parts(), s.mutable_checkpoint()->set_world_size(0); }},
      {"ranks", [](auto& s) { s.mutable_parts(1)->set_rank(0); }},
      {"retention", [](auto& s) { s.set_num_kept_ckpts(0); }},
      {"pointer", [](auto& s) { (*s.mutable_checkpoint()->mutable_pointers())["../latest"] = "x"; }},
      {"path", [](auto& s) { s.mutable_parts(0)->mutable_files(0)->set_path("/etc/passwd"); }},
      {"path up", [](auto& s) { s.mutable_parts(0)->mutable_files(0)->set_path("a/../../b"); }},
      {"path twice", [](auto& s) { s.mutable_parts(0)->mutable_files(0)->set_path("r1/f0"); }},
      {"file and directory", [](auto& s) { s.mutable_parts(0)->mutable_files(0)->set_path("r1"); }},
      {"negative size", [](auto& s) { s.mutable_parts(0)->mutable_files(0)->set_size_bytes(-1); }},
      {"negative offset", [](auto& s) { s.mutable_parts(0)->mutable_files(0)->set_offset(-4096); }},
      {"odd offset", [](auto& s) { s.mutable_parts(0)->mutable_files(1)->set_offset(8193); }},
      {"overlap", [](auto& s) { s.mutable_parts(0)->mutable_files(1)->set_offset(4096); }},
      {"one place", [](auto& s) { s.mutable_parts(0)->mutable_files(1)->set_offset(0); }},
      {"beyond the part", [](auto& s) { s.mutable_parts(0)->mutable_files(1)->set_size_bytes(kSegment); }},
      {"offset wraps", [](auto& s) { s.mutable_parts(0)->mutable_files(1)->set_offset(INT64_MAX - 4095); }},
      {"size wraps", [](auto& s) { s.mutable_parts(0)->mutable_files(1)->set_size_bytes(INT64_MAX); }},
      {"segment's size", [](auto& s) { s.mutable_parts(0)->mutable_segments(0)->set_size_bytes(INT64_MAX); }},
      {"segment of nothing", [](auto& s) { s.mutable_parts(0)->mutable_segments(0)->set_size_bytes(0); }},
  };
  for (const auto& [what, lie] : lies) {
    storage::v1::SealedSave save = Save();
    lie(save);
    EXPECT_FALSE(CheckSealedSave(save).ok()) << what;
  }
}

}  // namespace
}  // namespace ckptd
