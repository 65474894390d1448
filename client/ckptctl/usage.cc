#include "client/ckptctl/usage.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/ckptctl/text/text.h"

namespace ckptd::ctl {
namespace {

std::vector<const CLI::App*> Commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_name().empty(); });
}

// The option `name` of a command or, as global options are accepted after the command, of one above it.
const CLI::Option* FindOption(const CLI::App* command, const std::string& name) {
  for (; command != nullptr; command = command->get_parent()) {
    if (const CLI::Option* option = command->get_option_no_throw(name); option != nullptr) return option;
  }
  return nullptr;
}

std::vector<std::string> OptionNames(const CLI::App* command) {
  std::vector<std::string> names;
  for (; command != nullptr; command = command->get_parent()) {
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  return names;
}

// The arguments that a command takes beside its options.
size_t MostPositionals(const CLI::App& command) {
  size_t most = 0;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) most += static_cast<size_t>(option->get_items_expected_max());
  }
  return most;
}

// What the words of a command line are to a parser of commands.
struct Words {
  const CLI::App* command = nullptr;  // The innermost that they name.
  std::string unknown_option, unknown_command;
  std::vector<std::string> extra;  // Arguments that the command does not take.
};

Words Classify(const CLI::App& app, const std::vector<std::string>& words) {
  Words found;
  found.command = &app;
  size_t positionals = 0;
  for (size_t i = 0; i < words.size() && found.unknown_command.empty(); ++i) {
    const std::string& word = words[i];
    if (word.starts_with("-") && word.size() > 1) {
      const bool is_long = word.starts_with("--");
      const std::string name = is_long ? word.substr(0, word.find('=')) : word.substr(0, 2);
      const CLI::Option* option = FindOption(found.command, name);
      if (option == nullptr && found.unknown_option.empty() && name != "--") found.unknown_option = name;
      // Skip the value, which is a word of its own unless it follows a "=".
      if (option != nullptr && option->get_items_expected_max() > 0 && name.size() == word.size()) ++i;
      continue;
    }
    const std::vector<const CLI::App*> commands = Commands(*found.command);
    const auto named = std::find_if(commands.begin(), commands.end(),
                                    [&](const CLI::App* command) { return command->get_name() == word; });
    if (named != commands.end()) {
      found.command = *named;
    } else if (!commands.empty()) {
      found.unknown_command = word;
    } else if (++positionals > MostPositionals(*found.command)) {
      found.extra.push_back(word);
    }
  }
  return found;
}

// The only word that begins with `word`, or else the nearest one.
std::string Suggest(const std::string& word, const std::vector<std::string>& words) {
  const auto begins = [&](const std::string& other) { return other.starts_with(word); };
  if (std::count_if(words.begin(), words.end(), begins) == 1)
    return *std::find_if(words.begin(), words.end(), begins);
  return Nearest(word, words);
}

// "ckptctl convert nxd-zero".
std::string PathOf(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name() : absl::StrCat(PathOf(*parent), " ", command.get_name());
}

std::string Explain(const CLI::App& app, const CLI::ParseError& error,
                    const std::vector<std::string>& words) {
  const Words found = Classify(app, words);
  const std::string path = PathOf(*found.command);
  const bool is_top = found.command == &app;
  const std::string name = is_top ? path : path.substr(path.find(' ') + 1);
  const auto did_you_mean = [&](const std::string& word, const std::vector<std::string>& all) {
    const std::string near = Suggest(word, all);
    return near.empty() ? absl::StrCat("; see ", path, " --help")
                        : absl::StrCat("; did you mean ", near, "?");
  };
  if (!found.unknown_option.empty()) {
    return absl::StrCat(name, " has no option ", found.unknown_option,
                        did_you_mean(found.unknown_option, OptionNames(found.command)));
  }
  std::vector<std::string> commands;
  for (const CLI::App* command : Commands(*found.command)) commands.push_back(command->get_name());
  if (!found.unknown_command.empty()) {
    return absl::StrCat(is_top ? "there is" : absl::StrCat(name, " has"), " no command \"",
                        found.unknown_command, "\"", did_you_mean(found.unknown_command, commands));
  }
  if (!commands.empty()) return absl::StrCat("name a command; ", path, " --help lists them");
  if (!found.extra.empty()) {
    return absl::StrCat(name, " does not take \"", absl::StrJoin(found.extra, "\" \""), "\"; see ", path,
                        " --help");
  }
  std::string what = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr)
    what = absl::StrCat(what.substr(0, what.find(':')), " needs a value");
  return absl::StrCat(name, ": ", what, "; see ", path, " --help");
}

}  // namespace

std::string ExplainUsage(const CLI::App& app, const CLI::ParseError& error,
                         const std::vector<std::string>& words) {
  return OneLine(Explain(app, error, words));
}

}  // namespace ckptd::ctl
