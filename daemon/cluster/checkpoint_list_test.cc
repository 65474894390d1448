#include "daemon/cluster/checkpoint_list.h"

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"

namespace ckptd {
namespace {

using ledger::v1::SaveState;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Checkpoint 1 is to be replaced by save 2, as was decided at revision 10. The root shows checkpoint 1.
class CheckpointListTest : public ::testing::Test {
 protected:
  CheckpointListTest() {
    etcdserverpb::KeyValue key;
    ledger::v1::Evicting decision;
    decision.set_replaced_by(2);
    key.set_value(decision.SerializeAsString());
    key.set_mod_revision(10);
    list_.OnRemoval(1, key);
    list_.OnRemovalsKnown();
    Scan();
  }

  // Whether the list has checkpoint 1, after a scan.
  bool Scan() {
    RootSnapshot root;
    root.committed[1].summary.set_tag("step_1");
    list_.Apply(&root);
    leaving_ = root.leaving;
    return root.committed.contains(1);
  }
  void Pass() {
    for (int i = 0; i < 60; ++i) {
      clock_.Advance(seconds(1));
      list_.OnTick();
      Scan();
    }
  }
  void EndSave(SaveState::Phase phase) { states_[2].set_phase(phase); }

  FakeClock clock_;
  std::map<int64_t, SaveState> states_;
  int64_t revision_ = 0;
  int scans_asked_ = 0;
  std::set<int64_t> leaving_;
  CheckpointList list_{&clock_,
                       std::chrono::seconds(5),
                       {.save_state = [this](int64_t sequence) -> std::optional<SaveState> {
                          const auto state = states_.find(sequence);
                          if (state == states_.end()) return std::nullopt;
                          return state->second;
                        },
                        .saves_revision = [this] { return revision_; },
                        .removed = [](int64_t) {},
                        .noticed = [](const std::string&) {},
                        .root_changed = [this] { ++scans_asked_; }}};
};

TEST_F(CheckpointListTest, HidesWhatASaveReplacesUntilThisNodeIsToldOfThatSave) {
  revision_ = 9;
  Pass();
  EXPECT_FALSE(Scan()) << "the save may be one of which this node has not been told";
  EXPECT_THAT(leaving_, ElementsAre(1));
  states_[2].set_phase(SaveState::PUBLISHING);
  revision_ = 11;
  Pass();
  EXPECT_FALSE(Scan());
}

TEST_F(CheckpointListTest, ListsWhatAForgottenSaveHasLeft) {
  revision_ = 10;
  Pass();
  EXPECT_GT(scans_asked_, 0);
  EXPECT_TRUE(Scan());
  EXPECT_THAT(leaving_, IsEmpty());
  EXPECT_FALSE(list_.IsBeingRemoved(1));
}

TEST_F(CheckpointListTest, ListsWhatAFailedSaveHasLeft) {
  EndSave(SaveState::ENDED);
  Pass();
  EXPECT_TRUE(Scan());
}

// This node may see the directory for some seconds after it is gone.
TEST_F(CheckpointListTest, ListsWhatACommittedSaveHasReplacedOnlyIfItIsStillThereLater) {
  EndSave(SaveState::COMMITTED);
  list_.OnTick();
  EXPECT_FALSE(Scan());
  Pass();
  EXPECT_TRUE(Scan()) << "somebody has put it back";
}

}  // namespace
}  // namespace ckptd
