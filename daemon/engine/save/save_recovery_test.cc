// Which sealed saves of the daemon before are recovered. succession_test.cc has the cases with memory and
// disk.
#include "daemon/engine/save/save_recovery.h"

#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SaveRecoveryTest : public ClassTest {
 protected:
  // A sealed save in the root with this inode, without files.
  static storage::v1::SealedSave Sealed(int64_t sequence, uint64_t inode, uid_t uid = 1000) {
    storage::v1::SealedSave record;
    record.set_device(1);
    record.set_inode(inode);
    record.set_uid(uid);
    record.set_path("/root");
    record.mutable_checkpoint()->set_tag("s" + std::to_string(sequence));
    record.mutable_checkpoint()->set_sequence(sequence);
    record.mutable_checkpoint()->set_world_size(1);
    record.add_parts()->set_instance("trainer");
    return record;
  }
  Run* Root(uint64_t inode, const std::vector<int64_t>& sequences = {}) {
    Run* run = AddRun(1000, sequences);
    run->inode = inode;
    return run;
  }
  std::vector<int64_t> Recovered() const {
    std::vector<int64_t> sequences;
    for (const Save* save : recovered_) sequences.push_back(save->sequence);
    return sequences;
  }

  std::unique_ptr<SealJournal> journal_ = *SealJournal::Create();
  ExpectedSizes sizes_;
  std::vector<Save*> recovered_;
  std::optional<v1::Checkpoint> past_;
  SaveRecovery recovery_{&clock_,
                         this,
                         pool_.get(),
                         journal_.get(),
                         &runs_,
                         &saves_,
                         &sizes_,
                         8 << 20,
                         {.past = [this](const Run&, const SaveId&) { return past_; },
                          .recovered = [this](Save* save) { recovered_.push_back(save); }}};
};

TEST_F(SaveRecoveryTest, RecoversTheSavesOfARootInOrderWhenItOpens) {
  recovery_.Inherit({Sealed(5, 7), Sealed(3, 7), Sealed(4, 8)});
  Run* run = Root(7);
  EXPECT_EQ(recovery_.HighestSequence(*run), 5);
  recovery_.OnRootOpened(run);
  EXPECT_THAT(Recovered(), ElementsAre(3, 5));
  EXPECT_EQ(recovered_[0]->level(), v1::SEALED);
  EXPECT_EQ(recovered_[0]->phase(), SavePhase::kAdmitted);
  EXPECT_TRUE(recovered_[0]->kept.has_value());
  EXPECT_EQ(recovery_.HighestSequence(*run), 0);
}

TEST_F(SaveRecoveryTest, LetsGoWhatIsCommittedOrHasEnded) {
  recovery_.Inherit({Sealed(5, 7)});
  recovery_.OnRootOpened(Root(7, {5}));
  EXPECT_THAT(Recovered(), IsEmpty());
  ASSERT_FALSE(infos_.empty());
  EXPECT_THAT(infos_.back(), HasSubstr("is let go: it is committed"));
  recovery_.Inherit({Sealed(6, 8)});
  past_.emplace().set_level(v1::FAILED);
  recovery_.OnRootOpened(Root(8));
  EXPECT_THAT(Recovered(), IsEmpty());
  EXPECT_THAT(infos_.back(), HasSubstr("it ended FAILED"));
}

TEST_F(SaveRecoveryTest, DropsSavesWhoseRootNobodyOpens) {
  recovery_.Inherit({Sealed(5, 7)});
  clock_.Advance(std::chrono::minutes(11));
  runs_.clear();
  recovery_.OnTick(clock_.Now());
  ASSERT_FALSE(warnings_.empty());
  EXPECT_THAT(warnings_.back(), HasSubstr("is lost"));
  recovery_.OnRootOpened(Root(7));
  EXPECT_THAT(Recovered(), IsEmpty());
}

TEST_F(SaveRecoveryTest, KeepsASealedSaveInTheJournalUntilItIsDropped) {
  Save* save = AddSave(Root(7), 1, 0, SavePhase::kAdmitted);
  recovery_.Keep(save);
  EXPECT_EQ(journal_->size(), 1);
  recovery_.Drop(save);
  recovery_.Drop(save);
  EXPECT_EQ(journal_->size(), 0);
}

}  // namespace
}  // namespace ckptd
