// HistoryStore keeps the entries of each root in one file of the state directory, over restarts.
//
// The file has one entry in a line, as JSON of ckptd.v1.HistoryEntry. Each entry is one append: a daemon that
// is killed leaves at most one incomplete line, which readers pass over, and the next append begins a line of
// its own. A file that has grown beyond its limit is replaced by one with its newer half. Files are not
// synced: a machine that loses power may lose the last entries, and writing them delays no save.
#ifndef CKPTD_DAEMON_HISTORY_HISTORY_STORE_H_
#define CKPTD_DAEMON_HISTORY_HISTORY_STORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"
#include "daemon/base/worker_pool.h"
#include "daemon/engine/seams/engine_types.h"

namespace ckptd {

// Thread-safe. Never fails its callers: what cannot be written is dropped, with one warning until a write
// succeeds again.
class HistoryStore {
 public:
  struct Options {
    std::string directory;           // Made with the first entry; its parent must exist.
    int64_t file_bytes = 512 << 10;  // Of one root. A longer file is halved.
    int files_per_uid = 256;         // A new root's file takes the place of the user's least recently used.
    int pending_entries = 4096;      // Entries that wait for a disk which hangs; more are dropped.
    std::function<void(const std::string&)> warn;  // Runs on the store's thread.
    std::function<void()> dropped;                 // An entry was lost. Runs on any thread.
    // Runs answers, on the thread that the caller wants them on.
    std::function<void(absl::AnyInvocable<void()>)> post;
  };
  explicit HistoryStore(Options options);
  // Writes what is pending. Blocks as long as the disk does.
  ~HistoryStore();

  // Returns at once.
  void Add(RootKey root, v1::HistoryEntry entry);
  // Answers with the entries that were added before, newest first. INVALID_ARGUMENT for a wrong request; the
  // error of reading the file.
  void Read(RootKey root, v1::GetHistoryRequest request, Reply<v1::GetHistoryResponse> reply);

 private:
  absl::Status Append(const RootKey& root, const std::string& line);
  absl::Status MakePlace(const RootKey& root);
  absl::Status Halve(const std::string& path) const;
  absl::StatusOr<v1::GetHistoryResponse> ReadNow(const RootKey& root,
                                                 const v1::GetHistoryRequest& request) const;
  std::string PathOf(const RootKey& root) const;

  const Options options_;
  bool failing_ = false;  // The warning was given. On the store's thread.
  std::atomic<int> pending_ = 0;
  WorkerPool thread_{1};  // The last member: it ends before what it uses.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_HISTORY_HISTORY_STORE_H_
