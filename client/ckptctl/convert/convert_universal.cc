#include <ostream>

#include "client/ckptctl/convert/convert_deepspeed.h"
#include "client/ckptctl/convert/convert_run.h"
#include "client/ckptctl/text/json.h"
#include "client/ckptctl/text/text.h"
#include "client/convert/deepspeed/ds_universal.h"
#include "storage/base/status_macros.h"

namespace ckptd::ctl {
namespace {

void PrintText(const Context& context, const ConvertDirs& dirs, const DsUniversalReport& report, bool dry_run,
               double seconds) {
  std::ostream& out = *context.out;
  out << "from  " << Printable(dirs.paths.input) << "  (ZeRO stage " << report.stage << ", dp " << report.dp
      << ", tp " << report.tp << ", pp " << report.pp << ")\n"
      << "to    " << Printable(dirs.output()) << "  (" << Plural(report.params, "parameter") << ", "
      << Plural(report.size.files, "file") << ", " << HumanBytes(report.size.bytes) << ")\n";
  for (const std::string& pattern : report.unused)
    out << "no parameter matches the pattern " << Printable(pattern) << "\n";
  PrintEnd(context, dirs, report.removed, dry_run, report.size.bytes, seconds);
}

void PrintJson(const Context& context, const ConvertDirs& dirs, const DsUniversalReport& report, bool dry_run,
               double seconds) {
  google::protobuf::Struct result = CommonJson(dirs, report.removed, dry_run, seconds);
  auto& fields = *result.mutable_fields();
  fields["stage"] = JsonNumber(report.stage);
  fields["dp"] = JsonNumber(report.dp);
  fields["tp"] = JsonNumber(report.tp);
  fields["pp"] = JsonNumber(report.pp);
  fields["parameters"] = JsonNumber(static_cast<double>(report.params));
  fields["files"] = JsonNumber(static_cast<double>(report.size.files));
  fields["bytes"] = JsonNumber(static_cast<double>(report.size.bytes));
  fields["unused_patterns"] = JsonTexts(report.unused);
  *context.out << ToJson(result);
}

}  // namespace

absl::StatusOr<ExitCode> ConvertDsToUniversal(const Context& context,
                                              const DsToUniversalArguments& arguments) {
  CKPTD_ASSIGN_OR_RETURN(ConvertDirs dirs, OpenConvertDirs(arguments.input_folder, arguments.output_folder));
  DsUniversalOptions options;
  options.inject_missing_state = arguments.inject_missing_state;
  options.strict = !arguments.no_strict;
  options.dry_run = arguments.dry_run;
  const auto convert = [&](ConvertProgress& progress) {
    return ckptd::ConvertDsToUniversal(
        *dirs.fs, dirs.in.get(), dirs.parent.get(), dirs.paths.name, options,
        [&](int64_t total, int64_t bytes) { return progress.Say(total, bytes); });
  };
  return RunConversion<DsUniversalReport>(context, dirs, arguments.dry_run, convert, PrintText, PrintJson);
}

}  // namespace ckptd::ctl
