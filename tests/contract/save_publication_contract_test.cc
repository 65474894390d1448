// How the coordinator makes a checkpoint of what two nodes have saved, and what readers of checkpoints rely
// on: run against the simulated etcd and its faults, a model over gRPC, and Debian's etcd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/save/save_publication.h"
#include "daemon/ledger/state/checkpoint_readers.h"
#include "storage/base/reasons.h"
#include "tests/contract/spanning_saves.h"

namespace ckptd {
namespace {

using Publishing = SavePublication::Publishing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class SavePublicationContract : public SpanningSaves {
 protected:
  void SetUp() override {
    SpanningSaves::SetUp();
    ASSERT_EQ(Join(second_, 1), 1);
    Activate(1);
    publication_ = std::make_unique<SavePublication>(nodes_.ClientOf(*first_.registration), Options());
  }
  SavePublication::Options Options() {
    return {nodes_.prefix() + "run/", first_.registration->identity(), "test"};
  }
  CheckpointReaders ReadersOn(Daemon& daemon) {
    return {nodes_.ClientOf(*daemon.registration),
            {nodes_.prefix() + "run/", daemon.registration->identity(), "test"}};
  }

  using Step = std::function<void(SavePublication&, SavePublication::Answer<SharedSave>)>;
  std::string Do(const Step& step) {
    return Text(
        Await<absl::StatusOr<SharedSave>>([&](auto answer) { step(*publication_, std::move(answer)); }));
  }
  std::string Settle(const SharedSave& save) {
    return Do(
        [&](auto& publication, auto answer) { publication.Settle(save, leadership_, std::move(answer)); });
  }
  std::string LoseNode(const SharedSave& save, const std::string& node) {
    return Do([&](auto& publication, auto answer) {
      publication.LoseNode(save, leadership_, node, std::move(answer));
    });
  }
  std::string Commit(const SharedSave& save) {
    return Do([&](auto& publication, auto answer) {
      publication.Committed(save, leadership_, 0, std::move(answer));
    });
  }
  std::string Foreign(const SharedSave& save) {
    ledger::v1::SaveEnd end;
    end.set_reason("TAG_FOREIGN");
    return Do([&](auto& publication, auto answer) {
      publication.NotPublished(save, leadership_, end, std::move(answer));
    });
  }
  std::string Unknown(const SharedSave& save) {
    return Do(
        [&](auto& publication, auto answer) { publication.Unknown(save, leadership_, std::move(answer)); });
  }
  std::string Release(const SharedSave& save) {
    return Do([&](auto& publication, auto answer) {
      publication.Release(save, leadership_, ledger::v1::SaveState::IS_NO_CHECKPOINT, std::move(answer));
    });
  }
  std::string Failed(Daemon& daemon, const SharedSave& save, const std::string& reason,
                     const std::vector<int>& ranks = {}) {
    ledger::v1::SaveEnd why;
    why.set_reason(reason);
    why.mutable_ranks()->Add(ranks.begin(), ranks.end());
    return TextOfVoted(
        [&](auto answer) { daemon.reports->Failed(save, why, std::nullopt, std::move(answer)); });
  }
  absl::StatusOr<Publishing> TryPublish(const SharedSave& save, int64_t time_us = 7,
                                        const SavePublication::Replaces& replaces = {}) {
    return Await<absl::StatusOr<Publishing>>(
        [&](auto answer) { publication_->Publish(save, leadership_, time_us, replaces, std::move(answer)); });
  }
  // "PUBLISHING", or what it waits for.
  std::string Publish(const SharedSave& save, int64_t replaces = 0) {
    const auto publishing = TryPublish(save, 7, {replaces});
    if (!publishing.ok()) return ReasonOf(publishing.status());
    return publishing->waits_for.empty() ? Text(publishing->save) : publishing->waits_for;
  }

  SharedSave Durable(const std::string& tag, int64_t ordinal = 1) {
    const SharedSave save = Admitted(tag, ordinal);
    for (Daemon* daemon : {&first_, &second_}) {
      Sealed(*daemon, save);
      SpanningSaves::Durable(*daemon, save, "digest of " + daemon->registration->identity().name);
    }
    return save;
  }
  using Act = std::function<void(CheckpointReaders::Done)>;
  std::string Ask(const Act& act) {
    const auto status = Await<absl::Status>([&](auto done) { act(std::move(done)); });
    return status.ok() ? "OK" : ReasonOf(status);
  }
  std::string BeginReading(CheckpointReaders& readers, int64_t sequence) {
    return Ask([&](auto done) { readers.Begin(sequence, std::move(done)); });
  }
  std::string EndReading(CheckpointReaders& readers, int64_t sequence) {
    return Ask([&](auto done) { readers.End(sequence, std::move(done)); });
  }
  std::string Evict(CheckpointReaders& readers, int64_t sequence) {
    return Ask([&](auto done) { readers.Evict({.sequence = sequence}, {}, leadership_, std::move(done)); });
  }

  std::unique_ptr<SavePublication> publication_;
};

INSTANTIATE_TEST_SUITE_P(, SavePublicationContract, ::testing::ValuesIn(AllEtcds(/*seeds=*/20)), NameOf);

// ---- sealed

TEST_P(SavePublicationContract, IsSealedWhenAllNodesAreAndALaterAttemptEndsItNoMore) {
  const SharedSave save = Admitted("step_1");
  EXPECT_EQ(Settle(save), "ADMITTED");
  Sealed(first_, save);
  EXPECT_EQ(Settle(save), "ADMITTED");
  Sealed(second_, save);
  ASSERT_EQ(Join(first_, 0, "launch 2"), 2);
  Activate(2);
  EXPECT_EQ(Settle(save), "SEALED");
  EXPECT_EQ(Settle(save), "SEALED");
  EXPECT_EQ(SpanningSaves::Durable(second_, save, "digest"), "SEALED");
  EXPECT_EQ(Stage(save), "DURABLE digest");
}

TEST_P(SavePublicationContract, SaveThatNotAllNodesHadSealedEndsWithItsAttempt) {
  const SharedSave save = Admitted("step_1");
  Sealed(first_, save);
  ASSERT_EQ(Join(first_, 0, "launch 2"), 2);
  Activate(2);
  EXPECT_EQ(Settle(save), "ENDED FENCED");
  EXPECT_EQ(Sealed(second_, save), "ENDED FENCED");
  EXPECT_EQ(Publish(save), "ENDED FENCED");
}

TEST_P(SavePublicationContract, EndIsOfTheRanksThatTheNodeNames) {
  const SharedSave save = Admitted("step_1");
  Sealed(first_, save);
  Failed(second_, save, "SESSION_LOST", {7});
  EXPECT_EQ(Settle(save), "ENDED SESSION_LOST of node2, ranks 7");
}

TEST_P(SavePublicationContract, NodeWhosePartHasFailedEndsTheSaveForAll) {
  const SharedSave save = Admitted("step_1"), durable = Admitted("step_2");
  for (Daemon* daemon : {&first_, &second_}) Sealed(*daemon, save);
  EXPECT_EQ(Settle(save), "SEALED");
  EXPECT_EQ(Failed(second_, save, "NO_SPACE"), "SEALED");
  EXPECT_EQ(Failed(second_, save, "IO_ERROR"), "SEALED");
  EXPECT_EQ(Sealed(second_, save), ledger_reason::kNotInSave);
  EXPECT_EQ(SpanningSaves::Durable(second_, save, "digest"), ledger_reason::kNotInSave);
  EXPECT_EQ(Settle(save), "ENDED NO_SPACE of node2, ranks 1");
  Sealed(second_, durable);
  SpanningSaves::Durable(second_, durable, "digest");
  Daemon ended = std::move(second_);
  second_ = Start("node2");
  EXPECT_EQ(Failed(second_, durable, "IO_ERROR"), "ADMITTED");
  EXPECT_EQ(Settle(durable), "ADMITTED") << "its predecessor's part is durable";
  EXPECT_EQ(Failed(first_, durable, "IO_ERROR"), "ADMITTED") << "what it had not sealed";
  EXPECT_EQ(Settle(durable), "ENDED IO_ERROR of node1, ranks 0");
}

TEST_P(SavePublicationContract, NodeEndsWhatItHasMadeDurableUntilThatIsBeingPublished) {
  const SharedSave aborted = Durable("step_1"), published = Durable("step_2");
  EXPECT_EQ(Failed(second_, aborted, "SAVE_ABORTED"), "ADMITTED");
  EXPECT_EQ(Publish(aborted), "the files of nodes node2") << "before the save has ended";
  EXPECT_EQ(Settle(aborted), "ENDED SAVE_ABORTED of node2, ranks 1");
  EXPECT_EQ(Publish(aborted), "ENDED SAVE_ABORTED of node2, ranks 1");
  EXPECT_EQ(Publish(published), "PUBLISHING");
  EXPECT_EQ(Failed(second_, published, "SAVE_ABORTED"), "PUBLISHING");
  EXPECT_EQ(Settle(published), "PUBLISHING");
}

// ---- a node is lost

TEST_P(SavePublicationContract, LostNodeEndsWhatItsFilesAreNotDurableOf) {
  const SharedSave written = Admitted("step_1"), durable = Admitted("step_2");
  Sealed(second_, written);
  Sealed(second_, durable);
  SpanningSaves::Durable(second_, durable, "digest");
  EXPECT_EQ(LoseNode(written, "node2"), "ADMITTED") << "it lives";
  nodes_.WaitForTheEndOf(*second_.registration);
  EXPECT_EQ(LoseNode(written, "node2"), "ENDED NODE_LOST of node2, ranks 1");
  EXPECT_EQ(LoseNode(durable, "node2"), "ADMITTED");
  EXPECT_EQ(LoseNode(durable, "node3"), "ADMITTED") << "it takes no part";
}

TEST_P(SavePublicationContract, NodeThatIsBackHasWhatItSaysThatItHasSealed) {
  const SharedSave voted = Admitted("step_1"), sealed = Admitted("step_2"), gone = Admitted("step_3");
  Sealed(second_, sealed);
  Sealed(second_, gone);
  Restart(second_);
  Activate(Join(first_, 0, "later"));
  EXPECT_EQ(Sealed(second_, sealed), "ADMITTED") << "also when a later attempt has acted";
  EXPECT_EQ(LoseNode(sealed, "node2"), "ADMITTED");
  EXPECT_EQ(LoseNode(gone, "node2"), "ENDED NODE_LOST of node2, ranks 1");
  EXPECT_EQ(LoseNode(voted, "node2"), "ENDED NODE_LOST of node2, ranks 1");
}

// ---- published

TEST_P(SavePublicationContract, IsPublishedWhenAllNodesAreDurableWithTheirDigests) {
  const SharedSave save = Admitted("step_1");
  for (Daemon* daemon : {&first_, &second_}) Sealed(*daemon, save);
  SpanningSaves::Durable(first_, save, "one");
  EXPECT_EQ(Publish(save), "the files of nodes node2");
  SpanningSaves::Durable(second_, save, "two");
  const auto publishing = TryPublish(save);
  ASSERT_TRUE(publishing.ok()) << publishing.status();
  EXPECT_EQ(Text(publishing->save), "PUBLISHING");
  EXPECT_THAT(publishing->digests, ElementsAre(Pair("node1", "one"), Pair("node2", "two")));
  EXPECT_EQ(Commit(save), "COMMITTED");
  EXPECT_EQ(Commit(save), "COMMITTED");
  EXPECT_EQ(Publish(save), "COMMITTED");
}

TEST_P(SavePublicationContract, SaveThatIsNotAdmittedIsNotPublished) {
  EXPECT_THAT(Publish(Begin(first_, "step_1")), HasSubstr("its admission"));
}

// In a bucket, and for people, times tell which checkpoint is the newest.
TEST_P(SavePublicationContract, TimesFollowTheOrderOfPublicationWhateverTheClocksOfCoordinatorsShow) {
  const SharedSave first = Durable("step_1");
  EXPECT_EQ(TryPublish(first, 500)->save.state.time_us(), 500);
  Commit(first);
  const SharedSave second = Durable("step_2", 2);
  const auto published = TryPublish(second, 100);
  EXPECT_EQ(published->save.state.time_us(), 501);
  EXPECT_EQ(published->save.state.earlier_time_us(), 500);
  Commit(second);
  const auto last = TryPublish(Durable("step_3", 3), 900);
  EXPECT_EQ(last->save.state.time_us(), 900);
  EXPECT_EQ(last->save.state.earlier_time_us(), 501);
}

// Two coordinators must write the same bytes.
TEST_P(SavePublicationContract, NextCoordinatorPublishesWhatTheFirstOneHasFixed) {
  const SharedSave older = Durable("step_1");
  Publish(older);
  Commit(older);
  const SharedSave save = Durable("step_1", 2);
  const auto first = TryPublish(save, 100, {older.sequence, {{"latest", "step_1"}}});
  const auto second = TryPublish(save, 200);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(second->save.state.time_us(), 100);
  EXPECT_EQ(second->save.state.replaces(), older.sequence);
  const auto& inherited = second->save.state.inherited_pointers();
  EXPECT_THAT((std::map<std::string, std::string>(inherited.begin(), inherited.end())),
              ElementsAre(Pair("latest", "step_1")));
  EXPECT_EQ(second->digests, first->digests);
}

TEST_P(SavePublicationContract, StateThatNobodyChangesIsNotWrittenAgain) {
  const SharedSave save = Durable("step_1");
  SavePublication::Replaces replaces;
  for (int i = 0; i < 20; ++i) replaces.pointers[absl::StrCat("pointer", i)] = "step_1";
  const auto publishing = Await<absl::StatusOr<Publishing>>(
      [&](auto answer) { publication_->Publish(save, leadership_, 7, replaces, std::move(answer)); });
  ASSERT_TRUE(publishing.ok()) << publishing.status();
  EXPECT_EQ(Commit(save), "COMMITTED");
  const std::string key = LedgerKeys(nodes_.prefix() + "run/").SaveState(save.sequence);
  const std::string written = nodes_.Read(key);
  EXPECT_EQ(Commit(save), "COMMITTED");
  EXPECT_EQ(nodes_.Read(key), written);
}

TEST_P(SavePublicationContract, OneSaveIsPublishedAtATime) {
  const SharedSave first = Durable("step_1"), second = Durable("step_2"), third = Durable("step_3");
  EXPECT_EQ(Publish(first), "PUBLISHING");
  EXPECT_EQ(Publish(second), "the save of sequence 1, which is being published");
  EXPECT_EQ(Commit(first), "COMMITTED");
  EXPECT_EQ(Publish(second), "PUBLISHING");
  EXPECT_EQ(Commit(third), "ADMITTED") << "it is not being published";
  EXPECT_EQ(Publish(third), "the save of sequence 2, which is being published");
  EXPECT_EQ(Foreign(second), "ENDED TAG_FOREIGN");
  EXPECT_EQ(Commit(second), "ENDED TAG_FOREIGN");
  EXPECT_EQ(Publish(third), "PUBLISHING");
}

TEST_P(SavePublicationContract, SaveThatIsBeingPublishedEndsByItsPublicationAlone) {
  const SharedSave save = Durable("step_1");
  EXPECT_EQ(Publish(save), "PUBLISHING");
  EXPECT_EQ(End(save, "CANCELLED"), "PUBLISHING");
  nodes_.WaitForTheEndOf(*second_.registration);
  EXPECT_EQ(LoseNode(save, "node2"), "PUBLISHING");
  EXPECT_EQ(Commit(save), "COMMITTED");
  EXPECT_EQ(Foreign(save), "COMMITTED");
  EXPECT_EQ(End(save, "CANCELLED"), "COMMITTED");
}

TEST_P(SavePublicationContract, NothingIsPublishedAfterAnUnknownOutcomeUntilAnOperatorHasLooked) {
  const SharedSave first = Durable("step_1"), second = Durable("step_2");
  EXPECT_EQ(Publish(first), "PUBLISHING");
  EXPECT_EQ(Release(first), "PUBLISHING");
  EXPECT_EQ(Unknown(first), "ENDED INDETERMINATE");
  EXPECT_EQ(Unknown(second), "ADMITTED") << "it is not being published";
  EXPECT_THAT(Publish(second), HasSubstr("to find out whether the save of sequence 1"));
  EXPECT_EQ(Release(second), "ADMITTED") << "another save's outcome is unknown";
  EXPECT_THAT(Publish(second), HasSubstr("an operator"));
  EXPECT_EQ(Release(first), "ENDED INDETERMINATE");
  EXPECT_EQ(Publish(second), "PUBLISHING");
}

TEST_P(SavePublicationContract, OnlyTheCoordinatorPublishes) {
  const SharedSave save = Durable("step_1");
  std::optional<absl::Status> resigned;
  coordinator_->Resign([&](absl::Status answer) { resigned = std::move(answer); });
  etcd_.caller().RunUntil([&] { return resigned.has_value(); });
  CheckpointReaders readers = ReadersOn(first_);
  for (const std::string& answer : {Settle(save), LoseNode(save, "node2"), Publish(save), Commit(save),
                                    Foreign(save), Unknown(save), Release(save), Evict(readers, 1)})
    EXPECT_EQ(answer, ledger_reason::kNotCoordinator);
}

// ---- readers

TEST_P(SavePublicationContract, CheckpointIsNotReplacedWhileANodeReadsIt) {
  const SharedSave older = Durable("step_1");
  Publish(older);
  Commit(older);
  CheckpointReaders readers = ReadersOn(second_);
  EXPECT_EQ(BeginReading(readers, older.sequence), "OK");
  const SharedSave save = Durable("step_1", 2);
  EXPECT_EQ(Publish(save, older.sequence), "readers of the checkpoint that it replaces, on nodes node2");
  EXPECT_EQ(EndReading(readers, older.sequence), "OK");
  EXPECT_EQ(Publish(save, older.sequence), "PUBLISHING");
  EXPECT_EQ(BeginReading(readers, older.sequence), "BEING_REMOVED");
}

TEST_P(SavePublicationContract, CheckpointIsNotRemovedWhileANodeReadsItAndNotReadWhenItIsBeingRemoved) {
  CheckpointReaders first = ReadersOn(first_), second = ReadersOn(second_);
  EXPECT_EQ(BeginReading(first, 1), "OK");
  EXPECT_EQ(BeginReading(first, 1), "OK");
  EXPECT_EQ(BeginReading(second, 1), "OK");
  EXPECT_EQ(Evict(first, 1), reason::kBeingRead);
  EXPECT_EQ(EndReading(first, 1), "OK");
  EXPECT_EQ(EndReading(first, 1), "OK");
  EXPECT_EQ(Evict(first, 1), reason::kBeingRead);
  EXPECT_EQ(EndReading(second, 1), "OK");
  EXPECT_EQ(Evict(first, 1), "OK");
  EXPECT_EQ(Evict(first, 1), "OK");
  EXPECT_EQ(BeginReading(second, 1), "BEING_REMOVED");
  EXPECT_EQ(BeginReading(second, 2), "OK") << "another checkpoint";
}

TEST_P(SavePublicationContract, OfAReaderAndARemovalThatMeetOneFails) {
  CheckpointReaders first = ReadersOn(first_), second = ReadersOn(second_);
  std::optional<absl::Status> begun, evicting;
  second.Begin(1, [&](absl::Status status) { begun = std::move(status); });
  first.Evict({.sequence = 1}, {}, leadership_, [&](absl::Status status) { evicting = std::move(status); });
  etcd_.caller().RunUntil([&] { return begun && evicting; });
  EXPECT_NE(begun->ok(), evicting->ok()) << *begun << " and " << *evicting;
}

TEST_P(SavePublicationContract, NodeThatIsLostNoLongerReads) {
  CheckpointReaders first = ReadersOn(first_), second = ReadersOn(second_);
  EXPECT_EQ(BeginReading(second, 1), "OK");
  nodes_.WaitForTheEndOf(*second_.registration);
  EXPECT_EQ(Evict(first, 1), "OK");
  EXPECT_EQ(BeginReading(second, 2), ledger_reason::kNodeReplaced);
}

}  // namespace
}  // namespace ckptd
