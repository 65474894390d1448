// A root that several nodes share, in memory: what each coordinator asks of it is done a while later, and
// answered later still.
#ifndef CKPTD_TESTS_TESTING_FAKE_SHARED_ROOT_H_
#define CKPTD_TESTS_TESTING_FAKE_SHARED_ROOT_H_

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "daemon/engine/seams/shared_root_io.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "tests/sim/random.h"
#include "tests/testing/pausable_etcd.h"

namespace ckptd {

class FakeSharedRoot {
 public:
  using After = std::function<void(Duration delay, absl::AnyInvocable<void()> event)>;

  // `longest`: until a request is carried out, and until it is answered.
  FakeSharedRoot(After after, uint64_t seed, Duration longest)
      : after_(std::move(after)), random_(seed), longest_(longest) {}

  // For one daemon. While one of these is paused its requests are not carried out, or not answered.
  std::unique_ptr<SharedRootIo> Open(std::vector<Pause*> pauses) {
    return std::make_unique<Io>(this, std::move(pauses));
  }

  // ---- what is there
  std::map<std::string, int64_t> tags;                    // Sequences of ckptd's checkpoints.
  std::set<std::string> foreign;                          // Tags of something else.
  std::map<std::string, int64_t> half_removed;            // Sequences of what were checkpoints, by tag.
  std::map<std::string, int64_t> inflight, trash;         // Sequences by name.
  std::vector<std::string> published;                     // As "step_1 5", in order.
  std::map<int64_t, std::vector<std::string>> manifests;  // Each one that was written of a sequence.
  std::set<int64_t> removed;
  int64_t highest_term = 0;
  std::map<int64_t, int64_t> attempts = {};  // That have saved them, by sequence; others: not said.
  std::set<int64_t> pointed;                 // Sequences that pointer files name.
  std::set<int64_t> pinned;                  // Sequences that the record of the run calls pinned.
  std::map<int64_t, int64_t> copies;         // How often each sequence was put back.
  // Sequences that the root does not show for now, as if its names were stale.
  std::set<int64_t> hidden;
  std::set<int64_t> suspect;               // Sequences of checkpoints that a check has called suspect.
  std::map<int64_t, std::string> damaged;  // By sequence: what the record of the run says.
  int failures = 0;                        // So many of the next requests fail, and change nothing.
  absl::Status no_directory;               // Why none can be made.
  absl::Status no_term;                    // Why none can begin.
  int64_t moved_in = 0;                    // What the next publication finds: an operator has moved it in.
  bool parts_conflict = false;             // The parts of the saves to come make no checkpoint.
  // Runs before a request is carried out, with its name: "Publish". False: its daemon has been paused, and
  // the request is carried out when it goes on.
  std::function<bool(const std::string&)> before;

  // Moves what is in flight to another place, as an operator might.
  void Lose(int64_t sequence) {
    std::erase_if(inflight, [sequence](const auto& entry) { return entry.second == sequence; });
  }

  // An operator puts a copy of a checkpoint back, in another directory than before.
  void PutBack(const std::string& tag, int64_t sequence) {
    tags[tag] = sequence;
    ++copies[sequence];
  }
  uint64_t InodeOf(int64_t sequence) const {
    const auto copy = copies.find(sequence);
    return static_cast<uint64_t>(1000 * sequence + (copy == copies.end() ? 0 : copy->second));
  }

  bool TakeFailure() { return failures > 0 && failures-- > 0; }

 private:
  class Io : public SharedRootIo {
   public:
    Io(FakeSharedRoot* root, std::vector<Pause*> pauses) : root_(*root), pauses_(std::move(pauses)) {}

