#include "tests/crash/history.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "tests/testing/crash_io_queue.h"

namespace ckptd {
namespace {

using storage::v1::PartRecord;

constexpr size_t kAlignment = 4096;

// The files of one rank as a segment holds them.
class Segment {
 public:
  Segment(const SaveSpec& save, int rank) {
    for (const std::string& path : PathsOf(rank)) {
      const std::string content = ContentOf(save, path);
      const size_t room = std::max(kAlignment, (content.size() + kAlignment - 1) / kAlignment * kAlignment);
      auto& bytes =
          memory_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(kAlignment, room)), &std::free);
      std::memset(bytes.get(), 0, room);
      std::memcpy(bytes.get(), content.data(), content.size());
      FileImage image{path, static_cast<int64_t>(content.size()), {}};
      if (!content.empty()) image.runs = {{bytes.get(), content.size()}};
      images_.push_back(std::move(image));
    }
  }
  const std::vector<FileImage>& images() const { return images_; }

 private:
  std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> memory_;
  std::vector<FileImage> images_;
};

}  // namespace

History::History(CrashDiskOptions disk, ExplorerOptions explorer)
    : explorer_(explorer),
      disk_(std::make_unique<CrashDisk>(disk)),
      checksums_(std::make_unique<ChecksumPool>(1)) {
  StartWriter();
}

History::~History() { disk_->OnChange(nullptr); }

void History::StartWriter() {
  writer_.reset();
  io_ = *IoThread::Start("crash-io", CrashQueueFactory(disk_.get()));
  writer_ = std::make_unique<PartWriter>(io_.get(), checksums_.get(),
                                         PartWriterOptions{.chunk_bytes = kTestChunkBytes, .depth = 4});
}

void History::Explore(bool on) {
  exploring_ = on;
  disk_->OnChange(nullptr);
  if (!on) return;
  disk_->OnChange([this](const std::string& what) { explorer_.Visit(*disk_, oracle_, what); });
  explorer_.Visit(*disk_, oracle_, "nothing");
}

void History::Said(const std::string& what) {
  if (exploring_) explorer_.Visit(*disk_, oracle_, absl::StrCat("after the message: ", what));
}

void History::Open() {
  absl::StatusOr<std::unique_ptr<RootStore>> store = OpenStore(*disk_, clock_);
  ASSERT_TRUE(store.ok()) << store.status();
  store_ = *std::move(store);
  oracle_.Shown(*store_);
  last_sequence_ = std::max(last_sequence_, store_->highest_sequence());
  Said("the root is open");
}

void History::Restart(std::optional<Loss> power_cut, uint64_t seed) {
  const bool exploring = exploring_;
  Explore(false);
  std::unique_ptr<CrashDisk> left = power_cut.has_value() ? disk_->CutPower(*power_cut, seed) : disk_->Kill();
  writer_.reset();
  io_.reset();
  store_.reset();
  disk_ = std::move(left);
  StartWriter();
  Explore(exploring);
  Open();
}

absl::StatusOr<std::vector<std::vector<WrittenFile>>> History::WriteFiles(const Begun& begun, int ranks) {
  using Written = absl::StatusOr<std::vector<WrittenFile>>;
  std::vector<std::unique_ptr<Segment>> segments;
  std::vector<std::future<Written>> answers;
  std::atomic<int64_t> written_bytes = 0;
  // The writer receives all parts at one moment, so that a history is the same each time.
  std::promise<void> waiting, go;
  io_->Post([&](IoQueue&) {
    waiting.set_value();
    go.get_future().wait();
  });
  waiting.get_future().wait();
  for (int rank = 0; rank < ranks; ++rank) {
    segments.push_back(std::make_unique<Segment>(begun.save, rank));
    auto answer = std::make_shared<std::promise<Written>>();
    answers.push_back(answer->get_future());
    writer_->Write(disk_.get(), begun.inflight.dir.get(), segments.back()->images(), &written_bytes,
                   [answer](Written written) { answer->set_value(std::move(written)); });
  }
  go.set_value();
  std::vector<std::vector<WrittenFile>> files;
  absl::Status status;
  for (std::future<Written>& answer : answers) {
    if (answer.wait_for(std::chrono::minutes(5)) != std::future_status::ready) {
      ADD_FAILURE() << "a part was not written";
      std::abort();  // The images are still in use.
    }
    Written written = answer.get();
    if (!written.ok()) {
      status.Update(written.status());
    } else {
      files.push_back(*std::move(written));
    }
  }
  if (!status.ok()) return status;
  return files;
}

