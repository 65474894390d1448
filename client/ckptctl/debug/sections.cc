#include "client/ckptctl/debug/sections.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "ckptd/config/v1/config.pb.h"
#include "ckptd/v1/messages.pb.h"
#include "ckptd/version.h"
#include "client/ckptctl/commands/daemon_call.h"
#include "client/ckptctl/debug/daemon_process.h"
#include "client/ckptctl/debug/log_lines.h"
#include "client/ckptctl/debug/machine.h"
#include "client/ckptctl/debug/metrics_text.h"
#include "client/ckptctl/debug/redact.h"
#include "client/ckptctl/text/render.h"
#include "client/ckptctl/text/text.h"
#include "storage/base/clock.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

extern char** environ;

namespace ckptd::ctl {
namespace {

constexpr char kDefaultConfig[] = "/etc/ckptd/ckptd.txtpb";
// Of variables: what ckptd and its libraries look at. Others may be anybody's.
constexpr std::array kPrefixes = {
    "CKPTD_",    "AWS_",           "GRPC_",         "NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_",
    "FDSTORE",   "JOURNAL_STREAM", "INVOCATION_ID", "LD_",           "MALLOC_",   "GLIBC_TUNABLES",
    "SSL_CERT_", "CURL_",          "HTTP_PROXY",    "HTTPS_PROXY",   "NO_PROXY",  "ALL_PROXY",
    "TZ",        "LANG",           "LC_",           "PATH",          "HOME"};
// Of those, what has a value that is no secret. Each other name is shown without its value.
constexpr std::array kShown = {"CKPTD_ENDPOINT",
                               "CKPTD_S3_ADDRESSING_STYLE",
                               "AWS_REGION",
                               "AWS_DEFAULT_REGION",
                               "AWS_PROFILE",
                               "AWS_DEFAULT_PROFILE",
                               "AWS_ENDPOINT_URL",
                               "AWS_ENDPOINT_URL_S3",
                               "AWS_CA_BUNDLE",
                               "AWS_CONFIG_FILE",
                               "AWS_SHARED_CREDENTIALS_FILE",
                               "AWS_WEB_IDENTITY_TOKEN_FILE",
                               "GRPC_VERBOSITY",
                               "GRPC_TRACE",
                               "NOTIFY_SOCKET",
                               "WATCHDOG_USEC",
                               "LISTEN_FDS",
                               "FDSTORE",
                               "JOURNAL_STREAM",
                               "MALLOC_ARENA_MAX",
                               "GLIBC_TUNABLES",
                               "SSL_CERT_FILE",
                               "SSL_CERT_DIR",
                               "HTTP_PROXY",
                               "HTTPS_PROXY",
                               "NO_PROXY",
                               "ALL_PROXY",
                               "TZ",
                               "LANG",
                               "PATH",
                               "HOME"};

// What cannot be parsed is in the dump, and need not be on the terminal.
class Quiet final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, int, const std::string&) override {}
};

std::string Upper(std::string_view name) {
  std::string upper;
  for (const char c : name) upper += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return upper;
}

std::vector<std::string> OwnEnvironment() {
  std::vector<std::string> variables;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  return variables;
}

std::string ValueOf(const std::vector<std::string>& variables, const std::string& name) {
  for (const std::string& variable : variables) {
    if (variable.starts_with(name + "=")) return variable.substr(name.size() + 1);
  }
  return "";
}

std::string Text(const absl::Status& status) { return OneLine(std::string(status.message())); }

// Everything that is asked once, for several sections.
class Gathering {
 public:
  explicit Gathering(const Context& context) : context_(context) {
    if (const absl::StatusOr<client::Endpoint> endpoint = client::ParseEndpoint(context.endpoint);
        endpoint.ok()) {
      socket_path_ = endpoint->socket_path;
      daemon_ = FindDaemonProcess(socket_path_);
    } else {
      daemon_ = endpoint.status();
    }
    environment_ = daemon_.ok() ? EnvironmentOf(daemon_->pid) : daemon_.status();
    running_ = ReadRunningConfig();
    if (running_.ok()) {
      google::protobuf::TextFormat::Parser parser;
      parser.AllowUnknownField(true);  // Of a daemon of another version.
      Quiet quiet;
      parser.RecordErrorsTo(&quiet);
      parser.ParseFromString(*running_, &config_);
    }
    LearnSecrets();
    AskDaemon();
  }

