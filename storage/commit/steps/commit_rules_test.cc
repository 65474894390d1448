// What a save may replace and what its manifest takes over, in a root of one node and in one of several
// nodes: one suite over both stores.
#include "storage/commit/steps/commit_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/local/root_store.h"
#include "storage/commit/shared/shared_root_store.h"
#include "storage/commit/steps/run_marks.h"
#include "tests/testing/crash_disk.h"
#include "tests/testing/crash_io_queue.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/root_store_fixture.h"
#include "tests/testing/shared_root_fixture.h"

namespace ckptd {
namespace {

using storage::v1::ManifestSummary;
using storage::v1::NodePartRecord;
using storage::v1::PartRecord;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using Pointers = std::map<std::string, std::string>;

// What the record of one of two ranks says; of a shared root, each is on a node of its own.
struct Says {
  std::string suspect = {};
  Pointers pointers = {};
  std::map<std::string, double> metrics = {};
};
void Apply(const Says& says, ManifestSummary* part) {
  part->set_suspect(says.suspect);
  part->mutable_pointers()->clear();
  part->mutable_pointers()->insert(says.pointers.begin(), says.pointers.end());
  part->clear_metrics();
  part->mutable_metrics()->insert(says.metrics.begin(), says.metrics.end());
}

class Root {
 public:
  virtual ~Root() = default;
  // OK: it is committed. Else it has failed for good, and its directory is out of the way.
  virtual absl::Status Save(const std::string& tag, int64_t sequence, const std::vector<Says>& ranks) = 0;
  virtual absl::StatusOr<ManifestSummary> At(const std::string& tag) = 0;
  virtual std::string Pointer(const std::string& name) = 0;  // Empty: no file.
  virtual void MakeForeign(const std::string& tag) = 0;
  virtual void Pin(const std::string& tag, int64_t sequence) = 0;
};

class RootOfOneNode : public Root {
 public:
  RootOfOneNode() : store_(root_.Open()) {}
  absl::Status Save(const std::string& tag, int64_t sequence, const std::vector<Says>& ranks) override {
    const SaveSpec spec{tag, sequence, static_cast<int>(ranks.size())};
    absl::StatusOr<Staged> staged = Stage(root_.fs(), *store_, spec);
    if (!staged.ok()) return staged.status();
    for (size_t i = 0; i < ranks.size(); ++i) Apply(ranks[i], staged->parts[i].mutable_checkpoint());
    ManifestSummary summary = SummaryOf(spec);
    summary.clear_metrics();
    const PublishResult result = store_->Publish(staged->inflight, summary, staged->parts);
    if (result.outcome == PublishOutcome::kCommitted) return absl::OkStatus();
    EXPECT_FALSE(result.retryable) << result.status;
    EXPECT_TRUE(store_->Discard(staged->inflight).ok());
    return result.status;
  }
  absl::StatusOr<ManifestSummary> At(const std::string& tag) override {
    return ReadSummary(root_.fs(), root_.handle(), tag);
  }
  std::string Pointer(const std::string& name) override {
    return ReadSmallFile(root_.fs(), root_.handle(), name, 1 << 10).value_or("");
  }
  void MakeForeign(const std::string& tag) override { root_.Write(tag + "/file", "of another program"); }
  void Pin(const std::string& tag, int64_t sequence) override {
    ASSERT_TRUE(store_->SetPinned(tag, sequence, true).ok());
  }

