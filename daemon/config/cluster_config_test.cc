#include "daemon/config/cluster_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/config/config.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kEndpoint[] = "etcd_endpoints: 'https://10.0.0.1:2379' ";

LoadedConfig Load(const std::string& cluster) {
  return LoadConfig(absl::StrCat("cluster { ", cluster, " }"), "ckptd.txtpb", {}, int64_t{64} << 30);
}
std::vector<std::string> Problems(const std::string& cluster) { return Load(cluster).problems; }

TEST(ClusterConfig, NoBlockMeansNoCluster) {
  const LoadedConfig loaded = LoadConfig("", "ckptd.txtpb", {}, int64_t{64} << 30);
  EXPECT_THAT(loaded.problems, IsEmpty());
  EXPECT_FALSE(loaded.config.has_cluster());
}

TEST(ClusterConfig, NeedsNoMoreThanANameAndAnEndpoint) {
  const LoadedConfig loaded = Load(absl::StrCat("node_name: 'gpu17' ", kEndpoint));
  ASSERT_THAT(loaded.problems, IsEmpty());
  const auto& cluster = loaded.config.cluster();
  EXPECT_EQ(cluster.etcd_prefix(), "/ckptd/");
  EXPECT_EQ(cluster.lease_seconds(), 10);
  EXPECT_EQ(cluster.etcd_timeout_seconds(), 10);
  EXPECT_EQ(cluster.node_grace_seconds(), 30);
  EXPECT_EQ(cluster.visibility_seconds(), 5);
  EXPECT_THAT(cluster.shared_folders(), IsEmpty());
  EXPECT_THAT(EtcdHosts(cluster), ElementsAre("10.0.0.1:2379"));
  EXPECT_TRUE(UsesTls(cluster));
}

TEST(ClusterConfig, NameIsTheHostsUnlessThatSaysNothing) {
  char host[256] = {};
  ASSERT_EQ(::gethostname(host, sizeof host - 1), 0);
  const LoadedConfig loaded = Load(kEndpoint);
  if (std::string(host).starts_with("localhost")) {
    EXPECT_THAT(loaded.problems, ElementsAre(HasSubstr("cluster.node_name: this machine has no host name")));
  } else {
    EXPECT_EQ(loaded.config.cluster().node_name(), host);
  }
}

TEST(ClusterConfig, TakesEndpointsOfAnyKindOfHost) {
  const LoadedConfig loaded = Load(
      "node_name: 'n' etcd_endpoints: 'http://etcd-0.example:2379' etcd_endpoints: 'http://[fd00::1]:2379'");
  ASSERT_THAT(loaded.problems, IsEmpty());
  EXPECT_FALSE(UsesTls(loaded.config.cluster()));
  EXPECT_THAT(EtcdHosts(loaded.config.cluster()), ElementsAre("etcd-0.example:2379", "[fd00::1]:2379"));
}

struct Refusal {
  std::string cluster;
  std::string problem;  // Parts of it that are separated by "...".
};

class RefusedCluster : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusedCluster, NamesTheFieldTheValueAndWhatToWrite) {
  const std::vector<std::string> problems = Problems(
      absl::StrCat(GetParam().cluster.find("node_name") == std::string::npos ? "node_name: 'n' " : "",
                   GetParam().cluster));
  ASSERT_EQ(problems.size(), 1u) << ::testing::PrintToString(problems);
  EXPECT_TRUE(std::regex_search(problems[0], std::regex(GetParam().problem))) << problems[0];
}

std::string Secure(const std::string& more) { return absl::StrCat(kEndpoint, more); }

