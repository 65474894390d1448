// The requests of the hand-off protocol: Hello, AttachRoot, FetchSegments and Goodbye. Checks what a peer
// sent, and fills in the answer.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/handoff/handoff_server_impl.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/object/bucket_url.h"

namespace ckptd {
namespace {

constexpr int kProtocolVersion = 1;
constexpr size_t kMaxUnanswered = 64;  // Requests of one connection.
constexpr size_t kMaxNameLength = 100;
constexpr size_t kMaxPathLength = 4096;

bool Printable(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

}  // namespace

// Handles one request and queues its answer. An error that is returned closes the connection; an error that
// the peer may correct and retry is sent as the answer.
absl::Status HandoffServer::Impl::HandlePacket(HandoffConnection& connection, Packet packet) {
  v1::HandoffRequest request;
  if (!request.ParseFromString(packet.bytes))
    return InvalidArgument("the peer sent a packet that is not a HandoffRequest");
  if (connection.answers.size() >= kMaxUnanswered)
    return InvalidArgument(
        absl::StrCat("the peer sent more than ", kMaxUnanswered, " requests without reading an answer"));
  HandoffAnswer& answer = connection.answers.emplace_back();
  answer.ticket = ++last_ticket_;
  answer.response.set_id(request.id());
  absl::Status status;
  bool later = false;
  const bool takes_descriptors = request.kind_case() == v1::HandoffRequest::kAttachRoot;
  if (!takes_descriptors && !packet.descriptors.empty()) {
    status = InvalidArgument("only AttachRoot takes a descriptor");
  } else if (request.kind_case() == v1::HandoffRequest::kHello) {
    status = Hello(connection, request.hello(), *answer.response.mutable_hello());
  } else if (request.kind_case() == v1::HandoffRequest::KIND_NOT_SET) {
    status = InvalidArgument("the request is of a kind that this daemon does not know; upgrade ckptd");
  } else if (!connection.open) {
    status = InvalidArgument("the first request must be Hello");
  } else if (request.kind_case() == v1::HandoffRequest::kAttachRoot) {
    status = AttachRoot(connection, request.attach_root(), std::move(packet.descriptors), answer.ticket);
    later = status.ok();
  } else if (request.kind_case() == v1::HandoffRequest::kFetchSegments) {
    status = FetchSegments(request.fetch_segments(), answer);
  } else {
    answer.response.mutable_goodbye();
    connection.leaving = true;
    EndSession(connection, "said goodbye", true);
    // From now on epoll reports only the end of the connection.
    CKPTD_RETURN_IF_ERROR(
        Watch(connection.socket.get(), Key(Source::kSocket, connection.id), 0, EPOLL_CTL_MOD));
  }
  answer.ready = !later;
  if (!status.ok()) answer.Fail(status);
  return absl::OkStatus();
}

absl::Status HandoffServer::Impl::Hello(HandoffConnection& connection, const v1::Hello& hello,
                                        v1::HelloResponse& response) {
  if (connection.greeted) return InvalidArgument("Hello was already sent on this connection");
  if (hello.min_version() > kProtocolVersion || hello.max_version() < kProtocolVersion) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "VERSION_UNSUPPORTED",
                     absl::StrCat("the client speaks versions ", hello.min_version(), " to ",
                                  hello.max_version(), ", this daemon (", options_.daemon_version,
                                  ") speaks ", kProtocolVersion, "; upgrade the older of the two"));
  }
  const std::string& instance = hello.client_instance();
  if (instance.size() != 32 || instance.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
    return InvalidArgument("client_instance must be 32 hexadecimal digits");
  }
  if (hello.client_name().size() > kMaxNameLength || !Printable(hello.client_name())) {
    return InvalidArgument(
        absl::StrCat("client_name must be at most ", kMaxNameLength, " printable characters"));
  }
  const uid_t uid = connection.peer.user.uid;
  if (uid == overflow_uid_ && uid != geteuid()) {
    return MakeError(
        absl::StatusCode::kPermissionDenied, "WRONG_UID",
        absl::StrCat("uid ", uid,
                     " stands for all users without a mapping in the daemon's user namespace and can "
                     "have no session; map the container's user to a user of this machine"));
  }
  SessionRequest request;
  request.user = connection.peer.user;
  request.pid = connection.peer.pid;
  request.client_instance = instance;
  request.client_name = hello.client_name();
  request.keeper = hello.keeper();
  request.tenant = connection.peer.namespaces.tenant;
  CKPTD_ASSIGN_OR_RETURN(SessionRegistry::Opened opened, registry_->Open(request));
  connection.greeted = true;
  connection.open = true;
  connection.keeper = hello.keeper();
  connection.session = opened.info;
  delegate_->SessionOpened(opened.info, request.user);
  response.set_version(kProtocolVersion);
  response.set_token(opened.token);
  response.set_daemon_instance(options_.daemon_instance);
  response.set_daemon_version(options_.daemon_version);
  return absl::OkStatus();
}

