#include "tests/testing/etcd_cluster.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "daemon/etcd/etcd_requests.h"
#include "gtest/gtest.h"
#include "storage/base/unique_fd.h"
#include "tests/testing/child_process.h"

namespace ckptd {
namespace {

// A test runs in the root of its runfiles.
constexpr char kProgram[] = "external/debian_programs/etcd-server/usr/bin/etcd";
constexpr int kMostStarts = 3;  // Somebody may take a port between our looking for it and etcd's listening.
constexpr std::chrono::seconds kDeadline{60};

// A port that nobody listens on, kept from others while the socket lives.
std::pair<UniqueFd, int> FreePort() {
  UniqueFd holder(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(bind(holder.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  socklen_t length = sizeof address;
  EXPECT_EQ(getsockname(holder.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  return {std::move(holder), ntohs(address.sin_port)};
}

std::string Url(const std::string& scheme, int port) {
  return scheme + "://127.0.0.1:" + std::to_string(port);
}

// Tests are about what etcd says, not about the disk of the machine, and a member whose disk is slow loses its
// leader.
std::string InMemory() { return std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : "/tmp"; }

}  // namespace

EtcdCluster::EtcdCluster(int members, std::vector<std::string> flags, std::string scheme,
                         const std::string& parent)
    : flags_(std::move(flags)),
      scheme_(std::move(scheme)),
      folder_(parent.empty() ? InMemory() : parent),
      members_(static_cast<size_t>(members)) {
  for (int attempt = 1; attempt <= kMostStarts; ++attempt) {
    ChoosePorts();
    bool all_live = true;
    for (int member = 0; member < size(); ++member) Start(member);
    for (int member = 0; member < size(); ++member) {
      if (scheme_ == "http") WaitUntilServing(member);
      all_live = all_live && !HasEnded(member);
    }
    if (all_live) return;
    for (int member = 0; member < size(); ++member) {
      Kill(member);
      std::filesystem::remove_all(DataFolder(member));
    }
  }
  ADD_FAILURE() << "etcd did not start\n" << Log(0);
}

EtcdCluster::~EtcdCluster() {
  for (int member = 0; member < size(); ++member) {
    Kill(member);
    if (testing::Test::HasFailure()) {
      const std::string log = Log(member);
      std::cerr << "---- end of the log of etcd " << Name(member) << "\n"
                << log.substr(log.size() - std::min<size_t>(log.size(), 2000)) << "\n";
    }
  }
}

std::vector<std::string> EtcdCluster::endpoints() const {
  std::vector<std::string> endpoints;
  for (const Member& member : members_)
    endpoints.push_back("127.0.0.1:" + std::to_string(member.client_port));
  return endpoints;
}

void EtcdCluster::ChoosePorts() {
  std::vector<UniqueFd> holders;
  for (Member& member : members_) {
    for (int* port : {&member.client_port, &member.peer_port}) {
      auto [holder, number] = FreePort();
      holders.push_back(std::move(holder));
      *port = number;
    }
  }
}

std::string EtcdCluster::PeerUrl(int member) const { return Url("http", members_[member].peer_port); }

void EtcdCluster::Start(int member) {
  std::string cluster;
  for (int each = 0; each < size(); ++each)
    cluster += (each == 0 ? "" : ",") + Name(each) + "=" + PeerUrl(each);
  const std::string client_url = Url(scheme_, members_[member].client_port);
  std::vector<std::string> arguments = {kProgram,
                                        "--name=" + Name(member),
                                        "--data-dir=" + DataFolder(member),
                                        "--listen-client-urls=" + client_url,
                                        "--advertise-client-urls=" + client_url,
                                        "--listen-peer-urls=" + PeerUrl(member),
                                        "--initial-advertise-peer-urls=" + PeerUrl(member),
                                        "--initial-cluster=" + cluster,
                                        "--initial-cluster-state=new",
                                        "--logger=zap",
                                        "--log-level=warn"};
  arguments.insert(arguments.end(), flags_.begin(), flags_.end());
  const std::string log = folder_.path() + "/" + Name(member) + ".log";
  UniqueFd output(open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  members_[member].pid = StartProgram(arguments, output.get(), output.get());
}

void EtcdCluster::Kill(int member) {
  pid_t& pid = members_[member].pid;
  if (pid <= 0) return;
  kill(pid, SIGKILL);
  WaitForEnd(std::exchange(pid, -1));
}

// kill() returns while other threads of the process may still run, and answer a request.
void EtcdCluster::Stop(int member) {
  const pid_t pid = members_[member].pid;
  kill(pid, SIGSTOP);
  siginfo_t stopped;
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid), &stopped, WSTOPPED | WEXITED | WNOWAIT), 0);
}
void EtcdCluster::Continue(int member) { kill(members_[member].pid, SIGCONT); }

bool EtcdCluster::HasEnded(int member) {
  pid_t& pid = members_[member].pid;
  if (pid > 0 && waitpid(pid, nullptr, WNOHANG) == pid) pid = -1;
  return pid <= 0;
}

std::unique_ptr<etcdserverpb::KV::Stub> EtcdCluster::NewKv(int member) const {
  return etcdserverpb::KV::NewStub(
      grpc::CreateChannel(endpoints()[member], grpc::InsecureChannelCredentials()));
}

bool EtcdCluster::Serves(int member) const {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
  etcdserverpb::RangeRequest request;
  request.set_key("any");
  etcdserverpb::RangeResponse response;
  return NewKv(member)->Range(&context, request, &response).ok();
}

void EtcdCluster::WaitUntilServing(int member) {
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (!HasEnded(member) && !Serves(member)) {
    if (std::chrono::steady_clock::now() < deadline) continue;
    ADD_FAILURE() << "etcd did not serve in time\n" << Log(member);
    return;
  }
}

bool EtcdCluster::Leads(int member) const {
  const auto stub = etcdserverpb::Maintenance::NewStub(
      grpc::CreateChannel(endpoints()[member], grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  etcdserverpb::StatusResponse status;
  return stub->Status(&context, {}, &status).ok() && status.leader() == status.header().member_id();
}

int EtcdCluster::Leader() {
  for (int member = 0; member < size(); ++member) {
    if (!HasEnded(member) && Leads(member)) return member;
  }
  ADD_FAILURE() << "etcd has no leader\n" << Log(0);
  return 0;
}

void EtcdCluster::RequireUser(const std::string& user, const std::string& password,
                              const std::string& prefix) const {
  const auto stub =
      etcdserverpb::Auth::NewStub(grpc::CreateChannel(endpoints()[0], grpc::InsecureChannelCredentials()));
  const auto ask = [&stub](auto method, const auto& request) {
    grpc::ClientContext context;
    etcdserverpb::AuthAnswer answer;
    const grpc::Status done = (stub.get()->*method)(&context, request, &answer);
    EXPECT_TRUE(done.ok()) << done.error_message();
  };
  using etcdserverpb::Auth;
  for (const std::string& name : {std::string("root"), user}) {
    etcdserverpb::AuthUserAddRequest add_user;
    add_user.set_name(name);
    add_user.set_password(password);
    ask(&Auth::Stub::UserAdd, add_user);
    etcdserverpb::AuthRoleAddRequest add_role;
    add_role.set_name(name);
    ask(&Auth::Stub::RoleAdd, add_role);
    etcdserverpb::AuthUserGrantRoleRequest grant;
    grant.set_user(name);
    grant.set_role(name);
    ask(&Auth::Stub::UserGrantRole, grant);
  }
  etcdserverpb::AuthRoleGrantPermissionRequest permit;
  permit.set_name(user);
  permit.mutable_perm()->set_permtype(etcdserverpb::AuthRoleGrantPermissionRequest::Permission::READWRITE);
  permit.mutable_perm()->set_key(prefix);
  permit.mutable_perm()->set_range_end(PrefixEnd(prefix));
  ask(&Auth::Stub::RoleGrantPermission, permit);
  ask(&Auth::Stub::AuthEnable, etcdserverpb::AuthEnableRequest());
}

void EtcdCluster::CopyData(int member, const std::string& to) const {
  std::filesystem::copy(DataFolder(member), to, std::filesystem::copy_options::recursive);
}

void EtcdCluster::RestoreData(int member, const std::string& from) const {
  std::filesystem::remove_all(DataFolder(member));
  std::filesystem::copy(from, DataFolder(member), std::filesystem::copy_options::recursive);
}

std::string EtcdCluster::Log(int member) const {
  std::ostringstream text;
  text << std::ifstream(folder_.path() + "/" + Name(member) + ".log").rdbuf();
  return text.str();
}

}  // namespace ckptd
