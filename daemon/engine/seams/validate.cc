#include "daemon/engine/seams/validate.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "storage/base/status_macros.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

// 64 TiB: more than any machine has, and so little that the parts of all ranks can be summed.
constexpr int64_t kLargestPart = int64_t{1} << 46;
constexpr int kMaxMetrics = 32;
constexpr size_t kLongestMetricName = 64;
constexpr int64_t kLongestAgeSeconds = int64_t{100} * 365 * 24 * 3600;

}  // namespace

absl::Status CheckFiles(const google::protobuf::RepeatedPtrField<v1::FileSpec>& files) {
  int64_t sum = 0;
  for (const v1::FileSpec& file : files) {
    CKPTD_RETURN_IF_ERROR(CheckFilePath(file.path()));
    if (file.size_bytes() < 0 || file.size_bytes() > kLargestPart || sum > kLargestPart - file.size_bytes()) {
      return InvalidArgument(absl::StrCat("size_bytes of file ", file.path(), " is ", file.size_bytes(),
                                          "; sizes and their sum are in [0, 2^46]"));
    }
    sum += file.size_bytes();
  }
  return absl::OkStatus();
}

absl::Status CheckBegin(const v1::BeginRequest& request, int world_size) {
  CKPTD_RETURN_IF_ERROR(CheckTag(request.key().tag()));
  if (request.key().rank() < 0 || request.key().rank() >= world_size) {
    return InvalidArgument(
        absl::StrCat("rank is ", request.key().rank(), "; it is in [0, ", world_size, ")"));
  }
  if (request.key().ordinal() < 1) {
    return InvalidArgument(absl::StrCat("ordinal is ", request.key().ordinal(), "; it counts from 1"));
  }
  const auto& ranks = request.ranks();
  if (!ranks.empty() && std::find(ranks.begin(), ranks.end(), request.key().rank()) == ranks.end()) {
    return InvalidArgument(absl::StrCat("ranks does not name rank ", request.key().rank(),
                                        " itself; a rank that contributes nothing does not begin the save"));
  }
  for (const int rank : ranks) {
    if (rank < 0 || rank >= world_size)
      return InvalidArgument(absl::StrCat("ranks names rank ", rank, "; it is in [0, ", world_size, ")"));
  }
  if (request.has_num_kept_ckpts() && request.num_kept_ckpts() < 1) {
    return InvalidArgument(absl::StrCat("num_kept_ckpts is ", request.num_kept_ckpts(),
                                        "; it is at least 1, and leaving it out keeps all"));
  }
  if (request.has_num_kept_ckpts() && request.has_retention())
    return InvalidArgument(
        "num_kept_ckpts and retention are both set; set retention.last instead of the former");
  CKPTD_RETURN_IF_ERROR(CheckRetention(request.retention()));
  if (request.metrics_size() > kMaxMetrics) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kMetricsTooLarge,
                     absl::StrCat(request.metrics_size(), " metrics; at most ", kMaxMetrics));
  }
  for (const auto& metric : request.metrics()) {
    if (metric.first.empty() || metric.first.size() > kLongestMetricName) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kMetricsTooLarge,
                       absl::StrCat("a metric's name has ", metric.first.size(), " characters; it has 1 to ",
                                    kLongestMetricName));
    }
  }
  if (request.layout() < -1)
    return InvalidArgument(absl::StrCat("layout is ", request.layout(),
                                        "; it is the number that an answer gave, or -1 to ask for one"));
  if (request.layout() > 0 && (request.growing() || !request.files().empty()))
    return InvalidArgument(
        "layout is set with growing or files; a layout is all files of a part, to which none is added");
  CKPTD_RETURN_IF_ERROR(
      CheckPointers(request.key().tag(), {request.pointers().begin(), request.pointers().end()}));
  return CheckFiles(request.files());
}

