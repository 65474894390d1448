#include "daemon/config/config.h"

#include <grp.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "daemon/config/cluster_config.h"
#include "daemon/config/sizes.h"
#include "daemon/config/trusted_file.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "storage/base/errors.h"
#include "storage/object/bucket_url.h"

namespace ckptd {
namespace {

using config::v1::DaemonConfig;

constexpr int64_t kKiB = int64_t{1} << 10;
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;
// sun_path holds 107 bytes, and the hand-off socket appends ".handoff".
constexpr size_t kMaxSocketPath = 99;
constexpr size_t kMaxSunPath = 107;
constexpr size_t kLeastToken = 16, kMaxToken = 1000;
constexpr int kMaxContainerRoots = 64;
constexpr int kMaxUploadPrefixes = 64;

// Adds the fields that there are to protobuf's message about a field that is unknown: `Message type "..." has no
// field named "...".` Returns any other message as it is.
std::string WithFields(const std::string& message) {
  const std::vector<std::string> words = absl::StrSplit(message, '"');
  if (words.size() < 3 || !absl::StrContains(words[2], "has no field named")) return message;
  const auto* type = google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(words[1]);
  if (type == nullptr) return message;
  std::vector<std::string> names;
  for (int i = 0; i < type->field_count(); ++i) names.push_back(type->field(i)->name());
  return absl::StrCat(message, " It has ", absl::StrJoin(names, ", "), ".");
}

// Collects messages "file:line:column: what is wrong". Lines and columns count from 1.
class ParseProblems final : public google::protobuf::io::ErrorCollector {
 public:
  ParseProblems(std::string_view source, std::vector<std::string>& problems)
      : source_(source), problems_(problems) {}
  void AddError(int line, int column, const std::string& message) override {
    problems_.push_back(absl::StrCat(source_, ":", line + 1, ":", column + 1, ": ", WithFields(message)));
  }

 private:
  const std::string source_;
  std::vector<std::string>& problems_;
};

class Checker {
 public:
  explicit Checker(std::vector<std::string>& problems) : problems_(problems) {}

  void Add(std::string problem) { problems_.push_back(std::move(problem)); }

  void Range(const char* field, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high)
      Add(absl::StrCat(field, ": ", value, " is not in [", low, ", ", high, "]"));
  }

  void PowerOfTwo(const char* field, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high || !std::has_single_bit(static_cast<uint64_t>(value))) {
      Add(absl::StrCat(field, ": ", value, " is not a power of two in [", low, ", ", high, "]"));
    }
  }

  void AbsolutePath(const char* field, const std::string& value) {
    if (value.empty() || value[0] != '/' || value.find('\0') != std::string::npos) {
      Add(absl::StrCat(field, ": \"", value, "\" is not an absolute path"));
    }
  }

  // Requires an absolute path without ".", ".." or empty components, because it is compared as text.
  void PlainPath(const char* field, const std::string& value) {
    AbsolutePath(field, value);
    const std::string plain = std::filesystem::path(value).lexically_normal().string();
    if (!value.empty() && value[0] == '/' && value != plain) {
      Add(absl::StrCat(field, ": \"", value, "\" has an empty component, \".\" or \"..\"; write \"", plain,
                       "\""));
    }
  }

  void OneOf(const char* field, const std::string& value, const std::vector<std::string>& allowed) {
    if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return;
    Add(absl::StrCat(field, ": \"", value, "\" is none of ", absl::StrJoin(allowed, ", ")));
  }

 private:
  std::vector<std::string>& problems_;
};

void Override(const ConfigOverrides& overrides, DaemonConfig& config, Checker& check) {
  if (overrides.socket_path) config.set_socket_path(*overrides.socket_path);
  if (overrides.state_directory) config.set_state_directory(*overrides.state_directory);
  if (overrides.pool_bytes) config.mutable_pool()->set_bytes(*overrides.pool_bytes);
  if (overrides.metrics_port) config.mutable_metrics()->set_port(*overrides.metrics_port);
  if (overrides.log_level) config.mutable_log()->set_level(*overrides.log_level);
  if (overrides.io_backend) {
    check.OneOf("--io_backend", *overrides.io_backend, {"auto", "io_uring", "threads"});
    config.mutable_io()->set_backend(*overrides.io_backend == "io_uring"  ? config::v1::BACKEND_IO_URING
                                     : *overrides.io_backend == "threads" ? config::v1::BACKEND_THREADS
                                                                          : config::v1::BACKEND_AUTO);
  }
}

