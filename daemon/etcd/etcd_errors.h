// Classifies etcd's errors: whether to try again, and which error the caller gets.
#ifndef CKPTD_DAEMON_ETCD_ETCD_ERRORS_H_
#define CKPTD_DAEMON_ETCD_ETCD_ERRORS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace ckptd {

// Reasons of errors, as in storage/base/reasons.h.
namespace ledger_reason {

// UNAVAILABLE: no member has answered in time, or etcd has no leader. A write may have been applied or not.
inline constexpr char kUnavailable[] = "LEDGER_UNAVAILABLE";
// PERMISSION_DENIED: etcd does not accept the user, the password or the certificate, or the user lacks the
// permission.
inline constexpr char kRefused[] = "LEDGER_REFUSED";
// RESOURCE_EXHAUSTED: etcd has used up its quota, and takes no writes.
inline constexpr char kFull[] = "LEDGER_FULL";
// FAILED_PRECONDITION: etcd has gone back to an earlier revision, or has another cluster id. It was restored
// from a backup, or is another etcd.
inline constexpr char kRestored[] = "LEDGER_RESTORED";
// OUT_OF_RANGE: etcd has compacted this revision.
inline constexpr char kCompacted[] = "LEDGER_COMPACTED";
// FAILED_PRECONDITION: the lease has ended, and its keys are gone. (Not etcd's code NOT_FOUND, which the
// engine would take for a missing checkpoint.)
inline constexpr char kLeaseEnded[] = "LEDGER_LEASE_ENDED";
// INTERNAL: etcd does not accept the request; a bug in ckptd.
inline constexpr char kError[] = "LEDGER_ERROR";

}  // namespace ledger_reason

enum class NextTry {
  kNone,                 // A retry would fail in the same way.
  kAnotherMember,        // Another member may answer, or this one later.
  kAfterAuthentication,  // The token is not valid, or has expired.
};

struct EtcdFailure {
  NextTry next = NextTry::kNone;
  absl::Status error;  // For the caller, if there is no next try.
};

// `code` and `message` are those of the failed call.
EtcdFailure ExplainFailure(absl::StatusCode code, std::string_view message);

// What a failed call has said, for people who see the member's endpoint beside it: gRPC's error of a connection that
// could not be made is shortened to its cause, and an error of a certificate names the setting to look at.
std::string MemberError(std::string_view message);

// For members that have not answered in time. `last` is the last error of one of them; empty: there was none.
absl::Status NoAnswerFromEtcd(std::string_view members, std::string_view purpose, std::string_view last);
// `how`: the evidence, for the message.
absl::Status EtcdRestored(std::string_view how);
// For a request for events from before `oldest`, the first revision that etcd still has.
absl::Status EtcdCompacted(int64_t oldest);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ETCD_ETCD_ERRORS_H_
