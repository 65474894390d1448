// Scripts that complete command lines in a shell, made from the table of commands that --help shows.
#ifndef CKPTD_CLIENT_CKPTCTL_COMPLETION_H_
#define CKPTD_CLIENT_CKPTCTL_COMPLETION_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace ckptd::ctl {

// The shells that CompletionScript knows: bash, zsh, fish.
const std::vector<std::string>& CompletionShells();

// The script for `shell`, one of CompletionShells. It completes commands, options, and the values of options
// that take one of a few words; anything else is completed as a file's name.
std::string CompletionScript(const CLI::App& app, const std::string& shell);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_COMPLETION_H_