// Returns bytes / 64, rounded down to a power of two, within [2 MiB, 256 MiB].
int64_t DefaultSegmentBytes(int64_t pool_bytes) {
  const uint64_t share = static_cast<uint64_t>(std::clamp(pool_bytes / 64, 2 * kMiB, 256 * kMiB));
  return static_cast<int64_t>(std::bit_floor(share));
}

void SetRootLimits(config::v1::LimitsConfig& limits) {
  if (limits.roots_per_uid() == 0) limits.set_roots_per_uid(256);
  if (limits.known_roots_per_uid() == 0) limits.set_known_roots_per_uid(1024);
  if (!limits.has_idle_root_seconds()) limits.set_idle_root_seconds(3600);
  if (limits.file_systems_per_uid() == 0) limits.set_file_systems_per_uid(32);
  if (limits.attach_timeout_seconds() == 0) limits.set_attach_timeout_seconds(60);
}

void SetUidLimits(config::v1::LimitsConfig& limits, int max_sessions, int64_t memory_bytes) {
  if (limits.ranks_per_run() == 0) limits.set_ranks_per_run(1024);
  if (limits.files_per_part() == 0) limits.set_files_per_part(100'000);
  if (limits.files_per_uid() == 0) limits.set_files_per_uid(2'000'000);
  if (limits.saves_per_uid() == 0) limits.set_saves_per_uid(256);
  if (limits.leases_per_uid() == 0) limits.set_leases_per_uid(1024);
  if (limits.watches_per_uid() == 0) limits.set_watches_per_uid(256);
  if (limits.sessions_per_uid() == 0)
    limits.set_sessions_per_uid(
        static_cast<int32_t>(std::clamp<int64_t>(int64_t{max_sessions} * 3 / 4, 1, 65536)));
  if (limits.connections_per_uid() == 0) limits.set_connections_per_uid(1024);
  if (limits.calls_per_uid() == 0) limits.set_calls_per_uid(4096);
  if (limits.call_memory_bytes_per_uid() == 0)
    limits.set_call_memory_bytes_per_uid(std::max(512 * kMiB, memory_bytes / 64));
  if (limits.streams_per_connection() == 0) limits.set_streams_per_connection(256);
  if (limits.manifest_bytes_per_uid() == 0) limits.set_manifest_bytes_per_uid(kGiB);
  if (limits.etcd_keys_per_uid() == 0) limits.set_etcd_keys_per_uid(1'000'000);
  if (limits.etcd_bytes_per_uid() == 0) limits.set_etcd_bytes_per_uid(256 * kMiB);
  if (limits.grpc_memory_bytes() == 0) limits.set_grpc_memory_bytes(std::max(kGiB, memory_bytes / 32));
}

void SetDefaults(DaemonConfig& config, int64_t memory_bytes) {
  if (config.socket_path().empty()) config.set_socket_path("/run/ckptd/ckptd.sock");
  if (config.socket_mode().empty()) config.set_socket_mode("0660");
  if (config.state_directory().empty()) config.set_state_directory("/var/lib/ckptd");
  if (!config.has_drain_timeout_seconds()) config.set_drain_timeout_seconds(30);
  if (config.max_sessions() == 0) config.set_max_sessions(1024);
  if (config.degraded_after_seconds() == 0) config.set_degraded_after_seconds(10);
  if (!config.scrub().has_period_hours()) config.mutable_scrub()->set_period_hours(168);
  if (config.scrub().bytes_per_second() == 0) config.mutable_scrub()->set_bytes_per_second(100 * kMiB);
  if (config.upload().parallel_parts() == 0) config.mutable_upload()->set_parallel_parts(4);
  SetRootLimits(*config.mutable_limits());

  auto& limits = *config.mutable_limits();
  if (limits.max_admission_timeout_seconds() == 0) limits.set_max_admission_timeout_seconds(86400);
  if (limits.max_commit_timeout_seconds() == 0) limits.set_max_commit_timeout_seconds(7 * 86400);
  if (limits.max_pool_percent_per_user() == 0) limits.set_max_pool_percent_per_user(100);
  if (limits.over_share_grace_seconds() == 0) limits.set_over_share_grace_seconds(10);
  SetUidLimits(*config.mutable_limits(), config.max_sessions(), memory_bytes);

  auto& pool = *config.mutable_pool();
  if (pool.bytes() == 0) pool.set_bytes(memory_bytes / 4);
  if (pool.segment_bytes() == 0) pool.set_segment_bytes(DefaultSegmentBytes(pool.bytes()));
  if (!pool.has_populate_ahead_bytes()) pool.set_populate_ahead_bytes(pool.bytes());
  if (!pool.has_resident_bytes()) pool.set_resident_bytes(pool.bytes() / 2);
  if (!limits.has_max_reader_pool_percent_per_user()) {
    const double copies = static_cast<double>(pool.resident_bytes()) / static_cast<double>(pool.bytes());
    limits.set_max_reader_pool_percent_per_user(
        copies > 0.5 && copies <= 1 ? static_cast<int>(std::ceil(copies * 100)) : 50);
  }
  if (pool.huge_pages() == config::v1::HUGE_PAGES_UNSPECIFIED) pool.set_huge_pages(config::v1::AUTO);

  auto& io = *config.mutable_io();
  if (io.backend() == config::v1::BACKEND_UNSPECIFIED) io.set_backend(config::v1::BACKEND_AUTO);
  if (io.chunk_bytes() == 0) io.set_chunk_bytes(8 << 20);
  if (io.depth() == 0) io.set_depth(16);
  if (io.checksum_threads() == 0) io.set_checksum_threads(1);

  config.mutable_security();
  if (!config.metrics().has_port()) config.mutable_metrics()->set_port(9095);
  if (config.metrics().socket_mode().empty()) config.mutable_metrics()->set_socket_mode("0660");
  auto& log = *config.mutable_log();
  if (log.level().empty()) log.set_level("info");
  if (log.format().empty()) log.set_format("text");
  if (config.has_cluster()) SetClusterDefaults(config.mutable_cluster());
}

bool IsSocketMode(const std::string& mode) {
  if (mode.size() < 3 || mode.size() > 4) return false;
  if (mode.size() == 4 && mode[0] != '0') return false;
  return std::all_of(mode.begin(), mode.end(), [](char c) { return c >= '0' && c <= '7'; });
}

void CheckSockets(const DaemonConfig& config, Checker& check) {
  check.AbsolutePath("socket_path", config.socket_path());
  if (config.socket_path().size() > kMaxSocketPath) {
    check.Add(absl::StrCat("socket_path: \"", config.socket_path(), "\" has ", config.socket_path().size(),
                           " bytes; at most ", kMaxSocketPath, " are allowed"));
  }
  if (!IsSocketMode(config.socket_mode())) {
    check.Add(
        absl::StrCat("socket_mode: \"", config.socket_mode(), "\" is not octal in [\"0000\", \"0777\"]"));
  }
  if (!config.socket_group().empty()) {
    if (const auto group = FindGroup(config.socket_group()); !group.ok()) {
      check.Add(absl::StrCat("socket_group: ", std::string(group.status().message())));
    }
  }
}

void CheckMetrics(const config::v1::MetricsConfig& metrics, Checker& check) {
  check.Range("metrics.port", metrics.port(), -1, 65535);
  if (!metrics.socket_path().empty()) check.AbsolutePath("metrics.socket_path", metrics.socket_path());
  if (metrics.socket_path().size() > kMaxSunPath) {
    check.Add(absl::StrCat("metrics.socket_path: \"", metrics.socket_path(), "\" has ",
                           metrics.socket_path().size(), " bytes; at most ", kMaxSunPath, " are allowed"));
  }
  if (!IsSocketMode(metrics.socket_mode())) {
    check.Add(absl::StrCat("metrics.socket_mode: \"", metrics.socket_mode(),
                           "\" is not octal in [\"0000\", \"0777\"]"));
  }
  if (!metrics.socket_group().empty()) {
    if (const auto group = FindGroup(metrics.socket_group()); !group.ok()) {
      check.Add(absl::StrCat("metrics.socket_group: ", std::string(group.status().message())));
    }
  }
  if (!metrics.token_file().empty()) check.AbsolutePath("metrics.token_file", metrics.token_file());
}

void CheckPool(const config::v1::PoolConfig& pool, int64_t memory_bytes, Checker& check) {
  check.Range("pool.bytes", pool.bytes(), 8 * kMiB, std::max(memory_bytes, 8 * kMiB));
  check.PowerOfTwo("pool.segment_bytes", pool.segment_bytes(), 2 * kMiB, kGiB);
  if (pool.bytes() >= 8 * kMiB && pool.segment_bytes() > pool.bytes() / 4) {
    check.Add(absl::StrCat("pool.segment_bytes: ", pool.segment_bytes(),
                           " is more than a quarter of pool.bytes (", pool.bytes(), ")"));
  }
  check.Range("pool.populate_ahead_bytes", pool.populate_ahead_bytes(), 0,
              std::max<int64_t>(pool.bytes(), 0));
  check.Range("pool.resident_bytes", pool.resident_bytes(), 0, std::max<int64_t>(pool.bytes(), 0));
  check.Range("pool.idle_seconds", pool.idle_seconds(), 0, 31'536'000);
}

void CheckLimits(const config::v1::LimitsConfig& limits, Checker& check) {
  check.Range("limits.max_admission_timeout_seconds", limits.max_admission_timeout_seconds(), 1, 86400);
  check.Range("limits.max_commit_timeout_seconds", limits.max_commit_timeout_seconds(), 1, 7 * 86400);
  check.Range("limits.max_pool_percent_per_user", limits.max_pool_percent_per_user(), 1, 100);
  check.Range("limits.max_reader_pool_percent_per_user", limits.max_reader_pool_percent_per_user(), 0, 100);
  check.Range("limits.over_share_grace_seconds", limits.over_share_grace_seconds(), 1, 3600);
}

void CheckRootLimits(const config::v1::LimitsConfig& limits, Checker& check) {
  check.Range("limits.roots_per_uid", limits.roots_per_uid(), 1, 65536);
  check.Range("limits.known_roots_per_uid", limits.known_roots_per_uid(), 1, 65536);
  check.Range("limits.idle_root_seconds", limits.idle_root_seconds(), 0, 31536000);
  check.Range("limits.trash_grace_seconds", limits.trash_grace_seconds(), 0, 31536000);
  check.Range("limits.file_systems_per_uid", limits.file_systems_per_uid(), 1, 4096);
  check.Range("limits.attach_timeout_seconds", limits.attach_timeout_seconds(), 1, 3600);
}

void CheckUidLimits(const config::v1::LimitsConfig& limits, Checker& check) {
  constexpr int64_t kMost = 65536, kMaxMemory = int64_t{1} << 44;
  check.Range("limits.ranks_per_run", limits.ranks_per_run(), 1, kMost);
  check.Range("limits.files_per_part", limits.files_per_part(), 1, 1'000'000);
  check.Range("limits.files_per_uid", limits.files_per_uid(), 1, 1'000'000'000);
  check.Range("limits.saves_per_uid", limits.saves_per_uid(), 1, kMost);
  check.Range("limits.leases_per_uid", limits.leases_per_uid(), 1, kMost);
  check.Range("limits.watches_per_uid", limits.watches_per_uid(), 1, kMost);
  check.Range("limits.sessions_per_uid", limits.sessions_per_uid(), 1, kMost);
  check.Range("limits.connections_per_uid", limits.connections_per_uid(), 1, kMost);
  check.Range("limits.calls_per_uid", limits.calls_per_uid(), 1, kMost);
  check.Range("limits.call_memory_bytes_per_uid", limits.call_memory_bytes_per_uid(), 16 * kMiB, kMaxMemory);
  check.Range("limits.streams_per_connection", limits.streams_per_connection(), 1, kMost);
  check.Range("limits.manifest_bytes_per_uid", limits.manifest_bytes_per_uid(), kMiB, kMaxMemory);
  check.Range("limits.etcd_keys_per_uid", limits.etcd_keys_per_uid(), 1000, 1'000'000'000);
  check.Range("limits.etcd_bytes_per_uid", limits.etcd_bytes_per_uid(), kMiB, kMaxMemory);
  check.Range("limits.grpc_memory_bytes", limits.grpc_memory_bytes(), 64 * kMiB, kMaxMemory);
}

void CheckUpload(const config::v1::UploadConfig& upload, Checker& check) {
  check.Range("upload.parallel_parts", upload.parallel_parts(), 1, 64);
  if (upload.bytes_per_second() != 0)
    check.Range("upload.bytes_per_second", upload.bytes_per_second(), kMiB, int64_t{1} << 40);
  if (upload.allowed_prefixes_size() > kMaxUploadPrefixes) {
    check.Add(absl::StrCat("upload.allowed_prefixes: ", upload.allowed_prefixes_size(), " URLs; at most ",
                           kMaxUploadPrefixes, " are allowed"));
  }
  for (const std::string& prefix : upload.allowed_prefixes()) {
    const std::string of_user = absl::StrReplaceAll(prefix, {{"{uid}", "0"}});
    if (const absl::Status url = ParseBucketUrl(of_user).status(); !url.ok())
      check.Add(absl::StrCat("upload.allowed_prefixes: ", std::string(url.message())));
  }
}

void CheckValues(const DaemonConfig& config, int64_t memory_bytes, Checker& check) {
  CheckSockets(config, check);
  check.AbsolutePath("state_directory", config.state_directory());
  CheckPool(config.pool(), memory_bytes, check);
  check.PowerOfTwo("io.chunk_bytes", config.io().chunk_bytes(), 64 * kKiB, 64 * kMiB);
  check.Range("io.depth", config.io().depth(), 1, 128);
  check.Range("io.checksum_threads", config.io().checksum_threads(), 1, 64);
  CheckMetrics(config.metrics(), check);
  check.OneOf("log.level", config.log().level(), {"debug", "info", "warning", "error"});
  check.OneOf("log.format", config.log().format(), {"text", "json"});
  check.Range("drain_timeout_seconds", config.drain_timeout_seconds(), 0, 86400);
  check.Range("max_sessions", config.max_sessions(), 1, 65536);
  check.Range("degraded_after_seconds", config.degraded_after_seconds(), 1, 3600);
  check.Range("scrub.period_hours", config.scrub().period_hours(), 0, 87600);
  if (config.security().container_roots_size() > kMaxContainerRoots) {
    check.Add(absl::StrCat("security.container_roots: ", config.security().container_roots_size(),
                           " directories; at most ", kMaxContainerRoots, " are allowed"));
  }
  for (const std::string& path : config.security().container_roots()) {
    check.PlainPath("security.container_roots", path);
  }
  check.Range("scrub.bytes_per_second", config.scrub().bytes_per_second(), kMiB, int64_t{1} << 40);
  CheckUpload(config.upload(), check);
  CheckLimits(config.limits(), check);
  CheckRootLimits(config.limits(), check);
  CheckUidLimits(config.limits(), check);
  if (!config.has_cluster()) return;
  for (std::string& problem : CheckCluster(config.cluster())) check.Add(std::move(problem));
}

// proto3 enums are open, so the text may give a number that has no name.
void CheckEnums(const DaemonConfig& config, Checker& check) {
  if (!config::v1::HugePages_IsValid(config.pool().huge_pages())) {
    check.Add(absl::StrCat("pool.huge_pages: ", static_cast<int>(config.pool().huge_pages()),
                           " is no known value"));
  }
  if (!config::v1::Backend_IsValid(config.io().backend())) {
    check.Add(absl::StrCat("io.backend: ", static_cast<int>(config.io().backend()), " is no known value"));
  }
}

std::string ValueText(const google::protobuf::Message& message,
                      const google::protobuf::FieldDescriptor& field) {
  if (!field.is_repeated()) {
    std::string text;
    google::protobuf::TextFormat::PrintFieldValueToString(message, &field, -1, &text);
    return text;
  }
  std::vector<std::string> texts(message.GetReflection()->FieldSize(message, &field));
  for (size_t i = 0; i < texts.size(); ++i) {
    google::protobuf::TextFormat::PrintFieldValueToString(message, &field, static_cast<int>(i), &texts[i]);
  }
  return absl::StrJoin(texts, ",");
}

// Adds the fields in which `before` and `after` differ, down to the fields of messages.
void AddChanges(const google::protobuf::Message& before, const google::protobuf::Message& after,
                const std::string& prefix, std::vector<std::string>* changed) {
  const google::protobuf::Descriptor& type = *before.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    const std::string name = prefix + field.name();
    const auto get = [&field](const google::protobuf::Message& message) -> const google::protobuf::Message& {
      return message.GetReflection()->GetMessage(message, &field);
    };
    if (field.message_type() != nullptr && !field.is_repeated()) {
      AddChanges(get(before), get(after), name + ".", changed);
    } else if (ValueText(before, field) != ValueText(after, field)) {
      changed->push_back(name);
    }
  }
}

}  // namespace

std::vector<std::string> ChangedFields(const config::v1::DaemonConfig& before,
                                       const config::v1::DaemonConfig& after) {
  std::vector<std::string> changed;
  AddChanges(before, after, "", &changed);
  return changed;
}

std::string FieldText(const config::v1::DaemonConfig& config, const std::string& field) {
  const google::protobuf::Message* message = &config;
  std::string rest = field;
  for (size_t dot; (dot = rest.find('.')) != rest.npos; rest.erase(0, dot + 1)) {
    const auto* inner = message->GetDescriptor()->FindFieldByName(rest.substr(0, dot));
    message = &message->GetReflection()->GetMessage(*message, inner);
  }
  return ValueText(*message, *message->GetDescriptor()->FindFieldByName(rest));
}

LoadedConfig LoadConfig(std::string_view text, std::string_view source, const ConfigOverrides& overrides,
                        int64_t memory_bytes) {
  LoadedConfig loaded;
  ParseProblems parse_problems(source, loaded.problems);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&parse_problems);
  if (!parser.ParseFromString(ExpandSizes(std::string(text)), &loaded.config)) {
    if (loaded.problems.empty())
      loaded.problems.push_back(absl::StrCat(std::string(source), ": not a text proto"));
    return loaded;
  }
  Checker check(loaded.problems);
  Override(overrides, loaded.config, check);
  SetDefaults(loaded.config, memory_bytes);
  CheckValues(loaded.config, memory_bytes, check);
  CheckEnums(loaded.config, check);
  return loaded;
}

