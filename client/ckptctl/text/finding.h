// Shows what an examination has found.
#ifndef CKPTD_CLIENT_CKPTCTL_TEXT_FINDING_H_
#define CKPTD_CLIENT_CKPTCTL_TEXT_FINDING_H_

#include <string>
#include <vector>

#include "storage/base/finding.h"

namespace ckptd::ctl {

// As a table for people, under a title.
std::string FindingsText(const std::string& title, const std::vector<Finding>& findings);
// "ok", "WARNING" or "FAILURE".
const char* WordOf(Verdict verdict);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_TEXT_FINDING_H_
