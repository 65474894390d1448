#include "storage/commit/bucket/bucket_root_store.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/bucket/index.h"
#include "storage/bucket/list.h"
#include "storage/commit/bucket/bucket_term.h"
#include "storage/commit/bucket/send_images.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/commit/checkpoint/scan.h"
#include "storage/commit/steps/commit_rules.h"
#include "storage/commit/steps/run_marks.h"
#include "storage/format/frame.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::FileRecord;
using storage::v1::ManifestSummary;
using storage::v1::PartRecord;
using storage::v1::SharedRunRecord;

// Credentials that have expired may be for good, and a private daemon ends when nothing is sealed any more.
constexpr Duration kPatience = std::chrono::hours(1);

bool IsNoObject(const absl::Status& status) { return ReasonOf(status) == "NO_OBJECT"; }
bool Exists(const absl::Status& status) { return ReasonOf(status) == "OBJECT_EXISTS"; }

absl::Status NoCheckpoint(const std::string& tag, int64_t sequence) {
  return MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint,
                   absl::StrCat("no checkpoint ", tag, " of sequence ", sequence, " is in this root"),
                   {{"tag", tag}, {"sequence", absl::StrCat(sequence)}});
}

absl::Status TagTaken(const std::string& tag) {
  return MakeError(
      absl::StatusCode::kAlreadyExists, reason::kTagTaken,
      absl::StrCat(tag,
                   " is taken by a checkpoint, and in a bucket no save replaces one: delete that first, "
                   "or save under another tag"),
      {{"tag", tag}});
}

absl::Status CorruptTransfer(const std::string& key) {
  return MakeError(
      absl::StatusCode::kDataLoss, "CORRUPT_TRANSFER",
      absl::StrCat(key, " came back other than it was sent; it is sent again with the next save"));
}

bool IsSameSave(const ManifestSummary& a, const ManifestSummary& b) {
  return a.tag() == b.tag() && a.sequence() == b.sequence() && a.attempt() == b.attempt() &&
         a.ordinal() == b.ordinal();
}

PublishResult Failed(absl::Status why) {
  const bool retryable = CouldNotFindOut(why);
  return {PublishOutcome::kFailed, std::move(why), {}, false, 0, retryable};
}

}  // namespace

// ---- opening

absl::StatusOr<std::unique_ptr<BucketRootStore>> BucketRootStore::Open(ObjectStore* store, ObjectStore* quick,
                                                                       Clock* clock,
                                                                       BucketRootOptions options) {
  std::unique_ptr<BucketRootStore> root(new BucketRootStore(store, quick, clock, std::move(options)));
  CKPTD_ASSIGN_OR_RETURN(root->store_compares_checksums_,
                         ComparesChecksums(*quick, root->keys_.Ours() + "probe"));
  CKPTD_ASSIGN_OR_RETURN(root->term_, TakeTerm(*quick, root->keys_, root->options_.owner));
  CKPTD_RETURN_IF_ERROR(root->LoadRecord());
  CKPTD_RETURN_IF_ERROR(root->EndEarlier());
  CKPTD_RETURN_IF_ERROR(root->List());
  return root;
}

// The record of the highest term. The daemon of an earlier one writes it no more: it looks at the term
// before.
absl::Status BucketRootStore::LoadRecord() {
  std::map<int64_t, std::string> found;
  std::string next;
  do {
    CKPTD_ASSIGN_OR_RETURN(const ObjectPage page, quick_->List(keys_.Ours(), "/", next));
    for (const ObjectInfo& object : page.objects)
      if (const std::optional<int64_t> term = keys_.RecordOf(object.key)) found[*term] = object.key;
    next = page.next;
  } while (!next.empty());
  SharedRunRecord record;
  if (!found.empty()) {
    const std::string& key = found.rbegin()->second;
    std::string text;
    const absl::Status read = GetUndamaged([&]() -> absl::Status {
      CKPTD_ASSIGN_OR_RETURN(text, GetText(*quick_, key));
      CKPTD_ASSIGN_OR_RETURN(const std::string_view message, DecodeFrame(kSharedRunRecordFrame, text));
      return record.ParseFromArray(message.data(), static_cast<int>(message.size()))
                 ? absl::OkStatus()
                 : absl::DataLossError("its message does not parse");
    });
    if (!read.ok() && !absl::IsDataLoss(read)) return Annotate(read, key);
    if (!read.ok()) {
      return MakeError(
          absl::StatusCode::kFailedPrecondition, "ROOT_UNREADABLE",
          absl::StrCat("the object ", key, " is damaged: ", std::string(read.message()),
                       "; to go on without it (no checkpoint is pinned or known to be damaged then, and how "
                       "past saves ended is forgotten; no checkpoint is lost) delete it"));
    }
  }
  CKPTD_RETURN_IF_ERROR(StoreRecord(std::move(record)));
  for (const auto& [term, key] : found)
    if (term < term_) quick_->Delete(key).IgnoreError();  // It does not count any more.
  return absl::OkStatus();
}

