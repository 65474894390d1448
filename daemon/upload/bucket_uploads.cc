#include "daemon/upload/bucket_uploads.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/idle_priority.h"
#include "storage/base/status_macros.h"
#include "storage/bucket/fetch.h"
#include "storage/bucket/index.h"
#include "storage/bucket/list.h"
#include "storage/bucket/remove.h"
#include "storage/bucket/transfer.h"
#include "storage/bucket/upload.h"
#include "storage/object/bucket_url.h"
#include "storage/object/s3_store.h"

namespace ckptd {
namespace {

using storage::v1::UploadedCheckpoint;

constexpr int kUploads = 2;  // At a time.
constexpr int kFetches = 2;
constexpr int kListThreads = 8;
constexpr Duration kLimit = std::chrono::seconds(60);
// Shorter than a rank waits to resume by default: it is told the store's error.
constexpr Duration kListLimit = std::chrono::seconds(20);

absl::Status CheckMayGoOn(const UploadIo::MayGoOn& may_go_on) {
  if (may_go_on == nullptr || may_go_on()) return absl::OkStatus();
  return absl::CancelledError("another node goes on with it");
}

// Runs the work on a thread that ends with it, because a thread keeps the idle priority. The caller's thread,
// which takes locks that the engine needs, waits for it.
template <typename T>
T AtIdlePriority(absl::AnyInvocable<T()> work) {
  T result;
  std::thread thread([&] {
    SetIdlePriority();
    result = work();
  });
  thread.join();
  return result;
}

}  // namespace

// What uploads use on their threads, also when the root's UploadIo is gone.
struct BucketUploads::Shared {
  explicit Shared(Options given) : options(std::move(given)), rate(options.bytes_per_second) {}

  absl::StatusOr<std::unique_ptr<ObjectStore>> Open(const BucketUrl& url, Duration limit = kLimit,
                                                    UploadIo::MayGoOn may_go_on = nullptr) {
    return options.open_store(url.bucket, limit, [this, may_go_on = std::move(may_go_on)] {
      return rate.is_stopped() || !CheckMayGoOn(may_go_on).ok();
    });
  }

  TransferOptions Transfer(std::shared_ptr<std::atomic<int64_t>> arrived) const {
    TransferOptions transfer;
    transfer.threads = options.parallel_parts;
    transfer.progress = [arrived = std::move(arrived)](int64_t bytes) {
      arrived->store(bytes, std::memory_order_relaxed);
    };
    return transfer;
  }

  Options options;
  UploadRate rate;
};

class BucketUploads::Io : public UploadIo {
 public:
  Io(std::shared_ptr<Shared> shared, WorkerPool* threads, WorkerPool* fetches, UniqueFd directory,
     FileUser user)
      : shared_(std::move(shared)),
        threads_(threads),
        fetches_(fetches),
        root_(std::make_shared<Root>(Root{std::move(directory), std::move(user)})) {}

  absl::Status Check(const std::string& url) const override {
    return CheckUpload(shared_->options.rights, root_->user.uid, url);
  }

  void Upload(std::string url, UploadedCheckpoint checkpoint, MayGoOn may_go_on,
              std::shared_ptr<std::atomic<int64_t>> arrived,
              absl::AnyInvocable<void(absl::StatusOr<int64_t>)> done) override {
    Run<absl::StatusOr<int64_t>>(
        threads_,
        [shared = shared_, root = root_, allowed = Check(url), url, checkpoint = std::move(checkpoint),
         may_go_on = std::move(may_go_on), arrived = std::move(arrived)]() -> absl::StatusOr<int64_t> {
          CKPTD_RETURN_IF_ERROR(allowed);
          CKPTD_RETURN_IF_ERROR(CheckMayGoOn(may_go_on));
          CKPTD_ASSIGN_OR_RETURN(const BucketUrl place, ParseBucketUrl(url));
          CKPTD_ASSIGN_OR_RETURN(const std::unique_ptr<FileSystem> fs, MakePosixFileSystem(root->user));
          CKPTD_ASSIGN_OR_RETURN(const ScopedHandle directory,
                                 OpenScoped(*fs, root->directory.get(), ".", OpenMode::kDirectory));
          CKPTD_ASSIGN_OR_RETURN(const std::unique_ptr<ObjectStore> store,
                                 shared->Open(place, kLimit, may_go_on));
          TransferOptions options = shared->Transfer(arrived);
          options.admit = [shared, may_go_on](int64_t bytes) -> absl::Status {
            CKPTD_RETURN_IF_ERROR(shared->rate.Admit(bytes));
            return CheckMayGoOn(may_go_on);
          };
          CKPTD_ASSIGN_OR_RETURN(const UploadResult result,
                                 UploadCheckpoint(*fs, directory.get(), checkpoint.tag(), *store,
                                                  place.prefix, options, checkpoint.sequence()));
          return result.sent_bytes;
        },
        std::move(done));
  }

