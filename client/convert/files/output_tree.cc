#include "client/convert/files/output_tree.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

// Space that a file system needs for each file beyond its bytes: its name and a partly filled block.
constexpr int64_t kRoomForFile = 4096;
constexpr int kFallbackThreads = 4;

}  // namespace

absl::StatusOr<OutputTree> OutputTree::Make(FileSystem& fs, Handle parent, const std::string& name,
                                            const OutputSize& size, const OutputOptions& options,
                                            std::vector<std::string>* removed) {
  CKPTD_ASSIGN_OR_RETURN(Staging staging, Staging::Make(fs, parent, name, removed));
  OutputTree tree(&fs, std::move(staging));
  CKPTD_RETURN_IF_ERROR(tree.Prepare(size, options));
  return tree;
}

absl::Status OutputTree::Prepare(const OutputSize& size, const OutputOptions& options) {
  CKPTD_ASSIGN_OR_RETURN(const ProbeResult probe,
                         ProbeDirectory(*fs_, dir(), IoBackend::kAuto, options.queues));
  const int64_t needed = size.bytes + size.files * kRoomForFile;
  if (probe.free_bytes < needed) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "NO_SPACE",
        absl::StrCat("the result needs ", needed, " bytes, and the file system of the output has ",
                     probe.free_bytes, " left"));
  }
  stream_.direct_writes = probe.direct_io;
  stream_.chunk_bytes = options.chunk_bytes;
  stream_.depth = options.depth;
  io_backend_ = probe.io_backend;
  // No buffered writes through io_uring: they block one another in kernel threads.
  if (probe.io_backend == "io_uring" && probe.direct_io) {
    stream_.queue = [make = options.queues.uring, depth = options.depth] { return make(4 * depth); };
  } else {
    io_backend_ = "threads";
    stream_.queue = [make = options.queues.threads] { return make(kFallbackThreads); };
  }
  return absl::OkStatus();
}

absl::Status OutputTree::MakeDir(const std::string& path) {
  CKPTD_RETURN_IF_ERROR(fs_->MakeDir(dir(), path));
  directories_.push_back(path);
  return absl::OkStatus();
}

absl::Status OutputTree::Stream(Handle in, const std::vector<std::string>& inputs,
                                const std::vector<PlannedFile>& files,
                                const std::function<bool(int64_t bytes)>& progress) {
  return StreamFiles(*fs_, in, inputs, dir(), files, stream_, progress);
}

absl::Status OutputTree::Publish() {
  for (auto path = directories_.rbegin(); path != directories_.rend(); ++path) {
    CKPTD_ASSIGN_OR_RETURN(const ScopedHandle made, OpenScoped(*fs_, dir(), *path, OpenMode::kDirectory));
    CKPTD_RETURN_IF_ERROR(fs_->Sync(made.get(), SyncMode::kAll));
  }
  CKPTD_RETURN_IF_ERROR(fs_->Sync(dir(), SyncMode::kAll));
  return staging_.Publish();
}

OutputSize SizeOf(const std::vector<PlannedFile>& files) {
  OutputSize size = {.files = static_cast<int64_t>(files.size()), .bytes = 0};
  for (const PlannedFile& file : files) size.bytes += file.size;
  return size;
}

absl::Status WriteOutput(FileSystem& fs, Handle in, const std::vector<std::string>& inputs, Handle parent,
                         const std::string& name, const std::vector<PlannedFile>& files,
                         const OutputOptions& options,
                         const std::function<bool(int64_t total, int64_t bytes)>& progress,
                         std::vector<std::string>* removed) {
  const OutputSize size = SizeOf(files);
  CKPTD_ASSIGN_OR_RETURN(OutputTree out, OutputTree::Make(fs, parent, name, size, options, removed));
  CKPTD_RETURN_IF_ERROR(
      out.Stream(in, inputs, files, [&](int64_t bytes) { return progress(size.bytes, bytes); }));
  return out.Publish();
}

}  // namespace ckptd
