#include "storage/bucket/upload.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"
#include "storage/base/status_macros.h"
#include "storage/bucket/index.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/format/manifest.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

bool Exists(const absl::Status& status) { return ReasonOf(status) == "OBJECT_EXISTS"; }
bool IsNoObject(const absl::Status& status) { return ReasonOf(status) == "NO_OBJECT"; }

class Uploader {
 public:
  Uploader(FileSystem& fs, ObjectStore& store, const std::string& prefix, const std::string& tag,
           const TransferOptions& options)
      : fs_(fs), store_(store), prefix_(prefix), base_(CheckpointKey(prefix, tag)), options_(options) {}

  absl::StatusOr<UploadResult> Run(Handle root, const std::string& tag, int64_t sequence) {
    CKPTD_RETURN_IF_ERROR(OpenSource(root, tag));
    if (sequence != 0 && manifest_.summary.sequence() != sequence) return NoCheckpoint(tag);
    CKPTD_RETURN_IF_ERROR(Claim());
    CKPTD_ASSIGN_OR_RETURN(const bool is_there, IsCommitted());
    bool by_daemon = sequence != 0;
    const std::string marker = base_ + OurPath("", std::string(kByDaemonName));
    if (by_daemon)  // Before the commit: a daemon that is killed after it has marked it.
      CKPTD_RETURN_IF_ERROR(PutText(store_, marker, "", PutMode::kReplace));
    if (!is_there) {
      CKPTD_RETURN_IF_ERROR(FindArrived());
      CKPTD_RETURN_IF_ERROR(Send());
      CKPTD_RETURN_IF_ERROR(RemoveIndexNames(store_, prefix_, tag, &manifest_.summary));
      CKPTD_RETURN_IF_ERROR(Commit());
    } else {
      result_.arrived_bytes = manifest_.summary.size_bytes();
      CKPTD_RETURN_IF_ERROR(RemoveIndexNames(store_, prefix_, tag, &manifest_.summary));
      if (!by_daemon) {
        const absl::Status marked = store_.Head(marker).status();
        if (!marked.ok() && !IsNoObject(marked)) return marked;
        by_daemon = marked.ok();
      }
    }
    CKPTD_RETURN_IF_ERROR(PutIndexName(store_, prefix_, {manifest_.summary, by_daemon}));
    CKPTD_RETURN_IF_ERROR(store_.Delete(ClaimKey()));
    return result_;
  }

 private:
  struct Source {
    std::string path;
    int64_t size = 0;
    const storage::v1::FileRecord* record =
        nullptr;  // Null: a record of ckptd's, which has its own checksum.
    bool has_arrived = false;
    std::optional<MultipartUpload> upload = {};  // Of several parts.
    std::map<int, UploadedPart> parts = {};      // Those that have arrived.
  };

  std::string ManifestKey() const { return base_ + OurPath("", std::string(kManifestName)); }
  std::string ClaimKey() const { return base_ + OurPath("", std::string(kClaimName)); }
  std::string KeyOf(const Source& source) const { return base_ + source.path; }
  int32_t chunk_bytes() const { return manifest_.summary.chunk_bytes(); }
  std::vector<FilePart> Parts(size_t i) const {
    return PartsOf(i, sources_[i].size, chunk_bytes(), options_);
  }

