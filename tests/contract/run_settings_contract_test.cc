// What operators set for a run on any node, and that pinned checkpoints are neither removed nor replaced: run
// against the simulated etcd and its faults, a model over gRPC, and Debian's etcd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "daemon/ledger/keys/ledger_reasons.h"
#include "daemon/ledger/save/save_publication.h"
#include "daemon/ledger/state/checkpoint_readers.h"
#include "daemon/ledger/state/run_settings.h"
#include "storage/base/reasons.h"
#include "tests/contract/spanning_saves.h"

namespace ckptd {
namespace {

using ledger::v1::CheckpointPin;
using ledger::v1::RetentionOverride;
using ::testing::HasSubstr;

class RunSettingsContract : public SpanningSaves {
 protected:
  void SetUp() override {
    SpanningSaves::SetUp();
    ASSERT_EQ(Join(second_, 1), 1);
    Activate(1);
  }
  RunSettings SettingsOn(const Daemon& daemon) {
    return {nodes_.ClientOf(*daemon.registration),
            {nodes_.prefix() + "run/", daemon.registration->identity(), "test"}};
  }
  CheckpointReaders ReadersOn(const Daemon& daemon) {
    return {nodes_.ClientOf(*daemon.registration),
            {nodes_.prefix() + "run/", daemon.registration->identity(), "test"}};
  }
  static std::string Text(const absl::StatusOr<CheckpointPin>& pin) {
    if (!pin.ok()) return ReasonOf(pin.status());
    return pin->pinned() ? "pinned " + pin->tag() : "not pinned";
  }
  std::string SetPinned(RunSettings& settings, int64_t sequence, bool pinned) {
    return Text(Await<absl::StatusOr<CheckpointPin>>([&](auto set) {
      settings.SetPinned("step_" + std::to_string(sequence), sequence, pinned, std::move(set));
    }));
  }
  std::string Pin(RunSettings& settings, int64_t sequence) { return SetPinned(settings, sequence, true); }
  std::string Unpin(RunSettings& settings, int64_t sequence) { return SetPinned(settings, sequence, false); }
  std::string Remember(RunSettings& settings, int64_t sequence) {
    return Text(Await<absl::StatusOr<CheckpointPin>>([&](auto set) {
      settings.RememberPin("step_" + std::to_string(sequence), sequence, std::move(set));
    }));
  }
  // "OK", or the reason.
  std::string Remove(CheckpointReaders& readers, int64_t sequence, int64_t replaced_by = 0) {
    const auto status = Await<absl::Status>([&](auto done) {
      if (replaced_by != 0) return readers.Replace(sequence, replaced_by, leadership_, std::move(done));
      readers.Evict({.sequence = sequence}, {}, leadership_, std::move(done));
    });
    return status.ok() ? "OK" : ReasonOf(status);
  }
  RetentionOverride SetRetention(RunSettings& settings, std::optional<int> last) {
    std::optional<storage::v1::RetentionPolicy> policy;
    if (last) policy.emplace().set_last(*last);
    const auto set = Await<absl::StatusOr<RetentionOverride>>(
        [&](auto answer) { settings.SetRetention(policy, std::move(answer)); });
    EXPECT_TRUE(set.ok()) << set.status();
    return set.value_or(RetentionOverride());
  }
};
INSTANTIATE_TEST_SUITE_P(, RunSettingsContract, ::testing::ValuesIn(AllEtcds(/*seeds=*/10)), NameOf);

// ---- pins

TEST_P(RunSettingsContract, PinnedCheckpointIsNotRemovedUntilItIsUnpinnedOnAnyNode) {
  CheckpointReaders readers = ReadersOn(first_);
  RunSettings first = SettingsOn(first_), second = SettingsOn(second_);
  EXPECT_EQ(Pin(second, 7), "pinned step_7");
  EXPECT_EQ(Remove(readers, 7), reason::kPinned);
  EXPECT_EQ(Remove(readers, 7, /*replaced_by=*/9), reason::kPinned);
  EXPECT_EQ(Remove(readers, 8), "OK") << "another one";
  EXPECT_EQ(Unpin(first, 7), "not pinned");
  EXPECT_EQ(Remove(readers, 7), "OK");
}

TEST_P(RunSettingsContract, CheckpointWhoseRemovalIsDecidedIsNotPinned) {
  CheckpointReaders readers = ReadersOn(first_);
  RunSettings second = SettingsOn(second_);
  EXPECT_EQ(Remove(readers, 7), "OK");
  EXPECT_EQ(Pin(second, 7), ledger_reason::kBeingRemoved);
  EXPECT_EQ(Unpin(second, 7), "not pinned") << "nothing is to be done";
  EXPECT_EQ(Remember(second, 7), ledger_reason::kBeingRemoved);
}

TEST_P(RunSettingsContract, OfAPinAndARemovalThatMeetOneFails) {
  CheckpointReaders readers = ReadersOn(first_);
  RunSettings second = SettingsOn(second_);
  std::optional<absl::StatusOr<CheckpointPin>> pinned;
  std::optional<absl::Status> removed;
  second.SetPinned("step_7", 7, true, [&](absl::StatusOr<CheckpointPin> pin) { pinned = std::move(pin); });
  readers.Evict({.sequence = 7}, {}, leadership_, [&](absl::Status status) { removed = std::move(status); });
  etcd_.caller().RunUntil([&] { return pinned && removed; });
  EXPECT_NE(pinned->ok(), removed->ok()) << pinned->status() << ", " << *removed;
}

TEST_P(RunSettingsContract, EachChangeOfAPinHasAHigherNumber) {
  RunSettings first = SettingsOn(first_), second = SettingsOn(second_);
  const auto set = [&](RunSettings& settings, bool pinned) {
    const auto pin = Await<absl::StatusOr<CheckpointPin>>(
        [&](auto answer) { settings.SetPinned("step_7", 7, pinned, std::move(answer)); });
    EXPECT_TRUE(pin.ok()) << pin.status();
    return pin.ok() ? pin->number() : -1;
  };
  EXPECT_EQ(set(first, true), 1);
  EXPECT_EQ(set(second, true), 1) << "it is pinned already";
  EXPECT_EQ(set(second, false), 2);
  EXPECT_EQ(set(first, true), 3);
}

TEST_P(RunSettingsContract, PinThatARootRemembersCountsOnlyIfEtcdHasNoneOfTheCheckpoint) {
  RunSettings first = SettingsOn(first_), second = SettingsOn(second_);
  EXPECT_EQ(Remember(first, 7), "pinned step_7");
  EXPECT_EQ(Unpin(second, 7), "not pinned");
  EXPECT_EQ(Remember(first, 7), "not pinned") << "the root's record is older";
}

TEST_P(RunSettingsContract, NodeThatIsLostSetsNothing) {
  RunSettings second = SettingsOn(second_);
  nodes_.WaitForTheEndOf(*second_.registration);
  EXPECT_EQ(Pin(second, 7), ledger_reason::kNodeReplaced);
  CheckpointReaders readers = ReadersOn(first_);
  EXPECT_EQ(Remove(readers, 7), "OK");
}

// The root refuses a save whose tag has a pinned checkpoint. If a pin comes between the root's answer and the
// decision, the save is not published before the root is asked again.
TEST_P(RunSettingsContract, SaveIsNotPublishedInThePlaceOfAPinnedCheckpoint) {
  RunSettings second = SettingsOn(second_);
  SavePublication publication(nodes_.ClientOf(*first_.registration),
                              {nodes_.prefix() + "run/", first_.registration->identity(), "test"});
  const SharedSave save = Admitted("step_7");
  for (Daemon* daemon : {&first_, &second_}) {
    Sealed(*daemon, save);
    Durable(*daemon, save, "digest");
  }
  const auto publish = [&] {
    const auto publishing = Await<absl::StatusOr<SavePublication::Publishing>>(
        [&](auto answer) { publication.Publish(save, leadership_, 7, {100}, std::move(answer)); });
    EXPECT_TRUE(publishing.ok()) << publishing.status();
    return publishing.value_or(SavePublication::Publishing());
  };
  EXPECT_EQ(Pin(second, 100), "pinned step_100");
  EXPECT_THAT(publish().waits_for, HasSubstr("pinned"));
  EXPECT_EQ(Unpin(second, 100), "not pinned");
  EXPECT_EQ(publish().save.state.phase(), ledger::v1::SaveState::PUBLISHING);
  EXPECT_EQ(Pin(second, 100), ledger_reason::kBeingRemoved);
}

// ---- retention

TEST_P(RunSettingsContract, PolicyOfAnyNodeReplacesThatOfAnother) {
  RunSettings first = SettingsOn(first_), second = SettingsOn(second_);
  EXPECT_EQ(SetRetention(first, 3).number(), 1);
  EXPECT_EQ(SetRetention(second, 3).number(), 1) << "it is set already";
  const RetentionOverride two = SetRetention(second, 2);
  EXPECT_EQ(two.number(), 2);
  EXPECT_EQ(two.policy().last(), 2);
  const RetentionOverride none = SetRetention(first, std::nullopt);
  EXPECT_EQ(none.number(), 3);
  EXPECT_FALSE(none.has_policy());
}

}  // namespace
}  // namespace ckptd
