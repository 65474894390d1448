// Checks of requests that need no state of the engine.
#ifndef CKPTD_DAEMON_ENGINE_SEAMS_VALIDATE_H_
#define CKPTD_DAEMON_ENGINE_SEAMS_VALIDATE_H_

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/v1/messages.pb.h"
#include "ckptd/v1/types.pb.h"
#include "storage/base/clock.h"

namespace ckptd {

absl::Status CheckBegin(const v1::BeginRequest& request, int world_size);
absl::Status CheckRetention(const v1::RetentionPolicy& policy);
absl::Status CheckDamage(const v1::Damage& damage);
absl::Status CheckSealRequest(const v1::SealRequest& request);
absl::Status CheckFiles(const google::protobuf::RepeatedPtrField<v1::FileSpec>& files);
// The duration of a request's field, or `otherwise` if the field is not set. INVALID_ARGUMENT outside
// [least, most].
absl::StatusOr<Duration> CheckDuration(bool set, const google::protobuf::Duration& value, const char* field,
                                       Duration otherwise, Duration least, Duration most);
// The run and the tag of `runs/{run}/checkpoints/{tag}`; nullopt if the name has another form.
std::optional<std::pair<std::string, std::string>> ParseCheckpointName(const std::string& name);
absl::Status NoCheckpoint(const std::string& tag, const std::string& message);
// NOT_JOINED: the session has not joined the run as this rank.
absl::Status NotJoined(const std::string& run, int rank);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SEAMS_VALIDATE_H_
