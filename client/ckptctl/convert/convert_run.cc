#include "client/ckptctl/convert/convert_run.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <optional>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ckptctl/text/json.h"
#include "client/ckptctl/text/text.h"
#include "storage/base/status_macros.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd::ctl {
namespace {

constexpr auto kBarInterval = std::chrono::milliseconds(200);
constexpr auto kLineInterval = std::chrono::seconds(10);
constexpr int kBarWidth = 30;

std::atomic<bool> stop_wanted = false;

absl::Status OpenOutputParent(ConvertPaths paths, ConvertDirs& dirs) {
  dirs.paths = std::move(paths);
  CKPTD_ASSIGN_OR_RETURN(const Handle parent, OpenRootDirectory(dirs.paths.parent, std::nullopt));
  dirs.parent = ScopedHandle(dirs.fs.get(), parent);
  return absl::OkStatus();
}

}  // namespace

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

void PrintEnd(const Context& context, const ConvertDirs& dirs, const std::vector<std::string>& removed,
              bool dry_run, int64_t bytes, double seconds) {
  std::ostream& out = *context.out;
  if (!dirs.check.committed) {
    out << "not verified: the input is no checkpoint of ckptd and has no checksums\n";
  } else {
    out << "verified: the checksums of " << HumanBytes(dirs.check.verified_bytes) << "\n";
  }
  for (const std::string& name : removed)
    out << "removed the leftovers of a conversion that was killed: " << Printable(name) << "\n";
  if (dry_run) {
    out << "dry run: nothing was written\n";
    return;
  }
  const auto rate = static_cast<int64_t>(static_cast<double>(bytes) / std::max(seconds, 1e-3));
  out << "converted in " << HumanSeconds(seconds) << ", " << HumanBytes(rate) << "/s\n";
}

google::protobuf::Struct CommonJson(const ConvertDirs& dirs, const std::vector<std::string>& removed,
                                    bool dry_run, double seconds) {
  google::protobuf::Struct result;
  auto& fields = *result.mutable_fields();
  fields["input"] = JsonText(dirs.paths.input);
  fields["output"] = JsonText(dirs.output());
  fields["dry_run"] = JsonBool(dry_run);
  fields["removed"] = JsonTexts(removed);
  fields["seconds"] = JsonNumber(seconds);
  fields["verified_bytes"] = JsonNumber(static_cast<double>(dirs.check.verified_bytes));
  return result;
}

absl::Status CheckInputOf(const Context& context, ConvertDirs& dirs) {
  if (!dirs.is_checkpoint) return absl::OkStatus();
  ConvertProgress progress(context, "checking");
  absl::StatusOr<InputCheck> check = CheckInput(
      *dirs.fs, dirs.in.get(), [&](int64_t total, int64_t bytes) { return progress.Say(total, bytes); });
  if (!check.ok()) return Annotate(check.status(), dirs.paths.input);
  dirs.check = *check;
  return absl::OkStatus();
}

std::string ConvertDirs::output() const {
  return absl::StrCat(paths.parent == "/" ? "" : paths.parent, "/", paths.name);
}

absl::StatusOr<ConvertDirs> OpenConvertInput(const std::string& input) {
  ConvertDirs dirs;
  dirs.paths.input = input;
  CKPTD_ASSIGN_OR_RETURN(dirs.fs, MakePosixFileSystem());
  CKPTD_ASSIGN_OR_RETURN(const Handle in, OpenRootDirectory(input, std::nullopt));
  dirs.in = ScopedHandle(dirs.fs.get(), in);
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { stop_wanted = true; });
  return dirs;
}

absl::StatusOr<ConvertDirs> OpenConvertDirs(const std::string& input, const std::string& output) {
  CKPTD_ASSIGN_OR_RETURN(ConvertPaths paths, ResolveConvertPaths(input, output));
  CKPTD_ASSIGN_OR_RETURN(ConvertDirs dirs, OpenConvertInput(paths.input));
  CKPTD_RETURN_IF_ERROR(OpenOutputParent(std::move(paths), dirs));
  return dirs;
}

absl::StatusOr<ConvertFileDirs> OpenConvertFile(const std::string& input, const std::string& output) {
  CKPTD_ASSIGN_OR_RETURN(auto resolved, ResolveConvertFile(input, output));
  auto& [file, paths] = resolved;
  ConvertFileDirs opened;
  CKPTD_ASSIGN_OR_RETURN(opened.dirs, OpenConvertInput(file.directory));
  CKPTD_RETURN_IF_ERROR(OpenOutputParent(std::move(paths), opened.dirs));
  opened.dirs.is_checkpoint = file.is_committed;
  opened.file = file.name;
  return opened;
}

ConvertProgress::~ConvertProgress() {
  if (shown_) *context_.err << "\r\x1b[K" << std::flush;
}

bool ConvertProgress::Say(int64_t total, int64_t bytes) {
  const Instant now = SystemClock().Now();
  if (bytes > 0 && !context_.json &&
      now - last_ >= (context_.live ? Duration(kBarInterval) : kLineInterval)) {
    last_ = now;
    Show(total, bytes, Seconds(now - start_));
  } else if (bytes == 0) {
    start_ = last_ = now;
  }
  return !stop_wanted;
}

void ConvertProgress::Show(int64_t total, int64_t bytes, double seconds) {
  const double share = total > 0 ? static_cast<double>(bytes) / static_cast<double>(total) : 1;
  const double rate = seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
  const std::string left =
      rate > 0 ? absl::StrCat(", ", HumanSeconds(static_cast<double>(total - bytes) / rate), " left") : "";
  const std::string words = absl::StrFormat("%3.0f %%  %s of %s, %s/s%s", share * 100, HumanBytes(bytes),
                                            HumanBytes(total), HumanBytes(static_cast<int64_t>(rate)), left);
  if (!context_.live) {
    *context_.err << verb_ << " " << words << "\n" << std::flush;
    return;
  }
  const int filled = static_cast<int>(share * kBarWidth);
  *context_.err << "\r\x1b[K[" << std::string(static_cast<size_t>(filled), '=')
                << std::string(static_cast<size_t>(kBarWidth - filled), ' ') << "] " << words << std::flush;
  shown_ = true;
}

}  // namespace ckptd::ctl
