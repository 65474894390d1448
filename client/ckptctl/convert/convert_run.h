// What all conversions have in common: their directories, their progress, and Ctrl-C.
#ifndef CKPTD_CLIENT_CKPTCTL_CONVERT_CONVERT_RUN_H_
#define CKPTD_CLIENT_CKPTCTL_CONVERT_CONVERT_RUN_H_

#include <google/protobuf/struct.pb.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/ckptctl/commands/commands.h"
#include "client/ckptctl/commands/exit_codes.h"
#include "client/convert/convert_paths.h"
#include "client/convert/input_check.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/fs/file_system.h"

namespace ckptd::ctl {

struct ConvertDirs {
  ConvertPaths paths;
  std::unique_ptr<FileSystem> fs;
  ScopedHandle in, parent;  // The input, and the directory that the output will be in.
  bool is_checkpoint =
      true;          // The input is a checkpoint's directory, or a file of one that ckptd has committed.
  InputCheck check;  // Of the input. Empty before CheckInputOf.

  std::string output() const;  // The output's path.
};

// Opens only the input, whose path has no symbolic links. From now on SIGINT and SIGTERM make
// ConvertProgress::Say return false.
absl::StatusOr<ConvertDirs> OpenConvertInput(const std::string& input);

// Errors as of ResolveConvertPaths. From now on SIGINT and SIGTERM make ConvertProgress::Say return false.
absl::StatusOr<ConvertDirs> OpenConvertDirs(const std::string& input, const std::string& output);

// For an input that is one file: `in` is a directory that has it, and `file` its name there.
struct ConvertFileDirs {
  ConvertDirs dirs;
  std::string file;
};
// Errors as of ResolveConvertFile. Otherwise as OpenConvertDirs.
absl::StatusOr<ConvertFileDirs> OpenConvertFile(const std::string& input, const std::string& output);

// Shows progress: on a terminal a bar in one line, elsewhere a line from time to time, and nothing with JSON.
class ConvertProgress {
 public:
  // `verb` names the activity in the progress line: "converting".
  ConvertProgress(const Context& context, std::string verb)
      : context_(context), verb_(std::move(verb)), start_(SystemClock().Now()) {}
  ~ConvertProgress();

  // False if the user wants the conversion to stop.
  bool Say(int64_t total, int64_t bytes);

 private:
  void Show(int64_t total, int64_t bytes, double seconds);

  const Context& context_;
  const std::string verb_;
  Instant start_, last_;
  bool shown_ = false;
};

double Seconds(Duration duration);

// Prints the end of a conversion's report: whether the input was verified, the leftovers that the conversion
// has removed, and "converted in 2.9 s, 987 MiB/s".
void PrintEnd(const Context& context, const ConvertDirs& dirs, const std::vector<std::string>& removed,
              bool dry_run, int64_t bytes, double seconds);

// What the JSON of every conversion has: "input", "output", "dry_run", "removed", "seconds" and
// "verified_bytes".
google::protobuf::Struct CommonJson(const ConvertDirs& dirs, const std::vector<std::string>& removed,
                                    bool dry_run, double seconds);

// Compares the input with its manifest (client/convert/input_check.h), with progress, and stores the result
// in dirs.check. Every conversion calls it before it reads anything.
absl::Status CheckInputOf(const Context& context, ConvertDirs& dirs);

// Checks the input, converts with progress, and prints the report as text or as JSON. `convert` takes a
// ConvertProgress& and returns a StatusOr<Report>.
template <typename Report, typename Convert>
absl::StatusOr<ExitCode> RunConversion(
    const Context& context, ConvertDirs& dirs, bool dry_run, Convert convert,
    void (*print_text)(const Context&, const ConvertDirs&, const Report&, bool dry_run, double seconds),
    void (*print_json)(const Context&, const ConvertDirs&, const Report&, bool dry_run, double seconds)) {
  const Instant start = SystemClock().Now();
  CKPTD_RETURN_IF_ERROR(CheckInputOf(context, dirs));
  absl::StatusOr<Report> report;
  {
    ConvertProgress progress(context, "converting");
    report = convert(progress);
  }
  if (!report.ok()) return Annotate(report.status(), dirs.paths.input);
  const double seconds = Seconds(SystemClock().Now() - start);
  (context.json ? print_json : print_text)(context, dirs, *report, dry_run, seconds);
  return kOk;
}

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_CONVERT_CONVERT_RUN_H_
