// `save`: commits files of this machine as a checkpoint. No trainer is needed.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/ckptctl/commands/commands.h"
#include "client/ckptctl/commands/daemon_call.h"
#include "client/cpp/client.h"
#include "client/cpp/session/endpoint.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"

namespace ckptd::ctl {
namespace {

struct SavedFile {
  std::string path;  // On the command line.
  std::string name;  // In the checkpoint: the last component of `path`.
  UniqueFd fd;
  int64_t size = 0;
};

absl::StatusOr<SavedFile> OpenSavedFile(const std::string& path) {
  SavedFile file;
  file.path = path;
  file.name = std::filesystem::path(path).filename().string();
  file.fd = UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat stat = {};
  if (!file.fd || fstat(file.fd.get(), &stat) != 0) return ErrnoError(errno, absl::StrCat("opening ", path));
  if (S_ISDIR(stat.st_mode)) return ErrnoError(EISDIR, absl::StrCat(path, "; name the files in it"));
  if (!S_ISREG(stat.st_mode)) return ErrnoError(EINVAL, absl::StrCat(path, " is not a regular file"));
  file.size = stat.st_size;
  return file;
}

absl::Status Fill(const SavedFile& file, const std::vector<std::span<std::byte>>& spans) {
  off_t offset = 0;
  for (std::span<std::byte> rest : spans) {
    while (!rest.empty()) {
      const ssize_t count = pread(file.fd.get(), rest.data(), rest.size(), offset);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return ErrnoError(errno, absl::StrCat("reading ", file.path));
      if (count == 0) {
        return MakeError(
            absl::StatusCode::kDataLoss, "SHORT_FILE",
            absl::StrCat(file.path, " became shorter while it was read: ", offset, " of ", file.size,
                         " bytes; nothing was saved; save it again when nothing writes to it"));
      }
      offset += count;
      rest = rest.subspan(static_cast<size_t>(count));
    }
  }
  return absl::OkStatus();
}

// Splits ROOT/TAG. The root is made if it is missing.
absl::StatusOr<std::pair<std::string, std::string>> RootAndTag(const std::string& name) {
  const std::filesystem::path path(name);
  if (!path.has_parent_path() || path.filename().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" is not ROOT/TAG; an example is /data/ckpts/step_1"));
  }
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (error) return ErrnoError(error.value(), absl::StrCat("making the root ", path.parent_path().string()));
  return std::pair(path.parent_path().string(), path.filename().string());
}

}  // namespace

absl::StatusOr<ExitCode> SaveFiles(const Context& context, const SaveArguments& arguments) {
  std::vector<SavedFile> files;
  for (const std::string& path : arguments.files) {
    CKPTD_ASSIGN_OR_RETURN(SavedFile file, OpenSavedFile(path));
    files.push_back(std::move(file));
  }
  // The daemon may have been started a moment ago.
  CKPTD_ASSIGN_OR_RETURN(client::Client client,
                         client::Client::Connect(context.endpoint, {.name = "ckptctl"}));
  CKPTD_ASSIGN_OR_RETURN(const auto name, RootAndTag(arguments.name));
  const auto& [root, tag] = name;
  // A launch of a job of its own: refused while another job runs in this root, as it would fence that off.
  const std::string id = client::RandomHex128();
  CKPTD_ASSIGN_OR_RETURN(client::Run run, client.OpenRun(root, {.launch_id = id, .job = id}));
  client::SaveOptions options;
  options.tag = tag;
  options.step = arguments.step;
  if (context.timeout_seconds.has_value()) options.timeout = FromSeconds(*context.timeout_seconds);
  CKPTD_ASSIGN_OR_RETURN(client::Part part, run.Begin(options));
  for (const SavedFile& file : files) {
    CKPTD_ASSIGN_OR_RETURN(const auto spans, part.AddFile(file.name, file.size));
    CKPTD_RETURN_IF_ERROR(Fill(file, spans));
  }
  CKPTD_RETURN_IF_ERROR(part.Seal().status());
  return Wait(context, absl::StrCat(run.name(), "/checkpoints/", tag), "committed");
}

}  // namespace ckptd::ctl
