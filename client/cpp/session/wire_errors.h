// Converts errors of the wire to absl::Status with reason and details: a gRPC status with
// `grpc-status-details-bin`, the error of a hand-off frame, and the error of a save. Does not use gRPC.
#ifndef CKPTD_CLIENT_CPP_SESSION_WIRE_ERRORS_H_
#define CKPTD_CLIENT_CPP_SESSION_WIRE_ERRORS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "ckptd/v1/handoff.pb.h"
#include "ckptd/v1/types.pb.h"

namespace ckptd::client {

// `details` is a google.rpc.Status (code = 1, message = 2, details = 3) with one Any that holds a
// google.rpc.ErrorInfo. It may be any bytes: if they do not parse, or are of another domain than "ckptd", the
// status has no reason.
absl::Status FromWire(int code, std::string_view message, std::string_view details);

absl::Status FromWire(const v1::HandoffError& error);

// How a save ended: code, reason and message of `checkpoint.error`, with the details tag, sequence and ranks.
absl::Status FromSaveError(const v1::Checkpoint& checkpoint);

}  // namespace ckptd::client
#endif  // CKPTD_CLIENT_CPP_SESSION_WIRE_ERRORS_H_
