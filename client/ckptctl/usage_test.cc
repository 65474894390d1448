#include "client/ckptctl/usage.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ckptd::ctl {
namespace {

// What a small tool says of a command line that it must refuse.
std::string Refusal(std::vector<std::string> words) {
  CLI::App app("A tool.", "tool");
  app.require_subcommand(1);
  std::string endpoint, run, level;
  double timeout = 0;
  bool all = false;
  app.add_option("--endpoint", endpoint);
  app.add_option("--timeout", timeout)->check(CLI::Range(0.0, 10.0));
  CLI::App* list = app.add_subcommand("list", "Lists");
  list->fallthrough();
  list->add_option("RUN", run);
  list->add_flag("--all", all);
  list->add_flag("--until-idle");
  CLI::App* wait = app.add_subcommand("wait", "Waits");
  wait->fallthrough();
  wait->add_option("NAME", run)->required();
  wait->add_option("-l,--level", level);
  CLI::App* convert = app.add_subcommand("convert", "Converts");
  convert->require_subcommand(1);
  convert->add_subcommand("nxd-zero", "One of them");
  std::vector<std::string> reversed = words;
  std::reverse(reversed.begin(), reversed.end());
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    return ExplainUsage(app, error, words);
  }
  return "accepted";
}

TEST(ExplainUsage, SuggestsTheNearestCommand) {
  EXPECT_EQ(Refusal({"lst"}), "there is no command \"lst\"; did you mean list?");
  EXPECT_EQ(Refusal({"--endpoint", "list", "wiat", "x"}), "there is no command \"wiat\"; did you mean wait?");
  EXPECT_EQ(Refusal({"convert", "nxd-zer"}), "convert has no command \"nxd-zer\"; did you mean nxd-zero?");
  EXPECT_EQ(Refusal({"frobnicate"}), "there is no command \"frobnicate\"; see tool --help");
  EXPECT_EQ(Refusal({}), "name a command; tool --help lists them");
  EXPECT_EQ(Refusal({"convert"}), "name a command; tool convert --help lists them");
}

TEST(ExplainUsage, SuggestsTheNearestOptionOfTheCommand) {
  EXPECT_EQ(Refusal({"list", "--al"}), "list has no option --al; did you mean --all?");
  EXPECT_EQ(Refusal({"list", "--until"}), "list has no option --until; did you mean --until-idle?");
  EXPECT_EQ(Refusal({"list", "x", "--timeuot=3"}), "list has no option --timeuot; did you mean --timeout?");
  EXPECT_EQ(Refusal({"wait", "x", "--all"}), "wait has no option --all; see tool wait --help");
  EXPECT_EQ(Refusal({"wait", "x", "-x"}), "wait has no option -x; see tool wait --help");
}

TEST(ExplainUsage, NamesTheArgumentAndTheValue) {
  EXPECT_EQ(Refusal({"list", "a", "b", "c d"}), "list does not take \"b\" \"c d\"; see tool list --help");
  EXPECT_EQ(Refusal({"wait"}), "wait: NAME is required; see tool wait --help");
  EXPECT_EQ(Refusal({"wait", "x", "--level"}), "wait: --level needs a value; see tool wait --help");
  const std::string out_of_range = Refusal({"list", "--timeout", "11"});
  EXPECT_NE(out_of_range.find("--timeout: Value 11 not in range"), std::string::npos) << out_of_range;
}

TEST(ExplainUsage, IsOneLineWithoutControlCharacters) {
  EXPECT_EQ(Refusal({"l\nst\x1b[2J"}), "there is no command \"l st?[2J\"; see tool --help");
}

TEST(ExplainUsage, AcceptsWhatIsRight) { EXPECT_EQ(Refusal({"wait", "x", "--level=a"}), "accepted"); }

}  // namespace
}  // namespace ckptd::ctl
