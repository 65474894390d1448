#include "storage/bucket/list.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <span>

#include "absl/base/thread_annotations.h"
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

using storage::v1::ManifestSummary;

constexpr size_t kConfirmed = 64;  // Of the newest. As _CONFIRMED in client/python.

absl::StatusOr<std::set<std::string>> Tags(ObjectStore& store, const std::string& prefix) {
  const std::string base = prefix.empty() ? "" : prefix + "/";
  std::set<std::string> tags;
  std::string page;
  do {
    CKPTD_ASSIGN_OR_RETURN(const ObjectPage listed, store.List(base, "/", page));
    for (const std::string& folder : listed.folders) {
      std::string tag = folder.substr(base.size(), folder.size() - base.size() - 1);
      if (CheckTag(tag).ok()) tags.insert(std::move(tag));
    }
    page = listed.next;
  } while (!page.empty());
  return tags;
}

// In one request, because the listing has the size.
absl::StatusOr<ManifestSummary> ReadHead(ObjectStore& store, const ObjectInfo& manifest) {
  std::string head(static_cast<size_t>(std::min(manifest.size, kManifestHeadBytes)), '\0');
  CKPTD_RETURN_IF_ERROR(store.Get(manifest.key, 0, std::as_writable_bytes(std::span(head))));
  CKPTD_ASSIGN_OR_RETURN(const int64_t size, ManifestSize(head));
  if (size != manifest.size)
    return absl::DataLossError("its size is not the one in its head, or it was replaced in between");
  return DecodeManifestHead(head);
}

bool IsDamagedOrChanged(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsNotFound(status) || absl::IsOutOfRange(status);
}

// The order of a resume.
bool IsNewer(const IndexName& a, const IndexName& b) {
  return std::pair(a.summary.create_time_us(), a.summary.sequence()) >
         std::pair(b.summary.create_time_us(), b.summary.sequence());
}

class Lister {
 public:
  Lister(ObjectStore& store, const std::string& prefix, int threads, ListDetail detail)
      : store_(store),
        prefix_(prefix),
        threads_(threads),
        detail_(detail),
        bucket_(MakeObjectFileSystem(&store, prefix)) {}

  absl::StatusOr<BucketList> Run() {
    // In this order: what is committed when its tag is listed has its name when the index is.
    CKPTD_ASSIGN_OR_RETURN(const std::set<std::string> tags, Tags(store_, prefix_));
    CKPTD_ASSIGN_OR_RETURN(index_, ReadIndex(store_, prefix_));
    std::vector<std::string> unknown;
    std::vector<IndexName> named;
    for (const std::string& tag : tags) {
      const auto names = index_.find(tag);
      if (names == index_.end() || !names->second.agreed.has_value())
        unknown.push_back(tag);
      else
        named.push_back(*names->second.agreed);
    }
    for (const auto& [tag, names] : index_)
      if (!tags.contains(tag)) MarkWrong(names);
    CKPTD_RETURN_IF_ERROR(ReadTags(unknown));
    std::sort(named.begin(), named.end(), IsNewer);
    const size_t newest = std::min(kConfirmed, named.size());
    CKPTD_RETURN_IF_ERROR(Confirm(std::span(named).first(newest)));
    CKPTD_RETURN_IF_ERROR(Believe(std::span(named).subspan(newest)));
    MutexLock lock(mutex_);
    return std::move(list_);
  }

 private:
  void MarkWrong(const TagNames& names) {
    MutexLock lock(mutex_);
    list_.repairs.wrong.insert(list_.repairs.wrong.end(), names.keys.begin(), names.keys.end());
  }

  bool IsContradicted() {
    MutexLock lock(mutex_);
    return is_contradicted_;
  }

  absl::Status Believe(std::span<const IndexName> names) {
    const bool is_contradicted = IsContradicted();
    std::vector<IndexName> unread;
    for (const IndexName& name : names) {
      if (is_contradicted || (detail_ == ListDetail::kComplete && !name.is_complete)) {
        unread.push_back(name);
        continue;
      }
      MutexLock lock(mutex_);
      list_.checkpoints.push_back({name.summary, name.by_daemon});
    }
    return Confirm(unread);
  }