    void MakeInflight(const std::string& tag, int64_t sequence,
                      Callback<absl::StatusOr<std::string>> done) override {
      Do<absl::StatusOr<std::string>>(
          "MakeInflight", [=](FakeSharedRoot& root) { return root.MakeInflight(tag, sequence); },
          std::move(done));
    }
    void FindReplaced(const Publication& publication, Callback<absl::StatusOr<Replaced>> done) override {
      Do<absl::StatusOr<Replaced>>(
          "FindReplaced",
          [publication](FakeSharedRoot& root) -> absl::StatusOr<Replaced> {
            const auto at_tag = root.tags.find(publication.save.tag);
            if (at_tag == root.tags.end() || root.hidden.contains(at_tag->second)) return Replaced();
            EXPECT_FALSE(publication.digests.empty());
            if (root.Find(publication.save).value() == SharedPlace::kNowhere)
              return ErrnoError(ENOENT, "the record of a node");
            return root.parts_conflict ? Replaced() : Replaced{at_tag->second, {{"latest", at_tag->first}}};
          },
          std::move(done));
    }
    void Find(const SharedInflight& save, Callback<absl::StatusOr<SharedPlace>> done) override {
      Do<absl::StatusOr<SharedPlace>>(
          "Find", [=](FakeSharedRoot& root) { return root.Find(save); }, std::move(done));
    }
    void BeginTerm(int64_t, Callback<absl::Status> done) override {
      Do<absl::Status>(
          "BeginTerm",
          [this](FakeSharedRoot& root) {
            term_begun_ = root.no_term.ok();
            return root.no_term;
          },
          std::move(done));
    }
    void Publish(const Publication& publication, Callback<absl::StatusOr<Published>> done) override {
      Do<absl::StatusOr<Published>>(
          "Publish",
          [this, publication](FakeSharedRoot& root) {
            EXPECT_TRUE(term_begun_);
            return root.Publish(publication);
          },
          std::move(done));
    }
    void EndTerm() override {}
    void CheckRemovable(const std::string& tag, int64_t sequence,
                        Callback<absl::StatusOr<uint64_t>> done) override {
      Do<absl::StatusOr<uint64_t>>(
          "CheckRemovable",
          [this, tag, sequence](FakeSharedRoot& root) {
            EXPECT_TRUE(term_begun_);
            return root.CheckRemovable(tag, sequence);
          },
          std::move(done));
    }
    void Remove(const std::string& tag, int64_t sequence, uint64_t inode,
                Callback<absl::StatusOr<bool>> done) override {
      Do<absl::StatusOr<bool>>(
          "Remove", [=](FakeSharedRoot& root) { return root.Remove(tag, sequence, inode); }, std::move(done));
    }
    void Sweep(int64_t last, const std::set<int64_t>& unfinished, Callback<absl::Status> done) override {
      Do<absl::Status>(
          "Sweep", [=](FakeSharedRoot& root) { return root.Sweep(last, unfinished); }, std::move(done));
    }

   private:
    template <typename T>
    void Do(const std::string& what, std::function<T(FakeSharedRoot&)> act, Callback<T> done) {
      auto answer = std::make_shared<Callback<T>>(std::move(done));
      Later([this, what, answer, act = std::move(act)] {
        Deliver([this, what, answer, act] {
          CarryOut(what, [this, answer, act] {
            auto result =
                std::make_shared<T>(root_.TakeFailure() ? T(ErrnoError(EIO, "a test")) : act(root_));
            Later([this, answer, result] { Deliver([answer, result] { (*answer)(std::move(*result)); }); });
          });
        });
      });
    }
    void CarryOut(const std::string& what, const std::function<void()>& act) {
      if (root_.before && !root_.before(what)) return Deliver([this, what, act] { CarryOut(what, act); });
      act();
    }
    void Later(absl::AnyInvocable<void()> event) {
      root_.after_(root_.random_.Spread(std::chrono::microseconds(100), root_.longest_),
                   [alive = std::weak_ptr<bool>(alive_), event = std::move(event)]() mutable {
                     if (!alive.expired()) event();
                   });
    }
    void Deliver(absl::AnyInvocable<void()> event) { Pass(0, std::move(event)); }
    void Pass(size_t pause, absl::AnyInvocable<void()> event) {
      if (pause == pauses_.size()) return event();
      pauses_[pause]->Deliver(
          [this, pause, alive = std::weak_ptr<bool>(alive_), event = std::move(event)]() mutable {
            if (!alive.expired()) Pass(pause + 1, std::move(event));
          });
    }

    FakeSharedRoot& root_;
    const std::vector<Pause*> pauses_;
    bool term_begun_ = false;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  };

