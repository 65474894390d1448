#include "tests/crash/disk_daemon.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/memory/populator.h"
#include "daemon/memory/segment_memory.h"
#include "gtest/gtest.h"
#include "storage/base/callback_scope.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "tests/testing/crash_io_queue.h"

namespace ckptd {
namespace {

constexpr std::chrono::seconds kTimeout{60};
constexpr int kSegments = 12;

// Makes segments at once; a page exists once somebody writes to it. A daemon starts thousands of times here.
class SparsePopulator : public Populator {
 public:
  SparsePopulator(int64_t segment_bytes, Inbox* inbox, Made made)
      : segment_bytes_(segment_bytes), inbox_(*inbox), made_(std::move(made)) {}

  void Make(SegmentId id) override {
    inbox_.Post(scope_.Guard([this, id] {
      made_({id, SegmentMemory::MakeSparse(segment_bytes_), absl::OkStatus()});
    }));
  }
  void Free(SegmentId, SegmentMemory) override {}
  void Forget(SegmentId, std::function<void(absl::Status)>) override {}  // Nobody maps anything.

 private:
  const int64_t segment_bytes_;
  Inbox& inbox_;
  const Made made_;
  CallbackScope scope_;
};

}  // namespace

DiskDaemon::DiskDaemon(CrashDisk* disk, std::chrono::hours trash_grace) : disk_(disk) {
  const auto post = [this](absl::AnyInvocable<void()> work) { inbox_.Post(std::move(work)); };
  SegmentPoolOptions pool;
  pool.bytes = kSegments * kSegment;
  pool.segment_bytes = kSegment;
  pool.pages = PagePolicy::kPlain;
  pool_ = SegmentPool::Start(
      pool, post, [](const std::string&) {}, {},
      [this](int64_t segment_bytes, Populator::Made made) {
        return std::make_unique<SparsePopulator>(segment_bytes, &inbox_, std::move(made));
      });
  ThreadedRootIoOptions roots;
  roots.writer.chunk_bytes = kTestChunkBytes;
  roots.writer.depth = 4;
  roots.queues.uring = roots.queues.threads = [disk](int) { return CrashQueueFactory(disk)(); };
  roots_ = std::make_unique<ThreadedRootIoFactory>(roots, &clock_, post);
  EngineOptions engine;
  engine.daemon_version = "test";
  engine.daemon_instance = "instance";
  engine.chunk_bytes = kTestChunkBytes;
  engine.trash_grace = trash_grace;
  engine_ = std::make_unique<Engine>(engine, &clock_, pool_.get(), &observer_);
}

DiskDaemon::~DiskDaemon() {
  engine_.reset();
  EXPECT_TRUE(roots_->Close(kTimeout).empty()) << "its threads did not end";
  pool_.reset();
}

void DiskDaemon::PassSecond() {
  clock_.Advance(std::chrono::seconds(1));
  engine_->Tick();
}

bool DiskDaemon::RunUntil(const std::function<bool()>& until) {
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  while (!until()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    if (auto work = inbox_.Take(std::chrono::milliseconds(10))) work();
  }
  return true;
}

RootAttachment DiskDaemon::Attachment() {
  RootAttachment attachment;
  attachment.device = attachment.inode = 1;
  attachment.path = "/root";
  attachment.uid = kUser;
  attachment.make_io = [this]() -> absl::StatusOr<RootAccess> {
    absl::StatusOr<std::unique_ptr<LocalRootIo>> io =
        roots_->Make("1:1", [disk = disk_]() -> absl::StatusOr<ThreadedRootIoFactory::RootDirectory> {
          // This object does not own the disk.
          std::shared_ptr<FileSystem> fs(disk, [](FileSystem*) {});
          CKPTD_ASSIGN_OR_RETURN(ScopedHandle handle,
                                 OpenScoped(*disk, disk->root(), ".", OpenMode::kDirectory));
          return ThreadedRootIoFactory::RootDirectory{std::move(fs), std::move(handle)};
        });
    if (!io.ok()) return io.status();
    return RootAccess{*std::move(io)};
  };
  return attachment;
}

absl::Status DiskDaemon::Recover() {
  CKPTD_ASSIGN_OR_RETURN(run_, Ask<std::string>([this](Reply<std::string> reply) {
                           engine_->RecoverRoot(Attachment(), std::move(reply));
                         }));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SessionId>> DiskDaemon::Launch(const std::string& launch, int world_size) {
  std::vector<SessionId> sessions;
  for (int rank = 0; rank < world_size; ++rank) {
    SessionInfo info;
    info.id = ++last_session_;
    info.uid = kUser;
    info.client_instance = absl::StrCat(launch, "/", rank);
    engine_->SessionOpened(info);
    v1::JoinRunRequest join;
    CKPTD_ASSIGN_OR_RETURN(run_, Ask<std::string>([&](Reply<std::string> reply) {
                             engine_->AttachRoot(info.id, Attachment(), std::move(reply));
                           }));
    join.set_root(run_);
    join.set_rank(rank);
    join.set_world_size(world_size);
    join.set_launch_id(launch);
    CKPTD_RETURN_IF_ERROR(Ask<v1::JoinRunResponse>([&](Reply<v1::JoinRunResponse> reply) {
                            engine_->JoinRun(As(info.id), join, std::move(reply));
                          }).status());
    sessions.push_back(info.id);
  }
  return sessions;
}

v1::SaveKey DiskDaemon::KeyOf(int rank, const std::string& tag, int64_t ordinal) const {
  v1::SaveKey key;
  key.set_run(run_);
  key.set_rank(rank);
  key.set_tag(tag);
  key.set_ordinal(ordinal);
  return key;
}

absl::StatusOr<DiskDaemon::Begun> DiskDaemon::Begin(const std::vector<SessionId>& sessions,
                                                    const std::string& tag, const SaveOptions& options) {
  Begun begun;
  begun.spec = {tag, 0, static_cast<int>(sessions.size()), options.pointers, options.suspect};
  if (!options.suspect.empty()) begun.spec.pointers.clear();  // None is written.
  begun.sessions = sessions;
  std::vector<Answer<v1::BeginResponse>> answers(sessions.size());
  for (int rank = 0; rank < begun.spec.world_size; ++rank) {
    const auto at = static_cast<size_t>(rank);
    v1::BeginRequest request;
    *request.mutable_key() = KeyOf(rank, tag, options.ordinal);
    begun.keys.push_back(request.key());
    if (options.num_kept_ckpts) request.set_num_kept_ckpts(*options.num_kept_ckpts);
    if (options.retention) *request.mutable_retention() = *options.retention;
    request.mutable_metrics()->insert(options.metrics.begin(), options.metrics.end());
    request.mutable_pointers()->insert(options.pointers.begin(), options.pointers.end());
    for (const std::string& path : PathsOf(rank)) {
      v1::FileSpec& file = *request.add_files();
      file.set_path(path);
      // The bytes name the sequence, which is not known yet: it has fewer than eight digits.
      file.set_size_bytes(static_cast<int64_t>(ContentOf({tag, 10'000'000}, path).size()) + kTestChunkBytes);
    }
    engine_->Begin(As(sessions[at]), request, answers[at].reply());
  }
  const auto all = [&] {
    return std::ranges::all_of(answers, [](const auto& answer) { return answer.has(); });
  };
  if (!RunUntil(all)) return absl::DeadlineExceededError("Begin was not answered");
  for (const auto& answer : answers) {
    CKPTD_RETURN_IF_ERROR(answer.status());
    begun.spec.sequence = answer.get().sequence();
  }
  return begun;
}

absl::Status DiskDaemon::WriteAndSeal(const Begun& begun, int rank) {
  const auto at = static_cast<size_t>(rank);
  const Caller trainer = As(begun.sessions[at]);
  v1::SealRequest seal;
  *seal.mutable_key() = begun.keys[at];
  seal.set_suspect(begun.spec.suspect);
  for (const std::string& path : PathsOf(rank)) {
    const std::string content = ContentOf(begun.spec, path);
    CKPTD_ASSIGN_OR_RETURN(const Engine::WriteTarget target,
                           engine_->BeginWrite(trainer, begun.keys[at], path, [](const absl::Status&) {}));
    std::string_view left = content;
    for (const std::span<std::byte>& run : target.runs) {
      const size_t piece = std::min(run.size(), left.size());
      std::memcpy(run.data(), left.data(), piece);
      left.remove_prefix(piece);
    }
    engine_->EndWrite(target.id);
    v1::FileSpec& file = *seal.add_files();
    file.set_path(path);
    file.set_size_bytes(static_cast<int64_t>(content.size()));
  }
  return Ask<v1::SealResponse>(
             [&](Reply<v1::SealResponse> reply) { engine_->Seal(trainer, seal, std::move(reply)); })
      .status();
}

void DiskDaemon::WhenEnded(const Begun& begun, const std::function<void(v1::Level)>& ended) {
  for (size_t rank = 0; rank < begun.sessions.size(); ++rank) {
    v1::WaitRequest wait;
    *wait.mutable_key() = begun.keys[rank];
    wait.set_level(v1::COMMITTED);
    wait.mutable_timeout()->set_seconds(1000);  // By a clock that stands still.
    engine_->Wait(As(begun.sessions[rank]), wait, [ended](absl::StatusOr<v1::WaitResponse> answer) {
      EXPECT_TRUE(answer.ok()) << answer.status();
      ended(answer.ok() ? answer->checkpoint().level() : v1::LEVEL_UNSPECIFIED);
    });
  }
}

absl::StatusOr<v1::Level> DiskDaemon::AskEnd(SessionId session, const v1::SaveKey& key, int64_t sequence) {
  v1::WaitRequest wait;
  *wait.mutable_key() = key;
  wait.set_sequence(sequence);
  wait.set_level(v1::COMMITTED);
  CKPTD_ASSIGN_OR_RETURN(const v1::WaitResponse answer,
                         Ask<v1::WaitResponse>([&](Reply<v1::WaitResponse> reply) {
                           engine_->Wait(As(session), wait, std::move(reply));
                         }));
  return answer.checkpoint().level();
}

absl::StatusOr<ShownCheckpoints> DiskDaemon::List() {
  v1::ListCheckpointsRequest request;
  request.set_parent(run_);
  CKPTD_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse listed,
                         Ask<v1::ListCheckpointsResponse>([&](Reply<v1::ListCheckpointsResponse> reply) {
                           engine_->ListCheckpoints(Caller{0, 0, true}, request, std::move(reply));
                         }));
  ShownCheckpoints shown;
  for (const v1::Checkpoint& checkpoint : listed.checkpoints()) {
    CommittedCheckpoint& its = shown[checkpoint.sequence()];
    its.summary.set_tag(checkpoint.tag());
    its.summary.set_sequence(checkpoint.sequence());
    its.pinned = checkpoint.pinned();
  }
  return shown;
}

absl::StatusOr<std::set<int64_t>> DiskDaemon::ListTrash() {
  v1::ListTrashRequest request;
  request.set_run(run_);
  CKPTD_ASSIGN_OR_RETURN(const v1::ListTrashResponse listed,
                         Ask<v1::ListTrashResponse>([&](Reply<v1::ListTrashResponse> reply) {
                           engine_->ListTrash(Caller{0, 0, true}, request, std::move(reply));
                         }));
  std::set<int64_t> sequences;
  for (const v1::TrashedCheckpoint& trashed : listed.checkpoints())
    sequences.insert(trashed.checkpoint().sequence());
  return sequences;
}

bool DiskDaemon::AwaitEvictions() {
  return RunUntil([&] {
    const v1::Status status = engine_->GetStatus(Caller{0, 0, true});
    const absl::StatusOr<ShownCheckpoints> listed = List();
    return listed.ok() && status.runs_size() == 1 &&
           status.runs(0).checkpoint_count() == static_cast<int>(listed->size());
  });
}

ShownCheckpoints DiskDaemon::ReadAll(SessionId session, const std::map<int64_t, SaveSpec>& known,
                                     Broken& broken) {
  absl::StatusOr<ShownCheckpoints> shown = List();
  if (!shown.ok()) {
    broken.push_back(absl::StrCat("listing: ", shown.status().ToString()));
    return {};
  }
  ShownCheckpoints read;
  for (auto& [sequence, checkpoint] : *shown) {
    const auto save = known.find(sequence);
    // Otherwise the oracle reports it.
    if (save != known.end() && save->second.tag == checkpoint.summary.tag()) {
      std::optional<storage::v1::ManifestSummary> summary = ReadOne(session, save->second, broken);
      if (!summary) continue;
      checkpoint.summary = *std::move(summary);
    }
    read.emplace(sequence, std::move(checkpoint));
  }
  return read;
}

std::optional<storage::v1::ManifestSummary> DiskDaemon::ReadOne(SessionId session, const SaveSpec& save,
                                                                Broken& broken) {
  const auto said = [&](const std::string& what) {
    broken.push_back(absl::StrCat(save.tag, " (sequence ", save.sequence, ") is listed, and ", what));
  };
  v1::OpenCheckpointRequest open;
  open.set_name(NameOf(save.tag));
  const auto opened = Ask<v1::OpenCheckpointResponse>([&](Reply<v1::OpenCheckpointResponse> reply) {
    engine_->OpenCheckpoint(As(session), open, std::move(reply));
  });
  if (!opened.ok()) {
    // Retention runs as soon as the root is open. The oracle decides whether it may evict this checkpoint.
    const absl::StatusOr<ShownCheckpoints> now = List();
    if (ReasonOf(opened.status()) == "NO_CHECKPOINT" && now.ok() && !now->contains(save.sequence))
      return std::nullopt;
    said(absl::StrCat("cannot be opened: ", opened.status().ToString()));
    return storage::v1::ManifestSummary();
  }
  leases_.push_back(opened->lease());
  const auto reader = engine_->FindReader(As(session), opened->lease());
  if (!reader.ok()) {
    said(absl::StrCat("cannot be read: ", reader.status().ToString()));
    return storage::v1::ManifestSummary();
  }
  for (int rank = 0; rank < save.world_size; ++rank) {
    for (const std::string& path : PathsOf(rank)) {
      const std::string content = ContentOf(save, path);
      std::string bytes(content.size(), '\0');
      const absl::Status read = (*reader)->Read(path, 0, std::as_writable_bytes(std::span(bytes)));
      if (!read.ok()) said(absl::StrCat("does not return ", path, ": ", read.ToString()));
      if (read.ok() && bytes != content) said(absl::StrCat("returns other bytes of ", path));
    }
  }
  return (*reader)->manifest().summary;
}

absl::Status DiskDaemon::CloseLease(SessionId session, const std::string& lease) {
  v1::CloseCheckpointRequest close;
  close.set_lease(lease);
  return Ask<v1::CloseCheckpointResponse>([&](Reply<v1::CloseCheckpointResponse> reply) {
           engine_->CloseCheckpoint(As(session), close, std::move(reply));
         })
      .status();
}

absl::Status DiskDaemon::CloseAll(SessionId session) {
  for (const std::string& lease : std::exchange(leases_, {}))
    CKPTD_RETURN_IF_ERROR(CloseLease(session, lease));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> DiskDaemon::Resume(const std::vector<SessionId>& sessions) {
  int64_t sequence = -1;
  for (size_t rank = 0; rank < sessions.size(); ++rank) {
    v1::ResumeRequest request;
    request.set_run(run_);
    request.set_rank(static_cast<int>(rank));
    CKPTD_ASSIGN_OR_RETURN(const v1::ResumeResponse answer,
                           Ask<v1::ResumeResponse>([&](Reply<v1::ResumeResponse> reply) {
                             engine_->Resume(As(sessions[rank]), request, std::move(reply));
                           }));
    if (sequence >= 0 && sequence != answer.checkpoint().sequence())
      return absl::InternalError("the ranks resumed from different checkpoints");
    sequence = answer.checkpoint().sequence();
    if (answer.lease().empty()) continue;
    CKPTD_RETURN_IF_ERROR(CloseLease(sessions[rank], answer.lease()));
  }
  return sequence;
}

}  // namespace ckptd