  // Compares names with the manifests.
  absl::Status Confirm(std::span<const IndexName> names) {
    std::vector<std::string> others;
    CKPTD_RETURN_IF_ERROR(RunParallel(threads_, names.size(), [&](size_t i) -> absl::Status {
      const IndexName& name = names[i];
      const std::string& tag = name.summary.tag();
      const std::string key = CheckpointKey(prefix_, tag) + OurPath("", std::string(kManifestName));
      absl::StatusOr<ManifestSummary> there;
      GetUndamaged([&] {
        there = ReadHeadOfAnySize(key);
        return there.status();
      }).IgnoreError();
      const bool is_of_manifest =
          IsDamagedOrChanged(there.status()) || ReasonOf(there.status()) == "NEWER_FORMAT";
      if (!there.ok() && !is_of_manifest) return Annotate(there.status(), tag);
      MutexLock lock(mutex_);
      if (there.ok() && there->tag() == tag && IsSameCheckpoint(*there, name.summary)) {
        list_.checkpoints.push_back({*std::move(there), name.by_daemon});
      } else {
        is_contradicted_ = true;
        others.push_back(tag);
      }
      return absl::OkStatus();
    }));
    return ReadTags(others);
  }

  absl::StatusOr<ManifestSummary> ReadHeadOfAnySize(const std::string& key) {
    std::string head(static_cast<size_t>(kManifestHeadBytes), '\0');
    CKPTD_RETURN_IF_ERROR(store_.Get(key, 0, std::as_writable_bytes(std::span(head))));
    return DecodeManifestHead(head);
  }

  absl::Status ReadTags(const std::vector<std::string>& tags) {
    return RunParallel(threads_, tags.size(), [&](size_t i) { return ReadTag(tags[i]); });
  }

  // Reads what is there whatever its names say.
  absl::Status ReadTag(const std::string& tag) {
    const std::string ours = CheckpointKey(prefix_, tag) + OurPath("", "");
    // The marker, the manifest and its claim are before the records of ranks by name: on the first page.
    CKPTD_ASSIGN_OR_RETURN(const ObjectPage page, store_.List(ours, "", ""));
    const auto find = [&](const std::string& name) {
      return std::find_if(page.objects.begin(), page.objects.end(),
                          [&](const ObjectInfo& object) { return object.key == ours + name; });
    };
    const auto names = index_.find(tag);
    if (names != index_.end()) MarkWrong(names->second);
    const auto manifest = find(std::string(kManifestName));
    if (manifest == page.objects.end() || manifest->size == 0)
      return absl::OkStatus();  // An upload or a save that has not ended, or nothing of ours.
    absl::StatusOr<ManifestSummary> summary = ReadHead(store_, *manifest);
    if (IsDamagedOrChanged(summary.status())) {
      GetUndamaged([&] {
        summary = ReadSummary(*bucket_, kObjectRoot, tag);
        return summary.status();
      }).IgnoreError();
    }
    if (summary.ok() && summary->tag() != tag) {
      summary = MakeError(
          absl::StatusCode::kDataLoss, "CORRUPT_MANIFEST",
          absl::StrCat("the manifest is of tag ", summary->tag(), ": the objects were renamed or copied"));
    }
    if (IsMissing(summary.status())) return absl::OkStatus();  // It was removed in between.
    if (!summary.ok() && !ProvesDamage(summary.status())) return Annotate(summary.status(), tag);
    MutexLock lock(mutex_);
    if (!summary.ok()) {
      list_.damaged.emplace_back(tag, summary.status());
      return absl::OkStatus();
    }
    const bool by_daemon = find(std::string(kByDaemonName)) != page.objects.end();
    // Beside a claim, an upload is about to name it, or a removal has just taken its name.
    if (find(std::string(kClaimName)) == page.objects.end()) {
      is_contradicted_ |= names == index_.end();
      list_.repairs.missing.push_back({*summary, by_daemon});
    }
    list_.checkpoints.push_back({*std::move(summary), by_daemon});
    return absl::OkStatus();
  }

  ObjectStore& store_;
  const std::string& prefix_;
  const int threads_;
  const ListDetail detail_;
  const std::unique_ptr<FileSystem> bucket_;
  std::map<std::string, TagNames> index_;
  Mutex mutex_;
  BucketList list_ ABSL_GUARDED_BY(mutex_);
  bool is_contradicted_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

absl::StatusOr<BucketList> ListBucket(ObjectStore& store, const std::string& prefix, int threads,
                                      ListDetail detail) {
  return Lister(store, prefix, threads, detail).Run();
}

}  // namespace ckptd