absl::Status BucketRootStore::EndEarlier() {
  CKPTD_ASSIGN_OR_RETURN(const auto unended, ListUnended(*quick_, keys_));
  Contents found;
  for (const auto& [id, what] : unended) {
    if (id.term >= term_) continue;
    CKPTD_ASSIGN_OR_RETURN(const HowEnded how, EndUnended(*quick_, keys_, id, WhoEnds::kAnother));
    found.highest_sequence = std::max(found.highest_sequence, id.sequence);
    if (what == Unended::kSave && how != HowEnded::kIsThere)
      found.recovered.push_back({id.tag, id.sequence, false, "its daemon ended before the manifest was put"});
  }
  MutexLock lock(mutex_);
  contents_.recovered = std::move(found.recovered);
  contents_.highest_sequence = found.highest_sequence;
  return absl::OkStatus();
}

absl::Status BucketRootStore::List() {
  const int threads = options_.transfer.threads;
  CKPTD_ASSIGN_OR_RETURN(BucketList list, ListBucket(*quick_, options_.prefix, threads));
  RepairIndex(*quick_, options_.prefix, list.repairs, threads)
      .IgnoreError();  // The next list repairs it then.
  std::map<int64_t, CommittedCheckpoint> committed;
  std::vector<DamagedCheckpoint> damaged;
  for (auto& [tag, why] : list.damaged) damaged.push_back({tag, std::move(why)});
  std::sort(list.checkpoints.begin(), list.checkpoints.end(),
            [](const auto& a, const auto& b) { return a.summary.tag() < b.summary.tag(); });
  for (BucketCheckpoint& found : list.checkpoints) {
    const std::string tag = found.summary.tag();
    const int64_t sequence = found.summary.sequence();
    const auto [place, fresh] =
        committed.try_emplace(sequence, CommittedCheckpoint{std::move(found.summary)});
    if (fresh) continue;
    damaged.push_back({tag, MakeError(absl::StatusCode::kDataLoss, "CORRUPT_MANIFEST",
                                      absl::StrCat("its sequence ", sequence, " is also that of ",
                                                   place->second.summary.tag(),
                                                   ": one of them was copied or uploaded into this root"))});
  }
  MutexLock lock(mutex_);
  MarkCheckpoints(record_, committed);
  if (!committed.empty())
    contents_.highest_sequence = std::max(contents_.highest_sequence, committed.rbegin()->first);
  contents_.committed = std::move(committed);
  contents_.damaged = std::move(damaged);
  return absl::OkStatus();
}

absl::Status BucketRootStore::Rescan() { return List(); }

BucketRootStore::Contents BucketRootStore::contents() const {
  MutexLock lock(mutex_);
  Contents now = contents_;
  now.run_record = record_.run();
  for (const Left& left : left_) now.removing_bytes += left.size_bytes;
  return now;
}

// ---- the record

SharedRunRecord BucketRootStore::record() const {
  MutexLock lock(mutex_);
  return record_;
}

absl::Status BucketRootStore::PutChecked(ObjectStore& store, const std::string& key, const std::string& text,
                                         PutMode mode) {
  CKPTD_RETURN_IF_ERROR(PutText(store, key, text, mode));
  if (store_compares_checksums_) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(const std::string there, GetText(store, key));
  return there == text ? absl::OkStatus() : CorruptTransfer(key);
}

absl::Status BucketRootStore::StoreRecord(SharedRunRecord next) {
  CKPTD_RETURN_IF_ERROR(CheckTerm(*quick_, keys_, term_));
  next.set_format_version(static_cast<int32_t>(kFormatVersion));
  next.set_term(term_);
  next.set_number(next.number() + 1);
  CKPTD_RETURN_IF_ERROR(PutChecked(*quick_, keys_.Record(term_),
                                   EncodeFrame(kSharedRunRecordFrame, next.SerializeAsString()),
                                   PutMode::kReplace));
  MutexLock lock(mutex_);
  record_ = std::move(next);
  MarkCheckpoints(record_, contents_.committed);
  return absl::OkStatus();
}

