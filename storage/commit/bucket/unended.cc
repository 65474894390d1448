#include "storage/commit/bucket/unended.h"

#include <optional>
#include <set>
#include <utility>

#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/bucket/remove.h"
#include "storage/bucket/transfer.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/format/frame.h"
#include "storage/format/manifest.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

constexpr int kThreads = 8;

bool IsNoObject(const absl::Status& status) { return ReasonOf(status) == "NO_OBJECT"; }
bool Exists(const absl::Status& status) { return ReasonOf(status) == "OBJECT_EXISTS"; }
std::string BegunKey(const BucketKeys& keys, const UnendedId& id, Unended what) {
  return keys.Unended(id) + (what == Unended::kSave ? "save" : "removal");
}

// nullopt: there is none, or it is damaged or of another checkpoint.
absl::StatusOr<std::optional<Manifest>> ManifestAt(ObjectStore& store, const std::string& key,
                                                   int64_t sequence) {
  const absl::StatusOr<std::string> text = GetManifestText(store, key);
  if (IsNoObject(text.status())) return std::nullopt;
  if (!text.ok()) return text.status();
  absl::StatusOr<Manifest> manifest = DecodeManifest(*text);
  if (!manifest.ok() || manifest->summary.sequence() != sequence) return std::nullopt;
  return *std::move(manifest);
}

// Makes sure that the save never commits. False: it has.
absl::StatusOr<bool> TakeManifestKey(ObjectStore& store, const BucketKeys& keys, const UnendedId& id,
                                     WhoEnds who) {
  if (who == WhoEnds::kItself) return true;
  const std::string key = keys.Manifest(id.tag);
  const PutMode mode = who == WhoEnds::kAnother ? PutMode::kIfAbsent : PutMode::kReplace;
  const absl::Status put = PutText(store, key, "", mode);
  if (put.ok()) return true;
  if (!Exists(put)) return put;
  CKPTD_ASSIGN_OR_RETURN(const std::optional<Manifest> there, ManifestAt(store, key, id.sequence));
  return !there.has_value();
}

// The keys of all that the save may have sent.
absl::StatusOr<std::set<std::string>> FilesOf(ObjectStore& store, const BucketKeys& keys, const UnendedId& id,
                                              const std::set<std::string>& records) {
  CKPTD_ASSIGN_OR_RETURN(std::set<std::string> files,
                         KeysBeneath(store, keys.Checkpoint(id.tag) + OurPath("", "")));
  files.erase(keys.Manifest(id.tag));
  files.erase(keys.Claim(id.tag));
  const std::string folder = keys.Unended(id);
  for (const std::string& key : records) {
    if (!ParsePartRecordName(key.substr(folder.size())).has_value()) continue;
    std::string text;
    const absl::Status got = GetUndamaged([&]() -> absl::Status {
      CKPTD_ASSIGN_OR_RETURN(text, GetText(store, key));
      return DecodeFrame(kPartRecordFrame, text).status();
    });
    if (ProvesDamage(got) || IsNoObject(got)) continue;  // No file was sent: each part reads its list back.
    CKPTD_RETURN_IF_ERROR(got);
    storage::v1::PartRecord record;
    CKPTD_ASSIGN_OR_RETURN(const std::string_view message, DecodeFrame(kPartRecordFrame, text));
    if (!record.ParseFromArray(message.data(), static_cast<int>(message.size()))) continue;
    for (const storage::v1::FileRecord& file : record.files())
      if (CheckFilePath(file.path()).ok()) files.insert(keys.Checkpoint(id.tag) + file.path());
  }
  return files;
}

absl::Status RemoveFiles(ObjectStore& store, const BucketKeys& keys, const UnendedId& id,
                         const std::set<std::string>& files) {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<MultipartUpload> uploads,
                         store.ListUploads(keys.Checkpoint(id.tag)));
  for (const MultipartUpload& upload : uploads)
    if (files.contains(upload.key)) CKPTD_RETURN_IF_ERROR(store.AbortUpload(upload));
  const std::vector<std::string> all(files.begin(), files.end());
  return RunParallel(kThreads, all.size(), [&](size_t i) { return store.Delete(all[i]); });
}

absl::Status RemoveRecords(ObjectStore& store, const BucketKeys& keys, const UnendedId& id,
                           std::set<std::string> records) {
  for (const Unended what : {Unended::kSave, Unended::kRemoval}) records.erase(BegunKey(keys, id, what));
  for (const std::string& key : records) CKPTD_RETURN_IF_ERROR(store.Delete(key));
  CKPTD_RETURN_IF_ERROR(store.Delete(BegunKey(keys, id, Unended::kRemoval)));
  return store.Delete(BegunKey(keys, id, Unended::kSave));
}