  void Remove(std::string url, UploadedCheckpoint checkpoint, MayGoOn may_go_on,
              absl::AnyInvocable<void(absl::Status)> done) override {
    Run<absl::Status>(
        threads_,
        [shared = shared_, allowed = Check(url), url, checkpoint = std::move(checkpoint),
         may_go_on = std::move(may_go_on)]() -> absl::Status {
          CKPTD_RETURN_IF_ERROR(allowed);
          CKPTD_RETURN_IF_ERROR(CheckMayGoOn(may_go_on));
          CKPTD_ASSIGN_OR_RETURN(const BucketUrl place, ParseBucketUrl(url));
          CKPTD_ASSIGN_OR_RETURN(const std::unique_ptr<ObjectStore> store,
                                 shared->Open(place, kLimit, may_go_on));
          return RemoveUploaded(*store, place.prefix, checkpoint.tag(), checkpoint.sequence(),
                                checkpoint.commit_time_us(),
                                checkpoint.given_up() ? RemoveWhat::kUnfinished : RemoveWhat::kAll);
        },
        std::move(done));
  }

  void List(std::string url, absl::AnyInvocable<void(absl::StatusOr<Contents>)> done) override {
    Run<absl::StatusOr<Contents>>(
        fetches_,
        [shared = shared_, threads = threads_, allowed = Check(url), url]() -> absl::StatusOr<Contents> {
          CKPTD_RETURN_IF_ERROR(allowed);
          CKPTD_ASSIGN_OR_RETURN(const BucketUrl place, ParseBucketUrl(url));
          CKPTD_ASSIGN_OR_RETURN(const std::unique_ptr<ObjectStore> store, shared->Open(place, kListLimit));
          CKPTD_ASSIGN_OR_RETURN(BucketList list,
                                 ListBucket(*store, place.prefix, kListThreads, ListDetail::kAsNamed));
          Contents contents;
          for (BucketCheckpoint& found : list.checkpoints)
            contents.checkpoints.push_back({std::move(found.summary), found.by_daemon});
          for (const auto& [tag, why] : list.damaged)
            contents.damaged.push_back(absl::StrCat(url, "/", tag, ": ", std::string(why.message())));
          Repair(shared, threads, place, std::move(list.repairs));
          return contents;
        },
        std::move(done));
  }

  void Fetch(std::string url, std::string tag, Term term, std::shared_ptr<std::atomic<int64_t>> arrived,
             absl::AnyInvocable<void(absl::Status)> done) override {
    Run<absl::Status>(
        fetches_,
        [shared = shared_, root = root_, allowed = Check(url), url, tag = std::move(tag),
         term = std::move(term), arrived = std::move(arrived)]() -> absl::Status {
          CKPTD_RETURN_IF_ERROR(allowed);
          CKPTD_ASSIGN_OR_RETURN(const BucketUrl place, ParseBucketUrl(url));
          CKPTD_ASSIGN_OR_RETURN(const std::unique_ptr<FileSystem> fs, MakePosixFileSystem(root->user));
          CKPTD_ASSIGN_OR_RETURN(const ScopedHandle directory,
                                 OpenScoped(*fs, root->directory.get(), ".", OpenMode::kDirectory));
          CKPTD_ASSIGN_OR_RETURN(const std::unique_ptr<ObjectStore> store,
                                 shared->Open(place, kLimit, term.may_go_on));
          const FetchTerm fetch{term.number, [&term] { return CheckMayGoOn(term.may_go_on); }};
          return FetchCheckpoint(*store, place.prefix, tag, *fs, directory.get(), shared->Transfer(arrived),
                                 fetch)
              .status();
        },
        std::move(done));
  }

 private:
  struct Root {
    UniqueFd directory;
    FileUser user;
  };

  // For the next list. No rank waits for it, and the next one tries again what has failed.
  static void Repair(const std::shared_ptr<Shared>& shared, WorkerPool* threads, const BucketUrl& place,
                     IndexRepairs repairs) {
    if (repairs.missing.empty() && repairs.wrong.empty()) return;
    threads->Submit([shared, place, repairs = std::move(repairs)] {
      const absl::StatusOr<std::unique_ptr<ObjectStore>> store = shared->Open(place);
      if (store.ok()) RepairIndex(**store, place.prefix, repairs, kListThreads).IgnoreError();
    });
  }

  // `done` runs on the engine's thread, unless this object is gone by then.
  template <typename T>
  void Run(WorkerPool* on, absl::AnyInvocable<T()> work, absl::AnyInvocable<void(T)> done) {
    on->Submit([shared = shared_, is_idle = on == threads_, alive = std::weak_ptr<char>(alive_),
                work = std::move(work), done = std::move(done)]() mutable {
      if (shared->rate.is_stopped()) return;
      T result = is_idle ? AtIdlePriority<T>(std::move(work)) : work();
      shared->options.post(
          [alive = std::move(alive), done = std::move(done), result = std::move(result)]() mutable {
            if (!alive.expired()) done(std::move(result));
          });
    });
  }

  const std::shared_ptr<Shared> shared_;
  WorkerPool* const threads_;
  WorkerPool* const fetches_;
  const std::shared_ptr<Root> root_;
  const std::shared_ptr<char> alive_ = std::make_shared<char>();
};

BucketUploads::BucketUploads(Options options)
    : shared_(std::make_shared<Shared>(std::move(options))), threads_(kUploads), fetches_(kFetches) {}

BucketUploads::~BucketUploads() { shared_->rate.Stop(); }

absl::Status BucketUploads::CheckRights(uid_t uid, const std::string& url) const {
  return CheckUpload(shared_->options.rights, uid, url);
}

std::unique_ptr<UploadIo> BucketUploads::ForRoot(UniqueFd directory, FileUser user) {
  return std::make_unique<Io>(shared_, &threads_, &fetches_, std::move(directory), std::move(user));
}

}  // namespace ckptd