  static absl::Status NoCheckpoint(const std::string& tag) {
    return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                     absl::StrCat("there is no committed checkpoint ", tag, " in this root"), {{"tag", tag}});
  }

  absl::Status OpenSource(Handle root, const std::string& tag) {
    CKPTD_RETURN_IF_ERROR(CheckTag(tag));
    absl::StatusOr<ScopedHandle> dir = OpenScoped(fs_, root, tag, OpenMode::kDirectory);
    const std::string path = OurPath("", std::string(kManifestName));
    absl::StatusOr<std::string> bytes =
        dir.ok() ? ReadSmallFile(fs_, dir->get(), path, kMaxManifestBytes) : dir.status();
    if (IsMissing(bytes.status())) return NoCheckpoint(tag);
    if (!bytes.ok()) return bytes.status();
    dir_ = *std::move(dir);
    manifest_bytes_ = *std::move(bytes);
    CKPTD_ASSIGN_OR_RETURN(manifest_, DecodeManifest(manifest_bytes_));
    for (const storage::v1::FileRecord& file : manifest_.body.files())
      sources_.push_back({file.path(), file.size_bytes(), &file});
    CKPTD_ASSIGN_OR_RETURN(const ScopedHandle ours,
                           OpenScoped(fs_, dir_.get(), kOurDirectory, OpenMode::kDirectory));
    CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, fs_.List(ours.get()));
    for (const DirEntry& entry : entries) {
      if (entry.type != FileType::kRegular || entry.name == kManifestName) continue;
      CKPTD_ASSIGN_OR_RETURN(const FileStat stat, fs_.Stat(ours.get(), entry.name));
      sources_.push_back({OurPath("", entry.name), stat.size});
    }
    return absl::OkStatus();
  }

  absl::Status Another(const std::string& what, const std::string& key) {
    return MakeError(
        absl::StatusCode::kAlreadyExists, "OBJECT_EXISTS",
        absl::StrCat(what, " (", key, "); upload under another prefix, or remove what is beneath ", base_,
                     " first"));
  }

  absl::Status Claim() {
    absl::Status put = PutText(store_, ClaimKey(), manifest_bytes_, PutMode::kIfAbsent);
    if (put.ok()) {
      put = PutText(store_, ClaimKey(), manifest_bytes_, PutMode::kIfAbsent);
      if (put.ok()) {
        CKPTD_RETURN_IF_ERROR(store_.Delete(ClaimKey()));
        return MakeError(
            absl::StatusCode::kUnimplemented, "STORE_UNSUITABLE",
            "the server ignores If-None-Match: two uploads could mix two checkpoints; use a server "
            "that knows conditional puts");
      }
    }
    if (!Exists(put)) return put;
    CKPTD_ASSIGN_OR_RETURN(const std::string claim, GetManifestText(store_, ClaimKey()));
    if (claim == manifest_bytes_) return absl::OkStatus();
    CKPTD_ASSIGN_OR_RETURN(const bool is_alone, IsDamagedAndAlone(claim));
    if (!is_alone) return Another("the upload of another checkpoint of this tag has not ended", ClaimKey());
    CKPTD_RETURN_IF_ERROR(store_.Delete(ClaimKey()));
    return CorruptTransfer(ClaimKey());
  }

  // A claim that was damaged on its way to a server that compares no checksums. No upload goes on with it,
  // because each reads its claim before it sends anything.
  absl::StatusOr<bool> IsDamagedAndAlone(const std::string& claim) {
    if (!ProvesDamage(DecodeManifest(claim).status())) return false;
    CKPTD_ASSIGN_OR_RETURN(const ObjectPage beneath, store_.List(base_, "", ""));
    CKPTD_ASSIGN_OR_RETURN(const std::vector<MultipartUpload> uploads, store_.ListUploads(base_));
    return beneath.objects.size() <= 1 && beneath.next.empty() && uploads.empty();
  }

  // The error for an object that was removed, because it came back damaged.
  static absl::Status CorruptTransfer(const std::string& key) {
    return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_TRANSFER",
                     absl::StrCat(key, " came back other than it was sent; upload again to send it again"));
  }

  absl::StatusOr<bool> IsCommitted() {
    const absl::StatusOr<std::string> there = GetManifestText(store_, ManifestKey());
    if (IsNoObject(there.status())) return false;
    if (!there.ok()) return there.status();
    if (*there == manifest_bytes_) return true;
    CKPTD_RETURN_IF_ERROR(store_.Delete(ClaimKey()));
    return Another("another checkpoint has this tag", ManifestKey());
  }

  absl::Status FindArrived() {
    std::map<std::string, int64_t> sizes;
    std::string page;
    do {
      CKPTD_ASSIGN_OR_RETURN(const ObjectPage listed, store_.List(base_, "", page));
      for (const ObjectInfo& object : listed.objects) sizes[object.key] = object.size;
      page = listed.next;
    } while (!page.empty());
    CKPTD_ASSIGN_OR_RETURN(const std::vector<MultipartUpload> listed, store_.ListUploads(base_));
    std::map<std::string, MultipartUpload> uploads;
    for (const MultipartUpload& upload : listed) uploads.try_emplace(upload.key, upload);
    for (Source& source : sources_) {
      const auto object = sizes.find(KeyOf(source));
      source.has_arrived = object != sizes.end() && object->second == source.size;
      const auto upload = uploads.find(KeyOf(source));
      if (!source.has_arrived && upload != uploads.end()) source.upload = upload->second;
      if (source.has_arrived) result_.arrived_bytes += source.size;
    }
    return RunParallel(options_.threads, sources_.size(), [&](size_t i) { return Prepare(i); });
  }

  // Begins or continues the upload of a file of several parts.
  absl::Status Prepare(size_t i) {
    Source& source = sources_[i];
    const std::vector<FilePart> parts = Parts(i);
    if (source.has_arrived || parts.size() == 1) {
      source.upload.reset();  // If there is one, AbortOthers ends it.
      return absl::OkStatus();
    }
    if (!source.upload.has_value()) {
      CKPTD_ASSIGN_OR_RETURN(source.upload, store_.BeginUpload(KeyOf(source)));
      return absl::OkStatus();
    }
    CKPTD_ASSIGN_OR_RETURN(const std::vector<UploadedPart> arrived, store_.ListParts(*source.upload));
    for (const UploadedPart& part : arrived) {
      const size_t at = static_cast<size_t>(part.number) - 1;
      if (at >= parts.size() || parts[at].size != part.size) continue;
      source.parts[part.number] = part;
      MutexLock lock(mutex_);
      result_.arrived_bytes += part.size;
    }
    return absl::OkStatus();
  }

  absl::Status Send() {
    std::vector<FilePart> missing;
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (sources_[i].has_arrived) continue;
      for (const FilePart& part : Parts(i))
        if (!sources_[i].parts.contains(part.number)) missing.push_back(part);
    }
    CKPTD_ASSIGN_OR_RETURN(is_checked_, ComparesChecksums(store_, ManifestKey() + ".probe"));
    CKPTD_RETURN_IF_ERROR(RunParallel(options_.threads, missing.size(), [&](size_t i) {
      return buffers_.With(missing[i].size,
                           [&](std::span<std::byte> bytes) { return SendPart(missing[i], bytes); });
    }));
    CKPTD_RETURN_IF_ERROR(
        RunParallel(options_.threads, sources_.size(), [&](size_t i) { return Complete(sources_[i]); }));
    CKPTD_RETURN_IF_ERROR(AbortOthers());
    return is_checked_ ? absl::OkStatus() : GetBack();
  }

  absl::Status SendPart(const FilePart& part, std::span<std::byte> bytes) {
    Source& source = sources_[part.file];
    CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file,
                           OpenScoped(fs_, dir_.get(), source.path, OpenMode::kRead));
    if (const absl::Status read = ReadFully(fs_, file.get(), part.offset, bytes); !read.ok())
      return Annotate(read, source.path);
    if (source.record != nullptr)
      CKPTD_RETURN_IF_ERROR(CheckChunks(*source.record, chunk_bytes(), part.offset, bytes));
    const uint32_t crc = Crc32c(bytes);
    if (options_.admit != nullptr) CKPTD_RETURN_IF_ERROR(options_.admit(part.size));
    if (!source.upload.has_value()) {
      CKPTD_RETURN_IF_ERROR(store_.Put(KeyOf(source), bytes, crc, PutMode::kReplace));
    } else {
      CKPTD_ASSIGN_OR_RETURN(const UploadedPart sent,
                             store_.PutPart(*source.upload, part.number, bytes, crc));
      MutexLock lock(mutex_);
      source.parts[part.number] = sent;
    }
    MutexLock lock(mutex_);
    result_.sent_bytes += part.size;
    if (options_.progress != nullptr) options_.progress(result_.arrived_bytes + result_.sent_bytes);
    return absl::OkStatus();
  }

  absl::Status Complete(const Source& source) {
    if (source.has_arrived || !source.upload.has_value()) return absl::OkStatus();
    std::vector<UploadedPart> parts;
    for (const auto& [number, part] : source.parts) parts.push_back(part);
    const absl::Status completed = store_.CompleteUpload(*source.upload, parts);
    if (!IsNoObject(completed)) return completed;
    // An earlier try has had its effect, or somebody has aborted the upload.
    const absl::StatusOr<ObjectInfo> info = store_.Head(KeyOf(source));
    return info.ok() && info->size == source.size ? absl::OkStatus() : completed;
  }

  // Uploads of this tag that were begun and not continued, such as a second one of a file.
  absl::Status AbortOthers() {
    CKPTD_ASSIGN_OR_RETURN(const std::vector<MultipartUpload> others, store_.ListUploads(base_));
    for (const MultipartUpload& other : others) CKPTD_RETURN_IF_ERROR(store_.AbortUpload(other));
    return absl::OkStatus();
  }

  absl::Status GetBack() {
    std::vector<FilePart> parts;
    for (size_t i = 0; i < sources_.size(); ++i)
      for (const FilePart& part : Parts(i)) parts.push_back(part);
    return RunParallel(options_.threads, parts.size(), [&](size_t i) -> absl::Status {
      const absl::Status got = buffers_.With(
          parts[i].size, [&](std::span<std::byte> bytes) { return GetPartBack(parts[i], bytes); });
      if (!ProvesDamage(got)) return got;
      // Its size is right: the next upload would take it for one that has arrived.
      const std::string key = KeyOf(sources_[parts[i].file]);
      CKPTD_RETURN_IF_ERROR(store_.Delete(key));
      return CorruptTransfer(key);
    });
  }

  // DATA_LOSS if it is other than here, three times.
  absl::Status GetPartBack(const FilePart& part, std::span<std::byte> bytes) {
    const Source& source = sources_[part.file];
    if (source.record != nullptr)
      return GetChecked(store_, KeyOf(source), *source.record, chunk_bytes(), part.offset, bytes);
    CKPTD_ASSIGN_OR_RETURN(const std::string here, ReadSmallFile(fs_, dir_.get(), source.path, source.size));
    const auto sent = std::as_bytes(std::span(here)).subspan(static_cast<size_t>(part.offset), bytes.size());
    return GetUndamaged([&]() -> absl::Status {
      CKPTD_RETURN_IF_ERROR(store_.Get(KeyOf(source), part.offset, bytes));
      if (std::equal(bytes.begin(), bytes.end(), sent.begin())) return absl::OkStatus();
      return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_PART_RECORD", KeyOf(source));
    });
  }

  absl::Status Commit() {
    const absl::Status put = PutText(store_, ManifestKey(), manifest_bytes_, PutMode::kIfAbsent);
    if (!put.ok() && !Exists(put)) return put;
    if (put.ok() && is_checked_) return absl::OkStatus();
    // It is there by an earlier try, or by another upload of the same checkpoint; or nobody has compared it.
    CKPTD_ASSIGN_OR_RETURN(const std::string there, GetManifestText(store_, ManifestKey()));
    if (there == manifest_bytes_) return absl::OkStatus();
    if (is_checked_ || !ProvesDamage(DecodeManifest(there).status())) return IsCommitted().status();
    // With the claim, no other checkpoint is committed here.
    CKPTD_RETURN_IF_ERROR(store_.Delete(ManifestKey()));
    return CorruptTransfer(ManifestKey());
  }

  FileSystem& fs_;
  ObjectStore& store_;
  const std::string& prefix_;
  const std::string base_;  // Of the keys, with a slash at its end.
  const TransferOptions& options_;
  ScopedHandle dir_;
  std::string manifest_bytes_;
  Manifest manifest_;
  std::vector<Source> sources_;
  PartBuffers buffers_;
  bool is_checked_ = false;  // The server compares checksums.
  Mutex mutex_;
  UploadResult result_;
};

}  // namespace

absl::StatusOr<UploadResult> UploadCheckpoint(FileSystem& fs, Handle root, const std::string& tag,
                                              ObjectStore& store, const std::string& prefix,
                                              const TransferOptions& options, int64_t sequence) {
  return Uploader(fs, store, prefix, tag, options).Run(root, tag, sequence);
}

}  // namespace ckptd