absl::Status BucketRootStore::SaveRunRecord(const storage::v1::RunRecord& run) {
  SharedRunRecord next = record();
  *next.mutable_run() = run;
  return StoreRecord(std::move(next));
}

absl::Status BucketRootStore::SetPinned(const std::string& tag, int64_t sequence, bool pinned) {
  CKPTD_RETURN_IF_ERROR(Find(tag, sequence).status());
  SharedRunRecord next = record();
  ckptd::SetPinned(next, tag, sequence, pinned);
  return StoreRecord(std::move(next));
}

absl::Status BucketRootStore::SetDamage(const std::string& tag, int64_t sequence,
                                        const std::optional<storage::v1::Damage>& damage) {
  CKPTD_RETURN_IF_ERROR(Find(tag, sequence).status());
  SharedRunRecord next = record();
  ckptd::SetDamage(next, tag, sequence, damage);
  return StoreRecord(std::move(next));
}

absl::StatusOr<CommittedCheckpoint> BucketRootStore::Find(const std::string& tag, int64_t sequence) const {
  MutexLock lock(mutex_);
  const auto found = contents_.committed.find(sequence);
  if (found == contents_.committed.end() || found->second.summary.tag() != tag)
    return NoCheckpoint(tag, sequence);
  return found->second;
}

// ---- saves

