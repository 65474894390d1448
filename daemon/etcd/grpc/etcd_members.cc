#include "daemon/etcd/grpc/etcd_members.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/strings/str_join.h"
#include "storage/base/mutex.h"

namespace ckptd {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;  // For a page of keys; one request to etcd is below 2 MiB.

std::shared_ptr<grpc::ChannelCredentials> MakeCredentials(const EtcdOptions& options,
                                                          const EtcdCredentials& credentials) {
  if (!options.tls) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions pem;
  pem.pem_root_certs = credentials.ca;
  pem.pem_cert_chain = credentials.certificate;
  pem.pem_private_key = credentials.key;
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

// The channels that are kept.
struct KeptChannels {
  Mutex mutex;
  std::vector<std::shared_ptr<grpc::Channel>> channels ABSL_GUARDED_BY(mutex);
};
KeptChannels& Kept() {
  static auto* const kept = new KeptChannels;
  return *kept;
}

}  // namespace

EtcdMembers EtcdMembers::Make(const EtcdOptions& options, const EtcdCredentials& credentials) {
  const std::shared_ptr<grpc::ChannelCredentials> shown = MakeCredentials(options, credentials);
  EtcdMembers members;
  for (const std::string& endpoint : options.endpoints) {
    const auto channel = grpc::CreateCustomChannel(endpoint, shown, MakeArguments());
    auto member = std::make_shared<EtcdMember>();
    member->endpoint = endpoint;
    member->channel = channel;
    member->kv = etcdserverpb::KV::NewStub(channel);
    member->lease = etcdserverpb::Lease::NewStub(channel);
    member->watch = etcdserverpb::Watch::NewStub(channel);
    member->auth = etcdserverpb::Auth::NewStub(channel);
    members.members_.push_back(std::move(member));
  }
  return members;
}

// A cancelled call ends on a thread of gRPC's, and drops its reference to the channel there. If no other
// channel of the process has callbacks, gRPC (1.51) then stops these threads from one of them, and aborts. So
// the channels in use are kept, beyond the end of their owner.
void EtcdMembers::Keep() const {
  MutexLock lock(Kept().mutex);
  for (const auto& member : members_) Kept().channels.push_back(member->channel);
}

// Else they would try to connect for ever, with what etcd does not accept any more.
void EtcdMembers::LetGo() const {
  MutexLock lock(Kept().mutex);
  for (const auto& member : members_) std::erase(Kept().channels, member->channel);
}

void EtcdMembers::Answered(EtcdMember& member) {
  member.answers = true;
  member.error.clear();
}

void EtcdMembers::Failed(EtcdMember& member, std::string_view error, Instant now) {
  member.answers = false;
  member.failed_at = now;
  member.error = std::string(error);
  if (current().get() == &member) current_ = (current_ + 1) % members_.size();
}

std::string EtcdMembers::Names() const {
  return absl::StrJoin(members_, ", ",
                       [](std::string* out, const auto& member) { out->append(member->endpoint); });
}

}  // namespace ckptd
