#include "client/ckptctl/text/retention_text.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/ckptctl/text/text.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"

namespace ckptd::ctl {
namespace {

constexpr std::pair<char, int64_t> kUnits[] = {{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}};

absl::Status Wrong(const std::string& part) {
  return InvalidArgument(absl::StrCat(
      "the policy has \"", part,
      "\"; a policy is \"all\", or some of last=3, best=2:loss:min, every=1000 and newer_than=7d "
      "(s, m, h or d), separated by commas"));
}

absl::StatusOr<int64_t> Number(const std::string& text, const std::string& part) {
  int64_t number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < 1) return Wrong(part);
  return number;
}

absl::StatusOr<int> SmallNumber(const std::string& text, const std::string& part) {
  CKPTD_ASSIGN_OR_RETURN(const int64_t number, Number(text, part));
  if (number > INT32_MAX) return Wrong(part);
  return static_cast<int>(number);
}

// "2:loss:min"; ":min" may be left out.
absl::Status ParseBest(const std::string& value, const std::string& part, v1::RetentionPolicy* policy) {
  const std::vector<std::string> fields = absl::StrSplit(value, ':');
  if (fields.size() < 2 || fields.size() > 3 || fields[1].empty()) return Wrong(part);
  CKPTD_ASSIGN_OR_RETURN(const int count, SmallNumber(fields[0], part));
  policy->set_best(count);
  policy->set_metric(fields[1]);
  const std::string order = fields.size() == 3 ? fields[2] : "min";
  if (order != "min" && order != "max") return Wrong(part);
  policy->set_order(order == "max" ? v1::MAX : v1::MIN);
  return absl::OkStatus();
}

absl::Status ParseAge(const std::string& value, const std::string& part, v1::RetentionPolicy* policy) {
  for (const auto& [unit, seconds] : kUnits) {
    if (value.empty() || value.back() != unit) continue;
    CKPTD_ASSIGN_OR_RETURN(const int64_t number, Number(value.substr(0, value.size() - 1), part));
    if (number > INT64_MAX / seconds) return Wrong(part);
    policy->mutable_newer_than()->set_seconds(number * seconds);
    return absl::OkStatus();
  }
  return Wrong(part);
}

absl::Status ParsePart(const std::string& part, v1::RetentionPolicy* policy) {
  const std::pair<std::string, std::string> both = absl::StrSplit(part, absl::MaxSplits('=', 1));
  const auto& [name, value] = both;
  if (name == "best") return ParseBest(value, part, policy);
  if (name == "newer_than") return ParseAge(value, part, policy);
  if (name == "last") {
    CKPTD_ASSIGN_OR_RETURN(const int count, SmallNumber(value, part));
    policy->set_last(count);
    return absl::OkStatus();
  }
  if (name != "every") return Wrong(part);
  CKPTD_ASSIGN_OR_RETURN(const int64_t steps, Number(value, part));
  policy->set_every_steps(steps);
  return absl::OkStatus();
}

// In the largest unit that is exact.
std::string AgeText(int64_t seconds) {
  for (const auto& [unit, length] : kUnits) {
    if (seconds % length == 0) return absl::StrCat(seconds / length, std::string(1, unit));
  }
  return "";
}

}  // namespace

absl::StatusOr<v1::RetentionPolicy> ParseRetention(const std::string& text) {
  v1::RetentionPolicy policy;
  if (text == "all") return policy;
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) CKPTD_RETURN_IF_ERROR(ParsePart(part, &policy));
  return policy;
}

std::string RetentionText(const v1::RetentionPolicy& policy) {
  std::vector<std::string> parts;
  if (policy.has_last()) parts.push_back(absl::StrCat("last=", policy.last()));
  if (policy.best() > 0) {
    parts.push_back(absl::StrCat("best=", policy.best(), ":", Printable(policy.metric()), ":",
                                 policy.order() == v1::MAX ? "max" : "min"));
  }
  if (policy.every_steps() > 0) parts.push_back(absl::StrCat("every=", policy.every_steps()));
  if (policy.newer_than().seconds() > 0)
    parts.push_back(absl::StrCat("newer_than=", AgeText(policy.newer_than().seconds())));
  return parts.empty() ? "all" : absl::StrJoin(parts, ",");
}

std::string RenderRetention(const v1::ExplainRetentionResponse& explained) {
  Table table({"TAG", "STEP", "KEPT BY"});
  for (const v1::RetentionDecision& decision : explained.decisions()) {
    table.Add({decision.tag(), decision.has_step() ? absl::StrCat(decision.step()) : "-",
               decision.kept_by().empty() ? "nothing: goes at the next commit"
                                          : absl::StrJoin(decision.kept_by(), ", ")});
  }
  return absl::StrCat("policy: ", RetentionText(explained.policy()), "\n", table.ToString());
}

}  // namespace ckptd::ctl
