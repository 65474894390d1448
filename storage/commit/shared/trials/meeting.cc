#include "storage/commit/shared/trials/meeting.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr char kPresent[] = ".here";
constexpr milliseconds kShortPause(2), kLongPause(20), kBeatEvery(200);
constexpr int kShortPauses = 500;

// OK also if another node has made it. GlusterFS may tell all nodes that it exists, while none has made it.
absl::Status MakeMeetingDirectory(NodeFiles& files, const std::string& path) {
  constexpr int kTries = 10;
  absl::Status made;
  for (int i = 0; i < kTries; ++i) {
    made = files.MakeDir(path);
    if (ErrnoOf(made) != EEXIST) return made;
    if (files.Inode(path).ok()) return absl::OkStatus();
  }
  return made;
}

}  // namespace

bool Meeting::Await(Clock& clock, milliseconds patience, const std::function<bool()>& is_done) const {
  const Instant deadline = clock.Now() + patience;
  for (int tries = 0;; ++tries) {
    if (IsStopped()) return false;
    if (is_done()) return true;
    if (clock.Now() >= deadline) return false;
    // No event tells of what another node does.
    std::this_thread::sleep_for(tries < kShortPauses ? kShortPause : kLongPause);
  }
}

absl::StatusOr<std::unique_ptr<Meeting>> Meeting::Enter(NodeFiles* files, Options options) {
  std::unique_ptr<Meeting> meeting(new Meeting(files, std::move(options)));
  std::random_device random;
  meeting->nonce_ = absl::StrCat(absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8));
  CKPTD_RETURN_IF_ERROR(
      Annotate(MakeMeetingDirectory(*files, meeting->Directory()), "writing into the root"));
  CKPTD_RETURN_IF_ERROR(meeting->Gather());
  return meeting;
}

absl::Status Meeting::Missing(const std::string& what) const {
  if (IsStopped()) return absl::CancelledError("the trials were stopped before they were over");
  return MakeError(absl::StatusCode::kDeadlineExceeded, "NODES_MISSING",
                   absl::StrCat(what, " after ", options_.patience / std::chrono::seconds(1), " s"));
}

std::string Meeting::Path(const std::string& name) const {
  return absl::StrCat(Directory(), "/", session_, ".", name);
}

bool Meeting::IsExpected(const std::string& node) const {
  const std::vector<std::string>& names = options_.names;
  return names.empty() || std::find(names.begin(), names.end(), node) != names.end();
}

absl::Status Meeting::Beat() {
  const std::string path = absl::StrCat(Directory(), "/", self(), kPresent);
  const std::string next = absl::StrCat(Directory(), "/", nonce_, ".next");
  CKPTD_RETURN_IF_ERROR(files_->Write(next, absl::StrCat(nonce_, " ", ++beats_)));
  return files_->Rename(next, path);
}

