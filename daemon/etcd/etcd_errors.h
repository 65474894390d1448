// What etcd's errors mean: whether to ask again, and what the caller is told.
#ifndef CKPTD_DAEMON_ETCD_ETCD_ERRORS_H_
#define CKPTD_DAEMON_ETCD_ETCD_ERRORS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace ckptd {

// Reasons of errors, as in storage/base/reasons.h.
namespace ledger_reason {

// UNAVAILABLE: no member has answered in time, or etcd has no leader. A change may have been made or not.
inline constexpr char kUnavailable[] = "LEDGER_UNAVAILABLE";
// PERMISSION_DENIED: etcd does not accept the user, the password or the certificate, or the user may not.
inline constexpr char kRefused[] = "LEDGER_REFUSED";
// RESOURCE_EXHAUSTED: etcd has used up its quota, and takes no writes.
inline constexpr char kFull[] = "LEDGER_FULL";
// FAILED_PRECONDITION: etcd does not know what it has answered before. It was restored from a backup, or is
// another one.
inline constexpr char kRestored[] = "LEDGER_RESTORED";
// OUT_OF_RANGE: etcd has forgotten this revision.
inline constexpr char kCompacted[] = "LEDGER_COMPACTED";
// FAILED_PRECONDITION: the lease has ended, and its keys are gone. (Not NOT_FOUND, as etcd says: to the
// engine that is a checkpoint that is not there.)
inline constexpr char kLeaseEnded[] = "LEDGER_LEASE_ENDED";
// INTERNAL: etcd does not accept the request; a mistake of ckptd.
inline constexpr char kError[] = "LEDGER_ERROR";

}  // namespace ledger_reason

enum class NextTry {
  kNone,                 // The same would happen again.
  kAnotherMember,        // Another member may answer, or this one later.
  kAfterAuthentication,  // The token is not, or no longer, valid.
};

struct EtcdFailure {
  NextTry next = NextTry::kNone;
  absl::Status error;  // What the caller is told if there is no next try.
};

// `code` and `message` are those of the failed call.
EtcdFailure ExplainFailure(absl::StatusCode code, std::string_view message);

// For members that have not answered in time. `last` is the last error of one of them; empty: there was none.
absl::Status NoAnswerFromEtcd(std::string_view members, std::string_view purpose, std::string_view last);
// `how` says how it was noticed.
absl::Status EtcdRestored(std::string_view how);
// Events from before `oldest`, the first revision that is known, were asked for.
absl::Status EtcdCompacted(int64_t oldest);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ETCD_ETCD_ERRORS_H_
