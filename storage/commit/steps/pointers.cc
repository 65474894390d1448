// A pointer file is written under a temporary name, synced, and renamed into the root; then both directories
// are synced. So it has the old content or the new one. The temporary name may be used again: a plain write
// has ended when its call returns.
#include "storage/commit/steps/pointers.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/steps/commit_rules.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::ManifestSummary;

// The checkpoint that decides a pointer, and the content that it gives: the newest undamaged one that names
// the pointer, or the newest one if all are damaged.
struct Decision {
  int64_t sequence;
  std::string content;
};

std::map<std::string, Decision> Decide(const std::map<int64_t, CommittedCheckpoint>& committed) {
  std::map<std::string, Decision> decided;
  for (const auto& [sequence, checkpoint] : committed) {  // Oldest first.
    for (const auto& pointer : checkpoint.summary.pointers()) {
      const auto older = decided.find(pointer.first);
      if (checkpoint.damage && older != decided.end() && !committed.at(older->second.sequence).damage)
        continue;
      decided[pointer.first] = {sequence, pointer.second};
    }
  }
  return decided;
}

// The newest checkpoint that gives a pointer this content; 0 if none does.
int64_t NewestWith(const std::map<int64_t, CommittedCheckpoint>& committed, const std::string& name,
                   const std::string& content) {
  for (auto entry = committed.rbegin(); entry != committed.rend(); ++entry) {
    const auto& pointers = entry->second.summary.pointers();
    const auto found = pointers.find(name);
    if (found != pointers.end() && found->second == content) return entry->first;
  }
  return 0;
}

}  // namespace

void PointerWriter::Forget() {
  std::erase_if(files_, [](const auto& entry) { return entry.second.sure; });
}

PointerWriter::File& PointerWriter::Look(const std::string& name) {
  const auto [place, fresh] = files_.try_emplace(name);
  if (!fresh) return place->second;
  absl::StatusOr<std::string> content = ReadSmallFile(fs_, root_, name, kMaxPointerBytes);
  place->second.unread = CouldNotFindOut(content.status());
  if (content.ok()) place->second.contents.insert(*std::move(content));
  return place->second;
}

PointerFiles PointerWriter::Update(const std::map<int64_t, CommittedCheckpoint>& committed) {
  PointerFiles state;
  const std::map<std::string, Decision> decided = Decide(committed);
  std::erase_if(files_, [&](const auto& entry) { return !decided.contains(entry.first); });
  for (const auto& [name, decision] : decided) {
    state.holders.insert(decision.sequence);
    File& file = Look(name);
    if (file.sure && file.contents == std::set<std::string>{decision.content}) continue;
    const absl::Status written = Write(name, decision.content, file);
    if (written.ok()) {
      file = {{decision.content}, true};
      continue;
    }
    state.warnings.push_back(absl::StrCat("the pointer ", name, " does not name checkpoint ",
                                          committed.at(decision.sequence).summary.tag(),
                                          " yet: ", std::string(written.message()),
                                          "; ckptd tries again at the next save and at its next start"));
    // The file was not updated, so the checkpoint that it names must stay. If it could not be read, it may
    // name any checkpoint that has a content for it.
    if (file.unread) {
      for (const auto& [sequence, checkpoint] : committed) {
        if (checkpoint.summary.pointers().contains(name)) state.holders.insert(sequence);
      }
    }
    for (const std::string& content : file.contents) {
      if (const int64_t holder = NewestWith(committed, name, content); holder != 0)
        state.holders.insert(holder);
    }
  }
  return state;
}

absl::Status PointerWriter::Write(const std::string& name, const std::string& content, File& file) {
  CKPTD_RETURN_IF_ERROR(CheckPointerTarget(fs_, root_, name));
  const absl::Status removed = fs_.Remove(temp_dir_, kPointerTempName, FileType::kRegular);
  if (!removed.ok() && !IsMissing(removed)) return removed;
  absl::Status status = WriteNewFile(fs_, temp_dir_, kPointerTempName, content);
  if (status.ok()) {
    status = fs_.Rename(temp_dir_, kPointerTempName, root_, name, RenameMode::kReplace);
    // If the temporary name still exists the rename was not done.
    if (status.ok() || !fs_.Stat(temp_dir_, kPointerTempName).ok()) {
      file.contents.insert(content);
      file.sure = false;
    }
  }
  if (!status.ok()) {
    fs_.Remove(temp_dir_, kPointerTempName, FileType::kRegular).IgnoreError();
    return status;
  }
  CKPTD_RETURN_IF_ERROR(fs_.Sync(root_, SyncMode::kAll));
  return fs_.Sync(temp_dir_, SyncMode::kAll);
}

absl::StatusOr<PointerFiles> PointerWriter::Release(const std::map<int64_t, CommittedCheckpoint>& committed,
                                                    int64_t sequence) {
  std::map<int64_t, CommittedCheckpoint> others = committed;
  const ManifestSummary summary = others.extract(sequence).mapped().summary;
  for (const auto& pointer : summary.pointers()) {
    const auto names_it = [&pointer](const auto& other) {
      return other.second.summary.pointers().contains(pointer.first);
    };
    if (std::none_of(others.begin(), others.end(), names_it))
      CKPTD_RETURN_IF_ERROR(Remove(pointer.first, pointer.second));
  }
  PointerFiles released = Update(others);
  if (released.warnings.empty()) return released;
  return MakeError(absl::StatusCode::kDataLoss, reason::kIoError, released.warnings.front(),
                   {{"tag", summary.tag()}});
}

absl::Status PointerWriter::Remove(const std::string& name, const std::string& content) {
  Forget();
  const File& file = Look(name);
  if (file.unread) {
    return MakeError(absl::StatusCode::kDataLoss, reason::kIoError,
                     absl::StrCat("the pointer ", name, " cannot be read"));
  }
  if (!file.contents.contains(content)) return absl::OkStatus();
  const absl::Status removed = fs_.Remove(root_, name, FileType::kRegular);
  if (!removed.ok() && !IsMissing(removed)) return removed;
  files_.erase(name);
  return fs_.Sync(root_, SyncMode::kAll);
}

absl::Status TakeOverPointers(FileSystem& fs, Handle root, const ManifestSummary& old,
                              ManifestSummary& summary) {
  std::map<std::string, std::string> left(old.pointers().begin(), old.pointers().end());
  for (const auto& named : summary.pointers()) left.erase(named.first);
  if (left.empty()) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(const RootScan scan, ScanRoot(fs, root));
  for (const auto& [sequence, other] : scan.checkpoints) {
    if (sequence <= old.sequence()) continue;
    for (const auto& named : other.pointers()) left.erase(named.first);  // That pointer has moved on already.
  }
  InheritPointers(left, summary);
  return absl::OkStatus();
}

}  // namespace ckptd
