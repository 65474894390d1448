#include "daemon/engine/run/catalog.h"

#include <gtest/gtest.h>

namespace ckptd {
namespace {

CommittedCheckpoint Checkpoint(int64_t sequence, const std::string& tag) {
  CommittedCheckpoint checkpoint;
  checkpoint.summary.set_sequence(sequence);
  checkpoint.summary.set_tag(tag);
  return checkpoint;
}

class CatalogTest : public ::testing::Test {
 protected:
  CatalogTest() {
    for (int64_t sequence : {1, 2, 3}) catalog_.Add(Checkpoint(sequence, "s" + std::to_string(sequence)));
  }
  int64_t Newest() const {
    const CommittedCheckpoint* newest = catalog_.Newest();
    return newest == nullptr ? 0 : newest->summary.sequence();
  }
  Catalog catalog_;
};

TEST_F(CatalogTest, NewestIsNeitherDamagedNorBeingEvicted) {
  EXPECT_EQ(Newest(), 3);
  catalog_.SetDamage(3, storage::v1::Damage());
  EXPECT_EQ(Newest(), 2);
  EXPECT_TRUE(catalog_.BeginEviction(2));
  EXPECT_FALSE(catalog_.BeginEviction(2)) << "it is being evicted already";
  EXPECT_EQ(Newest(), 1);
  catalog_.Remove(1);
  EXPECT_EQ(catalog_.Newest(), nullptr);
}

TEST_F(CatalogTest, NewestIsNotSuspectUnlessThatIsAskedFor) {
  CommittedCheckpoint suspect = Checkpoint(4, "s4");
  suspect.summary.set_suspect("NaN");
  catalog_.Add(suspect);
  EXPECT_EQ(Newest(), 3);
  EXPECT_EQ(catalog_.NewestWithSuspects()->summary.sequence(), 4);
  EXPECT_TRUE(catalog_.IsSuspect(4));
  EXPECT_FALSE(catalog_.IsSuspect(3));
  EXPECT_FALSE(catalog_.IsSuspect(5)) << "there is none";
  catalog_.SetDamage(4, storage::v1::Damage());
  EXPECT_EQ(catalog_.NewestWithSuspects()->summary.sequence(), 3);
}

TEST_F(CatalogTest, AScanKeepsDamageThatIsNotOnDisk) {
  catalog_.SetDamage(2, storage::v1::Damage());
  catalog_.SetDamage(3, storage::v1::Damage());
  catalog_.Replace({{2, Checkpoint(2, "s2")}, {4, Checkpoint(4, "s4")}}, {{"broken", absl::OkStatus()}});
  EXPECT_TRUE(catalog_.IsDamaged(2));
  EXPECT_FALSE(catalog_.IsDamaged(4));
  EXPECT_EQ(catalog_.Find(3), nullptr);
  EXPECT_EQ(catalog_.unreadable().size(), 1u);
}

TEST_F(CatalogTest, AScanDecidesUncertainEvictionsOnly) {
  catalog_.BeginEviction(1);
  catalog_.BeginEviction(2);
  catalog_.EvictionIsUncertain(1);
  catalog_.Replace(catalog_.committed(), {});
  EXPECT_EQ(catalog_.evicting(), std::set<int64_t>{2});
  EXPECT_TRUE(catalog_.perhaps_evicted().empty());
}

TEST_F(CatalogTest, WhatAnotherNodeRemovesIsListedUntilANewerOneIs) {
  catalog_.Withdraw(2);
  EXPECT_EQ(catalog_.Find(2), nullptr) << "3 is newer";
  catalog_.Withdraw(3);
  EXPECT_EQ(Newest(), 3);
  CommittedCheckpoint suspect = Checkpoint(4, "s4");
  suspect.summary.set_suspect("NaN");
  catalog_.Add(suspect);
  EXPECT_EQ(Newest(), 3) << "a suspect one is not what jobs resume from";
  catalog_.Add(Checkpoint(5, "s5"));
  EXPECT_EQ(Newest(), 5);
  EXPECT_EQ(catalog_.Find(3), nullptr);
  catalog_.Withdraw(9);
  EXPECT_EQ(Newest(), 5) << "there is none";
}

TEST_F(CatalogTest, SuspectCheckpointThatAnotherNodeRemovesIsListedUntilANewerOneIs) {
  const auto suspect = [](int64_t sequence) {
    CommittedCheckpoint checkpoint = Checkpoint(sequence, "s" + std::to_string(sequence));
    checkpoint.summary.set_suspect("NaN");
    return checkpoint;
  };
  catalog_.Add(suspect(4));
  catalog_.Withdraw(4);
  EXPECT_EQ(catalog_.NewestWithSuspects()->summary.sequence(), 4);
  catalog_.Add(suspect(5));
  EXPECT_EQ(catalog_.Find(4), nullptr);
  EXPECT_EQ(catalog_.NewestWithSuspects()->summary.sequence(), 5);
  EXPECT_EQ(Newest(), 3);
}

TEST_F(CatalogTest, AScanKeepsWhatAnotherNodeRemovesWhileItsSuccessorIsOnItsWay) {
  catalog_.Withdraw(3);
  catalog_.Replace({{1, Checkpoint(1, "s1")}}, {}, /*leaving=*/{3});
  EXPECT_EQ(Newest(), 3);
  catalog_.Replace({{1, Checkpoint(1, "s1")}, {4, Checkpoint(4, "s3")}}, {}, /*leaving=*/{3});
  EXPECT_EQ(Newest(), 4);
  EXPECT_EQ(catalog_.Find(3), nullptr);
  catalog_.Withdraw(4);
  catalog_.Replace({{1, Checkpoint(1, "s1")}}, {});
  EXPECT_EQ(Newest(), 1) << "its successor came to nothing";
}

// Its removal was decided before this node had read it.
TEST_F(CatalogTest, AScanKeepsWhatWasListedAfterItsRemovalWasDecided) {
  catalog_.Withdraw(4);
  catalog_.Add(Checkpoint(4, "s4"));
  catalog_.Replace({{1, Checkpoint(1, "s1")}}, {}, /*leaving=*/{4, 5});
  EXPECT_EQ(Newest(), 4);
  EXPECT_EQ(catalog_.Find(5), nullptr) << "it was not listed";
  catalog_.Add(Checkpoint(6, "s4"));
  EXPECT_EQ(catalog_.Find(4), nullptr);
}

TEST_F(CatalogTest, ATagHasOneGeneration) {
  catalog_.RemoveTag("s2");
  catalog_.Add(Checkpoint(4, "s2"));
  EXPECT_EQ(catalog_.FindTag("s2")->summary.sequence(), 4);
  EXPECT_EQ(catalog_.Find(2), nullptr);
  EXPECT_EQ(catalog_.FindTag("s9"), nullptr);
}

TEST_F(CatalogTest, ATagIsFoundAsLongAsOneOfItsGenerationsIsThere) {
  catalog_.Add(Checkpoint(4, "s2"));
  EXPECT_EQ(catalog_.SequencesOf("s2"), (std::set<int64_t>{2, 4}));
  EXPECT_EQ(catalog_.FindTag("s2")->summary.sequence(), 4);
  catalog_.Remove(4);
  EXPECT_EQ(catalog_.FindTag("s2")->summary.sequence(), 2);
  catalog_.Remove(2);
  catalog_.Remove(2);
  EXPECT_EQ(catalog_.SequencesOf("s2"), std::set<int64_t>());
  EXPECT_EQ(catalog_.FindTag("s2"), nullptr);
  catalog_.Replace({{5, Checkpoint(5, "s5")}}, {});
  EXPECT_EQ(catalog_.FindTag("s1"), nullptr) << "a scan has not found it";
  EXPECT_EQ(catalog_.FindTag("s5")->summary.sequence(), 5);
  catalog_.Withdraw(5);
  catalog_.Add(Checkpoint(6, "s6"));
  EXPECT_EQ(catalog_.FindTag("s5"), nullptr) << "another node has removed it, and there is a newer one";
}

}  // namespace
}  // namespace ckptd
