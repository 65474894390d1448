#include "daemon/etcd/grpc/etcd_members.h"

#include <grpcpp/grpcpp.h>

#include <cerrno>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/base/errors.h"
#include "storage/base/mutex.h"
#include "storage/base/status_macros.h"

namespace ckptd {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;  // For a page of keys; one request to etcd is below 2 MiB.

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  if (path.empty()) return "";
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) return ErrnoError(errno, absl::StrCat("reading ", path));
  return text.str();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(const EtcdOptions& options) {
  if (!options.tls) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions pem;
  CKPTD_ASSIGN_OR_RETURN(pem.pem_root_certs, ReadPem(options.tls->ca_file));
  CKPTD_ASSIGN_OR_RETURN(pem.pem_cert_chain, ReadPem(options.tls->certificate_file));
  CKPTD_ASSIGN_OR_RETURN(pem.pem_private_key, ReadPem(options.tls->key_file));
  return grpc::SslCredentials(pem);
}

grpc::ChannelArguments MakeArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  // Reconnect soon to a member that was away; the calls go to the next member meanwhile.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // Pings let a watch, which only reads, notice a connection that has died silently, as when a cable is
  // unplugged. etcd refuses pings more often than every 5 s.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // No limit.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);             // $http_proxy is for other traffic.
  return arguments;
}

// A cancelled call ends on a thread of gRPC's, and drops its reference to the channel there. If no other
// channel of the process has callbacks, gRPC (1.51) then stops these threads from one of them, and aborts. So
// every channel is kept until the process ends.
void KeepUntilExit(std::shared_ptr<grpc::Channel> channel) {
  static auto* const mutex = new Mutex;
  static auto* const kept = new std::vector<std::shared_ptr<grpc::Channel>>;
  MutexLock lock(*mutex);
  kept->push_back(std::move(channel));
}

}  // namespace

absl::StatusOr<EtcdMembers> EtcdMembers::Make(const EtcdOptions& options) {
  CKPTD_RETURN_IF_ERROR(CheckEtcdOptions(options));
  CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                         MakeCredentials(options));
  EtcdMembers members;
  for (const std::string& endpoint : options.endpoints) {
    const auto channel = grpc::CreateCustomChannel(endpoint, credentials, MakeArguments());
    auto member = std::make_unique<EtcdMember>();
    KeepUntilExit(channel);
    member->endpoint = endpoint;
    member->kv = etcdserverpb::KV::NewStub(channel);
    member->lease = etcdserverpb::Lease::NewStub(channel);
    member->watch = etcdserverpb::Watch::NewStub(channel);
    member->auth = etcdserverpb::Auth::NewStub(channel);
    members.members_.push_back(std::move(member));
  }
  return members;
}

void EtcdMembers::Answered(EtcdMember& member) {
  member.answers = true;
  member.error.clear();
}

void EtcdMembers::Failed(EtcdMember& member, std::string_view error, Instant now) {
  member.answers = false;
  member.failed_at = now;
  member.error = std::string(error);
  if (&current() == &member) current_ = (current_ + 1) % members_.size();
}

std::string EtcdMembers::Names() const {
  return absl::StrJoin(members_, ", ",
                       [](std::string* out, const auto& member) { out->append(member->endpoint); });
}

}  // namespace ckptd
