// `verify` and `repaired`: check what is on disk, and tell a daemon that is there.
#include "storage/commit/checkpoint/verify.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/ckptctl/commands/commands.h"
#include "client/ckptctl/commands/daemon_call.h"
#include "client/ckptctl/commands/disk_root.h"
#include "client/ckptctl/commands/progress.h"
#include "client/ckptctl/text/json.h"
#include "client/ckptctl/text/names.h"
#include "client/ckptctl/text/text.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/format/names.h"

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

// A URL with a manifest beneath it is a checkpoint, and any other one is a root.
absl::StatusOr<Target> ParseUrl(const std::string& what) {
  CKPTD_ASSIGN_OR_RETURN(const OpenRoot root, OpenAnyRoot(what));
  const absl::Status manifest =
      root.fs->Stat(root.handle.get(), OurPath("", std::string(kManifestName))).status();
  if (IsMissing(manifest)) return Target{root.path, ""};
  if (!manifest.ok()) return manifest;
  const size_t slash = root.path.rfind('/');
  return Target{root.path.substr(0, slash), root.path.substr(slash + 1)};
}

// A directory with a manifest is a checkpoint, and one with a .ckptd is a root. A path that is missing or an
// empty directory may still be ROOT/TAG.
absl::StatusOr<Target> ParseTarget(const std::string& what) {
  if (IsBucketUrl(what)) return ParseUrl(what);
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
  if (!table.empty()) WriteText(context, table.ToString());
  if (!problems.empty()) *context.out << "\nproblems\n" << problems;
  *context.out << (table.empty() ? "" : "\n") << Printable(root) << ": "
               << Plural(static_cast<int64_t>(reports.size()), "checkpoint") << ", " << HumanBytes(bytes)
               << " read, " << damaged << " damaged\n";
}

absl::StatusOr<std::vector<VerifyReport>> Check(const Context& context, const Target& target) {
  CKPTD_ASSIGN_OR_RETURN(const OpenRoot root, OpenAnyRoot(target.root));
  std::vector<std::string> tags = {target.tag};
  if (target.tag.empty()) {
    CKPTD_ASSIGN_OR_RETURN(const RootListing listing, ListRoot(*root.fs, root.handle.get()));
    tags.clear();
    for (const storage::v1::ManifestSummary& summary : listing.checkpoints) tags.push_back(summary.tag());
    for (const auto& damaged : listing.damaged) tags.push_back(damaged.first);
    if (tags.empty() && root.store != nullptr) {
      return MakeError(absl::StatusCode::kNotFound, "NO_CHECKPOINT",
                       absl::StrCat("there is no committed checkpoint at or beneath ", target.root));
    }
  }
  std::vector<VerifyReport> reports;
  Progress progress(context, "verifying");
  for (const std::string& tag : tags) {
    absl::StatusOr<VerifyReport> report =
        VerifyCheckpoint(*root.fs, root.handle.get(), tag, [&](int64_t bytes) { progress.Show(tag, bytes); });
    // It was listed a moment ago, and retention has evicted it since.
    if (!report.ok() && absl::IsNotFound(report.status()) && target.tag.empty()) continue;
    if (!report.ok()) return report.status();
    reports.push_back(*std::move(report));
  }
  return reports;
}

bool IsWhole(const VerifyReport& report) { return report.problems.empty(); }

v1::ReportDamageRequest DamageReport(const std::string& run, const VerifyReport& report) {
  const VerifyProblem& first = report.problems.front();
  v1::ReportDamageRequest request;
  request.set_name(absl::StrCat(run, "/checkpoints/", report.tag));
  request.set_sequence(report.manifest.summary.sequence());
  v1::Damage& damage = *request.mutable_damage();
  damage.set_path(first.path.substr(0, 1000));
  if (first.chunk >= 0) damage.set_chunk(first.chunk);
  damage.set_message(absl::StrCat("found by ckptctl verify: ", first.message).substr(0, 1000));
  return request;
}

