#include "daemon/etcd/etcd_errors.h"

#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

// Several conditions share one of etcd's codes; only etcd's message texts, which are fixed, tell them apart.
struct Known {
  const char* text;  // A part of etcd's message.
  NextTry next;
  absl::StatusCode code;
  const char* reason;
  const char* remedy;
};

constexpr Known kKnown[] = {
    {"invalid auth token", NextTry::kAfterAuthentication, absl::StatusCode::kPermissionDenied,
     ledger_reason::kRefused, "etcd does not accept the token that it has given"},
    {"revision of auth store is old", NextTry::kAfterAuthentication, absl::StatusCode::kPermissionDenied,
     ledger_reason::kRefused, "etcd's users change all the time"},
    {"user name is empty", NextTry::kNone, absl::StatusCode::kPermissionDenied, ledger_reason::kRefused,
     "etcd wants to know who asks: configure a user with its password, or a client certificate whose CN is "
     "the "
     "user"},
    {"invalid user ID or password", NextTry::kNone, absl::StatusCode::kPermissionDenied,
     ledger_reason::kRefused, "correct the user or the password of etcd in the configuration"},
    {"authentication is not enabled", NextTry::kNone, absl::StatusCode::kPermissionDenied,
     ledger_reason::kRefused,
     "a user is configured, but this etcd knows none: enable its authentication, or configure no user"},
    {"permission denied", NextTry::kNone, absl::StatusCode::kPermissionDenied, ledger_reason::kRefused,
     "grant the user's role readwrite on all keys that begin with the configured prefix"},
    {"database space exceeded", NextTry::kNone, absl::StatusCode::kResourceExhausted, ledger_reason::kFull,
     "etcd takes no writes: compact and defragment it, then disarm its NOSPACE alarm"},
    {"required revision has been compacted", NextTry::kNone, absl::StatusCode::kOutOfRange,
     ledger_reason::kCompacted, "etcd was compacted meanwhile"},
    {"requested lease not found", NextTry::kNone, absl::StatusCode::kFailedPrecondition,
     ledger_reason::kLeaseEnded, "the lease has ended: it was not kept alive in time"},
    {"too many requests", NextTry::kAnotherMember, absl::StatusCode::kUnavailable,
     ledger_reason::kUnavailable, "etcd is overloaded"},
};

constexpr char kNotTrusted[] =
    "; its certificate has expired, or no authority in cluster.etcd_ca_file has signed it (without that "
    "setting: none in the system's bundle, such as /etc/ssl/certs/ca-certificates.crt)";

constexpr char kNoAuthorities[] =
    "; if this is for want of certificate authorities on this machine: set cluster.etcd_ca_file, or install "
    "ca-certificates, and restart the daemon";

// Whether a retry may succeed: the error comes from one member, from the network, or from an election.
bool MayPass(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:  // "corrupt cluster": this member's data differ from the others'.
      return true;
    default:
      return false;
  }
}

}  // namespace

EtcdFailure ExplainFailure(absl::StatusCode code, std::string_view message) {
  const std::string said(message);
  if (absl::StrContains(said, "required revision is a future revision")) {
    return {NextTry::kNone, EtcdRestored("it has not reached a revision that it has answered before")};
  }
  for (const Known& known : kKnown) {
    if (!absl::StrContains(said, known.text)) continue;
    return {known.next, MakeError(known.code, known.reason, absl::StrCat(said, ": ", known.remedy))};
  }
  if (MayPass(code)) {
    return {NextTry::kAnotherMember,
            MakeError(absl::StatusCode::kUnavailable, ledger_reason::kUnavailable, said)};
  }
  if (code == absl::StatusCode::kPermissionDenied || code == absl::StatusCode::kUnauthenticated) {
    return {NextTry::kNone, MakeError(absl::StatusCode::kPermissionDenied, ledger_reason::kRefused, said)};
  }
  return {NextTry::kNone, MakeError(absl::StatusCode::kInternal, ledger_reason::kError,
                                    absl::StrCat("etcd does not accept a request: ", said))};
}

// "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:2379: Failed to connect to remote host:
// Connection refused".
std::string MemberError(std::string_view message) {
  if (const size_t last = message.rfind("last error: "); last != std::string_view::npos) {
    message.remove_prefix(last);
    const size_t scheme = message.find(": ip");
    const size_t address_end = message.find(": ", scheme == std::string_view::npos ? 0 : scheme + 2);
    if (scheme != std::string_view::npos && address_end != std::string_view::npos)
      message.remove_prefix(address_end + 2);
    constexpr std::string_view kNotConnected = "Failed to connect to remote host: ";
    if (message.starts_with(kNotConnected)) message.remove_prefix(kNotConnected.size());
  }
  const bool not_trusted = message.find("certificate verify failed") != std::string_view::npos;
  const bool no_authorities =
      message == "empty address list";  // gRPC's error of a channel that it could not make.
  return absl::StrCat(std::string(message), not_trusted ? kNotTrusted : no_authorities ? kNoAuthorities : "");
}

absl::Status NoAnswerFromEtcd(std::string_view members, std::string_view purpose, std::string_view last) {
  return MakeError(
      absl::StatusCode::kUnavailable, ledger_reason::kUnavailable,
      absl::StrCat("no answer from etcd (", std::string(members), ") in time while ", std::string(purpose),
                   last.empty() ? "" : absl::StrCat("; the last error: ", std::string(last)),
                   "; check that most of its members run and that this node reaches them"));
}

absl::Status EtcdRestored(std::string_view how) {
  return MakeError(
      absl::StatusCode::kFailedPrecondition, ledger_reason::kRestored,
      absl::StrCat("etcd does not know what it has answered before: ", std::string(how),
                   ". It was restored from a backup, or is another etcd, so this daemon asks it for "
                   "nothing more; when you are sure that it is the right one, restart the daemon"));
}

absl::Status EtcdCompacted(int64_t oldest) {
  return MakeError(absl::StatusCode::kOutOfRange, ledger_reason::kCompacted,
                   absl::StrCat("etcd was compacted, and knows no changes from before revision ", oldest));
}

}  // namespace ckptd