absl::Status CheckRetention(const v1::RetentionPolicy& policy) {
  if (policy.has_last() && policy.last() < 1)
    return InvalidArgument(absl::StrCat("retention.last is ", policy.last(), "; it is at least 1"));
  if (policy.best() < 0)
    return InvalidArgument(absl::StrCat("retention.best is ", policy.best(), "; it is at least 1"));
  if ((policy.best() > 0) != !policy.metric().empty()) {
    return InvalidArgument(absl::StrCat("retention.best is ", policy.best(), " and retention.metric is \"",
                                        policy.metric(), "\"; set both, or none of them"));
  }
  if (policy.metric().size() > kLongestMetricName) {
    return InvalidArgument(absl::StrCat("retention.metric has ", policy.metric().size(),
                                        " characters; a metric's name has 1 to ", kLongestMetricName));
  }
  if (!v1::MetricOrder_IsValid(policy.order()))
    return InvalidArgument(absl::StrCat("retention.order is ", policy.order(), "; it is MIN or MAX"));
  if (policy.every_steps() < 0)
    return InvalidArgument(
        absl::StrCat("retention.every_steps is ", policy.every_steps(), "; it is at least 1"));
  if (policy.has_newer_than() &&
      (policy.newer_than().seconds() < 1 || policy.newer_than().seconds() > kLongestAgeSeconds)) {
    return InvalidArgument(absl::StrCat("retention.newer_than is ", policy.newer_than().seconds(),
                                        " s; it is in [1 s, ", kLongestAgeSeconds, " s]"));
  }
  return absl::OkStatus();
}

absl::Status CheckSealRequest(const v1::SealRequest& request) {
  if (request.suspect().size() > kMaxSuspectBytes)
    return InvalidArgument(
        absl::StrCat("suspect has ", request.suspect().size(), " bytes; it has at most ", kMaxSuspectBytes));
  if (request.as_placed() && !request.files().empty())
    return InvalidArgument("files is set with as_placed, which seals all files as they were placed");
  return CheckFiles(request.files());
}

absl::Status CheckDamage(const v1::Damage& damage) {
  constexpr size_t kMaxText = 1000, kMaxValue = 100;
  if (damage.has_chunk() && damage.chunk() < 0) {
    return InvalidArgument(absl::StrCat("damage.chunk is ", damage.chunk(), "; it is at least 0"));
  }
  if (damage.path().size() > kMaxText || damage.message().size() > kMaxText ||
      damage.expected().size() > kMaxValue || damage.found().size() > kMaxValue) {
    return InvalidArgument(absl::StrCat("damage is said in too many words: path and message have at most ",
                                        kMaxText, " bytes, expected and found ", kMaxValue));
  }
  return absl::OkStatus();
}

absl::Status NoCheckpoint(const std::string& tag, const std::string& message) {
  return MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint, message, {{"tag", tag}});
}

absl::Status NotJoined(const std::string& run, int rank) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kNotJoined,
                   absl::StrCat("this session has not joined ", run, " as rank ", rank));
}

absl::StatusOr<Duration> CheckDuration(bool set, const google::protobuf::Duration& value, const char* field,
                                       Duration otherwise, Duration least, Duration most) {
  if (!set) return otherwise;
  const bool in_range = value.seconds() >= 0 && value.seconds() <= 315'576'000'000 && value.nanos() >= 0 &&
                        value.nanos() < 1'000'000'000;
  const double seconds = static_cast<double>(value.seconds()) + value.nanos() * 1e-9;
  if (!in_range || seconds < std::chrono::duration<double>(least).count() ||
      seconds > std::chrono::duration<double>(most).count()) {
    return InvalidArgument(absl::StrCat(field, " is ", seconds, " s; it is in [",
                                        std::chrono::duration<double>(least).count(), " s, ",
                                        std::chrono::duration<double>(most).count(), " s]"));
  }
  return std::chrono::seconds(value.seconds()) + Duration(value.nanos());
}

std::optional<std::pair<std::string, std::string>> ParseCheckpointName(const std::string& name) {
  constexpr std::string_view kMiddle = "/checkpoints/";
  const size_t at = name.find(kMiddle);
  if (!name.starts_with("runs/") || at == std::string::npos) return std::nullopt;
  std::string tag = name.substr(at + kMiddle.size());
  if (tag.empty() || tag.find('/') != std::string::npos) return std::nullopt;
  return std::pair(name.substr(0, at), std::move(tag));
}

}  // namespace ckptd