// Ends it, except for its own records.
absl::StatusOr<HowEnded> EndAtTag(ObjectStore& store, const BucketKeys& keys, const UnendedId& id,
                                  WhoEnds who, const std::set<std::string>& records) {
  const std::string claim_key = keys.Claim(id.tag);
  CKPTD_ASSIGN_OR_RETURN(const std::optional<Manifest> claim, ManifestAt(store, claim_key, id.sequence));
  if (!claim.has_value()) return HowEnded::kNothingThere;  // The claim goes after all that it is for.
  const bool is_claim_of_save = claim->summary.commit_time_us() == 0;  // A checkpoint has a commit time.
  const bool is_removal = records.contains(BegunKey(keys, id, Unended::kRemoval));
  if (is_removal == is_claim_of_save) return HowEnded::kNothingThere;  // Of an upload.
  if (is_removal) {
    CKPTD_ASSIGN_OR_RETURN(const std::optional<Manifest> there,
                           ManifestAt(store, keys.Manifest(id.tag), id.sequence));
    if (there.has_value()) {
      CKPTD_RETURN_IF_ERROR(store.Delete(claim_key));
      return HowEnded::kIsThere;
    }
    CKPTD_RETURN_IF_ERROR(
        RemoveUploaded(store, keys.prefix(), id.tag, id.sequence, claim->summary.commit_time_us()));
    return HowEnded::kRemoved;
  }
  CKPTD_ASSIGN_OR_RETURN(const bool is_given_up, TakeManifestKey(store, keys, id, who));
  if (is_given_up) {
    CKPTD_ASSIGN_OR_RETURN(const std::set<std::string> files, FilesOf(store, keys, id, records));
    CKPTD_RETURN_IF_ERROR(RemoveFiles(store, keys, id, files));
  }
  CKPTD_RETURN_IF_ERROR(store.Delete(claim_key));
  return is_given_up ? HowEnded::kRemoved : HowEnded::kIsThere;
}

}  // namespace

std::string ClaimOfSave(const std::string& tag, int64_t sequence) {
  Manifest claim;
  claim.summary.set_format_version(static_cast<int32_t>(kFormatVersion));
  claim.summary.set_tag(tag);
  claim.summary.set_sequence(sequence);
  claim.summary.set_attempt(1);
  claim.summary.set_ordinal(1);
  claim.summary.set_world_size(1);
  claim.summary.set_chunk_bytes(1);
  return EncodeManifest(claim).value_or("");  // It fits.
}

absl::StatusOr<std::vector<std::pair<UnendedId, Unended>>> ListUnended(ObjectStore& store,
                                                                       const BucketKeys& keys) {
  CKPTD_ASSIGN_OR_RETURN(const std::set<std::string> found, KeysBeneath(store, keys.AllUnended()));
  std::vector<std::pair<UnendedId, Unended>> all;
  for (const std::string& key : found) {  // By key: those of one are neighbours.
    const std::optional<UnendedId> id = keys.UnendedOf(key);
    if (!id.has_value()) continue;
    if (all.empty() || !(all.back().first == *id)) all.emplace_back(*id, Unended::kSave);
    if (key == BegunKey(keys, *id, Unended::kRemoval)) all.back().second = Unended::kRemoval;
  }
  return all;
}

absl::Status PutBegun(ObjectStore& store, const BucketKeys& keys, const UnendedId& id, Unended what) {
  return PutText(store, BegunKey(keys, id, what), "", PutMode::kReplace);
}

absl::Status ForgetUnended(ObjectStore& store, const BucketKeys& keys, const UnendedId& id) {
  CKPTD_RETURN_IF_ERROR(store.Delete(keys.Claim(id.tag)));
  CKPTD_ASSIGN_OR_RETURN(std::set<std::string> records, KeysBeneath(store, keys.Unended(id)));
  return RemoveRecords(store, keys, id, std::move(records));
}

absl::StatusOr<HowEnded> EndUnended(ObjectStore& store, const BucketKeys& keys, const UnendedId& id,
                                    WhoEnds who) {
  CKPTD_ASSIGN_OR_RETURN(std::set<std::string> records, KeysBeneath(store, keys.Unended(id)));
  CKPTD_ASSIGN_OR_RETURN(const HowEnded how, EndAtTag(store, keys, id, who, records));
  CKPTD_RETURN_IF_ERROR(RemoveRecords(store, keys, id, std::move(records)));
  return how;
}

}  // namespace ckptd