absl::Status Meeting::Gather() {
  std::map<std::string, std::string> first, living;  // By node: what it showed at first; its nonce.
  living[self()] = nonce_;
  absl::Status failed;
  auto beat_at = steady_clock::time_point::min();
  const auto look = [&] {
    if (steady_clock::now() >= beat_at) {
      failed = Beat();
      if (!failed.ok()) return true;
      beat_at = steady_clock::now() + kBeatEvery;
    }
    for (const std::string& entry : files_->List(Directory())) {
      if (!absl::EndsWith(entry, kPresent)) continue;
      const std::string node = entry.substr(0, entry.size() - std::strlen(kPresent));
      if (node == self() || !IsExpected(node)) continue;
      const absl::StatusOr<std::string> shown = files_->Read(absl::StrCat(Directory(), "/", entry));
      if (!shown.ok() || shown->empty()) continue;
      const auto [before, is_new] = first.try_emplace(node, *shown);
      if (!is_new && before->second != *shown)
        living[node] = std::vector<std::string>(absl::StrSplit(*shown, ' '))[0];
    }
    return living.size() >= static_cast<size_t>(options_.nodes);
  };
  const bool complete = Await(SystemClock(), options_.patience, look);
  CKPTD_RETURN_IF_ERROR(failed);
  std::vector<std::string> nonces;
  for (const auto& [node, nonce] : living) {
    nodes_.push_back(node);
    nonces.push_back(nonce);
  }
  const std::string who = absl::StrJoin(nodes_, ", ");
  if (!complete) {
    files_->RemoveAll(absl::StrCat(Directory(), "/", self(), kPresent));
    files_->RemoveEmptyDir(Directory());
    return Missing(
        absl::StrCat(living.size(), " of ", options_.nodes, " nodes are in ", Directory(), " (", who, ")"));
  }
  if (living.size() > static_cast<size_t>(options_.nodes)) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "TOO_MANY_NODES",
        absl::StrCat(living.size(), " nodes are in ", Directory(), ": ", who, ", and --nodes is ",
                     options_.nodes, "; give all of them the number of nodes"));
  }
  // A name of a fixed length, however many they are.
  uint64_t all = 0;
  for (const std::string& nonce : nonces) {
    uint64_t number = 0;
    if (absl::SimpleHexAtoi(nonce, &number)) all ^= number;
  }
  session_ = absl::StrCat(absl::Hex(all, absl::kZeroPad16));
  // Others may not have seen this node change yet.
  CKPTD_RETURN_IF_ERROR(Say("met"));
  for (const std::string& node : nodes_) {
    if (node == self()) continue;
    const auto met = [&] {
      if (steady_clock::now() >= beat_at) {
        failed = Beat();
        beat_at = steady_clock::now() + kBeatEvery;
      }
      return !failed.ok() || ReadNow(absl::StrCat("met.", node)).ok();
    };
    if (!Await(SystemClock(), options_.patience, met))
      return Missing(absl::StrCat("node ", node, " has come and has not seen ", self()));
    CKPTD_RETURN_IF_ERROR(failed);
  }
  return absl::OkStatus();
}

// Nothing that a stopped wait has cut short is told.
absl::Status Meeting::Say(const std::string& what, const std::string& text) {
  if (IsStopped()) return Missing(what);
  const std::string path = Path(absl::StrCat(what, ".", self()));
  CKPTD_RETURN_IF_ERROR(files_->Write(absl::StrCat(path, ".new"), absl::StrCat(text, "\n")));
  return files_->Rename(absl::StrCat(path, ".new"), path);
}

absl::StatusOr<std::string> Meeting::ReadNow(const std::string& name) {
  files_->AskForNames(Directory());
  return files_->Read(Path(name));
}

absl::StatusOr<std::string> Meeting::Hear(const std::string& node, const std::string& what) {
  absl::StatusOr<std::string> heard;
  const auto is_there = [&] {
    heard = ReadNow(absl::StrCat(what, ".", node));
    return heard.ok() && absl::EndsWith(*heard, "\n");
  };
  if (Await(SystemClock(), options_.patience, is_there)) return heard->substr(0, heard->size() - 1);
  return Missing(absl::StrCat("node ", node, " has not said \"", what, "\""));
}

absl::StatusOr<std::map<std::string, std::string>> Meeting::HearAll(const std::string& what) {
  std::map<std::string, std::string> all;
  for (const std::string& node : nodes_) {
    if (node == self()) continue;
    CKPTD_ASSIGN_OR_RETURN(all[node], Hear(node, what));
  }
  return all;
}

absl::StatusOr<std::map<std::string, std::string>> Meeting::Exchange(const std::string& what,
                                                                     const std::string& text) {
  CKPTD_RETURN_IF_ERROR(Say(what, text));
  return HearAll(what);
}

void Meeting::Leave() {
  // In the end the first node removes what the others may still look for: they have said goodbye then.
  if (!Say("bye").ok() || !IsFirst()) return;
  if (HearAll("bye").ok()) files_->RemoveAll(Directory());
}

void Meeting::Abandon() { files_->RemoveAll(Directory()); }

}  // namespace ckptd
