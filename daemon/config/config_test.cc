#include "daemon/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

LoadedConfig Load(const std::string& text, const ConfigOverrides& overrides = {},
                  int64_t memory = 64 * kGiB) {
  return LoadConfig(text, "ckptd.txtpb", overrides, memory);
}

TEST(Config, GivesEveryDefaultForAnEmptyText) {
  const LoadedConfig loaded = Load("");
  ASSERT_THAT(loaded.problems, IsEmpty());
  const auto& config = loaded.config;
  EXPECT_EQ(config.socket_path(), "/run/ckptd/ckptd.sock");
  EXPECT_EQ(SocketMode(config.socket_mode()), 0660u);
  EXPECT_EQ(config.state_directory(), "/var/lib/ckptd");
  EXPECT_EQ(config.pool().bytes(), 16 * kGiB);
  EXPECT_EQ(config.pool().segment_bytes(), 256 * kMiB);
  EXPECT_EQ(config.pool().populate_ahead_bytes(), 16 * kGiB);
  EXPECT_EQ(config.pool().resident_bytes(), 8 * kGiB);
  EXPECT_EQ(config.pool().huge_pages(), config::v1::AUTO);
  EXPECT_EQ(config.io().backend(), config::v1::BACKEND_AUTO);
  EXPECT_EQ(config.io().chunk_bytes(), 8 * kMiB);
  EXPECT_EQ(config.io().depth(), 16);
  EXPECT_EQ(config.io().checksum_threads(), 1);
  EXPECT_EQ(config.metrics().port(), 9095);
  EXPECT_EQ(config.limits().max_admission_timeout_seconds(), 86400);
  EXPECT_EQ(config.limits().max_commit_timeout_seconds(), 7 * 86400);
  EXPECT_EQ(config.limits().max_pool_percent_per_user(), 100);
  EXPECT_EQ(config.limits().max_reader_pool_percent_per_user(), 50);
  EXPECT_EQ(config.limits().over_share_grace_seconds(), 10);
  EXPECT_EQ(config.log().level(), "info");
  EXPECT_EQ(config.log().format(), "text");
  EXPECT_EQ(config.drain_timeout_seconds(), 30);
  EXPECT_EQ(config.max_sessions(), 1024);
  EXPECT_EQ(config.degraded_after_seconds(), 10);
  EXPECT_EQ(config.limits().roots_per_uid(), 256);
  EXPECT_EQ(config.limits().known_roots_per_uid(), 1024);
  EXPECT_EQ(config.limits().idle_root_seconds(), 3600);
  EXPECT_EQ(config.limits().trash_grace_seconds(), 0);
  EXPECT_EQ(config.limits().file_systems_per_uid(), 32);
  EXPECT_EQ(config.limits().attach_timeout_seconds(), 60);
  const auto& limits = config.limits();
  EXPECT_EQ(limits.ranks_per_run(), 1024);
  EXPECT_EQ(limits.files_per_part(), 100'000);
  EXPECT_EQ(limits.files_per_uid(), 2'000'000);
  EXPECT_EQ(limits.saves_per_uid(), 256);
  EXPECT_EQ(limits.leases_per_uid(), 1024);
  EXPECT_EQ(limits.watches_per_uid(), 256);
  EXPECT_EQ(limits.sessions_per_uid(), 768);
  EXPECT_EQ(limits.connections_per_uid(), 1024);
  EXPECT_EQ(limits.calls_per_uid(), 4096);
  EXPECT_EQ(limits.call_memory_bytes_per_uid(), kGiB);
  EXPECT_EQ(limits.streams_per_connection(), 256);
  EXPECT_EQ(limits.grpc_memory_bytes(), 2 * kGiB);
  EXPECT_EQ(limits.manifest_bytes_per_uid(), kGiB);
  EXPECT_EQ(limits.etcd_keys_per_uid(), 1'000'000);
  EXPECT_EQ(limits.etcd_bytes_per_uid(), 256 << 20);
}

TEST(Config, KeepsMinimumLimitsOnASmallMachine) {
  const auto limits = Load("pool { bytes: 8388608 } max_sessions: 1", {}, 2 * kGiB).config.limits();
  EXPECT_EQ(limits.call_memory_bytes_per_uid(), 512 * kMiB);
  EXPECT_EQ(limits.grpc_memory_bytes(), kGiB);
  EXPECT_EQ(limits.sessions_per_uid(), 1);
}

TEST(Config, DefaultSegmentIsA64thOfThePoolRoundedDownToAPowerOfTwo) {
  EXPECT_EQ(Load("pool { bytes: 8388608 }").config.pool().segment_bytes(), 2 * kMiB);
  EXPECT_EQ(Load(absl::StrCat("pool { bytes: ", 4 * kGiB, " }")).config.pool().segment_bytes(), 64 * kMiB);
  EXPECT_EQ(Load(absl::StrCat("pool { bytes: ", 7 * kGiB, " }")).config.pool().segment_bytes(), 64 * kMiB);
  EXPECT_EQ(Load(absl::StrCat("pool { bytes: ", 60 * kGiB, " }")).config.pool().segment_bytes(), 256 * kMiB);
}

TEST(Config, DefaultReaderShareIsThatOfResidentCopies) {
  const auto percent = [](const std::string& pool) {
    return Load("pool { bytes: 1000000000 " + pool + " }").config.limits().max_reader_pool_percent_per_user();
  };
  EXPECT_EQ(percent("resident_bytes: 0"), 50);
  EXPECT_EQ(percent("resident_bytes: 701000000"), 71);
  EXPECT_EQ(percent("resident_bytes: 1000000000"), 100);
  EXPECT_EQ(percent("resident_bytes: 2000000000"), 50) << "which is refused";
}

TEST(Config, RefusesAnUnknownFieldWithItsPlace) {
  EXPECT_THAT(Load("log { level: \"info\" }\n  pool { byts: 1 }").problems,
              ElementsAre(AllOf(HasSubstr("ckptd.txtpb:2:"), HasSubstr("byts"))));
}

TEST(Config, NamesTheFieldsThatThereAreForAnUnknownOne) {
  EXPECT_THAT(Load("upload { bytes: 5 }").problems,
              ElementsAre(HasSubstr("It has allowed_prefixes, bytes_per_second, parallel_parts.")));
}

TEST(Config, ReportsAllProblemsAtOnce) {
  const auto problems = Load("max_sessions: 70000 log { level: \"loud\" } metrics { port: -2 }").problems;
  EXPECT_THAT(problems, ElementsAre("metrics.port: -2 is not in [-1, 65535]",
                                    "log.level: \"loud\" is none of debug, info, warning, error",
                                    "max_sessions: 70000 is not in [1, 65536]"));
}

struct BadValue {
  const char* text;
  const char* field;
};

class ConfigRange : public ::testing::TestWithParam<BadValue> {};

TEST_P(ConfigRange, RefusesAValueOutOfRangeByName) {
  EXPECT_THAT(Load(GetParam().text).problems, ElementsAre(HasSubstr(absl::StrCat(GetParam().field, ": "))));
}

INSTANTIATE_TEST_SUITE_P(
    AllFields, ConfigRange,
    ::testing::Values(
        BadValue{"socket_path: 'ckptd.sock'", "socket_path"}, BadValue{"socket_mode: '0999'", "socket_mode"},
        BadValue{"socket_mode: '4755'", "socket_mode"},
        BadValue{"socket_group: 'no such group'", "socket_group"},
        BadValue{"state_directory: 'state'", "state_directory"},
        BadValue{"pool { bytes: 8388607 segment_bytes: 2097152 }", "pool.bytes"},
        BadValue{"pool { bytes: 137438953472 }", "pool.bytes"},  // More than the machine's memory.
        BadValue{"pool { segment_bytes: 3145728 }", "pool.segment_bytes"},
        BadValue{"pool { bytes: 16777216 segment_bytes: 8388608 }", "pool.segment_bytes"},
        BadValue{"pool { populate_ahead_bytes: -1 }", "pool.populate_ahead_bytes"},
        BadValue{"pool { resident_bytes: -1 }", "pool.resident_bytes"},
        BadValue{"pool { idle_seconds: -1 }", "pool.idle_seconds"},
        BadValue{"pool { idle_seconds: 31536001 }", "pool.idle_seconds"},
        BadValue{"pool { huge_pages: 9 }", "pool.huge_pages"}, BadValue{"io { backend: 9 }", "io.backend"},
        BadValue{"io { chunk_bytes: 65537 }", "io.chunk_bytes"}, BadValue{"io { depth: 129 }", "io.depth"},
        BadValue{"io { checksum_threads: -1 }", "io.checksum_threads"},
        BadValue{"metrics { port: 65536 }", "metrics.port"}, BadValue{"log { format: 'xml' }", "log.format"},
        BadValue{"drain_timeout_seconds: -1", "drain_timeout_seconds"},
        BadValue{"scrub { period_hours: -1 }", "scrub.period_hours"},
        BadValue{"upload { bytes_per_second: 1000 }", "upload.bytes_per_second"},
        BadValue{"upload { parallel_parts: 65 }", "upload.parallel_parts"},
        BadValue{"upload { allowed_prefixes: \"/data\" }", "upload.allowed_prefixes"},
        BadValue{"scrub { bytes_per_second: 1000 }", "scrub.bytes_per_second"},
        BadValue{"limits { max_admission_timeout_seconds: 86401 }", "limits.max_admission_timeout_seconds"},
        BadValue{"limits { max_commit_timeout_seconds: 604801 }", "limits.max_commit_timeout_seconds"},
        BadValue{"limits { max_pool_percent_per_user: 101 }", "limits.max_pool_percent_per_user"},
        BadValue{"limits { max_reader_pool_percent_per_user: -1 }",
                 "limits.max_reader_pool_percent_per_user"},
        BadValue{"limits { over_share_grace_seconds: 3601 }", "limits.over_share_grace_seconds"},
        BadValue{"metrics { socket_path: 'm.sock' }", "metrics.socket_path"},
        BadValue{"metrics { socket_mode: '999' }", "metrics.socket_mode"},
        BadValue{"metrics { socket_group: 'no such group' }", "metrics.socket_group"},
        BadValue{"metrics { token_file: 'token' }", "metrics.token_file"},
        BadValue{"security { container_roots: 'ckpts' }", "security.container_roots"},
        BadValue{"security { container_roots: '/ckpts/../etc' }", "security.container_roots"},
        BadValue{"security { container_roots: '/a//b' }", "security.container_roots"},
        BadValue{"max_sessions: -1", "max_sessions"},
        BadValue{"limits { roots_per_uid: 65537 }", "limits.roots_per_uid"},
        BadValue{"limits { known_roots_per_uid: -1 }", "limits.known_roots_per_uid"},
        BadValue{"limits { idle_root_seconds: -1 }", "limits.idle_root_seconds"},
        BadValue{"limits { trash_grace_seconds: 31536001 }", "limits.trash_grace_seconds"},
        BadValue{"limits { file_systems_per_uid: 4097 }", "limits.file_systems_per_uid"},
        BadValue{"limits { attach_timeout_seconds: -1 }", "limits.attach_timeout_seconds"},
        BadValue{"limits { ranks_per_run: 65537 }", "limits.ranks_per_run"},
        BadValue{"limits { files_per_part: 1000001 }", "limits.files_per_part"},
        BadValue{"limits { files_per_uid: -1 }", "limits.files_per_uid"},
        BadValue{"limits { saves_per_uid: -1 }", "limits.saves_per_uid"},
        BadValue{"limits { leases_per_uid: -1 }", "limits.leases_per_uid"},
        BadValue{"limits { watches_per_uid: 65537 }", "limits.watches_per_uid"},
        BadValue{"limits { sessions_per_uid: -1 }", "limits.sessions_per_uid"},
        BadValue{"limits { connections_per_uid: -1 }", "limits.connections_per_uid"},
        BadValue{"limits { calls_per_uid: -1 }", "limits.calls_per_uid"},
        BadValue{"limits { call_memory_bytes_per_uid: 1 }", "limits.call_memory_bytes_per_uid"},
        BadValue{"limits { streams_per_connection: -1 }", "limits.streams_per_connection"},
        BadValue{"limits { grpc_memory_bytes: 1 }", "limits.grpc_memory_bytes"},
        BadValue{"limits { manifest_bytes_per_uid: 1 }", "limits.manifest_bytes_per_uid"},
        BadValue{"limits { etcd_keys_per_uid: 1 }", "limits.etcd_keys_per_uid"},
        BadValue{"limits { etcd_bytes_per_uid: 1 }", "limits.etcd_bytes_per_uid"},
        BadValue{"degraded_after_seconds: 3601", "degraded_after_seconds"}));

TEST(Config, RefusesASocketPathWithoutRoomForTheHandoffSuffix) {
  const std::string fits = "/" + std::string(98, 's');
  EXPECT_THAT(Load("socket_path: '" + fits + "'").problems, IsEmpty());
  EXPECT_THAT(Load("socket_path: '" + fits + "s'").problems,
              ElementsAre(HasSubstr("has 100 bytes; at most 99 are allowed")));
}

TEST(Config, ReadsATokenWithoutSurroundingWhiteSpace) {
  const std::string file = ::testing::TempDir() + "/token";
  const auto read = [&](const std::string& content) {
    std::ofstream(file) << content;
    std::filesystem::permissions(file,
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    return ReadToken(file);
  };
  EXPECT_EQ(*read("0123456789abcdef\n"), "0123456789abcdef");
  for (const std::string& bad : {std::string("short\n"), std::string(""), std::string("0123456789 abcdef"),
                                 std::string(1001, 'x'), std::string("0123456789abcdef\nsecond line")}) {
    EXPECT_EQ(read(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_FALSE(ReadToken(file + ".missing").ok());
  std::filesystem::permissions(file, std::filesystem::perms::others_read, std::filesystem::perm_options::add);
  EXPECT_THAT(std::string(ReadToken(file).status().message()), HasSubstr("metrics.token_file: "));
}

TEST(Config, KeepsAnExplicitZero) {
  const auto config =
      Load("drain_timeout_seconds: 0 metrics { port: 0 } pool { populate_ahead_bytes: 0 resident_bytes: 0 }")
          .config;
  EXPECT_EQ(config.drain_timeout_seconds(), 0);
  EXPECT_EQ(config.metrics().port(), 0);
  EXPECT_EQ(config.pool().populate_ahead_bytes(), 0);
  EXPECT_EQ(config.pool().resident_bytes(), 0);
}

TEST(Config, CommandLineOverridesTheFileAndIsChecked) {
  ConfigOverrides overrides;
  overrides.socket_path = "/tmp/x.sock";
  overrides.pool_bytes = 64 * kMiB;
  overrides.io_backend = "threads";
  overrides.metrics_port = -1;
  const LoadedConfig loaded = Load("pool { bytes: 16777216 } metrics { port: 1 }", overrides);
  ASSERT_THAT(loaded.problems, IsEmpty());
  EXPECT_EQ(loaded.config.socket_path(), "/tmp/x.sock");
  EXPECT_EQ(loaded.config.pool().bytes(), 64 * kMiB);
  EXPECT_EQ(loaded.config.io().backend(), config::v1::BACKEND_THREADS);
  EXPECT_EQ(loaded.config.metrics().port(), -1);

  overrides.io_backend = "uring";
  EXPECT_THAT(Load("", overrides).problems, ElementsAre(HasSubstr("--io_backend: \"uring\" is none of")));
}

TEST(Config, AcceptsAGroupByNumberOrName) {
  EXPECT_EQ(FindGroup("1234").value(), 1234u);
  EXPECT_EQ(FindGroup("root").value(), 0u);
  EXPECT_FALSE(FindGroup("-1").ok());
  EXPECT_FALSE(FindGroup("4294967295").ok());
}

TEST(Config, ReadsSizesWithUnits) {
  const LoadedConfig loaded = Load(
      "pool { bytes: 2GiB segment_bytes: 4MiB } # 3GiB\n"
      "state_directory: \"/a/5GiB\" limits { call_memory_bytes_per_uid:1TiB }");
  EXPECT_THAT(loaded.problems, IsEmpty());
  EXPECT_EQ(loaded.config.pool().bytes(), 2 * kGiB);
  EXPECT_EQ(loaded.config.pool().segment_bytes(), 4 * kMiB);
  EXPECT_EQ(loaded.config.state_directory(), "/a/5GiB");
  EXPECT_EQ(loaded.config.limits().call_memory_bytes_per_uid(), 1024 * kGiB);
  EXPECT_THAT(Load("pool { bytes: 8GB }").problems, ::testing::Not(IsEmpty()));
  EXPECT_THAT(Load("pool { bytes: 99999999TiB }").problems, ::testing::Not(IsEmpty()));
}

TEST(Config, NamesTheFieldsThatDiffer) {
  const config::v1::DaemonConfig before = Load("").config;
  EXPECT_THAT(ChangedFields(before, before), IsEmpty());
  const config::v1::DaemonConfig after =
      Load("max_sessions: 7 log { level: \"debug\" } security { container_roots: \"/a\" }").config;
  EXPECT_THAT(ChangedFields(before, after),
              ::testing::UnorderedElementsAre("log.level", "max_sessions", "security.container_roots",
                                              "limits.sessions_per_uid"));
}

std::string Sample() {
  std::ifstream file("deploy/config/ckptd.txtpb");
  EXPECT_TRUE(file.good()) << "the sample is a runfile of this test";
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Config, SampleStatesTheDefaults) {
  const LoadedConfig sample = Load(Sample());
  EXPECT_THAT(sample.problems, IsEmpty());
  EXPECT_EQ(sample.config.DebugString(), Load("").config.DebugString());
}

TEST(Config, SamplesCommentedValuesAreValid) {
  const std::string text =
      std::regex_replace(Sample(), std::regex("(^|\n)( *)# (\\w+: \\S+)(?=\n)"), "$1$2$3");
  EXPECT_THAT(text, HasSubstr("\n  bytes: 68719476736\n"));
  // The names of groups depend on the machine.
  const std::string here =
      std::regex_replace(text, std::regex("socket_group: \"(ckptd|prometheus)\""), "socket_group: \"root\"");
  const LoadedConfig sample = Load(here, {}, 1024 * kGiB);
  EXPECT_THAT(sample.problems, IsEmpty());
  EXPECT_EQ(sample.config.pool().populate_ahead_bytes(), 64 * kGiB);
  EXPECT_EQ(sample.config.pool().segment_bytes(), 256 * kMiB);
  EXPECT_EQ(sample.config.socket_group(), "root");
}

TEST(Config, SampleHasEveryField) {
  const std::string sample = Sample();
  std::vector<const google::protobuf::Descriptor*> messages = {config::v1::DaemonConfig::descriptor()};
  while (!messages.empty()) {
    const google::protobuf::Descriptor* message = messages.back();
    messages.pop_back();
    for (int i = 0; i < message->field_count(); ++i) {
      const auto* field = message->field(i);
      const bool nested = field->message_type() != nullptr;
      if (nested) messages.push_back(field->message_type());
      EXPECT_THAT(sample, HasSubstr(field->name() + (nested ? " {" : ": ")));
    }
  }
}

TEST(Config, ReadsTheMemoryOfTheMachine) { EXPECT_GT(MachineMemoryBytes().value(), 8 * kMiB); }

}  // namespace
}  // namespace ckptd
