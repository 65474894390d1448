#include "client/ckptctl/convert/convert.h"

#include <ostream>

#include "absl/strings/str_cat.h"
#include "client/ckptctl/convert/convert_run.h"
#include "client/ckptctl/text/json.h"
#include "client/ckptctl/text/text.h"
#include "client/convert/nxd/nxd_zero.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd::ctl {
namespace {

absl::Status Usage(const std::string& why) { return InvalidArgument(why); }

absl::StatusOr<NxdZeroOptions> ParseOptions(const ConvertArguments& arguments) {
  if (arguments.to_full == arguments.to_sharded) {
    return Usage(absl::StrCat(arguments.to_full ? "both" : "neither",
                              " of --convert_to_full and --convert_to_sharded given; give exactly one"));
  }
  if (arguments.to_sharded && !arguments.dp_size.has_value()) {
    return Usage(
        "--convert_to_sharded needs --dp_size N, the number of data-parallel ranks that will load the "
        "result");
  }
  if (arguments.to_full && arguments.dp_size.has_value())
    return Usage("--dp_size is only for --convert_to_sharded: a merged state has no shards");
  if (arguments.dp_size.has_value() && (*arguments.dp_size < 1 || *arguments.dp_size > kMaxShards)) {
    return Usage(absl::StrCat("--dp_size is ", *arguments.dp_size, "; allowed are 1 to ", kMaxShards));
  }
  NxdZeroOptions options;
  options.to_full = arguments.to_full;
  options.dp_size = static_cast<int>(arguments.dp_size.value_or(1));
  options.dry_run = arguments.dry_run;
  options.allow_unfinished = arguments.force;
  return options;
}

std::string Describe(bool full, int dp, int tp, int pp, bool xser) {
  return absl::StrCat(full ? "merged" : absl::StrCat("dp ", dp), ", tp ", tp, ", pp ", pp,
                      xser ? ", xser" : "");
}

void PrintText(const Context& context, const ConvertDirs& dirs, const NxdZeroReport& report, bool dry_run,
               double seconds) {
  const NxdTag& from = report.from;
  std::ostream& out = *context.out;
  out << "from  " << Printable(dirs.paths.input) << "  ("
      << Describe(from.full, from.dp, from.tp, from.pp, from.xser) << ")\n"
      << "to    " << Printable(dirs.output()) << "  ("
      << Describe(report.to_full, report.to_dp, from.tp, from.pp, from.xser) << ")\n"
      << "optimizer: " << Plural(report.optim_files, "file") << ", " << HumanBytes(report.optim_bytes)
      << "; carried over: " << Plural(report.carried_files, "file") << ", "
      << HumanBytes(report.carried_bytes) << "\n";
  if (report.to_full) out << "not marked as a checkpoint: NxD loads only shards\n";
  for (const std::string& path : from.skipped)
    out << "skipped, not a file that NxD writes: " << Printable(path) << "\n";
  PrintEnd(context, dirs, report.removed, dry_run, report.total_bytes(), seconds);
}

void PrintJson(const Context& context, const ConvertDirs& dirs, const NxdZeroReport& report, bool dry_run,
               double seconds) {
  google::protobuf::Struct result = CommonJson(dirs, report.removed, dry_run, seconds);
  auto& fields = *result.mutable_fields();
  const auto describe = [](google::protobuf::Value& value, bool full, int dp, const NxdTag& tag) {
    auto& entries = *value.mutable_struct_value()->mutable_fields();
    entries["kind"] = JsonText(full ? "full" : "sharded");
    entries["dp"] = JsonNumber(dp);
    entries["tp"] = JsonNumber(tag.tp);
    entries["pp"] = JsonNumber(tag.pp);
    entries["xser"] = JsonBool(tag.xser);
  };
  describe(fields["from"], report.from.full, report.from.dp, report.from);
  describe(fields["to"], report.to_full, report.to_dp, report.from);
  fields["optim_files"] = JsonNumber(static_cast<double>(report.optim_files));
  fields["optim_bytes"] = JsonNumber(static_cast<double>(report.optim_bytes));
  fields["carried_files"] = JsonNumber(static_cast<double>(report.carried_files));
  fields["carried_bytes"] = JsonNumber(static_cast<double>(report.carried_bytes));
  fields["passed_over"] = JsonTexts(report.from.skipped);
  *context.out << ToJson(result);
}

}  // namespace

absl::StatusOr<ExitCode> ConvertNxdZero(const Context& context, const ConvertArguments& arguments) {
  CKPTD_ASSIGN_OR_RETURN(const NxdZeroOptions options, ParseOptions(arguments));
  CKPTD_ASSIGN_OR_RETURN(ConvertDirs dirs, OpenConvertDirs(arguments.input_dir, arguments.output_dir));
  const auto convert = [&](ConvertProgress& progress) {
    return ckptd::ConvertNxdZero(
        *dirs.fs, dirs.in.get(), dirs.parent.get(), dirs.paths.name, options,
        [&](const NxdZeroReport& plan, int64_t bytes) { return progress.Say(plan.total_bytes(), bytes); });
  };
  return RunConversion<NxdZeroReport>(context, dirs, arguments.dry_run, convert, PrintText, PrintJson);
}

}  // namespace ckptd::ctl