History::Begun History::Begin(const std::string& tag, int ranks, int world_size, bool pointed) {
  Begun begun{{tag, ++last_sequence_, world_size}, {}, {}, absl::OkStatus()};
  if (ranks < 0) ranks = world_size;
  if (pointed) begun.save.pointers = {{"latest", tag}};
  oracle_.Began(begun.save);
  const auto write = [&]() -> absl::Status {
    CKPTD_ASSIGN_OR_RETURN(begun.inflight, store_->CreateInflight(tag, begun.save.sequence, 8192));
    for (int rank = 0; rank < ranks; ++rank)
      CKPTD_RETURN_IF_ERROR(store_->MakeParents(begun.inflight, PathsOf(rank)));
    CKPTD_ASSIGN_OR_RETURN(const auto files, WriteFiles(begun, ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      PartRecord record;
      record.set_format_version(1);
      record.set_rank(rank);
      record.set_sequence(begun.save.sequence);
      record.set_chunk_bytes(kTestChunkBytes);
      *record.mutable_checkpoint() = SummaryOf(begun.save);
      for (const WrittenFile& file : files[static_cast<size_t>(rank)]) {
        auto& added = *record.add_files();
        added.set_path(file.path);
        added.set_size_bytes(file.size);
        added.set_rank(rank);
        for (const uint32_t crc : file.chunk_crc32c) added.add_chunk_crc32c(crc);
      }
      CKPTD_RETURN_IF_ERROR(store_->WritePartRecord(begun.inflight, record));
      begun.parts.push_back(std::move(record));
    }
    return absl::OkStatus();
  };
  begun.status = write();
  return begun;
}

void History::Discard(const Begun& begun) {
  if (!store_->Discard(begun.inflight).ok()) return;  // Not FAILED: the outcome is unknown.
  oracle_.Failed(begun.save.sequence);
  Said(absl::StrCat(begun.save.tag, " is FAILED"));
}

SaveVerdict History::Publish(Begun begun) {
  const int64_t sequence = begun.save.sequence;
  PublishResult result{PublishOutcome::kFailed, begun.status};
  if (begun.status.ok()) result = store_->Publish(begun.inflight, SummaryOf(begun.save), begun.parts);
  switch (result.outcome) {
    case PublishOutcome::kCommitted:
      oracle_.Committed(sequence);
      Said(absl::StrCat(begun.save.tag, " is COMMITTED"));
      return SaveVerdict::kCommitted;
    case PublishOutcome::kIndeterminate:
      Said(absl::StrCat(begun.save.tag, " is INDETERMINATE"));
      return SaveVerdict::kUnknown;
    case PublishOutcome::kFailed:
      Discard(begun);
      return SaveVerdict::kFailed;
  }
  return SaveVerdict::kUnknown;
}

void History::SaveAndRetain(const std::string& tag, size_t keep) {
  ASSERT_EQ(Save(tag), SaveVerdict::kCommitted);
  if (store_->committed().size() >= keep) oracle_.Keeps(keep);
  while (store_->committed().size() > keep) {
    const auto [sequence, oldest] = *store_->committed().begin();
    Evict(oldest.summary.tag(), sequence);
  }
  EmptyTrash();
}

void History::Evict(const std::string& tag, int64_t sequence) {
  oracle_.Going(sequence);
  const absl::Status evicted = store_->Evict(tag, sequence);
  EXPECT_TRUE(evicted.ok()) << evicted;
  if (!evicted.ok()) return;
  oracle_.Gone(sequence);
  Said(absl::StrCat(tag, " is evicted"));
}

void History::Undelete(const std::string& tag, int64_t sequence) {
  oracle_.ComingBack(sequence);
  oracle_.PinBegan(sequence, true);
  const absl::StatusOr<Undeleted> back = store_->Undelete(tag, sequence);
  EXPECT_TRUE(back.ok()) << back.status();
  if (!back.ok()) return;
  oracle_.Committed(sequence);
  oracle_.Pinned(sequence, true);
  Said(absl::StrCat(tag, " is back"));
}

void History::EmptyTrash() {
  for (int step = 0; step < 1000; ++step) {
    const absl::StatusOr<bool> more = store_->EmptyTrashStep({});
    ASSERT_TRUE(more.ok()) << more.status();
    if (!*more) return;
  }
  FAIL() << "trash was not emptied";
}

void History::Pin(const std::string& tag, int64_t sequence, bool pinned) {
  oracle_.PinBegan(sequence, pinned);
  const absl::Status status = store_->SetPinned(tag, sequence, pinned);
  EXPECT_TRUE(status.ok()) << status;
  oracle_.Pinned(sequence, pinned);
  Said(absl::StrCat(tag, pinned ? " is pinned" : " is no longer pinned"));
}

void History::SaveRunRecord(const std::string& run_id) {
  storage::v1::RunRecord record = store_->run_record();
  record.set_run_id(run_id);
  record.set_last_sequence(last_sequence_);
  oracle_.RunRecordBegan(run_id);
  const absl::Status saved = store_->SaveRunRecord(record);
  EXPECT_TRUE(saved.ok()) << saved;
  oracle_.RunRecordSaved(run_id);
  Said(absl::StrCat("the run record belongs to ", run_id));
}

void History::Rescan() {
  const absl::Status scanned = store_->Rescan();
  ASSERT_TRUE(scanned.ok()) << scanned;
  oracle_.Shown(*store_);
  Said("the root was scanned");
}

}  // namespace ckptd
