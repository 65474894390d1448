// The seal journal's promise: at whichever instruction the daemon is killed, the next one finds the saves
// that were kept and no others. A damaged journal is refused.
#include "daemon/succession/seal_journal.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <random>

#include "storage/base/errors.h"
#include "storage/format/frame.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

storage::v1::SealedSave Record(int64_t sequence, const std::string& tag = "tag") {
  storage::v1::SealedSave save;
  save.set_format_version(1);
  save.set_device(1);
  save.set_inode(2);
  save.set_path("/root");
  save.mutable_checkpoint()->set_tag(tag);
  save.mutable_checkpoint()->set_sequence(sequence);
  save.add_parts()->add_files()->set_path("model.pt");
  return save;
}

// What the next daemon gets: another descriptor of the same memory.
absl::StatusOr<SealJournal::Found> Reopen(const SealJournal& journal) {
  return SealJournal::Open(UniqueFd(::dup(journal.fd())));
}

std::vector<int64_t> Sequences(const absl::StatusOr<SealJournal::Found>& found) {
  std::vector<int64_t> sequences;
  if (!found.ok()) return {-1};
  for (const auto& save : found->saves) sequences.push_back(save.checkpoint().sequence());
  return sequences;
}

// Returns a new memfd with the heads and the beginnings of the areas of the journal `fd`.
UniqueFd CopyOf(int fd, int64_t area_bytes = 8192) {
  UniqueFd copy(::memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(copy.get(), SealJournal::kFileBytes), 0);
  std::string bytes(static_cast<size_t>(area_bytes), '\0');
  for (int64_t offset : {int64_t{0}, SealJournal::kAreaOffset[0], SealJournal::kAreaOffset[1]}) {
    EXPECT_EQ(::pread(fd, bytes.data(), bytes.size(), offset), area_bytes);
    EXPECT_EQ(::pwrite(copy.get(), bytes.data(), bytes.size(), offset), area_bytes);
  }
  EXPECT_EQ(::fcntl(copy.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  return copy;
}

TEST(SealJournalTest, NextDaemonFindsKeptSavesAndContinuesTheJournal) {
  auto journal = SealJournal::Create().value();
  EXPECT_THAT(Sequences(Reopen(*journal)), IsEmpty());
  ASSERT_TRUE(journal->Keep(Record(7)).ok());
  ASSERT_TRUE(journal->Keep(Record(9)).ok());
  EXPECT_EQ(journal->size(), 2);

  auto found = Reopen(*journal);
  EXPECT_THAT(Sequences(found), ElementsAre(7, 9));
  EXPECT_EQ(found->saves[0].SerializeAsString(), Record(7).SerializeAsString());
  EXPECT_THAT(found->damaged, IsEmpty());
  ASSERT_TRUE(found->journal->Drop(found->saves[0]).ok());
  ASSERT_TRUE(found->journal->Keep(Record(10)).ok());

  EXPECT_THAT(Sequences(Reopen(*journal)), ElementsAre(9, 10));
}

TEST(SealJournalTest, DroppingAnUnknownSaveIsANoOp) {
  auto journal = SealJournal::Create().value();
  ASSERT_TRUE(journal->Keep(Record(7)).ok());
  EXPECT_TRUE(journal->Drop(Record(8)).ok());
  EXPECT_THAT(Sequences(Reopen(*journal)), ElementsAre(7));
}

TEST(SealJournalTest, StaysUnchangedWhenARecordDoesNotFit) {
  auto journal = SealJournal::Create().value();
  ASSERT_TRUE(journal->Keep(Record(7)).ok());
  const absl::Status kept = journal->Keep(Record(8, std::string(SealJournal::kAreaBytes, 'x')));
  EXPECT_EQ(ReasonOf(kept), "JOURNAL_FULL");
  EXPECT_EQ(journal->size(), 1);
  EXPECT_THAT(Sequences(Reopen(*journal)), ElementsAre(7));
}

// Tears every write of every change after each of its bytes.
TEST(SealJournalTest, HoldsTheOldOrTheNewStateAtEveryByteOfAChange) {
  auto journal = SealJournal::Create().value();
  std::vector<int64_t> before, after;
  int torn = 0;
  journal->OnWrite([&](int64_t offset, std::string_view bytes) {
    UniqueFd state = CopyOf(journal->fd());
    for (size_t written = 0; written <= bytes.size(); ++written) {
      const ssize_t torn_at = ::pwrite(state.get(), bytes.data(), written, offset);
      ASSERT_EQ(torn_at, static_cast<ssize_t>(written));
      const auto found = SealJournal::Open(UniqueFd(::dup(state.get())));
      ASSERT_TRUE(found.ok()) << found.status() << " after " << written << " bytes at " << offset;
      ASSERT_THAT(found->damaged, IsEmpty());
      const std::vector<int64_t> sequences = Sequences(found);
      ASSERT_TRUE(sequences == before || sequences == after) << written << " bytes at " << offset;
      ++torn;
    }
  });
  const auto change = [&](bool keep, int64_t sequence) {
    after = before;
    if (keep) {
      after.push_back(sequence);
    } else {
      std::erase(after, sequence);
    }
    ASSERT_TRUE((keep ? journal->Keep(Record(sequence)) : journal->Drop(Record(sequence))).ok());
    ASSERT_EQ(Sequences(Reopen(*journal)), after);
    before = after;
  };
  for (int64_t sequence = 1; sequence <= 4; ++sequence) change(true, sequence);
  for (int64_t sequence : {2, 1, 4, 3}) change(false, sequence);
  change(true, 5);
  EXPECT_GT(torn, 1000);
}

TEST(SealJournalTest, DetectsEveryFlippedBitThatMatters) {
  auto journal = SealJournal::Create().value();
  ASSERT_TRUE(journal->Keep(Record(1, "one")).ok());
  ASSERT_TRUE(journal->Keep(Record(2, "two")).ok());
  ASSERT_TRUE(journal->Drop(Record(2)).ok());
  ASSERT_TRUE(journal->Keep(Record(3, "three")).ok());
  const std::string one = Record(1, "one").SerializeAsString(),
                    three = Record(3, "three").SerializeAsString();
  UniqueFd state = CopyOf(journal->fd());
  int refused = 0;
  for (int64_t region :
       {int64_t{0}, int64_t{4096}, SealJournal::kAreaOffset[0], SealJournal::kAreaOffset[1]}) {
    for (int64_t offset = region; offset < region + 200; ++offset) {
      for (int bit = 0; bit < 8; ++bit) {
        char byte = 0;
        ASSERT_EQ(::pread(state.get(), &byte, 1, offset), 1);
        const char flipped = static_cast<char>(byte ^ (1 << bit));
        ASSERT_EQ(::pwrite(state.get(), &flipped, 1, offset), 1);
        const auto found = SealJournal::Open(UniqueFd(::dup(state.get())));
        size_t whole = 0;
        if (found.ok()) {
          // Never an older state, whose memory may have been lent again, and never a record that was not
          // kept.
          for (const auto& save : found->saves) {
            const std::string text = save.SerializeAsString();
            ASSERT_TRUE(text == one || text == three) << "byte " << offset << " bit " << bit;
          }
          whole = found->saves.size();
          ASSERT_TRUE(whole == 2 || !found->damaged.empty()) << "byte " << offset << " bit " << bit;
        }
        refused += whole < 2;
        ASSERT_EQ(::pwrite(state.get(), &byte, 1, offset), 1);
      }
    }
  }
  // All bits of the current head and of its two records.
  EXPECT_EQ(refused, 8 * (SealJournal::kHeadBytes + 40 + static_cast<int64_t>(one.size() + three.size())));
}

TEST(SealJournalTest, RefusesFilesThatAreNoJournal) {
  EXPECT_EQ(ReasonOf(SealJournal::Open(UniqueFd(::open("/dev/null", O_RDWR))).status()), "CORRUPT_JOURNAL");
  EXPECT_FALSE(SealJournal::Open(UniqueFd()).ok());
  // Every wrong length, and the right length with an unlocked size, which somebody could truncate.
  for (int64_t size : {int64_t{0}, int64_t{1}, SealJournal::kHeadBytes - 1, SealJournal::kAreaOffset[0],
                       SealJournal::kFileBytes - 1, SealJournal::kFileBytes, SealJournal::kFileBytes + 1}) {
    UniqueFd file(::memfd_create("short", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(::ftruncate(file.get(), size), 0);
    const int seals = size == SealJournal::kFileBytes ? 0 : F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    ASSERT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
    EXPECT_EQ(ReasonOf(SealJournal::Open(std::move(file)).status()), "CORRUPT_JOURNAL") << size;
  }
}

// A head with a valid checksum and an impossible content.
TEST(SealJournalTest, RejectsAHeadWithAnImpossibleLength) {
  const auto with = [](uint32_t version, uint32_t records, uint64_t length) {
    auto journal = SealJournal::Create().value();
    EXPECT_TRUE(journal->Keep(Record(1)).ok());
    std::string head("CKPTDJNL");
    AppendU32(head, version);
    AppendU32(head, records);
    AppendU64(head, 99);
    AppendU64(head, length);
    AppendU32(head, Crc32cOf(head));
    EXPECT_EQ(::pwrite(journal->fd(), head.data(), head.size(), SealJournal::kHeadOffset[1]),
              static_cast<ssize_t>(head.size()));
    return Reopen(*journal);
  };
  EXPECT_EQ(ReasonOf(with(2, 0, 0).status()), "NEWER_FORMAT");
  EXPECT_EQ(ReasonOf(with(0, 0, 0).status()), "CORRUPT_JOURNAL");
  EXPECT_EQ(ReasonOf(with(1, 1, UINT64_MAX).status()), "CORRUPT_JOURNAL");
  for (const auto& [records, length] : {std::pair<uint32_t, uint64_t>{1, 0}, {1, 19}, {1, 20}}) {
    const auto found = with(1, records, length);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_THAT(found->saves, IsEmpty());
    EXPECT_EQ(found->damaged.size(), 1u) << records << " records in " << length;
  }
  // The one record is intact; the head claims four billion more.
  const auto found = with(1, UINT32_MAX, 4096);
  EXPECT_THAT(Sequences(found), ElementsAre(1));
  EXPECT_FALSE(found->damaged.empty());
}

// Kills a process that writes the journal at random instructions.
TEST(SealJournalTest, KilledDaemonLeavesWhatItAcknowledged) {
  std::mt19937 random(20240607);
  for (int kill = 0; kill < 100; ++kill) {
    auto journal = SealJournal::Create().value();
    int acknowledged[2];
    ASSERT_EQ(::pipe2(acknowledged, O_CLOEXEC), 0);
    const pid_t daemon = ::fork();
    if (daemon == 0) {
      // Keeps 1, 2, 3, ... and drops each two steps later.
      for (int64_t sequence = 1;; ++sequence) {
        if (!journal->Keep(Record(sequence)).ok() || !journal->Drop(Record(sequence - 2)).ok()) ::_exit(1);
        if (::write(acknowledged[1], &sequence, sizeof(sequence)) != sizeof(sequence)) ::_exit(1);
      }
    }
    ::close(acknowledged[1]);
    int64_t last = 0, next = 0;
    const int after = static_cast<int>(random() % 50) + 1;
    while (last < after && ::read(acknowledged[0], &next, sizeof(next)) == sizeof(next)) last = next;
    for (volatile uint32_t spin = random() % 20000; spin > 0;) spin = spin - 1;
    ASSERT_EQ(::kill(daemon, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(daemon, &status, 0), daemon);
    ASSERT_TRUE(WIFSIGNALED(status));
    while (::read(acknowledged[0], &next, sizeof(next)) == sizeof(next)) last = next;
    ::close(acknowledged[0]);
    // After `last` there may be nothing more, one more kept, or one more kept and the oldest dropped.
    std::vector<std::vector<int64_t>> possible = {
        {last - 1, last}, {last - 1, last, last + 1}, {last, last + 1}};
    for (auto& sequences : possible) std::erase(sequences, 0);
    EXPECT_THAT(possible, ::testing::Contains(Sequences(Reopen(*journal)))) << "after " << last;
  }
}

}  // namespace
}  // namespace ckptd
