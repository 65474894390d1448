// `doctor`: probes what a root and this machine can do for ckptd, and says what to improve. With --nodes it also
// tries, together with the doctors of other nodes, what runs that span nodes need of the root. Works without a
// daemon.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ckptctl/commands/commands.h"
#include "client/ckptctl/commands/daemon_call.h"
#include "client/ckptctl/commands/host.h"
#include "client/ckptctl/mounts/mount.h"
#include "client/ckptctl/text/finding.h"
#include "client/ckptctl/text/json.h"
#include "client/ckptctl/text/text.h"
#include "storage/base/errors.h"
#include "storage/base/real_path.h"
#include "storage/base/status_macros.h"
#include "storage/commit/shared/trials/meeting.h"
#include "storage/commit/shared/trials/node_files.h"
#include "storage/commit/shared/trials/trials.h"
#include "storage/fs/posix_file_system.h"
#include "storage/io/io_queue.h"
#include "storage/io/probe.h"
#include "storage/object/bucket_url.h"

namespace ckptd::ctl {
namespace {

constexpr int kRingDepth = 8;

// Probes in a scratch directory beneath the root, and removes it.
absl::StatusOr<ProbeResult> Probe(FileSystem& fs, Handle root) {
  const std::string name = absl::StrCat(".ckptd-doctor-", getpid());
  CKPTD_RETURN_IF_ERROR(Annotate(fs.MakeDir(root, name), "writing into the root"));
  absl::StatusOr<ProbeResult> probe = [&]() -> absl::StatusOr<ProbeResult> {
    CKPTD_ASSIGN_OR_RETURN(const ScopedHandle scratch, OpenScoped(fs, root, name, OpenMode::kDirectory));
    return ProbeDirectory(fs, scratch.get(), IoBackend::kAuto);
  }();
  const absl::Status removed = fs.Remove(root, name, FileType::kDirectory);
  if (probe.ok() && !removed.ok())
    return Annotate(removed, absl::StrCat("removing the scratch directory ", name));
  return probe;
}

constexpr char kMeetingDirectory[] = ".ckptd-doctor-nodes";
constexpr std::chrono::milliseconds kNodesPatience = std::chrono::seconds(60);
// A name is a part of file names.
constexpr char kNameCharacters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";

absl::StatusOr<std::string> NameOfNode(const DoctorNodes& nodes) {
  std::string name = nodes.name;
  if (name.empty()) {
    char host[HOST_NAME_MAX + 1] = {};
    if (gethostname(host, sizeof(host) - 1) != 0) return ErrnoError(errno, "the name of this host");
    name = host;
    for (char& each : name) {
      if (std::strchr(kNameCharacters, each) == nullptr) each = '-';
    }
  }
  if (name.empty() || name.find_first_not_of(kNameCharacters) != std::string::npos)
    return InvalidArgument(
        absl::StrCat("--as is \"", name, "\"; a node's name has letters, digits, - and _"));
  return name;
}

// What the daemon of this node is configured for.
NodeFacts FactsOf(const Context& context, const std::string& root) {
  const Mount mount = MountOf(root);
  NodeFacts facts;
  facts.mounted = {mount.type, mount.source, CachingOptions(mount), IsLocal(mount)};
  const absl::StatusOr<v1::Status> status = [&]() -> absl::StatusOr<v1::Status> {
    CKPTD_ASSIGN_OR_RETURN(const std::unique_ptr<client::Rpc> rpc, Connect(context));
    return rpc->GetStatus(CallTimeout(context));
  }();
  if (!status.ok()) {
    facts.no_daemon = std::string(status.status().message());
  } else if (!status->has_cluster()) {
    facts.no_daemon = "the daemon has no block cluster, or does not show it to this user";
  } else {
    const auto& folders = status->cluster().shared_folders();
    facts.daemon = {std::any_of(folders.begin(), folders.end(),
                                [&](const std::string& folder) {
                                  return root == folder || absl::StartsWith(root, absl::StrCat(folder, "/"));
                                }),
                    std::chrono::seconds(status->cluster().visibility_seconds())};
  }
  return facts;
}

// What all nodes find together.
absl::StatusOr<std::vector<Finding>> TryWithNodes(const Context& context, FileSystem* fs, Handle folder,
                                                  const std::string& root, const DoctorNodes& nodes) {
  CKPTD_ASSIGN_OR_RETURN(const std::string name, NameOfNode(nodes));
  std::chrono::milliseconds patience = kNodesPatience;
  if (context.timeout_seconds)
    patience = std::chrono::milliseconds(static_cast<int64_t>(1000 * *context.timeout_seconds));
  NodeFiles files(fs, folder);
  absl::StatusOr<std::unique_ptr<Meeting>> entered =
      Meeting::Enter(&files, {kMeetingDirectory, name, nodes.count, patience});
  if (ReasonOf(entered.status()) == "NODES_MISSING")
    return Annotate(entered.status(),
                    "run the same command on the other nodes at the same time; if it runs there, they do not "
                    "share this folder, or see its files too late");
  CKPTD_ASSIGN_OR_RETURN(const std::unique_ptr<Meeting> meeting, std::move(entered));
  const TrialSettings settings;
  const absl::StatusOr<Records> records =
      RunTrials(&files, meeting.get(), &SystemClock(), settings, FactsOf(context, root));
  if (!records.ok()) {
    meeting->Abandon();
    return records.status();
  }
  meeting->Leave();
  return JudgeTrials(*records, settings);
}

// One line for all that was tried.
Finding Sum(const std::vector<Finding>& findings) {
  std::vector<std::string> wrong;
  for (const Finding& finding : findings) {
    if (finding.verdict == Verdict::kFailure) wrong.push_back(finding.subject);
  }
  if (wrong.empty()) return {Verdict::kOk, "several nodes", "can use this root", ""};
  return {Verdict::kFailure, "several nodes",
          absl::StrCat("cannot use this root: ", absl::StrJoin(wrong, ", ")), ""};
}

void PrintJson(const Context& context, const std::string& root, const std::vector<Finding>& findings,
               bool ok) {
  google::protobuf::Struct result;
  auto& fields = *result.mutable_fields();
  fields["root"] = JsonText(root);
  fields["ok"] = JsonBool(ok);
  auto& list = *fields["findings"].mutable_list_value();
  for (const Finding& finding : findings) {
    auto& entry = *list.add_values()->mutable_struct_value()->mutable_fields();
    entry["verdict"] = JsonText(WordOf(finding.verdict));
    entry["subject"] = JsonText(finding.subject);
    entry["what"] = JsonText(finding.what);
    entry["advice"] = JsonText(finding.advice);
  }
  *context.out << ToJson(result);
}

}  // namespace

absl::StatusOr<ExitCode> Doctor(const Context& context, const std::string& root, const DoctorNodes& nodes) {
  if (IsBucketUrl(root)) {
    return InvalidArgument(absl::StrCat("doctor tries file systems, and ", root,
                                        " is in a bucket: whether it can be reached says ckptctl list ", root,
                                        "; a job that saves there tries the rest"));
  }
  CKPTD_ASSIGN_OR_RETURN(const std::string path, RealPath(root));
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<FileSystem> fs, MakePosixFileSystem());
  CKPTD_ASSIGN_OR_RETURN(const Handle handle, OpenRootDirectory(path, std::nullopt));
  const ScopedHandle directory(fs.get(), handle);

  absl::StatusOr<ProbeResult> probe = Probe(*fs, directory.get());
  // All file systems in user space have one number, by which the probe knows the type.
  if (const std::string type = MountOf(path).type; probe.ok() && type.rfind("fuse", 0) == 0)
    probe->file_system = type;
  std::vector<Finding> findings = JudgeRoot(probe);
  for (Finding& finding : JudgeHost(ReadHostFacts(), MakeUringQueue(kRingDepth).status()))
    findings.push_back(std::move(finding));
  if (nodes.count > 0) {
    CKPTD_ASSIGN_OR_RETURN(const std::vector<Finding> found,
                           TryWithNodes(context, fs.get(), handle, path, nodes));
    findings.insert(findings.end(), found.begin(), found.end());
    findings.push_back(Sum(found));
  }
  const bool ok = std::none_of(findings.begin(), findings.end(),
                               [](const Finding& finding) { return finding.verdict == Verdict::kFailure; });
  if (context.json) {
    PrintJson(context, path, findings, ok);
  } else {
    WriteText(context, FindingsText(path, findings));
  }
  return ok ? kOk : kNotSo;
}

}  // namespace ckptd::ctl