  std::vector<Section> Sections() {
    std::vector<Section> sections;
    const auto add = [&](const std::string& name, const absl::StatusOr<std::string>& text) {
      if (text.ok()) return sections.push_back({name, redactor_.Clean(*text)});
      sections.push_back({name, absl::Status(text.status().code(), redactor_.Clean(Text(text.status())))});
    };
    add("versions", Versions());
    add("status",
        status_.ok() ? absl::StatusOr<std::string>(RenderStatus(*status_, Now())) : status_.status());
    add("sessions", Sessions());
    add("configuration in force", running_);
    add("configuration file", ConfigFile());
    add("environment of the daemon", Shown(environment_));
    add("environment of ckptctl", ShowEnvironment(OwnEnvironment()));
    add("log", Log());
    add("counters", Counters());
    add("process", daemon_.ok() ? DescribeProcess(*daemon_) : daemon_.status());
    add("threads", daemon_.ok() ? DescribeThreads(daemon_->pid) : daemon_.status());
    add("control group",
        daemon_.ok() ? absl::StatusOr<std::string>(DescribeControlGroup(daemon_->pid)) : daemon_.status());
    add("machine", DescribeMachine());
    add("mounts", Mounts());
    return sections;
  }

 private:
  static int64_t Now() { return SystemClock().UnixMicros(); }

  // What the daemon has written down of itself. Another user may have made a file of that name, in a directory
  // where everybody may write.
  absl::StatusOr<std::string> ReadRunningConfig() const {
    const std::string path = socket_path_ + ".config";
    struct stat found {};
    if (::lstat(path.c_str(), &found) != 0) {
      return absl::NotFoundError(absl::StrCat(
          path,
          " is not there: no daemon has this socket, it has ended in order, or it is older than ckptctl"));
    }
    const bool trusted =
        found.st_uid == 0 || found.st_uid == ::geteuid() || (daemon_.ok() && found.st_uid == daemon_->uid);
    if (!trusted || !S_ISREG(found.st_mode)) {
      return absl::PermissionDeniedError(absl::StrCat(path, " is of uid ", found.st_uid,
                                                      ", who is neither root, the daemon's user nor you"));
    }
    return ReadSmallFile(path);
  }

  void LearnSecrets() {
    std::vector<std::vector<std::string>> environments = {OwnEnvironment()};
    if (environment_.ok()) environments.push_back(*environment_);
    for (const std::vector<std::string>& variables : environments) {
      redactor_.AddEnvironment(variables);
      std::string file = ValueOf(variables, "AWS_SHARED_CREDENTIALS_FILE");
      if (file.empty()) file = absl::StrCat(ValueOf(variables, "HOME"), "/.aws/credentials");
      LearnFile(file, /*settings=*/true);
      if (const std::string config = ValueOf(variables, "AWS_CONFIG_FILE"); !config.empty())
        LearnFile(config, /*settings=*/true);
      LearnFile(ValueOf(variables, "AWS_WEB_IDENTITY_TOKEN_FILE"), /*settings=*/false);
    }
    LearnFile(config_.cluster().etcd_password_file(), /*settings=*/false);
    LearnFile(config_.metrics().token_file(), /*settings=*/false);
  }

  void LearnFile(const std::string& path, bool settings) {
    const absl::StatusOr<std::string> text = path.empty() ? "" : ReadSmallFile(path);
    if (!text.ok()) return;  // What this process cannot read, it cannot show, either.
    settings ? redactor_.AddSettings(*text) : redactor_.Add(*text);
  }

  void AskDaemon() {
    absl::StatusOr<std::unique_ptr<client::Rpc>> rpc = Connect(context_);
    if (!rpc.ok()) {
      status_ = rpc.status();
      return;
    }
    rpc_ = *std::move(rpc);
    status_ = rpc_->GetStatus(CallTimeout(context_));
  }

  absl::StatusOr<std::string> Versions() const {
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    return absl::StrCat(
        "ckptctl: ", kVersion, ", compiler ", __VERSION__, "\n", "daemon: ",
        status_.ok() ? absl::StrCat(status_->daemon_version(), ", instance ", status_->daemon_instance())
                     : Text(status_.status()),
        "\n", "endpoint: ", socket_path_, "\n", "host: ", host, "\n", "user: uid ", ::geteuid(), "\n",
        "time: ", LocalTime(Now()), "\n");
  }

  absl::StatusOr<std::string> Sessions() const {
    if (!status_.ok()) return status_.status();
    CKPTD_ASSIGN_OR_RETURN(const v1::ListSessionsResponse sessions,
                           rpc_->ListSessions(CallTimeout(context_)));
    return RenderSessions(sessions);
  }

