#include "client/ckptctl/completion.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::ctl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// The script of a small tool. tests/packaging/test_completion.py asks shells what they make of it.
std::string Script(const std::string& shell) {
  CLI::App app("A tool.", "tool");
  std::string text;
  bool flag = false;
  app.add_option("--output", text, "How")->check(CLI::IsMember({"text", "json"}));
  app.add_subcommand("list", "List what's there")->add_flag("-a,--all", flag, "All: [everything]");
  CLI::App* convert = app.add_subcommand("convert", "Convert");
  CLI::App* zero = convert->add_subcommand("nxd-zero", "One of them");
  zero->add_option_group("outcome")->add_flag("--there", flag, "It is there");
  return CompletionScript(app, shell);
}

TEST(CompletionScript, HasEveryCommandAndOptionForEachShell) {
  for (const std::string& shell : CompletionShells()) {
    EXPECT_THAT(Script(shell), AllOf(HasSubstr("list"), HasSubstr("nxd-zero"), HasSubstr("all"),
                                     HasSubstr("output"), HasSubstr("text json"), HasSubstr("there")))
        << shell;
  }
}

TEST(CompletionScript, QuotesDescriptionsForTheShell) {
  EXPECT_THAT(Script("zsh"),
              AllOf(HasSubstr("'-a[All\\: (everything)]'"), HasSubstr("what’s"), Not(HasSubstr("what's"))));
  EXPECT_THAT(Script("fish"), AllOf(HasSubstr("-d 'All: [everything]'"), Not(HasSubstr("what's"))));
}

}  // namespace
}  // namespace ckptd::ctl
