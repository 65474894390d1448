#include "client/ckptctl/text/finding.h"

#include "absl/strings/str_cat.h"
#include "client/ckptctl/text/text.h"

namespace ckptd::ctl {

const char* WordOf(Verdict verdict) {
  return verdict == Verdict::kOk ? "ok" : verdict == Verdict::kWarning ? "WARNING" : "FAILURE";
}

std::string FindingsText(const std::string& title, const std::vector<Finding>& findings) {
  Table table({"", title, ""});
  for (const Finding& finding : findings) {
    table.Add({WordOf(finding.verdict), finding.subject, finding.what});
    if (!finding.advice.empty()) table.Add({"", "", absl::StrCat("-> ", finding.advice)});
  }
  return table.ToString();
}

}  // namespace ckptd::ctl