absl::Status BucketRootStore::CheckTarget(const std::string& tag) {
  CKPTD_RETURN_IF_ERROR(CheckTag(tag));
  CKPTD_RETURN_IF_ERROR(CheckTerm(*quick_, keys_, term_));
  CKPTD_ASSIGN_OR_RETURN(const ObjectPage page, quick_->List(keys_.Checkpoint(tag), "", ""));
  bool has_claim = false, has_files = false;
  for (const ObjectInfo& object : page.objects) {
    if (object.key == keys_.Manifest(tag) && object.size > 0)
      return FindUnusable(tag) != 0 ? absl::OkStatus() : TagTaken(tag);
    has_claim |= object.key == keys_.Claim(tag);
    has_files |=
        !absl::StartsWith(object.key, absl::StrCat(keys_.Checkpoint(tag), std::string(kOurDirectory), "/"));
  }
  // With a claim, it is a save that is under way or was cut off: Begin waits for it, or removes it.
  if (has_files && !has_claim) return TagForeignError(tag, "the folder of objects");
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<BucketSave>> BucketRootStore::Begin(const std::string& tag, int64_t sequence) {
  CKPTD_RETURN_IF_ERROR(CheckTag(tag));
  CKPTD_RETURN_IF_ERROR(CheckTerm(*store_, keys_, term_));
  CKPTD_RETURN_IF_ERROR(TidyUp(tag));
  auto save = std::make_shared<BucketSave>();
  save->id = {term_, sequence, tag};
  if (const int64_t unusable = FindUnusable(tag); unusable != 0) {
    CKPTD_RETURN_IF_ERROR(Evict(tag, unusable));
    CKPTD_RETURN_IF_ERROR(TidyUp(tag));
    save->has_replaced = true;
  }
  const absl::Status taken = TakeTag(save->id);
  if (taken.ok()) return save;
  Leave({save->id});
  return taken;
}

int64_t BucketRootStore::FindUnusable(const std::string& tag) const {
  MutexLock lock(mutex_);
  for (const auto& [sequence, checkpoint] : contents_.committed) {
    const bool is_unusable = checkpoint.damage.has_value() || !checkpoint.summary.suspect().empty();
    if (checkpoint.summary.tag() == tag && is_unusable && !checkpoint.pinned) return sequence;
  }
  return 0;
}

absl::Status BucketRootStore::TakeTag(const UnendedId& id) {
  CKPTD_RETURN_IF_ERROR(PutBegun(*store_, keys_, id, Unended::kSave));
  absl::Status claimed = Claim(id);
  if (Exists(claimed)) {
    CKPTD_RETURN_IF_ERROR(EndOthersAt(id.tag));
    claimed = Claim(id);
  }
  if (Exists(claimed)) {
    return MakeError(absl::StatusCode::kAlreadyExists, reason::kTagTaken,
                     absl::StrCat("a save or an upload of ", id.tag, " has not ended (", keys_.Claim(id.tag),
                                  "): let it end, or remove what is beneath ", keys_.Checkpoint(id.tag)),
                     {{"tag", id.tag}});
  }
  CKPTD_RETURN_IF_ERROR(claimed);
  const absl::StatusOr<ObjectInfo> manifest = store_->Head(keys_.Manifest(id.tag));
  if (IsNoObject(manifest.status())) return absl::OkStatus();
  CKPTD_RETURN_IF_ERROR(manifest.status());
  return manifest->size > 0 ? TagTaken(id.tag) : store_->Delete(keys_.Manifest(id.tag));
}

// ALREADY_EXISTS, reason OBJECT_EXISTS: something else has the tag.
absl::Status BucketRootStore::Claim(const UnendedId& id) {
  const std::string key = keys_.Claim(id.tag), text = ClaimOfSave(id.tag, id.sequence);
  const absl::Status put = PutChecked(*store_, key, text, PutMode::kIfAbsent);
  if (ReasonOf(put) == "CORRUPT_TRANSFER")
    store_->Delete(key).IgnoreError();  // Nobody would know whose it is.
  if (!Exists(put)) return put;
  const absl::StatusOr<std::string> there = GetManifestText(*store_, key);  // Perhaps by an earlier try.
  return there.ok() && *there == text ? absl::OkStatus() : put;
}

// A daemon of an earlier term may have begun a save just before this one has taken the root.
absl::Status BucketRootStore::EndOthersAt(const std::string& tag) {
  CKPTD_ASSIGN_OR_RETURN(const auto unended, ListUnended(*store_, keys_));
  for (const auto& [id, what] : unended)
    if (id.term < term_ && id.tag == tag)
      CKPTD_RETURN_IF_ERROR(EndUnended(*store_, keys_, id, WhoEnds::kAnother).status());
  return absl::OkStatus();
}

absl::StatusOr<PartRecord> BucketRootStore::WritePart(const BucketSave& save, PartRecord record,
                                                      const std::vector<FileImage>& images,
                                                      int32_t chunk_bytes, std::atomic<int64_t>* sent_bytes) {
  record.clear_files();
  record.set_chunk_bytes(chunk_bytes);
  for (const FileImage& image : images) {
    CKPTD_RETURN_IF_ERROR(CheckFilePath(image.path));
    record.add_files()->set_path(image.path);
  }
  const std::string list = keys_.Unended(save.id) + PartRecordName(record.rank());
  CKPTD_RETURN_IF_ERROR(PutChecked(*store_, list, EncodeFrame(kPartRecordFrame, record.SerializeAsString()),
                                   PutMode::kReplace));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<WrittenFile> files,
                         SendImages(*store_, keys_.Checkpoint(save.id.tag), images,
                                    {options_.transfer, chunk_bytes, store_compares_checksums_}, sent_bytes));
  for (size_t i = 0; i < files.size(); ++i) {
    FileRecord& file = *record.mutable_files(static_cast<int>(i));
    file.set_size_bytes(files[i].size);
    file.set_rank(record.rank());
    file.mutable_chunk_crc32c()->Add(files[i].chunk_crc32c.begin(), files[i].chunk_crc32c.end());
  }
  CKPTD_RETURN_IF_ERROR(PutChecked(*store_,
                                   keys_.Checkpoint(save.id.tag) + OurPath("", PartRecordName(record.rank())),
                                   EncodePartRecord(record), PutMode::kReplace));
  return record;
}

PublishResult BucketRootStore::Publish(BucketSave& save, const ManifestSummary& summary,
                                       const std::vector<PartRecord>& parts) {
  ManifestSummary whole = summary;
  for (const PartRecord& part : parts) MergePart(part.checkpoint(), whole);
  EndMerge(whole);
  const absl::StatusOr<Manifest> manifest =
      ManifestOfParts(save.id.tag, save.id.sequence, whole, parts, clock_->UnixMicros());
  if (!manifest.ok()) return Failed(manifest.status());
  const absl::StatusOr<std::string> text = EncodeManifest(*manifest);
  if (!text.ok()) return Failed(text.status());
  std::optional<PublishResult> not_yet;
  if (const absl::Status ours = CheckTerm(*store_, keys_, term_); !ours.ok()) not_yet = Failed(ours);
  if (!not_yet.has_value()) {
    const absl::Status removed = RemoveIndexNames(*store_, options_.prefix, save.id.tag, &manifest->summary);
    not_yet = removed.ok() ? Commit(save, *manifest, *text) : Failed(removed);
  }
  if (not_yet.has_value()) {
    if (!save.unanswered_since.has_value()) save.unanswered_since = clock_->Now();
    not_yet->retryable &= clock_->Now() - *save.unanswered_since < kPatience;
    return *std::move(not_yet);
  }
  if (!EndCommitted(save.id).ok()) Leave({save.id, WhoEnds::kItself, /*has_committed=*/true});
  return {PublishOutcome::kCommitted, absl::OkStatus()};
}

