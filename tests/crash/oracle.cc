#include "tests/crash/oracle.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "storage/commit/checkpoint/verify.h"

namespace ckptd {
namespace {

constexpr char kNode[] = ".ckptd/nodes/local";

std::string Label(const SaveSpec& save) { return absl::StrCat(save.tag, " (sequence ", save.sequence, ")"); }

const std::string& CachedContentOf(const SaveSpec& save, const std::string& path) {
  static thread_local auto& cache = *new std::map<std::string, std::string>;
  const auto [place, fresh] = cache.try_emplace(absl::StrCat(save.tag, "|", save.sequence, "|", path));
  if (fresh) place->second = ContentOf(save, path);
  return place->second;
}

}  // namespace

void Oracle::Began(const SaveSpec& save) { saves_[save.sequence] = {save, State::kUnderWay}; }

void Oracle::Committed(int64_t sequence) {
  const std::string& tag = saves_.at(sequence).save.tag;
  for (auto& [other, known] : saves_) {
    if (other < sequence && known.save.tag == tag && known.state != State::kUnderWay)
      known.state = State::kGone;
  }
  saves_.at(sequence).state = State::kCommitted;
}

void Oracle::Gone(int64_t sequence) { saves_.at(sequence).state = State::kGone; }
void Oracle::Failed(int64_t sequence) {
  Gone(sequence);
  failed_.insert(sequence);
}
void Oracle::ComingBack(int64_t sequence) { saves_.at(sequence).state = State::kComingBack; }
void Oracle::Going(int64_t sequence) { saves_.at(sequence).state = State::kGoing; }
void Oracle::PinBegan(int64_t sequence, bool pinned) {
  if (!pins_.contains(sequence)) pins_[sequence] = {false};
  pins_[sequence].insert(pinned);
}
void Oracle::Pinned(int64_t sequence, bool pinned) { pins_[sequence] = {pinned}; }

void Oracle::Shown(const RootStore& store, const std::set<int64_t>& live) {
  Shown(store.committed(), live);
  run_ids_ = {store.run_record().run_id()};
}

void Oracle::Shown(const ShownCheckpoints& shown, const std::set<int64_t>& live) {
  for (auto& [sequence, known] : saves_) {
    const auto found = shown.find(sequence);
    if (found != shown.end()) {
      known.state = State::kCommitted;
      if (pins_.contains(sequence)) pins_[sequence] = {found->second.pinned};
    } else if (!live.contains(sequence)) {
      known.state = State::kGone;
    }
  }
}

void Oracle::CheckWhole(CrashDisk& disk, const SaveSpec& save, Broken& broken) const {
  const std::pair<int64_t, uint64_t> print = {save.sequence, disk.Fingerprint(save.tag)};
  if (whole_->contains(print)) return;
  const size_t before = broken.size();
  const absl::StatusOr<VerifyReport> report = VerifyCheckpoint(disk, disk.root(), save.tag);
  if (!report.ok()) {
    broken.push_back(absl::StrCat(Label(save), " cannot be verified: ", report.status().ToString()));
    return;
  }
  for (const VerifyProblem& problem : report->problems)
    broken.push_back(absl::StrCat(Label(save), " is damaged: ", problem.path, ": ", problem.message));
  if (report->manifest.body.files_size() != 3 * save.world_size)
    broken.push_back(absl::StrCat(Label(save), " has ", report->manifest.body.files_size(), " files"));
  for (const auto& file : report->manifest.body.files()) {
    if (disk.Content(save.tag + "/" + file.path()) != CachedContentOf(save, file.path()))
      broken.push_back(absl::StrCat(Label(save), " differs from what was saved in ", file.path()));
  }
  if (broken.size() == before) whole_->insert(print);
}

std::map<int64_t, SaveSpec> Oracle::saves() const {
  std::map<int64_t, SaveSpec> saves;
  for (const auto& [sequence, known] : saves_) saves[sequence] = known.save;
  return saves;
}

Broken Oracle::CheckPointers(const CrashDisk& disk) const {
  std::map<std::string, int64_t> committed;  // By name: the newest checkpoint that names it.
  std::map<std::pair<std::string, std::string>, int64_t> contents;  // By name and content.
  for (const auto& [sequence, known] : saves_) {
    for (const auto& [name, content] : known.save.pointers) {
      contents[{name, content}] = sequence;
      if (known.state == State::kCommitted) committed[name] = sequence;
      committed.try_emplace(name, 0);
    }
  }
  Broken broken;
  for (const auto& [name, sequence] : committed) {
    const std::optional<std::string> content = disk.Content(name);
    const auto found = contents.find({name, content.value_or("")});
    if (!content.has_value()) {
      if (sequence > 0) broken.push_back(absl::StrCat("the pointer ", name, " is missing"));
    } else if (found == contents.end()) {
      broken.push_back(absl::StrCat("the pointer ", name, " contains '", *content, "', which no save named"));
    } else if (found->second < sequence) {
      broken.push_back(absl::StrCat("the pointer ", name, " contains '", *content, "', but sequence ",
                                    sequence, ", which names this pointer, was committed"));
    }
  }
  return broken;
}

// After recovery each pointer names a checkpoint that exists, as the newest manifest says.
void Oracle::CheckPointersShown(const CrashDisk& disk, const ShownCheckpoints& all, Broken& broken) const {
  std::map<std::string, std::string> newest;
  std::set<std::string> tags;
  for (const auto& [sequence, checkpoint] : all) {
    tags.insert(checkpoint.summary.tag());
    for (const auto& named : checkpoint.summary.pointers()) newest[named.first] = named.second;
  }
  for (const auto& [name, content] : newest) {
    if (disk.Content(name) != content)
      broken.push_back(absl::StrCat("the pointer ", name, " contains '",
                                    disk.Content(name).value_or("(nothing)"),
                                    "', but the newest manifest says ", content));
    if (!tags.contains(content))
      broken.push_back(absl::StrCat("the pointer ", name, " dangles: no checkpoint is called ", content));
  }
}

Broken Oracle::CheckTrash(const std::set<int64_t>& offered, const ShownCheckpoints& shown) const {
  Broken broken;
  for (const int64_t sequence : offered) {
    if (failed_.contains(sequence))
      broken.push_back(
          absl::StrCat("the trash offers sequence ", sequence, ", which was reported as failed"));
    if (shown.contains(sequence))
      broken.push_back(absl::StrCat("the trash offers sequence ", sequence, ", which is committed"));
  }
  for (const auto& [sequence, known] : saves_) {
    if (known.state == State::kComingBack && !offered.contains(sequence) && !shown.contains(sequence))
      broken.push_back(absl::StrCat(Label(known.save), " was lost on its way back from the trash"));
  }
  return broken;
}

Broken Oracle::Check(CrashDisk& disk, RootStore& store) const {
  Broken broken = Check(disk, store.committed());
  std::set<int64_t> offered;
  for (const TrashedCheckpoint& trashed : store.ListTrash())
    offered.insert(trashed.checkpoint.summary.sequence());
  for (std::string& line : CheckTrash(offered, store.committed())) broken.push_back(std::move(line));
  int64_t latest = 0;
  for (const auto& [sequence, known] : saves_) {
    if (known.state == State::kCommitted) latest = sequence;
  }
  if (store.highest_sequence() < latest)
    broken.push_back(absl::StrCat("sequence ", store.highest_sequence() + 1, " would be used a second time"));
  if (!run_ids_.contains(store.run_record().run_id()))
    broken.push_back(absl::StrCat("the run record belongs to '", store.run_record().run_id(), "'"));
  for (const std::string& warning : store.pointers().warnings) broken.push_back(warning);
  for (const DamagedCheckpoint& damaged : store.damaged())
    broken.push_back(absl::StrCat(damaged.tag, " is reported as damaged: ", damaged.status.ToString()));
  return broken;
}

Broken Oracle::Check(CrashDisk& disk, const ShownCheckpoints& all) const {
  Broken broken;
  std::map<std::string, int64_t> shown;  // By tag.
  for (const auto& [sequence, checkpoint] : all) {
    shown[checkpoint.summary.tag()] = sequence;
    const auto known = saves_.find(sequence);
    if (known == saves_.end() || known->second.save.tag != checkpoint.summary.tag()) {
      broken.push_back(absl::StrCat(checkpoint.summary.tag(), " (sequence ", sequence, ") was never saved"));
      continue;
    }
    const SaveSpec& save = known->second.save;
    if (known->second.state == State::kGone)
      broken.push_back(absl::StrCat(Label(save), " was failed, replaced or evicted, but is visible"));
    CheckWhole(disk, save, broken);
    const auto pin = pins_.find(sequence);
    if (pin != pins_.end() && !pin->second.contains(checkpoint.pinned))
      broken.push_back(absl::StrCat(Label(save), checkpoint.pinned ? " is pinned" : " has lost its pin"));
  }
  int64_t latest = 0;
  for (const auto& [sequence, known] : saves_) {
    if (known.state != State::kCommitted) continue;
    latest = std::max(latest, sequence);
    const auto found = shown.find(known.save.tag);
    if (found == shown.end()) {
      broken.push_back(absl::StrCat(Label(known.save), " was committed, but is missing"));
    } else if (found->second < sequence) {
      broken.push_back(
          absl::StrCat(Label(known.save), " was committed, but its tag holds sequence ", found->second));
    }
  }
  const int64_t shown_latest = all.empty() ? 0 : all.rbegin()->first;
  if (shown_latest < latest)
    broken.push_back(absl::StrCat("latest went back from sequence ", latest, " to ", shown_latest));
  if (all.size() < floor_)
    broken.push_back(absl::StrCat(all.size(), " checkpoints are left, expected at least ", floor_));
  for (std::string& line : CheckPointers(disk)) broken.push_back(std::move(line));
  CheckPointersShown(disk, all, broken);
  return broken;
}

Broken Oracle::CheckNothingLeaked(const CrashDisk& disk, const ShownCheckpoints& shown) const {
  Broken broken;
  // The temporary file of a record has a fixed name that the next write replaces: it is not a leak.
  const std::set<std::string> ours = {"inflight", "trash",     "lock",       "run",
                                      ".run.tmp", ".swap.tmp", "pointer.new"};
  for (const std::string& name : disk.NamesIn(kNode)) {
    if (!ours.contains(name)) broken.push_back(absl::StrCat(name, " was left in ", kNode));
  }
  for (const std::string where : {"inflight", "trash"}) {
    for (const std::string& name : disk.NamesIn(absl::StrCat(kNode, "/", where)))
      broken.push_back(absl::StrCat(name, " was left in ", where));
  }
  std::set<std::string> tags;
  for (const auto& [sequence, checkpoint] : shown) tags.insert(checkpoint.summary.tag());
  for (const std::string& name : disk.NamesIn("")) {
    if (name != ".ckptd" && !tags.contains(name) && !disk.NamesIn(name).empty())
      broken.push_back(absl::StrCat(name, " was left in the root"));
  }
  for (const std::string& tag : tags) {
    for (const std::string& name : disk.NamesIn(tag + "/.ckptd")) {
      if (name != "manifest" && !name.starts_with("part-"))
        broken.push_back(absl::StrCat(name, " was left in ", tag, "/.ckptd"));
    }
  }
  return broken;
}

uint64_t Oracle::Fingerprint() const {
  std::string all = absl::StrCat(floor_);
  for (const auto& [sequence, known] : saves_)
    absl::StrAppend(&all, ";", sequence, "=", static_cast<int>(known.state));
  for (const auto& [sequence, values] : pins_)
    absl::StrAppend(&all, ";pin ", sequence, values.contains(true) ? "y" : "",
                    values.contains(false) ? "n" : "");
  for (const int64_t sequence : failed_) absl::StrAppend(&all, ";failed ", sequence);
  for (const std::string& id : run_ids_) absl::StrAppend(&all, ";", id);
  return std::hash<std::string>()(all);
}

}  // namespace ckptd
