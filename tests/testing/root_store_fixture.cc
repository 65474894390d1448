#include "tests/testing/root_store_fixture.h"

#include <algorithm>
#include <fstream>
#include <span>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd {
namespace {

using storage::v1::FileRecord;
using storage::v1::ManifestSummary;
using storage::v1::PartRecord;

absl::StatusOr<FileRecord> WriteOne(FileSystem& fs, Handle dir, const std::string& path,
                                    const std::string& content) {
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file, OpenScoped(fs, dir, path, OpenMode::kCreate));
  const std::span<const std::byte> bytes = std::as_bytes(std::span(content));
  CKPTD_RETURN_IF_ERROR(WriteFully(fs, file.get(), 0, bytes));
  CKPTD_RETURN_IF_ERROR(fs.Sync(file.get(), SyncMode::kData));
  FileRecord record;
  record.set_path(path);
  record.set_size_bytes(static_cast<int64_t>(content.size()));
  for (size_t at = 0; at < bytes.size(); at += kTestChunkBytes) {
    record.add_chunk_crc32c(Crc32c(bytes.subspan(at, std::min<size_t>(kTestChunkBytes, bytes.size() - at))));
  }
  return record;
}

}  // namespace

TemporaryRoot::TemporaryRoot(On on) : dir_(on == On::kMemory ? TempDir("/dev/shm") : TempDir()) {
  absl::StatusOr<std::unique_ptr<FileSystem>> fs = MakePosixFileSystem();
  EXPECT_TRUE(fs.ok()) << fs.status();
  fs_ = *std::move(fs);
}

absl::StatusOr<std::unique_ptr<RootStore>> TemporaryRoot::TryOpen(FileSystem& fs) {
  RootStoreOptions options;
  options.io_backend = IoBackend::kThreads;
  return RootStore::Open(&fs, handle(), &SystemClock(), options);
}

std::unique_ptr<RootStore> TemporaryRoot::OpenWith(FileSystem& fs) {
  absl::StatusOr<std::unique_ptr<RootStore>> store = TryOpen(fs);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

std::vector<std::string> TemporaryRoot::Names(const std::string& below) const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path(below)))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

void TemporaryRoot::Write(const std::string& below, const std::string& content) const {
  std::filesystem::create_directories(path(below).parent_path());
  std::ofstream(path(below), std::ios::binary) << content;
}

std::string TemporaryRoot::Read(const std::string& below) const {
  std::stringstream content;
  content << std::ifstream(path(below), std::ios::binary).rdbuf();
  return content.str();
}

void TemporaryRoot::FlipByte(const std::string& below, int64_t offset) const {
  std::fstream file(path(below), std::ios::in | std::ios::out | std::ios::binary);
  ASSERT_TRUE(file.good()) << below;
  file.seekg(offset);
  const char flipped = static_cast<char>(file.get() ^ 0x20);
  file.seekp(offset);
  file.put(flipped);
}

ManifestSummary SummaryOf(const SaveSpec& spec) {
  ManifestSummary summary;
  summary.set_format_version(1);
  summary.set_run_id("run");
  summary.set_tag(spec.tag);
  summary.set_step(10 * spec.sequence);
  summary.set_sequence(spec.sequence);
  summary.set_attempt(1);
  summary.set_ordinal(1);
  summary.set_world_size(spec.world_size);
  summary.set_chunk_bytes(kTestChunkBytes);
  (*summary.mutable_metrics())["loss"] = 0.5;
  summary.mutable_pointers()->insert(spec.pointers.begin(), spec.pointers.end());
  summary.set_suspect(spec.suspect);
  return summary;
}

std::vector<std::string> PathsOf(int rank) {
  return {absl::StrCat("model_", rank, ".pt"), absl::StrCat("deep/er/", rank), absl::StrCat("empty_", rank)};
}

std::string ContentOf(const SaveSpec& spec, const std::string& path) {
  if (path.starts_with("empty")) return "";
  const std::string line = absl::StrCat(path, " of ", spec.tag, " sequence ", spec.sequence, "\n");
  std::string content;
  while (content.size() < (path.starts_with("model") ? 10'001u : 100u)) content += line;
  return content;
}

absl::StatusOr<PartRecord> WritePart(FileSystem& fs, RootStore& store, const Inflight& inflight,
                                     const SaveSpec& spec, int rank, bool files_only) {
  PartRecord record;
  record.set_format_version(1);
  record.set_rank(rank);
  record.set_sequence(spec.sequence);
  record.set_chunk_bytes(kTestChunkBytes);
  *record.mutable_checkpoint() = SummaryOf(spec);
  const std::vector<std::string> paths = PathsOf(rank);
  CKPTD_RETURN_IF_ERROR(store.MakeParents(inflight, paths));
  for (const std::string& path : paths) {
    CKPTD_ASSIGN_OR_RETURN(*record.add_files(),
                           WriteOne(fs, inflight.dir.get(), path, ContentOf(spec, path)));
    record.mutable_files()->rbegin()->set_rank(rank);
  }
  if (!files_only) CKPTD_RETURN_IF_ERROR(store.WritePartRecord(inflight, record));
  return record;
}

absl::StatusOr<Staged> Stage(FileSystem& fs, RootStore& store, const SaveSpec& spec, int ranks) {
  Staged staged;
  CKPTD_ASSIGN_OR_RETURN(staged.inflight, store.CreateInflight(spec.tag, spec.sequence, 8192));
  for (int rank = 0; rank < (ranks < 0 ? spec.world_size : ranks); ++rank) {
    absl::StatusOr<PartRecord> part = WritePart(fs, store, staged.inflight, spec, rank);
    if (!part.ok()) {
      const absl::Status discarded = store.Discard(staged.inflight);
      return discarded.ok() ? part.status() : absl::UnknownError("neither written nor discarded");
    }
    staged.parts.push_back(*std::move(part));
  }
  return staged;
}

SaveVerdict Save(FileSystem& fs, RootStore& store, const SaveSpec& spec) {
  const absl::StatusOr<Staged> staged = Stage(fs, store, spec);
  if (!staged.ok()) return absl::IsUnknown(staged.status()) ? SaveVerdict::kUnknown : SaveVerdict::kFailed;
  const PublishResult result = store.Publish(staged->inflight, SummaryOf(spec), staged->parts);
  EXPECT_EQ(result.outcome == PublishOutcome::kCommitted, result.status.ok());
  switch (result.outcome) {
    case PublishOutcome::kCommitted:
      return SaveVerdict::kCommitted;
    case PublishOutcome::kIndeterminate:
      return SaveVerdict::kUnknown;
    case PublishOutcome::kFailed:
      break;
  }
  return store.Discard(staged->inflight).ok() ? SaveVerdict::kFailed : SaveVerdict::kUnknown;
}

}  // namespace ckptd
