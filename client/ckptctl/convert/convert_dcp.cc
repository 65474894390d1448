#include "client/ckptctl/convert/convert_dcp.h"

#include <ostream>

#include "absl/strings/str_cat.h"
#include "client/ckptctl/convert/convert_run.h"
#include "client/ckptctl/convert/weight_options.h"
#include "client/ckptctl/text/json.h"
#include "client/ckptctl/text/text.h"
#include "client/convert/dcp/dcp_to_safetensors.h"
#include "client/convert/dcp/dcp_to_torch.h"
#include "client/convert/dcp/torch_to_dcp.h"
#include "storage/base/status_macros.h"

namespace ckptd::ctl {
namespace {

constexpr size_t kMostShown = 10;  // Of the entries that were left out.

void PrintText(const Context& context, const ConvertDirs& dirs, const DcpReport& report, bool dry_run,
               double seconds) {
  std::ostream& out = *context.out;
  out << "from  " << Printable(dirs.paths.input) << "\n"
      << "to    " << Printable(dirs.output()) << "  (" << Plural(report.tensors, "tensor");
  if (report.values > 0) out << ", " << Plural(report.values, "other value");
  out << ", " << Plural(report.size.files, "file") << ", " << HumanBytes(report.size.bytes) << ")\n";
  for (size_t i = 0; i < report.left_out.size() && i < kMostShown; ++i)
    out << "left out: " << Printable(report.left_out[i]) << "\n";
  if (report.left_out.size() > kMostShown) {
    out << "left out: " << report.left_out.size() - kMostShown << " more; --output=json names all\n";
  }
  PrintEnd(context, dirs, report.removed, dry_run, report.size.bytes, seconds);
}

void PrintJson(const Context& context, const ConvertDirs& dirs, const DcpReport& report, bool dry_run,
               double seconds) {
  google::protobuf::Struct result = CommonJson(dirs, report.removed, dry_run, seconds);
  auto& fields = *result.mutable_fields();
  fields["tensors"] = JsonNumber(static_cast<double>(report.tensors));
  fields["values"] = JsonNumber(static_cast<double>(report.values));
  fields["bytes"] = JsonNumber(static_cast<double>(report.size.bytes));
  fields["files"] = JsonTexts(report.names);
  fields["left_out"] = JsonTexts(report.left_out);
  *context.out << ToJson(result);
}

// `convert` takes the function that shows progress, and returns a StatusOr<DcpReport>.
template <typename Convert>
absl::StatusOr<ExitCode> Run(const Context& context, ConvertDirs& dirs, bool dry_run, Convert convert) {
  return RunConversion<DcpReport>(
      context, dirs, dry_run,
      [&](ConvertProgress& progress) {
        return convert([&](int64_t total, int64_t bytes) { return progress.Say(total, bytes); });
      },
      PrintText, PrintJson);
}

}  // namespace

absl::StatusOr<ExitCode> ConvertDcpToTorch(const Context& context, const DcpArguments& arguments) {
  CKPTD_ASSIGN_OR_RETURN(ConvertDirs dirs, OpenConvertDirs(arguments.source, arguments.destination));
  const DcpToTorchOptions options = {.dry_run = arguments.dry_run};
  return Run(context, dirs, arguments.dry_run, [&](const auto& progress) {
    return ckptd::ConvertDcpToTorch(*dirs.fs, dirs.in.get(), dirs.parent.get(), dirs.paths.name, options,
                                    progress);
  });
}

absl::StatusOr<ExitCode> ConvertTorchToDcp(const Context& context, const DcpArguments& arguments) {
  CKPTD_ASSIGN_OR_RETURN(ConvertFileDirs opened, OpenConvertFile(arguments.source, arguments.destination));
  ConvertDirs& dirs = opened.dirs;
  const TorchToDcpOptions options = {.dry_run = arguments.dry_run};
  return Run(context, dirs, arguments.dry_run, [&](const auto& progress) {
    return ckptd::ConvertTorchToDcp(*dirs.fs, dirs.in.get(), opened.file, dirs.parent.get(), dirs.paths.name,
                                    options, progress);
  });
}

absl::StatusOr<ExitCode> ConvertDcpToSafetensors(const Context& context, const DcpArguments& arguments) {
  DcpToSafetensorsOptions options;
  options.prefix = arguments.prefix;
  options.dry_run = arguments.dry_run;
  CKPTD_ASSIGN_OR_RETURN(options.files.max_shard_bytes, ParseShardSize(arguments.max_shard_size));
  if (arguments.dtype) {
    CKPTD_ASSIGN_OR_RETURN(options.files.dtype, ParseWeightType(*arguments.dtype));
  }
  CKPTD_ASSIGN_OR_RETURN(ConvertDirs dirs, OpenConvertDirs(arguments.source, arguments.destination));
  return Run(context, dirs, arguments.dry_run, [&](const auto& progress) {
    return ckptd::ConvertDcpToSafetensors(*dirs.fs, dirs.in.get(), dirs.parent.get(), dirs.paths.name,
                                          options, progress);
  });
}

}  // namespace ckptd::ctl