absl::StatusOr<int64_t> MachineMemoryBytes() {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/meminfo", "re"), std::fclose);
  if (!file) return ErrnoError(errno, "open /proc/meminfo");
  char line[256];
  while (std::fgets(line, sizeof(line), file.get())) {
    long long kib = 0;
    if (std::sscanf(line, "MemTotal: %lld kB", &kib) == 1) return int64_t{kib} * kKiB;
  }
  return MakeError(absl::StatusCode::kInternal, "NO_MEMTOTAL", "/proc/meminfo has no line MemTotal");
}

absl::StatusOr<gid_t> FindGroup(const std::string& name_or_number) {
  gid_t number = 0;
  const char* end = name_or_number.data() + name_or_number.size();
  const auto [stop, error] = std::from_chars(name_or_number.data(), end, number);
  if (error == std::errc() && stop == end && number != std::numeric_limits<gid_t>::max()) return number;
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/etc/group", "re"), std::fclose);
  while (file) {
    const group* entry = ::fgetgrent(file.get());
    if (entry == nullptr) break;
    if (name_or_number == entry->gr_name) return entry->gr_gid;
  }
  return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_GROUP",
                   absl::StrCat("\"", name_or_number, "\" is neither a number nor a group in /etc/group"));
}

absl::StatusOr<std::string> ReadToken(const std::string& file) {
  absl::StatusOr<std::string> read = ReadTrustedFile(file, FileAccess::kSecret);
  if (!read.ok()) return Annotate(read.status(), "metrics.token_file");
  std::string token = *std::move(read);
  absl::StripAsciiWhitespace(&token);
  const bool printable = std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (token.size() < kLeastToken || token.size() > kMaxToken || !printable) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ARGUMENT",
                     absl::StrCat(file, " (metrics.token_file) must hold ", kLeastToken, " to ", kMaxToken,
                                  " printable characters without white space; it has ", token.size(),
                                  "; `openssl rand -hex 32` makes one"));
  }
  return token;
}

mode_t SocketMode(const std::string& octal) {
  mode_t mode = 0;
  for (const char digit : octal) mode = mode * 8 + static_cast<mode_t>(digit - '0');
  return mode;
}

}  // namespace ckptd