INSTANTIATE_TEST_SUITE_P(
    AllFields, RefusedCluster,
    ::testing::Values(
        Refusal{Secure("node_name: 'a/b'"),
                R"(^cluster\.node_name: "a/b" is no name.*write 1 to 253 letters)"},
        Refusal{Secure("node_name: '-a'"), R"(^cluster\.node_name: "-a" .*beginning with a letter)"},
        Refusal{Secure("node_name: 'a b'"), R"(^cluster\.node_name: "a b" )"},
        Refusal{Secure(absl::StrCat("node_name: '", std::string(254, 'n'), "'")),
                R"(^cluster\.node_name: "nnn)"},
        Refusal{"", R"(^cluster\.etcd_endpoints: 0 endpoints; write 1 to 16.*etcd_endpoints: "https://)"},
        Refusal{
            "etcd_endpoints: '10.0.0.1:2379'",
            R"(^cluster\.etcd_endpoints: "10\.0\.0\.1:2379" does not begin .*write "https://10\.0\.0\.1:2379")"},
        Refusal{"etcd_endpoints: 'unix:/run/etcd'",
                R"("unix:/run/etcd" does not begin with https:// or http://)"},
        Refusal{"etcd_endpoints: 'https://10.0.0.1'",
                R"("https://10\.0\.0\.1" is not a scheme, a host and a port)"},
        Refusal{"etcd_endpoints: 'https://10.0.0.1:0'", R"("https://10\.0\.0\.1:0" is not)"},
        Refusal{"etcd_endpoints: 'https://10.0.0.1:65536'", R"(:65536" is not)"},
        Refusal{"etcd_endpoints: 'https://fd00::1:2379'", R"(write for example.*"https://\[fd00::1\]:2379")"},
        Refusal{"etcd_endpoints: 'https://user@10.0.0.1:2379'", R"(user@10\.0\.0\.1:2379" is not)"},
        Refusal{
            Secure("etcd_endpoints: 'http://10.0.0.2:2379'"),
            R"("https://10\.0\.0\.1:2379" and "http://10\.0\.0\.2:2379" mix https and http; write https)"},
        Refusal{
            "etcd_endpoints: 'http://10.0.0.1:2379' etcd_ca_file: '/ca.pem'",
            R"(^cluster\.etcd_ca_file: "/ca\.pem" is of no use to http://10\.0\.0\.1:2379; write https://)"},
        Refusal{Secure("etcd_ca_file: 'ca.pem'"),
                R"(^cluster\.etcd_ca_file: "ca\.pem" is not an absolute path)"},
        Refusal{Secure("etcd_certificate_file: '/c.pem'"),
                R"(^cluster\.etcd_key_file: is missing, and etcd_certificate_file is "/c\.pem"; write both)"},
        Refusal{Secure("etcd_key_file: '/k.pem'"), R"(^cluster\.etcd_certificate_file: is missing)"},
        Refusal{Secure("etcd_user: 'ckptd'"),
                R"(^cluster\.etcd_password_file: is missing, and etcd_user is "ckptd")"},
        Refusal{Secure("etcd_password_file: '/p'"), R"(^cluster\.etcd_user: is missing)"},
        Refusal{
            Secure("etcd_prefix: '/ckptd'"),
            R"(^cluster\.etcd_prefix: "/ckptd" is not .* a slash at the end; write for example "/ckptd/")"},
        Refusal{Secure("etcd_prefix: '/a b/'"), R"(^cluster\.etcd_prefix: "/a b/" is not)"},
        Refusal{Secure("lease_seconds: 1"), R"(^cluster\.lease_seconds: 1 is not in \[2, 600\])"},
        Refusal{Secure("lease_seconds: 601"), R"(^cluster\.lease_seconds: 601)"},
        Refusal{Secure("etcd_timeout_seconds: 301"),
                R"(^cluster\.etcd_timeout_seconds: 301 is not in \[1, 300\])"},
        Refusal{Secure("node_grace_seconds: -1"),
                R"(^cluster\.node_grace_seconds: -1 is not in \[1, 3600\])"},
        Refusal{Secure("visibility_seconds: 31"), R"(^cluster\.visibility_seconds: 31 is not in \[1, 30\])"},
        Refusal{Secure("node_grace_seconds: 3601"), R"(^cluster\.node_grace_seconds: 3601)"},
        Refusal{Secure("shared_folders: 'ckpts'"),
                R"(^cluster\.shared_folders: "ckpts" is not an absolute path)"},
        Refusal{Secure("shared_folders: '/a' shared_folders: '/a/b'"),
                R"(^cluster\.shared_folders: "/a/b" is shared already, by "/a")"},
        Refusal{Secure("node_name: 'latest' shared_folders: '/a'"),
                R"(^cluster\.node_name: "latest" cannot be a part of file names.*1 to 200 characters)"},
        Refusal{Secure(absl::StrCat("shared_folders: '/a' node_name: '", std::string(201, 'n'), "'")),
                R"(^cluster\.node_name: "nnn.*write another name)"}));

TEST(ClusterConfig, TakesAnyNameOfANodeThatSharesNoFolder) {
  EXPECT_THAT(Problems(absl::StrCat(kEndpoint, "node_name: 'latest'")), IsEmpty());
  EXPECT_THAT(Problems(absl::StrCat(kEndpoint, "node_name: '", std::string(253, 'n'), "'")), IsEmpty());
  EXPECT_THAT(
      Problems(absl::StrCat(kEndpoint, "shared_folders: '/a' node_name: '", std::string(200, 'n'), "'")),
      IsEmpty());
}

TEST(ClusterConfig, NamesSharedFoldersThatHaveChanged) {
  const std::string node = absl::StrCat("node_name: 'n' ", kEndpoint);
  const auto before = Load(node + "shared_folders: '/a'").config;
  EXPECT_THAT(ChangedFields(before, Load(node + "shared_folders: '/a' shared_folders: '/b'").config),
              ElementsAre("cluster.shared_folders"));
  EXPECT_THAT(ChangedFields(before, Load(node + "shared_folders: '/a' node_grace_seconds: 60").config),
              ElementsAre("cluster.node_grace_seconds"));
}

TEST(ClusterConfig, RefusesMoreEndpointsThanAnEtcdHasMembers) {
  std::string endpoints;
  for (int i = 0; i < 17; ++i) absl::StrAppend(&endpoints, kEndpoint);
  EXPECT_THAT(Problems("node_name: 'n' " + endpoints), ElementsAre(HasSubstr("17 endpoints; write 1 to 16")));
}

TEST(ClusterConfig, NamesTheFieldsOfABlockThatHasComeOrGone) {
  const auto before = LoadConfig("", "", {}, int64_t{64} << 30).config;
  const auto after = Load(absl::StrCat("node_name: 'n' ", kEndpoint)).config;
  const std::vector<std::string> changed = ChangedFields(before, after);
  EXPECT_THAT(changed, ElementsAre("cluster.node_name", "cluster.etcd_endpoints", "cluster.etcd_prefix",
                                   "cluster.lease_seconds", "cluster.etcd_timeout_seconds",
                                   "cluster.node_grace_seconds", "cluster.visibility_seconds"));
  EXPECT_EQ(ChangedFields(after, before), changed);
}

// ---- files

class ClusterFiles : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text, mode_t mode = 0600) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path) << text;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  static std::vector<std::string> Check(const std::string& cluster) {
    const LoadedConfig loaded = Load(absl::StrCat("node_name: 'n' ", kEndpoint, cluster));
    EXPECT_THAT(loaded.problems, IsEmpty());
    return CheckClusterFiles(loaded.config.cluster());
  }
  static std::vector<std::string> CheckPassword(const std::string& path) {
    return Check("etcd_user: 'u' etcd_password_file: '" + path + "'");
  }

  TempDir folder_;
  const std::string certificate_ = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n";
  const std::string key_ = "-----BEGIN EC PRIVATE KEY-----\nMA==\n-----END EC PRIVATE KEY-----\n";
};

TEST_F(ClusterFiles, AreAcceptedWhereSecretsAreSecret) {
  const std::string certificate = Write("c.pem", certificate_, 0644), key = Write("k.pem", key_, 0640);
  EXPECT_THAT(Check("etcd_ca_file: '" + certificate + "' etcd_certificate_file: '" + certificate +
                    "' etcd_key_file: '" + key + "'"),
              IsEmpty());
  const std::string password = Write("p", "s3cret word\n", 0400);
  EXPECT_THAT(CheckPassword(password), IsEmpty());
  EXPECT_EQ(*ReadEtcdPassword(password), "s3cret word");
}

TEST_F(ClusterFiles, ThatAreMissingAreNamedWithTheCause) {
  const std::string gone = folder_.path() + "/gone";
  EXPECT_THAT(Check("etcd_ca_file: '" + gone + "'"),
              ElementsAre(AllOf(HasSubstr("cluster.etcd_ca_file: cannot read " + gone),
                                HasSubstr("No such file or directory"))));
  EXPECT_THAT(CheckPassword(gone), ElementsAre(HasSubstr("cluster.etcd_password_file: cannot read " + gone)));
  EXPECT_THAT(CheckPassword(folder_.path()),
              ElementsAre(HasSubstr("cluster.etcd_password_file: cannot read " + folder_.path())));
}

TEST_F(ClusterFiles, SecretsThatOthersCanReadAreRefusedWithTheCommandThatHelps) {
  for (const mode_t mode : {0644, 0604, 0602}) {
    const std::string password = Write("p", "secret\n", mode);
    EXPECT_THAT(CheckPassword(password), ElementsAre(AllOf(HasSubstr("every user of this machine"),
                                                           HasSubstr("run `chmod 600 " + password + "`"))));
  }
  const std::string certificate = Write("c.pem", certificate_, 0644), key = Write("k.pem", key_, 0644);
  EXPECT_THAT(Check("etcd_certificate_file: '" + certificate + "' etcd_key_file: '" + key + "'"),
              ElementsAre(AllOf(HasSubstr("cluster.etcd_key_file: "), HasSubstr("has mode 0644"))));
}

TEST_F(ClusterFiles, ThatHoldSomethingElseAreRefused) {
  const std::string certificate = Write("c.pem", certificate_), key = Write("k.pem", key_);
  EXPECT_THAT(Check("etcd_ca_file: '" + key + "'"),
              ElementsAre(HasSubstr("holds no certificate in PEM form")));
  EXPECT_THAT(Check("etcd_certificate_file: '" + certificate + "' etcd_key_file: '" + certificate + "'"),
              ElementsAre(HasSubstr("holds no private key in PEM form")));
  for (const std::string& bad : {std::string("\n"), std::string("one\ntwo\n"), std::string(1001, 'x')}) {
    EXPECT_THAT(CheckPassword(Write("p", bad)), ElementsAre(HasSubstr("in one line and nothing else")))
        << bad;
  }
  EXPECT_THAT(Check("etcd_ca_file: '" + Write("big", std::string((1 << 20) + 1, 'x')) + "'"),
              ElementsAre(HasSubstr("has more than 1048576 bytes")));
}

// ---- the sample

TEST(ClusterConfig, BlockOfTheSampleIsValidWithoutItsComments) {
  std::ifstream file("deploy/config/ckptd.txtpb");
  const std::string sample{std::istreambuf_iterator<char>(file), {}};
  const size_t begin = sample.find("\n# cluster {\n");
  ASSERT_NE(begin, std::string::npos);
  const std::string block = std::regex_replace(sample.substr(begin), std::regex("\n# ?"), "\n");
  const LoadedConfig loaded = LoadConfig(block, "ckptd.txtpb", {}, int64_t{64} << 30);
  ASSERT_THAT(loaded.problems, IsEmpty());
  const auto& cluster = loaded.config.cluster();
  EXPECT_EQ(cluster.etcd_endpoints_size(), 3);
  EXPECT_NE(cluster.etcd_password_file(), "");
  const auto defaults = Load(absl::StrCat("node_name: 'n' ", kEndpoint)).config.cluster();
  EXPECT_EQ(cluster.etcd_prefix(), defaults.etcd_prefix());
  EXPECT_EQ(cluster.lease_seconds(), defaults.lease_seconds());
  EXPECT_EQ(cluster.etcd_timeout_seconds(), defaults.etcd_timeout_seconds());
  EXPECT_EQ(cluster.node_grace_seconds(), defaults.node_grace_seconds());
  EXPECT_THAT(cluster.shared_folders(), ElementsAre("/shared/ckpts"));
}

}  // namespace
}  // namespace ckptd
