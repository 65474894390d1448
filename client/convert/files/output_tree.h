// The directory that a conversion makes: it appears in its place in one step, complete and durable, or not at
// all (staging.h).
#ifndef CKPTD_CLIENT_CONVERT_FILES_OUTPUT_TREE_H_
#define CKPTD_CLIENT_CONVERT_FILES_OUTPUT_TREE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/convert/files/staging.h"
#include "client/convert/files/stream_files.h"
#include "storage/fs/file_system.h"
#include "storage/io/probe.h"

namespace ckptd {

struct OutputOptions {
  IoQueueMakers queues = {};
  int64_t chunk_bytes = 4 << 20;  // As in StreamOptions.
  int depth = 16;
};

struct OutputSize {
  int64_t files = 0;
  int64_t bytes = 0;
};

OutputSize SizeOf(const std::vector<PlannedFile>& files);

class OutputTree {
 public:
  // Makes the staging directory of `name` in `parent`. RESOURCE_EXHAUSTED, reason NO_SPACE, if the file
  // system has too little space for `size`. Other errors, and `removed`, as of Staging::Make.
  static absl::StatusOr<OutputTree> Make(FileSystem& fs, Handle parent, const std::string& name,
                                         const OutputSize& size, const OutputOptions& options,
                                         std::vector<std::string>* removed);

  Handle dir() const { return staging_.dir(); }
  const std::string& io_backend() const { return io_backend_; }

  // Makes a directory; its parent exists.
  absl::Status MakeDir(const std::string& path);
  // As StreamFiles, into this tree.
  absl::Status Stream(Handle in, const std::vector<std::string>& inputs,
                      const std::vector<PlannedFile>& files,
                      const std::function<bool(int64_t bytes)>& progress);
  // Syncs all directories, and renames the tree to its place. INDETERMINATE as of Staging::Publish.
  absl::Status Publish();
  // The output is one file, whose name is the output's, and not a directory. As Staging::PublishFile.
  absl::Status PublishFile() { return staging_.PublishFile(); }

 private:
  OutputTree(FileSystem* fs, Staging staging) : fs_(fs), staging_(std::move(staging)) {}

  absl::Status Prepare(const OutputSize& size, const OutputOptions& options);

  FileSystem* fs_;
  Staging staging_;
  StreamOptions stream_;
  std::string io_backend_;
  std::vector<std::string> directories_;
};

// Makes `name` in `parent`, a directory of these files, whose pieces come from `inputs` beneath `in`. Calls `progress` with
// the bytes to write and those written so far; if it returns false, the result is ABORTED, reason INTERRUPTED. After an
// error nothing is left behind, except if it is INDETERMINATE. Errors are those of OutputTree.
absl::Status WriteOutput(FileSystem& fs, Handle in, const std::vector<std::string>& inputs, Handle parent,
                         const std::string& name, const std::vector<PlannedFile>& files,
                         const OutputOptions& options,
                         const std::function<bool(int64_t total, int64_t bytes)>& progress,
                         std::vector<std::string>* removed);

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_FILES_OUTPUT_TREE_H_
