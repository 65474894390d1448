#include "client/convert/nxd/nxd_zero.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/convert/files/output_tree.h"
#include "client/convert/files/staging.h"
#include "client/convert/files/stream_files.h"
#include "client/convert/nxd/nxd_output.h"
#include "client/convert/nxd/nxd_state.h"
#include "client/convert/nxd/zero_state.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

int64_t PlanBytes(const NxdFiles& files) {
  int64_t bytes = 0;
  for (const PlannedFile& file : files.files) {
    bytes += static_cast<int64_t>(sizeof(file) + file.path.size() + file.literals.size() +
                                  file.pieces.size() * sizeof(Piece));
  }
  return bytes;
}

class Conversion {
 public:
  using Progress = std::function<bool(const NxdZeroReport&, int64_t)>;
  Conversion(FileSystem& fs, Handle in, const NxdZeroOptions& options, const Progress& progress)
      : fs_(fs), in_(in), options_(options), progress_(progress) {}

  // Step 1.
  absl::Status Plan() {
    if (!options_.to_full && (options_.dp_size < 1 || options_.dp_size > kMaxShards)) {
      return InvalidArgument(
          absl::StrCat("dp_size is ", options_.dp_size, "; allowed are 1 to ", kMaxShards));
    }
    CKPTD_ASSIGN_OR_RETURN(report_.from, ScanNxdTag(fs_, in_, options_.allow_unfinished));
    report_.to_full = options_.to_full;
    report_.to_dp = options_.to_full ? 1 : options_.dp_size;
    if (report_.from.full && options_.to_full) {
      return MakeError(absl::StatusCode::kFailedPrecondition, "CANNOT_CONVERT",
                       "the state is already merged (optim/full_…); use --convert_to_sharded to make shards");
    }
    report_.carried_files = static_cast<int64_t>(report_.from.carried.size());
    for (const CarriedFile& file : report_.from.carried) report_.carried_bytes += file.size;
    return EachBatch([&](const std::vector<std::string>&, const NxdFiles& files) {
      for (const PlannedFile& file : files.files) {
        report_.optim_files += 1;
        report_.optim_bytes += file.size;
      }
      return Tell(0);
    });
  }

  // Steps 2 and 3.
  absl::Status Write(Handle parent, const std::string& name) {
    const OutputSize size = {.files = report_.optim_files + report_.carried_files,
                             .bytes = report_.total_bytes()};
    CKPTD_ASSIGN_OR_RETURN(OutputTree out,
                           OutputTree::Make(fs_, parent, name, size, options_.output, &report_.removed));
    report_.io_backend = out.io_backend();
    CKPTD_RETURN_IF_ERROR(out.MakeDir(kOptimDirectory));
    for (const std::string& path : report_.from.carried_directories) CKPTD_RETURN_IF_ERROR(out.MakeDir(path));
    CKPTD_RETURN_IF_ERROR(Carry(out));
    const absl::Status made = EachBatch([&](const std::vector<std::string>& inputs, const NxdFiles& files) {
      for (const std::string& path : files.directories) CKPTD_RETURN_IF_ERROR(out.MakeDir(path));
      return Stream(inputs, out, files.files);
    });
    CKPTD_RETURN_IF_ERROR(made);
    // NxD takes a directory with `done` for a checkpoint, and resumes from it. It would find no shards in a
    // merged state, so that gets no markers.
    if (!report_.to_full) {
      for (const char* marker : {"checkpoint", "done"})
        CKPTD_RETURN_IF_ERROR(WriteNewFile(fs_, out.dir(), marker, "1"));
    }
    return out.Publish();
  }

  NxdZeroReport TakeReport() { return std::move(report_); }

 private:
  absl::Status Tell(int64_t bytes) const {
    if (progress_(report_, bytes)) return absl::OkStatus();
    return MakeError(absl::StatusCode::kAborted, "INTERRUPTED", "the conversion was stopped before its end");
  }

