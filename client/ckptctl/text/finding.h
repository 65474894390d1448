// What an examination has found, and what to do about it.
#ifndef CKPTD_CLIENT_CKPTCTL_TEXT_FINDING_H_
#define CKPTD_CLIENT_CKPTCTL_TEXT_FINDING_H_

#include <string>
#include <vector>

namespace ckptd::ctl {

enum class Verdict { kOk, kWarning, kFailure };

struct Finding {
  Verdict verdict = Verdict::kOk;
  std::string subject;  // "huge pages"
  std::string what;     // What was found.
  std::string advice;   // What to do about it. Empty: nothing.
};

// As a table for people, under a title.
std::string FindingsText(const std::string& title, const std::vector<Finding>& findings);
// "ok", "WARNING" or "FAILURE".
const char* WordOf(Verdict verdict);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_TEXT_FINDING_H_