std::optional<PublishResult> BucketRootStore::Commit(BucketSave& save, const Manifest& manifest,
                                                     const std::string& text) {
  const std::string key = keys_.Manifest(save.id.tag);
  save.has_tried_to_commit = true;
  const absl::Status put = PutText(*store_, key, text, PutMode::kIfAbsent);
  if (!put.ok() && !Exists(put)) return Failed(put);
  if (put.ok() && store_compares_checksums_) {
    Remember(manifest);
    return std::nullopt;
  }
  // It is there by an earlier try, or nobody has compared it.
  const absl::StatusOr<std::string> there = GetManifestText(*store_, key);
  if (!there.ok()) return Failed(there.status());
  const absl::StatusOr<Manifest> found = DecodeManifest(*there);
  if (found.ok() && IsSameSave(found->summary, manifest.summary)) {
    Remember(*found);
    return std::nullopt;
  }
  if (!there->empty() && ProvesDamage(found.status())) {  // With the claim, nobody else commits here.
    const absl::Status removed = store_->Delete(key);
    return Failed(removed.ok() ? CorruptTransfer(key) : removed);
  }
  const absl::Status ours = CheckTerm(*store_, keys_, term_);  // Another daemon may have given the save up.
  return Failed(ours.ok() ? TagTaken(save.id.tag) : ours);
}

void BucketRootStore::Remember(const Manifest& manifest) {
  MutexLock lock(mutex_);
  const int64_t sequence = manifest.summary.sequence();
  contents_.committed.insert_or_assign(sequence, CommittedCheckpoint{manifest.summary});
  contents_.highest_sequence = std::max(contents_.highest_sequence, sequence);
}

absl::Status BucketRootStore::Discard(const BucketSave& save) {
  const Left left{save.id, save.has_tried_to_commit ? WhoEnds::kGivesUp : WhoEnds::kItself};
  const absl::Status ours = CheckTerm(*store_, keys_, term_);
  if (ReasonOf(ours) == "ROOT_TAKEN_OVER") return absl::OkStatus();  // The other daemon ends it.
  const absl::Status ended = ours.ok() ? End(left) : ours;
  if (!ended.ok()) Leave(left);
  return ended;
}

// ---- removals, and what is left

absl::Status BucketRootStore::Evict(const std::string& tag, int64_t sequence) {
  CKPTD_ASSIGN_OR_RETURN(const CommittedCheckpoint checkpoint, Find(tag, sequence));
  if (checkpoint.pinned) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kPinned,
                     absl::StrCat(tag, " is pinned (sequence ", sequence, ")"), {{"tag", tag}});
  }
  CKPTD_RETURN_IF_ERROR(CheckTerm(*store_, keys_, term_));
  CKPTD_RETURN_IF_ERROR(TidyUp(tag));
  const absl::StatusOr<std::string> text = GetManifestText(*store_, keys_.Manifest(tag));
  if (!text.ok() && !IsNoObject(text.status())) return text.status();
  if (text.ok()) {
    CKPTD_ASSIGN_OR_RETURN(const Manifest manifest, DecodeManifest(*text));
    if (manifest.summary.sequence() != sequence) return NoCheckpoint(tag, sequence);
    Left left{{term_, sequence, tag}};
    const absl::Status hidden = [&]() -> absl::Status {
      CKPTD_RETURN_IF_ERROR(PutBegun(*store_, keys_, left.id, Unended::kRemoval));
      CKPTD_RETURN_IF_ERROR(PutChecked(*store_, keys_.Claim(tag), *text, PutMode::kReplace));
      CKPTD_RETURN_IF_ERROR(RemoveIndexNames(*store_, options_.prefix, tag));
      return store_->Delete(keys_.Manifest(tag));
    }();
    if (hidden.ok()) left.size_bytes = manifest.summary.size_bytes();
    Leave(std::move(left));
    CKPTD_RETURN_IF_ERROR(hidden);
  }
  MutexLock lock(mutex_);
  contents_.committed.erase(sequence);
  ForgetCheckpoint(record_, tag, sequence);  // Stored with the next change.
  return absl::OkStatus();
}