absl::Status HandoffServer::Impl::AttachRoot(HandoffConnection& connection, const v1::AttachRoot& request,
                                             std::vector<UniqueFd> descriptors, uint64_t ticket) {
  const std::string& path = request.path();
  const bool is_bucket = IsBucketUrl(path);
  if (descriptors.size() != (is_bucket ? 0 : 1)) {
    return InvalidArgument(absl::StrCat(
        "AttachRoot takes one descriptor, and none with the URL of a bucket, and got ", descriptors.size()));
  }
  if (path.empty() || (path.front() != '/' && !is_bucket) || path.size() > kMaxPathLength ||
      !Printable(path)) {
    return InvalidArgument(absl::StrCat("AttachRoot needs an absolute path of at most ", kMaxPathLength,
                                        " printable characters, for messages; or the URL of a bucket"));
  }
  const auto reply = [replies = replies_, id = connection.id, ticket](absl::StatusOr<std::string> root) {
    replies->Push({id, ticket, std::move(root)});
  };
  if (is_bucket) {
    delegate_->AttachRoot(connection.session, UniqueFd(), path, reply);
    return absl::OkStatus();
  }
  // AT_STATX_DONT_SYNC: does not ask a file server, which may not answer.
  struct statx info {};
  if (statx(descriptors[0].get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &info) != 0) {
    return ErrnoError(errno, "statx of the root's descriptor");
  }
  if (!S_ISDIR(info.stx_mode)) return InvalidArgument("the descriptor of AttachRoot is not a directory");
  delegate_->AttachRoot(connection.session, std::move(descriptors[0]), path, reply);
  return absl::OkStatus();
}

absl::Status HandoffServer::Impl::FetchSegments(const v1::FetchSegments& request, HandoffAnswer& answer) {
  if (request.ids().empty() || request.ids_size() > static_cast<int>(kMaxPacketDescriptors)) {
    return InvalidArgument(absl::StrCat("FetchSegments takes 1 to ", kMaxPacketDescriptors, " ids and got ",
                                        request.ids_size()));
  }
  std::vector<SegmentId> ids(request.ids().begin(), request.ids().end());
  std::sort(ids.begin(), ids.end());
  if (const auto twice = std::adjacent_find(ids.begin(), ids.end()); twice != ids.end())
    return InvalidArgument(absl::StrCat("FetchSegments names segment ", *twice, " twice; name each once"));
  answer.segments.assign(request.ids().begin(), request.ids().end());
  answer.access = request.read_only() ? SegmentAccess::kRead : SegmentAccess::kWrite;
  return absl::OkStatus();
}

// Makes the descriptors of a FetchSegments answer, just before it is sent.
absl::StatusOr<std::vector<UniqueFd>> HandoffServer::Impl::FindSegments(HandoffConnection& connection,
                                                                        HandoffAnswer& answer) {
  std::vector<UniqueFd> descriptors;
  v1::FetchSegmentsResponse& response = *answer.response.mutable_fetch_segments();
  response.clear_segments();
  for (SegmentId id : answer.segments) {
    CKPTD_ASSIGN_OR_RETURN(SegmentDirectory::Descriptor found,
                           directory_->Find(connection.session.id, id, answer.access));
    descriptors.emplace_back(found.fd);
    v1::HandoffSegment& segment = *response.add_segments();
    segment.set_id(id);
    segment.set_size_bytes(found.size);
    segment.set_huge(found.huge);
  }
  return descriptors;
}

}  // namespace ckptd
