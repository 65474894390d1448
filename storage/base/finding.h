// What an examination has found, and what to do about it.
#ifndef CKPTD_STORAGE_BASE_FINDING_H_
#define CKPTD_STORAGE_BASE_FINDING_H_

#include <string>

namespace ckptd {

enum class Verdict { kOk, kWarning, kFailure };

struct Finding {
  Verdict verdict = Verdict::kOk;
  std::string subject;  // "huge pages"
  std::string what;     // What was found.
  std::string advice;   // What to do about it. Empty: nothing.
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BASE_FINDING_H_