  absl::StatusOr<std::string> ConfigFile() const {
    std::string path = kDefaultConfig;
    if (daemon_.ok()) {
      CKPTD_ASSIGN_OR_RETURN(const std::vector<std::string> command, CommandOf(daemon_->pid));
      if (const std::string named = OptionOf(command, "--config"); !named.empty()) path = named;
      if (!path.starts_with("/")) path = absl::StrCat("/proc/", daemon_->pid, "/cwd/", path);
      if (std::any_of(command.begin(), command.end(),
                      [](const std::string& word) { return word.starts_with("--local"); }))
        return absl::NotFoundError("none: the daemon was started with --local");
    }
    CKPTD_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path));
    struct stat found {};
    const bool has_time = ::stat(path.c_str(), &found) == 0;
    return absl::StrCat(
        "# ", path,
        has_time ? absl::StrCat(", of ", LocalTime(int64_t{found.st_mtim.tv_sec} * 1'000'000)) : "",
        ", without its comments\n", WithoutComments(text));
  }

  static absl::StatusOr<std::string> Shown(const absl::StatusOr<std::vector<std::string>>& variables) {
    if (!variables.ok()) return variables.status();
    return ShowEnvironment(*variables);
  }

  absl::StatusOr<std::string> Log() const {
    CKPTD_ASSIGN_OR_RETURN(const LogLines lines, ReadLogLines(daemon_, socket_path_));
    return absl::StrCat("from ", lines.source, "\n", lines.text);
  }

  absl::StatusOr<std::string> Counters() const {
    if (!running_.ok()) {
      return absl::Status(
          running_.status().code(),
          absl::StrCat("where the daemon serves them is not known: ", Text(running_.status())));
    }
    return ReadMetrics(config_.metrics());
  }

  absl::StatusOr<std::string> Mounts() const {
    std::vector<std::string> paths = {socket_path_.substr(0, socket_path_.rfind('/') + 1)};
    if (!config_.state_directory().empty()) paths.push_back(config_.state_directory());
    for (const std::string& folder : config_.cluster().shared_folders()) paths.push_back(folder);
    std::string note;
    if (status_.ok()) {
      for (const v1::Run& run : status_->runs()) paths.push_back(run.path());
    } else {
      note = absl::StrCat("the roots are not known: ", Text(status_.status()), "\n");
    }
    return note + DescribeMounts(daemon_.ok() ? daemon_->pid : 0, paths);
  }

  const Context& context_;
  std::string socket_path_;
  absl::StatusOr<DaemonProcess> daemon_;
  absl::StatusOr<std::vector<std::string>> environment_;
  absl::StatusOr<std::string> running_;
  config::v1::DaemonConfig config_;
  Redactor redactor_;
  std::unique_ptr<client::Rpc> rpc_;
  absl::StatusOr<v1::Status> status_;
};

}  // namespace

std::vector<Section> GatherSections(const Context& context) { return Gathering(context).Sections(); }

std::string WithoutComments(std::string_view text) {
  std::string out;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote == 0 && c == '#') {
      while (!out.empty() && out.back() == ' ') out.pop_back();
      i = std::min(text.find('\n', i), text.size());
      if (i < text.size() && !out.empty() && out.back() != '\n') out += '\n';
      continue;
    }
    out += c;
    if (c == '\\' && quote != 0 && i + 1 < text.size()) {
      out += text[++i];
    } else if (c == quote || c == '\n') {
      quote = 0;  // A string ends with its line, even where its quote is missing.
    } else if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    }
  }
  return out;
}

std::string ShowEnvironment(std::vector<std::string> variables) {
  std::sort(variables.begin(), variables.end());
  std::string out;
  size_t others = 0;
  for (const std::string& variable : variables) {
    const std::string name = variable.substr(0, variable.find('='));
    const std::string upper = Upper(name);
    const bool is_ours = std::any_of(kPrefixes.begin(), kPrefixes.end(),
                                     [&](const char* prefix) { return upper.starts_with(prefix); });
    if (!is_ours) {
      ++others;
      continue;
    }
    const bool shown = std::find(kShown.begin(), kShown.end(), upper) != kShown.end();
    absl::StrAppend(&out, shown ? variable : absl::StrCat(name, "=", kLeftOut), "\n");
  }
  return absl::StrCat(out, "(", others, " others are left out, with their names)\n");
}

}  // namespace ckptd::ctl
