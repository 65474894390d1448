// Explains in one line why a command line is refused.
#ifndef CKPTD_CLIENT_CKPTCTL_USAGE_H_
#define CKPTD_CLIENT_CKPTCTL_USAGE_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace ckptd::ctl {

// What is wrong with `words` (the command line without the program's name), which `app` has refused with
// `error`, and what to do: `list has no option --al; did you mean --all?`. Without control characters.
std::string ExplainUsage(const CLI::App& app, const CLI::ParseError& error,
                         const std::vector<std::string>& words);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_USAGE_H_