 private:
  TemporaryRoot root_{TemporaryRoot::On::kMemory};
  std::unique_ptr<RootStore> store_;
};

class RootOfSeveralNodes : public Root {
 public:
  RootOfSeveralNodes() {
    SharedRootStoreOptions options;
    options.node = "a";
    options.queues.uring = options.queues.threads = [this](int) { return CrashQueueFactory(&disk_)(); };
    auto opened = SharedRootStore::Open(&disk_, disk_.root(), &clock_, options);
    EXPECT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
    EXPECT_TRUE(store_->BeginTerm(1).ok());
  }
  // As CheckpointPublication does it.
  absl::Status Save(const std::string& tag, int64_t sequence, const std::vector<Says>& ranks) override {
    const absl::StatusOr<SharedInflight> save = store_->MakeInflight(tag, sequence);
    if (!save.ok()) return save.status();
    std::map<std::string, std::string> digests;
    const SharedLayout layout = OpenShared(disk_, disk_.root());
    for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
      const std::string node = absl::StrCat("node", rank);
      NodePartRecord record = SharedRecordOf(*save, node, {rank}, static_cast<int>(ranks.size()), "i");
      Apply(ranks[static_cast<size_t>(rank)], record.mutable_checkpoint());
      const auto digest = WriteSharedPart(disk_, layout, *save, record);
      if (!digest.ok()) return digest.status();
      digests[node] = *digest;
    }
    LedgerFacts facts{.tag = tag, .sequence = sequence, .attempt = 1, .ordinal = 1, .times = {.this_us = 7}};
    const auto replaced = store_->FindReplaced(*save, facts, digests);
    const bool refused = IsRefusal(replaced.status());
    if (!replaced.ok() && !refused) return replaced.status();
    if (replaced.ok()) facts.inherited_pointers = replaced->pointers;
    absl::StatusOr<int64_t> published = store_->Publish(*save, facts, digests);
    if (published.ok() && *published != 0) {
      EXPECT_FALSE(refused) << "it would remove what it may not replace";
      RemovalBudget budget;
      EXPECT_TRUE(store_->Remove(tag, *published, budget).value_or(false));
      published = store_->Publish(*save, facts, digests);
    }
    if (!published.ok()) {
      EXPECT_EQ(store_->Find(*save).value_or(SharedPlace::kNowhere), SharedPlace::kInTrash);
      return published.status();
    }
    const auto scan = store_->Scan();
    if (!scan.ok()) return scan.status();
    return store_->UpdatePointers(scan->checkpoints).status();
  }
  absl::StatusOr<ManifestSummary> At(const std::string& tag) override {
    return ReadSummary(disk_, disk_.root(), tag);
  }
  std::string Pointer(const std::string& name) override {
    return ReadSmallFile(disk_, disk_.root(), name, 1 << 10).value_or("");
  }
  void MakeForeign(const std::string& tag) override { PlantAt(disk_, tag + "/file", "of another program"); }
  void Pin(const std::string& tag, int64_t sequence) override {
    storage::v1::SharedRunRecord record = store_->LoadRecord({}).value();
    SetPinned(record, tag, sequence, true);
    ASSERT_TRUE(store_->StoreRecord(record).ok());
  }

