#include <nlohmann/json.hpp>
#include <ostream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/ckptctl/convert/convert_deepspeed.h"
#include "client/ckptctl/convert/convert_run.h"
#include "client/ckptctl/convert/weight_options.h"
#include "client/ckptctl/text/json.h"
#include "client/ckptctl/text/text.h"
#include "client/convert/deepspeed/ds_weights.h"
#include "client/convert/deepspeed/zero_to_fp32.h"
#include "storage/base/errors.h"
#include "storage/base/real_path.h"
#include "storage/base/status_macros.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd::ctl {
namespace {

constexpr int64_t kMaxTagBytes = 4096;

// The directory of the tag: `tag`, or what the file `latest` names, in `checkpoint_dir`. Without both it is
// `checkpoint_dir` itself.
absl::StatusOr<std::string> TagDirectory(const std::string& checkpoint_dir, std::optional<std::string> tag) {
  CKPTD_ASSIGN_OR_RETURN(const std::string top, RealPath(checkpoint_dir));
  if (!tag) {
    CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<FileSystem> fs, MakePosixFileSystem());
    CKPTD_ASSIGN_OR_RETURN(const Handle handle, OpenRootDirectory(top, std::nullopt));
    const ScopedHandle dir(fs.get(), handle);
    const absl::StatusOr<std::string> latest = ReadSmallFile(*fs, dir.get(), "latest", kMaxTagBytes);
    if (absl::IsNotFound(latest.status())) return top;
    if (!latest.ok()) return Annotate(latest.status(), absl::StrCat(top, "/latest"));
    tag = std::string(absl::StripAsciiWhitespace(*latest));
  }
  const absl::StatusOr<std::string> path = RealPath(absl::StrCat(top, "/", *tag));
  if (!path.ok()) return Annotate(path.status(), absl::StrCat("the checkpoint's tag ", *tag));
  return path;
}

absl::StatusOr<ZeroToFp32Options> ParseOptions(const ZeroToFp32Arguments& arguments) {
  ZeroToFp32Options options;
  options.exclude_frozen = arguments.exclude_frozen_parameters;
  options.dry_run = arguments.dry_run;
  options.files.safetensors = arguments.safe_serialization;
  CKPTD_ASSIGN_OR_RETURN(options.files.max_shard_bytes, ParseShardSize(arguments.max_shard_size));
  CKPTD_ASSIGN_OR_RETURN(options.files.dtype, ParseWeightType(arguments.dtype));
  return options;
}

const char* KindText(Weight::Kind kind) {
  switch (kind) {
    case Weight::Kind::kBuffer:
      return "buffer";
    case Weight::Kind::kFrozen:
      return "frozen";
    case Weight::Kind::kTrained:
      break;
  }
  return "trained";
}

absl::StatusOr<ExitCode> PrintPlan(const Context& context, const ZeroToFp32Arguments& arguments,
                                   const std::string& tag) {
  // The caller reads the ranges of the plan, so the bytes are checked here.
  CKPTD_ASSIGN_OR_RETURN(ConvertDirs dirs, OpenConvertInput(tag));
  CKPTD_RETURN_IF_ERROR(CheckInputOf(context, dirs));
  const absl::StatusOr<DsWeights> gathered =
      GatherDsWeights(*dirs.fs, dirs.in.get(), arguments.exclude_frozen_parameters);
  if (!gathered.ok()) return Annotate(gathered.status(), tag);
  nlohmann::json weights = nlohmann::json::array();
  for (const Weight& weight : gathered->weights) {
    nlohmann::json ranges = nlohmann::json::array();
    for (const SourceRange& range : weight.ranges) ranges.push_back({range.input, range.from, range.size});
    weights.push_back({{"name", weight.name},
                       {"kind", KindText(weight.kind)},
                       {"dtype", std::string(InfoOf(weight.dtype).torch_name)},
                       {"shape", weight.shape},
                       {"ranges", std::move(ranges)},
                       {"tied_to", weight.tied_to}});
  }
  const nlohmann::json plan = {{"input", tag},
                               {"verified_bytes", dirs.check.verified_bytes},
                               {"stage", gathered->stage},
                               {"ranks", gathered->ranks},
                               {"files", gathered->inputs},
                               {"weights", std::move(weights)}};
  *context.out << plan.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << "\n";
  return kOk;
}

void PrintText(const Context& context, const ConvertDirs& dirs, const ZeroToFp32Report& report, bool dry_run,
               double seconds) {
  std::ostream& out = *context.out;
  out << "from  " << Printable(dirs.paths.input) << "  (ZeRO stage " << report.stage << ", "
      << Plural(report.ranks, "rank") << ")\n"
      << "to    " << Printable(dirs.output()) << "  (" << Plural(report.weights, "weight") << ", "
      << Plural(report.size.files, "file") << ", " << HumanBytes(report.size.bytes) << ")\n";
  PrintEnd(context, dirs, report.removed, dry_run, report.size.bytes, seconds);
}

void PrintJson(const Context& context, const ConvertDirs& dirs, const ZeroToFp32Report& report, bool dry_run,
               double seconds) {
  google::protobuf::Struct result = CommonJson(dirs, report.removed, dry_run, seconds);
  auto& fields = *result.mutable_fields();
  fields["stage"] = JsonNumber(report.stage);
  fields["ranks"] = JsonNumber(report.ranks);
  fields["weights"] = JsonNumber(static_cast<double>(report.weights));
  fields["bytes"] = JsonNumber(static_cast<double>(report.size.bytes));
  fields["files"] = JsonTexts(report.names);
  *context.out << ToJson(result);
}

}  // namespace

absl::StatusOr<ExitCode> ConvertZeroToFp32(const Context& context, const ZeroToFp32Arguments& arguments) {
  CKPTD_ASSIGN_OR_RETURN(const ZeroToFp32Options options, ParseOptions(arguments));
  if (arguments.output_dir.empty() != arguments.plan)
    return InvalidArgument(arguments.plan ? "--plan writes no files: leave out OUTPUT_DIR"
                                          : "OUTPUT_DIR is required");
  CKPTD_ASSIGN_OR_RETURN(const std::string tag, TagDirectory(arguments.checkpoint_dir, arguments.tag));
  if (arguments.plan) return PrintPlan(context, arguments, tag);
  CKPTD_ASSIGN_OR_RETURN(ConvertDirs dirs, OpenConvertDirs(tag, arguments.output_dir));
  const auto convert = [&](ConvertProgress& progress) {
    return ckptd::ConvertZeroToFp32(*dirs.fs, dirs.in.get(), dirs.parent.get(), dirs.paths.name, options,
                                    [&](int64_t total, int64_t bytes) { return progress.Say(total, bytes); });
  };
  return RunConversion<ZeroToFp32Report>(context, dirs, arguments.dry_run, convert, PrintText, PrintJson);
}

}  // namespace ckptd::ctl
