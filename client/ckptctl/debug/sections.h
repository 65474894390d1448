// The sections of a debug dump, each with its text or with the reason why there is none.
#ifndef CKPTD_CLIENT_CKPTCTL_DEBUG_SECTIONS_H_
#define CKPTD_CLIENT_CKPTCTL_DEBUG_SECTIONS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/ckptctl/commands/commands.h"

namespace ckptd::ctl {

struct Section {
  std::string name;                  // "status"
  absl::StatusOr<std::string> text;  // Without secrets. The message of the status has none, either.
};

// Never waits for the file system of a root: it may be what hangs.
std::vector<Section> GatherSections(const Context& context);

// A text proto without what is behind "#". Functions for the test.
std::string WithoutComments(std::string_view text);
// The variables that say how ckptd behaves, sorted, one in each line; values that may be secret are left out.
std::string ShowEnvironment(std::vector<std::string> variables);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_DEBUG_SECTIONS_H_
