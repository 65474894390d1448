// `verify`: checks what is on disk, without a daemon.
#include "storage/commit/verify.h"

#include <sys/stat.h>

#include <cstdlib>
#include <optional>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/ckptctl/commands.h"
#include "client/ckptctl/json.h"
#include "client/ckptctl/text.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/format/names.h"
#include "storage/fs/posix_file_system.h"

namespace ckptd::ctl {
namespace {

bool Exists(const std::string& path) {
  struct stat stat;
  return ::stat(path.c_str(), &stat) == 0;
}

struct Target {
  std::string root;
  std::string tag;  // Empty: all of the root's checkpoints.
};

// A directory with a manifest is a checkpoint, and one with a .ckptd is a root. A path that is missing or an
// empty directory may still be ROOT/TAG.
absl::StatusOr<Target> ParseTarget(const std::string& what) {
  char* real = realpath(what.c_str(), nullptr);
  if (real == nullptr) return ErrnoError(errno, what);
  std::string path(real);
  std::free(real);
  const size_t slash = path.rfind('/');
  const std::string parent = slash == 0 ? "/" : path.substr(0, slash);
  const std::string ours = absl::StrCat("/", std::string(kOurDirectory));
  if (Exists(absl::StrCat(path, ours, "/", std::string(kManifestName))))
    return Target{parent, path.substr(slash + 1)};
  if (Exists(path + ours)) return Target{path, ""};
  if (Exists(parent + ours)) return Target{parent, path.substr(slash + 1)};
  return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                   absl::StrCat(what, " is neither a root nor a checkpoint of ckptd: it has no ",
                                std::string(kOurDirectory),
                                "; name the directory that holds the checkpoints, or one of them"));
}

// Shows "verifying step_100: 1.2 GiB" in one line of the terminal, overwritten each time.
class Progress {
 public:
  explicit Progress(const Context& context) : context_(context) {}
  void Show(const std::string& tag, int64_t bytes) {
    const Instant now = SystemClock().Now();
    if (!context_.live || now < next_) return;
    next_ = now + std::chrono::milliseconds(100);
    shown_ = true;
    *context_.err << "\r\x1b[K"
                  << "verifying " << Printable(tag) << ": " << HumanBytes(bytes) << std::flush;
  }
  ~Progress() {
    if (shown_) *context_.err << "\r\x1b[K" << std::flush;
  }

 private:
  const Context& context_;
  Instant next_;
  bool shown_ = false;
};

google::protobuf::Value ToValue(const VerifyReport& report) {
  google::protobuf::Value value;
  auto& fields = *value.mutable_struct_value()->mutable_fields();
  const storage::v1::ManifestSummary& summary = report.manifest.summary;
  fields["tag"] = JsonText(report.tag);
  fields["ok"] = JsonBool(report.problems.empty());
  fields["sequence"] = JsonNumber(static_cast<double>(summary.sequence()));
  if (summary.has_step()) fields["step"] = JsonNumber(static_cast<double>(summary.step()));
  fields["size_bytes"] = JsonNumber(static_cast<double>(summary.size_bytes()));
  fields["verified_bytes"] = JsonNumber(static_cast<double>(report.verified_bytes));
  fields["file_count"] = JsonNumber(summary.file_count());
  auto& problems = *fields["problems"].mutable_list_value();
  for (const VerifyProblem& problem : report.problems) {
    auto& entry = *problems.add_values()->mutable_struct_value()->mutable_fields();
    entry["path"] = JsonText(problem.path);
    entry["chunk"] = JsonNumber(static_cast<double>(problem.chunk));
    entry["message"] = JsonText(problem.message);
  }
  return value;
}

void PrintJson(const Context& context, const std::string& root, const std::vector<VerifyReport>& reports,
               bool ok) {
  google::protobuf::Struct result;
  auto& fields = *result.mutable_fields();
  fields["root"] = JsonText(root);
  fields["ok"] = JsonBool(ok);
  auto& list = *fields["checkpoints"].mutable_list_value();
  for (const VerifyReport& report : reports) *list.add_values() = ToValue(report);
  *context.out << ToJson(result);
}

void PrintText(const Context& context, const std::string& root, const std::vector<VerifyReport>& reports) {
  Table table({"TAG", "STEP", "SEQUENCE", "SIZE", "FILES", "RESULT"});
  std::string problems;
  int64_t bytes = 0;
  int damaged = 0;
  for (const VerifyReport& report : reports) {
    const storage::v1::ManifestSummary& summary = report.manifest.summary;
    table.Add(
        {report.tag, summary.has_step() ? absl::StrCat(summary.step()) : "-",
         absl::StrCat(summary.sequence()), HumanBytes(summary.size_bytes()),
         absl::StrCat(summary.file_count()),
         report.problems.empty()
             ? "OK"
             : absl::StrCat("DAMAGED, ", Plural(static_cast<int64_t>(report.problems.size()), "problem"))});
    bytes += report.verified_bytes;
    damaged += !report.problems.empty();
    for (const VerifyProblem& problem : report.problems) {
      absl::StrAppend(&problems, "  ", Printable(report.tag), problem.path.empty() ? "" : "/",
                      Printable(problem.path), ": ", Printable(problem.message), "\n");
    }
  }
  if (!table.empty()) *context.out << table.ToString();
  if (!problems.empty()) *context.out << "\nproblems\n" << problems;
  *context.out << (table.empty() ? "" : "\n") << Printable(root) << ": "
               << Plural(static_cast<int64_t>(reports.size()), "checkpoint") << ", " << HumanBytes(bytes)
               << " read, " << damaged << " damaged\n";
}

}  // namespace

absl::StatusOr<ExitCode> Verify(const Context& context, const std::string& what) {
  CKPTD_ASSIGN_OR_RETURN(const Target target, ParseTarget(what));
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<FileSystem> fs, MakePosixFileSystem());
  CKPTD_ASSIGN_OR_RETURN(const Handle root_handle, OpenRootDirectory(target.root, std::nullopt));
  const ScopedHandle root(fs.get(), root_handle);
  std::vector<std::string> tags = {target.tag};
  if (target.tag.empty()) {
    CKPTD_ASSIGN_OR_RETURN(const RootListing listing, ListRoot(*fs, root.get()));
    tags.clear();
    for (const storage::v1::ManifestSummary& summary : listing.checkpoints) tags.push_back(summary.tag());
    for (const auto& damaged : listing.damaged) tags.push_back(damaged.first);
  }
  std::vector<VerifyReport> reports;
  bool ok = true;
  Progress progress(context);
  for (const std::string& tag : tags) {
    absl::StatusOr<VerifyReport> report =
        VerifyCheckpoint(*fs, root.get(), tag, [&](int64_t bytes) { progress.Show(tag, bytes); });
    // It was listed a moment ago, and retention has evicted it since.
    if (!report.ok() && absl::IsNotFound(report.status()) && target.tag.empty()) continue;
    if (!report.ok()) return report.status();
    ok &= report->problems.empty();
    reports.push_back(*std::move(report));
  }
  if (context.json) {
    PrintJson(context, target.root, reports, ok);
  } else {
    PrintText(context, target.root, reports);
  }
  return ok ? kOk : kNotSo;
}

}  // namespace ckptd::ctl
