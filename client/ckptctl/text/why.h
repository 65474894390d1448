// Answers what has become of a tag: one sentence, the evidence, and the next step.
#ifndef CKPTD_CLIENT_CKPTCTL_TEXT_WHY_H_
#define CKPTD_CLIENT_CKPTCTL_TEXT_WHY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ckptd/v1/messages.pb.h"
#include "ckptd/v1/types.pb.h"

namespace ckptd::ctl {

// What the daemon knows of a tag.
struct TagFacts {
  std::string tag;
  v1::Run run;
  std::optional<v1::Checkpoint> checkpoint;       // Committed, in flight, or how its last save failed.
  std::optional<v1::RetentionDecision> decision;  // Of a committed one.
  std::optional<v1::TrashedCheckpoint> trashed;   // The newest of this tag.
  v1::GetHistoryResponse history;                 // Of this tag.
  int64_t now_us = 0;
};

struct WhyAnswer {
  bool known = true;   // Otherwise nothing is known of the tag.
  bool good = false;   // It is a whole checkpoint, or on the way to be one.
  std::string state;   // "COMMITTED", "FAILED", "EVICTED", "IN FLIGHT", "UNKNOWN", ...
  std::string answer;  // One sentence.
  std::vector<std::string> evidence;
  std::string next_step;  // Empty: there is nothing to do.
};

WhyAnswer AnswerWhy(const TagFacts& facts);
std::string RenderWhy(const TagFacts& facts, const WhyAnswer& answer);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_TEXT_WHY_H_
