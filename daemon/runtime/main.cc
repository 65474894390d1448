// The program ckptd: flags, configuration, exit codes.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>

#include "ckptd/version.h"
#include "daemon/config/cluster_config.h"
#include "daemon/config/config.h"
#include "daemon/config/shared_folders.h"
#include "daemon/log/log.h"
#include "daemon/runtime/daemon.h"
#include "daemon/runtime/process/local_folder.h"

namespace ckptd {
namespace {

constexpr int kUsage = 2;
constexpr char kDefaultConfig[] = "/etc/ckptd/ckptd.txtpb";

struct Flags {
  std::optional<std::string> config;
  bool check_config = false;
  bool is_private = false;
  int64_t idle_timeout = 300;
  int ready_fd = -1;
  std::optional<std::string> local;  // A folder.
  ConfigOverrides overrides;
};

void Declare(CLI::App& app, Flags& flags) {
  app.add_option("--config", flags.config,
                 "Configuration file, a text proto; without it " + std::string(kDefaultConfig) +
                     " where it exists, else defaults");
  app.add_flag("--check_config", flags.check_config,
               "Check the configuration, print \"ok\" or what is wrong, and exit");
  app.add_flag("--private", flags.is_private, "Exit when no session needs this daemon any more");
  app.add_option("--idle_timeout", flags.idle_timeout,
                 "Seconds that a private daemon waits for a new session")
      ->check(CLI::Range(0, 86400));
  app.add_option("--ready_fd", flags.ready_fd, "Descriptor to write \"READY\" to when the daemon serves")
      ->check(CLI::Range(3, 1 << 20));
  app.add_option("--socket_path", flags.overrides.socket_path, "Overrides socket_path of the configuration");
  app.add_option("--state_directory", flags.overrides.state_directory, "Overrides state_directory");
  app.add_option("--pool_bytes", flags.overrides.pool_bytes, "Overrides pool.bytes; such as 8GiB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true));
  app.add_option("--metrics_port", flags.overrides.metrics_port, "Overrides metrics.port");
  app.add_option("--io_backend", flags.overrides.io_backend,
                 "Overrides io.backend: auto, io_uring or threads");
  app.add_option("--log_level", flags.overrides.log_level, "Overrides log.level");
  CLI::Option* local = app.add_option(
      "--local", flags.local,
      "Serve this user until Ctrl-C, without root and without a configuration file. Makes this "
      "folder for the socket and the state, and prints the line that makes jobs use the daemon");
  for (const char* other :
       {"--config", "--check_config", "--private", "--ready_fd", "--socket_path", "--state_directory"}) {
    local->excludes(app.get_option(other));
  }
  app.set_version_flag("--version", std::string("ckptd ") + kVersion);
}

// Returns false if the file exists and cannot be read, or was given by --config and does not exist.
bool ReadConfig(const Flags& flags, std::string& name, std::string& text) {
  if (flags.local) {
    name = "--local";
    text = kLocalConfig;
    return true;
  }
  name = flags.config.value_or(kDefaultConfig);
  std::ifstream file(name);
  if (!file && !flags.config && errno == ENOENT) {
    name = "defaults";
    return true;
  }
  if (!file || (file.peek() == EOF && file.bad())) return false;  // A directory can be opened but not read.
  file.clear();
  std::ostringstream content;
  content << file.rdbuf();
  text = content.str();
  return true;
}

// Problems also say that the file cannot be read.
LoadedConfig Load(const Flags& flags) {
  std::string name, text;
  if (!ReadConfig(flags, name, text)) return {{}, {"cannot read the configuration " + name}};
  const absl::StatusOr<int64_t> memory = MachineMemoryBytes();
  if (!memory.ok()) return {{}, {std::string(memory.status().message())}};
  LoadedConfig loaded = LoadConfig(text, name, flags.overrides, *memory);
  if (loaded.problems.empty() && loaded.config.has_cluster()) {
    loaded.problems = CheckClusterFiles(loaded.config.cluster());
  }
  return loaded;
}

// The daemon makes no directory above its own. What is in /run is made by the service manager
// (RuntimeDirectory=).
void NoteMissingDirectory(const char* field, const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (path.starts_with("/run/") || std::filesystem::is_directory(parent, ignored)) return;
  std::cerr << "ckptd: note: " << field << " is " << path << ", and there is no directory " << parent.string()
            << " yet: it must be there when the daemon starts\n";
}

// A shared file system may not be mounted yet.
void NoteSharedFolders(const config::v1::ClusterConfig& cluster) {
  for (const std::string& folder : cluster.shared_folders()) {
    if (const absl::Status looked = LookAtSharedFolder(folder); !looked.ok())
      std::cerr << "ckptd: note: " << std::string(looked.message()) << "\n";
  }
}

// Sets the paths that --local implies. Returns false, after a message, if its value is not a folder's path.
bool SetLocalPaths(Flags& flags) {
  if (flags.local->empty() || flags.local->front() == '~') {
    std::cerr << "ckptd: --local: \"" << *flags.local
              << "\" is not a path; a shell replaces ~ only in \"--local ~/DIR\", with a space\n";
    return false;
  }
  const std::filesystem::path folder = std::filesystem::absolute(*flags.local).lexically_normal();
  flags.local = (folder.has_filename() ? folder : folder.parent_path()).string();
  flags.overrides.socket_path = *flags.local + "/ckptd.sock";
  flags.overrides.state_directory = *flags.local + "/state";
  return true;
}

// Under nohup, for example.
bool IsHangupIgnored() {
  struct sigaction action {};
  return ::sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

int Main(int argc, char** argv) {
  BlockSignals();
  Flags flags;
  CLI::App app(
      "ckptd takes checkpoints of training jobs off the training step. Example:\n"
      "  ckptd --config=/etc/ckptd/ckptd.txtpb\n"
      "  ckptd --local ~/ckptd --pool_bytes 8GiB",
      "ckptd");
  Declare(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }

  if (flags.local && !SetLocalPaths(flags)) return kUsage;
  LoadedConfig loaded = Load(flags);
  for (const std::string& problem : loaded.problems) std::cerr << "ckptd: " << problem << "\n";
  if (!loaded.problems.empty()) return kUsage;
  if (flags.check_config) {
    std::cout << "ok\n";
    NoteMissingDirectory("socket_path", loaded.config.socket_path());
    NoteMissingDirectory("state_directory", loaded.config.state_directory());
    NoteSharedFolders(loaded.config.cluster());
    return 0;
  }
  StartLog(loaded.config.log().level(), loaded.config.log().format());
  DaemonOptions options;
  options.config = std::move(loaded.config);
  options.is_private = flags.is_private;
  options.idle_timeout = std::chrono::seconds(flags.idle_timeout);
  options.ready_fd = flags.ready_fd;
  if (!flags.local || IsHangupIgnored()) options.reload = [flags] { return Load(flags); };
  if (flags.local) {
    if (const absl::Status made = MakeLocalFolder(*flags.local); !made.ok()) {
      std::cerr << "ckptd: --local: " << std::string(made.message()) << "\n";
      return kUsage;
    }
    options.ready_fd = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    options.ready_text = LocalGreeting(options.config.socket_path());
  }
  return RunDaemon(options);
}

}  // namespace
}  // namespace ckptd

int main(int argc, char** argv) { return ckptd::Main(argc, argv); }