 private:
  CrashDisk disk_;
  FakeClock clock_;
  std::unique_ptr<SharedRootStore> store_;
};

class CommitRules : public ::testing::TestWithParam<bool> {
 protected:
  CommitRules() {
    if (GetParam()) {
      root_ = std::make_unique<RootOfSeveralNodes>();
    } else {
      root_ = std::make_unique<RootOfOneNode>();
    }
  }
  std::string Save(const std::string& tag, int64_t sequence, const std::vector<Says>& ranks = {{}, {}}) {
    const absl::Status saved = root_->Save(tag, sequence, ranks);
    return saved.ok() ? "COMMITTED" : ReasonOf(saved);
  }
  int64_t SequenceAt(const std::string& tag) {
    const auto there = root_->At(tag);
    return there.ok() ? there->sequence() : 0;
  }
  Pointers PointersOf(const std::string& tag) {
    const auto there = root_->At(tag);
    if (!there.ok()) return {};
    return {there->pointers().begin(), there->pointers().end()};
  }
  std::unique_ptr<Root> root_;
};
INSTANTIATE_TEST_SUITE_P(, CommitRules, ::testing::Bool(),
                         [](const auto& shared) { return shared.param ? "SeveralNodes" : "OneNode"; });

TEST_P(CommitRules, SuspectSaveReplacesNoGoodCheckpoint) {
  EXPECT_EQ(Save("last", 1), "COMMITTED");
  EXPECT_EQ(Save("last", 2, {{.suspect = "NaN"}, {}}), "SUSPECT");
  EXPECT_EQ(SequenceAt("last"), 1) << "it may be the only good one";
  EXPECT_EQ(Save("last", 3, {{}, {.suspect = "NaN"}}), "SUSPECT") << "whichever rank says so";
  EXPECT_EQ(SequenceAt("last"), 1);
  EXPECT_EQ(Save("last", 4), "COMMITTED");
  EXPECT_EQ(SequenceAt("last"), 4);
}

TEST_P(CommitRules, SuspectCheckpointIsReplacedByAnySave) {
  EXPECT_EQ(Save("last", 1, {{}, {.suspect = "NaN"}}), "COMMITTED");
  EXPECT_EQ(Save("last", 2, {{.suspect = "Inf"}, {}}), "COMMITTED");
  EXPECT_EQ(root_->At("last")->suspect(), "Inf");
  EXPECT_EQ(Save("last", 3), "COMMITTED");
  EXPECT_EQ(root_->At("last")->suspect(), "");
}

// The record of one rank may have been written before another rank calls the state suspect.
TEST_P(CommitRules, SaveIsSuspectIfOneRankSaysSoAndNoPointerNamesIt) {
  const Pointers latest = {{"latest", "s1"}};
  for (const size_t suspect : {0, 1}) {
    std::vector<Says> ranks = {{.pointers = latest}, {.pointers = latest}};
    ranks[suspect].suspect = "NaN";
    const std::string tag = absl::StrCat("s", suspect + 1);
    EXPECT_EQ(Save(tag, static_cast<int64_t>(suspect + 1), ranks), "COMMITTED");
    EXPECT_EQ(root_->At(tag)->suspect(), "NaN");
    EXPECT_THAT(PointersOf(tag), IsEmpty());
  }
  EXPECT_EQ(root_->Pointer("latest"), "");
}

TEST_P(CommitRules, CheckpointHasWhatAnyRankSaysOfIt) {
  EXPECT_EQ(
      Save("s1", 1,
           {{.pointers = {{"latest", "s1"}}}, {.pointers = {{"best", "s1"}}, .metrics = {{"loss", 2}}}}),
      "COMMITTED");
  EXPECT_THAT(PointersOf("s1"), ElementsAre(Pair("best", "s1"), Pair("latest", "s1")));
  EXPECT_EQ(root_->At("s1")->metrics().at("loss"), 2);
}

TEST_P(CommitRules, ResaveWithoutPointersTakesOverThoseOfWhatItReplaces) {
  EXPECT_EQ(Save("s1", 1, {{.pointers = {{"latest", "s1"}}}, {}}), "COMMITTED");
  EXPECT_EQ(Save("s2", 2, {{.pointers = {{"latest", "s2"}, {"best", "s2"}}}, {}}), "COMMITTED");
  EXPECT_EQ(Save("s2", 3, {{}, {.pointers = {{"best", "s2"}}}}), "COMMITTED");
  EXPECT_EQ(root_->Pointer("latest"), "s2");
  EXPECT_EQ(root_->Pointer("best"), "s2");
  EXPECT_EQ(Save("s1", 4), "COMMITTED");
  EXPECT_EQ(root_->Pointer("latest"), "s2") << "it had moved on";
  EXPECT_THAT(PointersOf("s1"), IsEmpty());
}

TEST_P(CommitRules, OlderSaveReplacesNoYoungerCheckpoint) {
  EXPECT_EQ(Save("last", 5), "COMMITTED");
  EXPECT_EQ(Save("last", 4), "SUPERSEDED");
  EXPECT_EQ(SequenceAt("last"), 5);
}

TEST_P(CommitRules, PinnedCheckpointIsNotReplaced) {
  EXPECT_EQ(Save("last", 1), "COMMITTED");
  root_->Pin("last", 1);
  EXPECT_EQ(Save("last", 2), "PINNED");
  EXPECT_EQ(SequenceAt("last"), 1);
}

TEST_P(CommitRules, WhatAnotherProgramHasAtTheTagIsNotReplaced) {
  root_->MakeForeign("last");
  EXPECT_EQ(Save("last", 1), "TAG_FOREIGN");
  EXPECT_EQ(SequenceAt("last"), 0);
}

TEST(InheritPointersTest, ResaveKeepsItsOwnContentOfAPointer) {
  storage::v1::ManifestSummary save;
  save.set_tag("step_2");
  (*save.mutable_pointers())["latest"] = "step_2/";
  InheritPointers({{"latest", "step_2"}, {"best", "step_2"}}, save);
  EXPECT_EQ(save.pointers().at("latest"), "step_2/");
  EXPECT_EQ(save.pointers().at("best"), "step_2");
}

}  // namespace
}  // namespace ckptd
