#include "storage/bucket/list.h"

#include <algorithm>
#include <memory>
#include <span>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"
#include "storage/base/status_macros.h"
#include "storage/bucket/object_file_system.h"
#include "storage/bucket/transfer.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/format/manifest.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

absl::StatusOr<std::vector<std::string>> Tags(ObjectStore& store, const std::string& prefix) {
  const std::string base = prefix.empty() ? "" : prefix + "/";
  std::vector<std::string> tags;
  std::string page;
  do {
    CKPTD_ASSIGN_OR_RETURN(const ObjectPage listed, store.List(base, "/", page));
    for (const std::string& folder : listed.folders) {
      std::string tag = folder.substr(base.size(), folder.size() - base.size() - 1);
      if (CheckTag(tag).ok()) tags.push_back(std::move(tag));
    }
    page = listed.next;
  } while (!page.empty());
  return tags;
}

// In one request, because the listing has the size.
absl::StatusOr<storage::v1::ManifestSummary> ReadHead(ObjectStore& store, const ObjectInfo& manifest) {
  std::string head(static_cast<size_t>(std::min(manifest.size, kManifestHeadBytes)), '\0');
  CKPTD_RETURN_IF_ERROR(store.Get(manifest.key, 0, std::as_writable_bytes(std::span(head))));
  CKPTD_ASSIGN_OR_RETURN(const int64_t size, ManifestSize(head));
  if (size != manifest.size)
    return absl::DataLossError("its size is not the one in its head, or it was replaced in between");
  return DecodeManifestHead(head);
}

}  // namespace

absl::StatusOr<BucketList> ListBucket(ObjectStore& store, const std::string& prefix, int threads) {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<std::string> tags, Tags(store, prefix));
  const std::unique_ptr<FileSystem> bucket = MakeObjectFileSystem(&store, prefix);
  BucketList list;
  Mutex mutex;  // Guards the list.
  const absl::Status read = RunParallel(threads, tags.size(), [&](size_t i) -> absl::Status {
    const std::string ours = CheckpointKey(prefix, tags[i]) + OurPath("", "");
    // The marker and the manifest are before the records of ranks by name: on the first page.
    CKPTD_ASSIGN_OR_RETURN(const ObjectPage page, store.List(ours, "", ""));
    const auto find = [&](std::string_view name) {
      return std::find_if(page.objects.begin(), page.objects.end(), [&](const ObjectInfo& object) {
        return object.key == absl::StrCat(ours, std::string(name));
      });
    };
    const auto manifest = find(kManifestName);
    if (manifest == page.objects.end())
      return absl::OkStatus();  // An upload that has not ended, or nothing of ours.
    absl::StatusOr<storage::v1::ManifestSummary> summary = ReadHead(store, *manifest);
    const bool is_damaged_or_changed = absl::IsDataLoss(summary.status()) ||
                                       absl::IsNotFound(summary.status()) ||
                                       absl::IsOutOfRange(summary.status());
    if (is_damaged_or_changed) {
      GetUndamaged([&] {
        summary = ReadSummary(*bucket, kObjectRoot, tags[i]);
        return summary.status();
      }).IgnoreError();
    }
    if (summary.ok() && summary->tag() != tags[i]) {
      summary = MakeError(
          absl::StatusCode::kDataLoss, "CORRUPT_MANIFEST",
          absl::StrCat("the manifest is of tag ", summary->tag(), ": the objects were renamed or copied"));
    }
    if (IsMissing(summary.status())) return absl::OkStatus();  // It was removed in between.
    if (!summary.ok() && !ProvesDamage(summary.status())) return Annotate(summary.status(), tags[i]);
    MutexLock lock(mutex);
    if (summary.ok())
      list.checkpoints.push_back({*std::move(summary), find(kByDaemonName) != page.objects.end()});
    else
      list.damaged.emplace_back(tags[i], summary.status());
    return absl::OkStatus();
  });
  if (!read.ok()) return read;
  return list;
}

}  // namespace ckptd