void BucketRootStore::Leave(Left left) {
  MutexLock lock(mutex_);
  left_.push_back(std::move(left));
}

absl::Status BucketRootStore::End(const Left& left) {
  if (left.has_committed) return EndCommitted(left.id);
  return EndUnended(*store_, keys_, left.id, left.who).status();
}

absl::Status BucketRootStore::EndCommitted(const UnendedId& id) {
  const absl::StatusOr<CommittedCheckpoint> committed = Find(id.tag, id.sequence);
  if (committed.ok())
    CKPTD_RETURN_IF_ERROR(PutIndexName(*store_, options_.prefix, {committed->summary, /*by_daemon=*/false}));
  return ForgetUnended(*store_, keys_, id);
}

absl::Status BucketRootStore::TidyUp(const std::string& tag) {
  std::vector<Left> all;
  {
    MutexLock lock(mutex_);
    while (ending_at_ == tag) changed_.Wait(mutex_);
    const auto others = std::stable_partition(left_.begin(), left_.end(),
                                              [&](const Left& left) { return left.id.tag != tag; });
    all.assign(std::make_move_iterator(others), std::make_move_iterator(left_.end()));
    left_.erase(others, left_.end());
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const absl::Status ended = End(all[i]);
    if (ended.ok()) continue;
    for (; i < all.size(); ++i) Leave(std::move(all[i]));
    return ended;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> BucketRootStore::RemoveLeft(const std::set<int64_t>& keep_sequences) {
  CKPTD_RETURN_IF_ERROR(CheckTerm(*store_, keys_, term_));
  Left left;
  {
    MutexLock lock(mutex_);
    const auto found = std::find_if(left_.begin(), left_.end(), [&](const Left& one) {
      return !keep_sequences.contains(one.id.sequence);
    });
    if (found == left_.end()) return false;
    left = std::move(*found);
    left_.erase(found);
    ending_at_ = left.id.tag;
  }
  const absl::Status ended = End(left);
  MutexLock lock(mutex_);
  ending_at_.clear();
  if (!ended.ok()) left_.push_back(std::move(left));
  changed_.SignalAll();
  if (!ended.ok()) return ended;
  return true;
}

// ---- reading

absl::StatusOr<Manifest> BucketRootStore::OpenCheckpoint(const std::string& tag, int64_t sequence) {
  CKPTD_RETURN_IF_ERROR(CheckTag(tag));
  const auto read = [&]() -> absl::StatusOr<Manifest> {
    const absl::StatusOr<std::string> text = GetManifestText(*store_, keys_.Manifest(tag));
    if (IsNoObject(text.status()) || (text.ok() && text->empty())) return NoCheckpoint(tag, sequence);
    CKPTD_RETURN_IF_ERROR(text.status());
    CKPTD_ASSIGN_OR_RETURN(Manifest manifest, DecodeManifest(*text));
    if (manifest.summary.tag() != tag || manifest.summary.sequence() != sequence)
      return NoCheckpoint(tag, sequence);
    return manifest;
  };
  CKPTD_ASSIGN_OR_RETURN(Manifest manifest, read());
  std::map<std::string, int64_t> sizes;
  std::string next;
  do {
    CKPTD_ASSIGN_OR_RETURN(const ObjectPage page, store_->List(keys_.Checkpoint(tag), "", next));
    for (const ObjectInfo& object : page.objects) sizes[object.key] = object.size;
    next = page.next;
  } while (!next.empty());
  for (const FileRecord& file : manifest.body.files()) {
    const auto found = sizes.find(keys_.Checkpoint(tag) + file.path());
    if (found != sizes.end() && found->second == file.size_bytes()) continue;
    CKPTD_RETURN_IF_ERROR(read().status());  // It was removed meanwhile.
    return MakeError(absl::StatusCode::kDataLoss, reason::kShortFile,
                     absl::StrCat(file.path(), " of ", tag,
                                  found == sizes.end() ? " is not in the bucket"
                                                       : absl::StrCat(" has ", found->second, " bytes, not ",
                                                                      file.size_bytes())),
                     {{"tag", tag}, {"path", file.path()}});
  }
  return manifest;
}

}  // namespace ckptd
