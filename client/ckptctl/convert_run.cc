#include "client/ckptctl/convert_run.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <optional>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ckptctl/json.h"
#include "client/ckptctl/text.h"
#include "storage/base/status_macros.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd::ctl {
namespace {

constexpr auto kBarInterval = std::chrono::milliseconds(200);
constexpr auto kLineInterval = std::chrono::seconds(10);
constexpr int kBarWidth = 30;

std::atomic<bool> stop_wanted = false;

}  // namespace

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

void PrintEnd(const Context& context, const std::vector<std::string>& removed, bool dry_run, int64_t bytes,
              double seconds) {
  std::ostream& out = *context.out;
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
  return result;
}

std::string ConvertDirs::output() const {
  return absl::StrCat(paths.parent == "/" ? "" : paths.parent, "/", paths.name);
}

absl::StatusOr<ConvertDirs> OpenConvertDirs(const std::string& input, const std::string& output) {
  ConvertDirs dirs;
  CKPTD_ASSIGN_OR_RETURN(dirs.paths, ResolveConvertPaths(input, output));
  CKPTD_ASSIGN_OR_RETURN(dirs.fs, MakePosixFileSystem());
  CKPTD_ASSIGN_OR_RETURN(const Handle in, OpenRootDirectory(dirs.paths.input, std::nullopt));
  dirs.in = ScopedHandle(dirs.fs.get(), in);
  CKPTD_ASSIGN_OR_RETURN(const Handle parent, OpenRootDirectory(dirs.paths.parent, std::nullopt));
  dirs.parent = ScopedHandle(dirs.fs.get(), parent);
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { stop_wanted = true; });
  return dirs;
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
    *context_.err << "converting " << words << "\n" << std::flush;
    return;
  }
  const int filled = static_cast<int>(share * kBarWidth);
  *context_.err << "\r\x1b[K[" << std::string(static_cast<size_t>(filled), '=')
                << std::string(static_cast<size_t>(kBarWidth - filled), ' ') << "] " << words << std::flush;
  shown_ = true;
}

}  // namespace ckptd::ctl
