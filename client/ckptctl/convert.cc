#include "client/ckptctl/convert.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <memory>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ckptctl/json.h"
#include "client/ckptctl/text.h"
#include "client/convert/convert_paths.h"
#include "client/convert/nxd_zero.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd::ctl {
namespace {

constexpr auto kBarInterval = std::chrono::milliseconds(200);
constexpr auto kLineInterval = std::chrono::seconds(10);
constexpr int kBarWidth = 30;

std::atomic<bool> stop_wanted = false;

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// Shows progress: on a terminal a bar in one line, elsewhere a line from time to time, and nothing with JSON.
class Progress {
 public:
  explicit Progress(const Context& context) : context_(context), start_(SystemClock().Now()) {}
  ~Progress() {
    if (shown_) *context_.err << "\r\x1b[K" << std::flush;
  }

  bool Say(const NxdZeroReport& plan, int64_t bytes) {
    const Instant now = SystemClock().Now();
    if (bytes > 0 && !context_.json &&
        now - last_ >= (context_.live ? Duration(kBarInterval) : kLineInterval)) {
      last_ = now;
      Show(plan.total_bytes(), bytes, Seconds(now - start_));
    } else if (bytes == 0) {
      start_ = last_ = now;
    }
    return !stop_wanted;
  }

 private:
  void Show(int64_t total, int64_t bytes, double seconds) {
    const double share = total > 0 ? static_cast<double>(bytes) / static_cast<double>(total) : 1;
    const double rate = seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
    const std::string left =
        rate > 0 ? absl::StrCat(", ", HumanSeconds(static_cast<double>(total - bytes) / rate), " left") : "";
    const std::string words =
        absl::StrFormat("%3.0f %%  %s of %s, %s/s%s", share * 100, HumanBytes(bytes), HumanBytes(total),
                        HumanBytes(static_cast<int64_t>(rate)), left);
    if (!context_.live) {
      *context_.err << "converting " << words << "\n" << std::flush;
      return;
    }
    const int filled = static_cast<int>(share * kBarWidth);
    *context_.err << "\r\x1b[K[" << std::string(static_cast<size_t>(filled), '=')
                  << std::string(static_cast<size_t>(kBarWidth - filled), ' ') << "] " << words << std::flush;
    shown_ = true;
  }

  const Context& context_;
  Instant start_, last_;
  bool shown_ = false;
};

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

void PrintText(const Context& context, const ConvertPaths& paths, const NxdZeroReport& report, bool dry_run,
               double seconds) {
  const NxdTag& from = report.from;
  std::ostream& out = *context.out;
  out << "from  " << Printable(paths.input) << "  ("
      << Describe(from.full, from.dp, from.tp, from.pp, from.xser) << ")\n"
      << "to    " << Printable(paths.parent == "/" ? "" : paths.parent) << "/" << Printable(paths.name)
      << "  (" << Describe(report.to_full, report.to_dp, from.tp, from.pp, from.xser) << ")\n"
      << "optimizer: " << Plural(report.optim_files, "file") << ", " << HumanBytes(report.optim_bytes)
      << "; carried over: " << Plural(report.carried_files, "file") << ", "
      << HumanBytes(report.carried_bytes) << "\n";
  if (report.to_full) out << "not marked as a checkpoint: NxD loads only shards\n";
  for (const std::string& path : from.skipped)
    out << "skipped, not a file that NxD writes: " << Printable(path) << "\n";
  for (const std::string& name : report.removed)
    out << "removed the leftovers of a conversion that was killed: " << Printable(name) << "\n";
  if (dry_run) {
    out << "dry run: nothing was written\n";
    return;
  }
  const auto rate = static_cast<int64_t>(static_cast<double>(report.total_bytes()) / std::max(seconds, 1e-3));
  out << "converted in " << HumanSeconds(seconds) << ", " << HumanBytes(rate) << "/s\n";
}

void PrintJson(const Context& context, const ConvertPaths& paths, const NxdZeroReport& report, bool dry_run,
               double seconds) {
  google::protobuf::Struct result;
  auto& fields = *result.mutable_fields();
  const auto describe = [](google::protobuf::Value& value, bool full, int dp, const NxdTag& tag) {
    auto& entries = *value.mutable_struct_value()->mutable_fields();
    entries["kind"] = JsonText(full ? "full" : "sharded");
    entries["dp"] = JsonNumber(dp);
    entries["tp"] = JsonNumber(tag.tp);
    entries["pp"] = JsonNumber(tag.pp);
    entries["xser"] = JsonBool(tag.xser);
  };
  const auto list = [](google::protobuf::Value& value, const std::vector<std::string>& names) {
    value.mutable_list_value();
    for (const std::string& name : names) *value.mutable_list_value()->add_values() = JsonText(name);
  };
  fields["input"] = JsonText(paths.input);
  fields["output"] = JsonText(absl::StrCat(paths.parent == "/" ? "" : paths.parent, "/", paths.name));
  fields["dry_run"] = JsonBool(dry_run);
  describe(fields["from"], report.from.full, report.from.dp, report.from);
  describe(fields["to"], report.to_full, report.to_dp, report.from);
  fields["optim_files"] = JsonNumber(static_cast<double>(report.optim_files));
  fields["optim_bytes"] = JsonNumber(static_cast<double>(report.optim_bytes));
  fields["carried_files"] = JsonNumber(static_cast<double>(report.carried_files));
  fields["carried_bytes"] = JsonNumber(static_cast<double>(report.carried_bytes));
  list(fields["passed_over"], report.from.skipped);
  list(fields["removed"], report.removed);
  fields["seconds"] = JsonNumber(seconds);
  *context.out << ToJson(result);
}

}  // namespace

absl::StatusOr<ExitCode> ConvertNxdZero(const Context& context, const ConvertArguments& arguments) {
  CKPTD_ASSIGN_OR_RETURN(const NxdZeroOptions options, ParseOptions(arguments));
  CKPTD_ASSIGN_OR_RETURN(const ConvertPaths paths,
                         ResolveConvertPaths(arguments.input_dir, arguments.output_dir));
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<FileSystem> fs, MakePosixFileSystem());
  CKPTD_ASSIGN_OR_RETURN(const Handle in_handle, OpenRootDirectory(paths.input, std::nullopt));
  const ScopedHandle in(fs.get(), in_handle);
  CKPTD_ASSIGN_OR_RETURN(const Handle parent_handle, OpenRootDirectory(paths.parent, std::nullopt));
  const ScopedHandle parent(fs.get(), parent_handle);
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { stop_wanted = true; });
  const Instant start = SystemClock().Now();
  absl::StatusOr<NxdZeroReport> report;
  {
    Progress progress(context);
    report = ckptd::ConvertNxdZero(
        *fs, in.get(), parent.get(), paths.name, options,
        [&](const NxdZeroReport& plan, int64_t bytes) { return progress.Say(plan, bytes); });
  }
  if (!report.ok()) return Annotate(report.status(), paths.input);
  const double seconds = Seconds(SystemClock().Now() - start);
  (context.json ? PrintJson : PrintText)(context, paths, *report, arguments.dry_run, seconds);
  return kOk;
}

}  // namespace ckptd::ctl