  // Passes the plan of all new optimizer files to `work`, batch by batch. The plan refers to `inputs` by
  // index.
  absl::Status EachBatch(
      const std::function<absl::Status(const std::vector<std::string>& inputs, const NxdFiles&)>& work) {
    for (int pp = 0; pp < report_.from.pp; ++pp) {
      for (int tp = 0; tp < report_.from.tp; ++tp) {
        const absl::Status done = EachBatchOfGroup(tp, pp, work);
        if (!done.ok() && report_.from.tp * report_.from.pp > 1 && ReasonOf(done) == "CANNOT_CONVERT")
          return Annotate(done, absl::StrCat("tp rank ", tp, ", pp rank ", pp));
        CKPTD_RETURN_IF_ERROR(done);
      }
    }
    return absl::OkStatus();
  }

  absl::Status EachBatchOfGroup(
      int tp, int pp,
      const std::function<absl::Status(const std::vector<std::string>& inputs, const NxdFiles&)>& work) {
    CKPTD_ASSIGN_OR_RETURN(NxdStates states, LoadNxdStates(fs_, in_, report_.from, tp, pp));
    CKPTD_ASSIGN_OR_RETURN(const ZeroState state, ZeroState::Merge(fs_, in_, std::move(states),
                                                                   report_.from.full, options_.to_full));
    NxdFiles files;
    for (int dp = 0; dp < report_.to_dp; ++dp) {
      const std::string path = absl::StrCat(kOptimDirectory, "/", NxdOptimName(options_.to_full, dp, tp, pp));
      CKPTD_RETURN_IF_ERROR(PlanNxdFiles(state.Shard(dp, report_.to_dp), path, report_.from.xser, files));
      if (PlanBytes(files) < options_.plan_bytes) continue;
      CKPTD_RETURN_IF_ERROR(work(state.inputs(), files));
      files = {};
    }
    return files.files.empty() ? absl::OkStatus() : work(state.inputs(), files);
  }

  absl::Status Carry(OutputTree& out) {
    std::vector<std::string> inputs;
    std::vector<PlannedFile> files;
    for (const CarriedFile& carried : report_.from.carried) {
      PlannedFile file = {.path = carried.path, .size = carried.size, .literals = {}, .pieces = {}};
      if (carried.size > 0) {
        file.pieces.push_back(
            {.offset = 0, .size = carried.size, .input = static_cast<int>(inputs.size()), .from = 0});
      }
      inputs.push_back(carried.path);
      files.push_back(std::move(file));
    }
    return Stream(inputs, out, files);
  }

  absl::Status Stream(const std::vector<std::string>& inputs, OutputTree& out,
                      const std::vector<PlannedFile>& files) {
    CKPTD_RETURN_IF_ERROR(
        out.Stream(in_, inputs, files, [&](int64_t bytes) { return progress_(report_, written_ + bytes); }));
    for (const PlannedFile& file : files) written_ += file.size;
    return absl::OkStatus();
  }

  FileSystem& fs_;
  const Handle in_;
  const NxdZeroOptions& options_;
  const Progress& progress_;
  NxdZeroReport report_;
  int64_t written_ = 0;
};

}  // namespace

absl::StatusOr<NxdZeroReport> ConvertNxdZero(
    FileSystem& fs, Handle in, Handle parent, const std::string& name, const NxdZeroOptions& options,
    const std::function<bool(const NxdZeroReport& plan, int64_t bytes)>& progress) {
  Conversion conversion(fs, in, options, progress);
  CKPTD_RETURN_IF_ERROR(CheckFree(fs, parent, name));
  CKPTD_RETURN_IF_ERROR(conversion.Plan());
  if (!options.dry_run) CKPTD_RETURN_IF_ERROR(conversion.Write(parent, name));
  return conversion.TakeReport();
}

}  // namespace ckptd