  absl::StatusOr<std::string> MakeInflight(const std::string& tag, int64_t sequence) {
    if (!no_directory.ok()) return no_directory;
    const std::string name = absl::StrCat(tag, ".", sequence, ".", ++names_);
    inflight[name] = sequence;
    return name;
  }
  absl::StatusOr<SharedPlace> Find(const SharedInflight& save) {
    if (hidden.contains(save.sequence)) return SharedPlace::kNowhere;
    const auto at_tag = tags.find(save.tag);
    if (at_tag != tags.end() && at_tag->second == save.sequence) return SharedPlace::kPublished;
    if (inflight.contains(save.name)) return SharedPlace::kInFlight;
    return trash.contains(save.name) ? SharedPlace::kInTrash : SharedPlace::kNowhere;
  }
  absl::StatusOr<SharedRootIo::Published> Publish(const SharedRootIo::Publication& publication) {
    const SharedInflight& save = publication.save;
    const auto at_tag = tags.find(save.tag);
    if (at_tag != tags.end() && at_tag->second == save.sequence) return SharedRootIo::Published();
    if (!inflight.contains(save.name)) return ErrnoError(ENOENT, save.name);
    if (parts_conflict) {
      trash[save.name] = save.sequence;
      inflight.erase(save.name);
      return SharedRootIo::Published{
          0, MakeError(absl::StatusCode::kInvalidArgument, reason::kFileConflict, "two ranks have one file")};
    }
    if (at_tag != tags.end() && at_tag->second != publication.replaces)
      return SharedRootIo::Published{at_tag->second, absl::OkStatus()};
    manifests[save.sequence].push_back(ManifestOf(publication));
    if (foreign.contains(save.tag)) {
      trash[save.name] = save.sequence;
      inflight.erase(save.name);
      return SharedRootIo::Published{
          0, MakeError(absl::StatusCode::kAlreadyExists, reason::kTagForeign, "a test's directory is there")};
    }
    if (at_tag != tags.end()) return SharedRootIo::Published{at_tag->second, absl::OkStatus()};
    inflight.erase(save.name);
    tags[save.tag] = save.sequence;
    published.push_back(absl::StrCat(save.tag, " ", save.sequence));
    return SharedRootIo::Published{0, absl::OkStatus(), std::exchange(moved_in, 0)};
  }
  static std::string ManifestOf(const SharedRootIo::Publication& publication) {
    std::string text = absl::StrCat(publication.times.this_us);
    for (const auto& [name, content] : publication.inherited_pointers) absl::StrAppend(&text, " ", name);
    for (const auto& [node, digest] : publication.digests) absl::StrAppend(&text, " ", node, "=", digest);
    return text;
  }
  absl::StatusOr<uint64_t> CheckRemovable(const std::string& tag, int64_t sequence) {
    const auto at_tag = tags.find(tag);
    if (at_tag == tags.end() || at_tag->second != sequence)
      return MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint, tag);
    if (pointed.contains(sequence))
      return MakeError(absl::StatusCode::kFailedPrecondition, reason::kPointed, tag);
    if (pinned.contains(sequence))
      return MakeError(absl::StatusCode::kFailedPrecondition, reason::kPinned, tag);
    return InodeOf(sequence);
  }
  absl::StatusOr<bool> Remove(const std::string& tag, int64_t sequence, uint64_t inode) {
    if (const auto half = half_removed.find(tag); half != half_removed.end() && half->second == sequence) {
      half_removed.erase(half);
      return true;
    }
    const auto at_tag = tags.find(tag);
    if (at_tag == tags.end() || at_tag->second != sequence) return true;
    if (inode != 0 && inode != InodeOf(sequence)) return true;  // It was put back.
    if (random_.Percent(30)) return false;                      // The budget was spent.
    tags.erase(at_tag);
    removed.insert(sequence);
    return true;
  }
  absl::Status Sweep(int64_t last, const std::set<int64_t>& unfinished) {
    for (auto entry = inflight.begin(); entry != inflight.end();) {
      const bool over = entry->second <= last && !unfinished.contains(entry->second);
      if (over) trash.insert(*entry);
      entry = over ? inflight.erase(entry) : std::next(entry);
    }
    return absl::OkStatus();
  }

  const After after_;
  sim::Random random_;
  const Duration longest_;
  int names_ = 0;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_FAKE_SHARED_ROOT_H_