// Tells a daemon that knows the root of what is damaged, so that no job resumes from it. Best effort: without
// a daemon, the next reader finds the damage.
void ReportDamages(const Context& context, const std::string& root,
                   const std::vector<VerifyReport>& reports) {
  if (std::all_of(reports.begin(), reports.end(), IsWhole)) return;
  const absl::StatusOr<std::unique_ptr<client::Rpc>> rpc = Connect(context);
  if (!rpc.ok()) return;
  const absl::StatusOr<v1::ListRunsResponse> runs = (*rpc)->ListRuns(CallTimeout(context));
  if (!runs.ok()) return;
  const auto run = std::find_if(runs->runs().begin(), runs->runs().end(),
                                [&root](const v1::Run& each) { return IsRootOf(each, root); });
  if (run == runs->runs().end()) return;
  for (const VerifyReport& report : reports) {
    // A checkpoint whose manifest is damaged has no sequence; the daemon's scan has found it.
    if (IsWhole(report) || report.manifest.summary.sequence() == 0) continue;
    const absl::Status told =
        (*rpc)->ReportDamage(DamageReport(run->name(), report), CallTimeout(context)).status();
    const bool is_unknown = absl::IsUnavailable(told) || absl::IsNotFound(told);
    if (is_unknown) continue;  // The daemon has ended, or the checkpoint is gone.
    *context.err << "ckptctl: " << Printable(report.tag)
                 << (told.ok() ? ": the daemon was told, and offers it no more"
                               : absl::StrCat(": the daemon could not be told: ",
                                              Printable(std::string(told.message()))))
                 << "\n";
  }
}

// Reads the checkpoint of a run where its root is. Its directory must be the run's: the path is what a client
// named.
absl::Status CheckRepaired(const Context& context, client::Rpc& rpc, const std::string& name) {
  CKPTD_ASSIGN_OR_RETURN(v1::ListRunsResponse runs, rpc.ListRuns(CallTimeout(context)));
  const size_t middle = name.find("/checkpoints/");
  CKPTD_ASSIGN_OR_RETURN(const v1::Run run, FindRun(runs, name.substr(0, middle)));
  const std::string tag = name.substr(middle + std::string("/checkpoints/").size());
  if (!IsRootOf(run, run.path())) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "ROOT_UNREADABLE",
        absl::StrCat("the root ", run.path(), " cannot be read here, so that nobody knows whether ", tag,
                     " is whole; run this where it can be read, or add --unverified"));
  }
  CKPTD_ASSIGN_OR_RETURN(const std::vector<VerifyReport> reports, Check(context, {run.path(), tag}));
  if (IsWhole(reports.front())) return absl::OkStatus();
  const VerifyProblem& first = reports.front().problems.front();
  return MakeError(
      absl::StatusCode::kDataLoss, "CORRUPT_FILE",
      absl::StrCat(tag, " is still damaged, and stays marked: ", first.path, ": ", first.message));
}

}  // namespace

absl::StatusOr<ExitCode> Verify(const Context& context, const std::string& what) {
  CKPTD_ASSIGN_OR_RETURN(const Target target, ParseTarget(what));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<VerifyReport> reports, Check(context, target));
  const bool ok = std::all_of(reports.begin(), reports.end(), IsWhole);
  if (context.json) {
    PrintJson(context, target.root, reports, ok);
  } else {
    PrintText(context, target.root, reports);
  }
  ReportDamages(context, target.root, reports);
  return ok ? kOk : kNotSo;
}

absl::StatusOr<ExitCode> Repaired(const Context& context, const std::string& name, bool unverified) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<client::Rpc> rpc, Connect(context));
  v1::ClearDamageRequest request;
  CKPTD_ASSIGN_OR_RETURN(*request.mutable_name(), Resolve(*rpc, context, name));
  if (!unverified) CKPTD_RETURN_IF_ERROR(CheckRepaired(context, *rpc, request.name()));
  CKPTD_ASSIGN_OR_RETURN(v1::Checkpoint checkpoint, rpc->ClearDamage(request, CallTimeout(context)));
  *context.out << (context.json ? ToJson(checkpoint) : absl::StrCat(request.name(), " is offered again\n"));
  return kOk;
}

}  // namespace ckptd::ctl
