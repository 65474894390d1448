#include "storage/bucket/remove.h"

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/bucket/index.h"
#include "storage/bucket/transfer.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/format/manifest.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

constexpr int kThreads = 8;

// The manifest in this object; nullopt if there is none, or it is not this checkpoint's.
absl::StatusOr<std::optional<std::string>> ManifestOf(ObjectStore& store, const std::string& key,
                                                      int64_t sequence, int64_t commit_time_us) {
  absl::StatusOr<std::string> text = GetManifestText(store, key);
  if (ReasonOf(text.status()) == "NO_OBJECT") return std::nullopt;
  if (!text.ok()) return text.status();
  const absl::StatusOr<Manifest> manifest = DecodeManifest(*text);
  if (!manifest.ok()) return std::nullopt;
  const bool is_it =
      manifest->summary.sequence() == sequence && manifest->summary.commit_time_us() == commit_time_us;
  return is_it ? std::optional(*std::move(text)) : std::nullopt;
}

}  // namespace

absl::Status RemoveUploaded(ObjectStore& store, const std::string& prefix, const std::string& tag,
                            int64_t sequence, int64_t commit_time_us, RemoveWhat what) {
  CKPTD_RETURN_IF_ERROR(CheckTag(tag));
  const std::string base = CheckpointKey(prefix, tag);
  const std::string manifest_key = base + OurPath("", std::string(kManifestName));
  const std::string claim_key = base + OurPath("", std::string(kClaimName));
  CKPTD_ASSIGN_OR_RETURN(std::optional<std::string> text,
                         ManifestOf(store, manifest_key, sequence, commit_time_us));
  if (text.has_value()) {
    if (what == RemoveWhat::kUnfinished)
      return MakeError(absl::StatusCode::kAlreadyExists, "OBJECT_EXISTS",
                       absl::StrCat(tag, " is whole there"));
    CKPTD_RETURN_IF_ERROR(PutText(store, claim_key, *text, PutMode::kReplace));
  } else {
    CKPTD_ASSIGN_OR_RETURN(text, ManifestOf(store, claim_key, sequence, commit_time_us));
    if (!text.has_value()) return absl::OkStatus();
    // A claim beside a manifest is that of an upload which has just committed another checkpoint.
    const absl::StatusOr<ObjectInfo> other = store.Head(manifest_key);
    if (other.ok() && other->size > 0) return absl::OkStatus();
    if (!other.ok() && ReasonOf(other.status()) != "NO_OBJECT") return other.status();
  }
  CKPTD_RETURN_IF_ERROR(RemoveIndexNames(store, prefix, tag));
  CKPTD_RETURN_IF_ERROR(store.Delete(manifest_key));
  CKPTD_ASSIGN_OR_RETURN(const Manifest manifest, DecodeManifest(*text));
  CKPTD_ASSIGN_OR_RETURN(std::set<std::string> keys,
                         KeysBeneath(store, base + std::string(kOurDirectory) + "/"));
  for (const storage::v1::FileRecord& file : manifest.body.files()) keys.insert(base + file.path());
  keys.erase(claim_key);
  CKPTD_ASSIGN_OR_RETURN(const std::vector<MultipartUpload> uploads, store.ListUploads(base));
  for (const MultipartUpload& upload : uploads)
    if (keys.contains(upload.key)) CKPTD_RETURN_IF_ERROR(store.AbortUpload(upload));
  const std::vector<std::string> all(keys.begin(), keys.end());
  CKPTD_RETURN_IF_ERROR(RunParallel(kThreads, all.size(), [&](size_t i) { return store.Delete(all[i]); }));
  return store.Delete(claim_key);
}

}  // namespace ckptd
