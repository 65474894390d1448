#include "client/ckptctl/completion.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace ckptd::ctl {
namespace {

struct CompletedOption {
  std::vector<std::string> names;  // "-v", "--verbose".
  std::string description;
  bool takes_value = false;
  std::vector<std::string> values;  // Empty: any.
};

// A command, or the program itself, as a shell sees it.
struct CompletedCommand {
  std::string path;  // "convert nxd-zero"; "" for the program.
  std::vector<CompletedOption> options;
  struct Child {
    std::string name, description;
  };
  std::vector<Child> children;
};

// The words of the type's name, such as "TEXT:{text,json}".
std::vector<std::string> ValuesOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  return absl::StrSplit(type.substr(begin + 1, end - begin - 1), ',');
}

void AddOptions(const CLI::App& app, std::vector<CompletedOption>& options) {
  for (const CLI::Option* option : app.get_options()) {
    CompletedOption completed;
    for (const std::string& name : option->get_snames()) completed.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) completed.names.push_back("--" + name);
    completed.description = option->get_description();
    completed.takes_value = option->get_items_expected_max() > 0;
    completed.values = ValuesOf(*option);
    if (!completed.names.empty()) options.push_back(std::move(completed));
  }
}

// Adds the command `app` and those below it. `inherited`: the options of those above, which it accepts, too.
void AddCommands(const CLI::App& app, const std::string& path, const std::vector<CompletedOption>& inherited,
                 std::vector<CompletedCommand>& commands) {
  CompletedCommand command;
  command.path = path;
  AddOptions(app, command.options);
  std::vector<const CLI::App*> below;
  for (const CLI::App* child : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (child->get_name().empty()) {
      AddOptions(*child, command.options);  // A group of options.
    } else {
      below.push_back(child);
      command.children.push_back({child->get_name(), child->get_description()});
    }
  }
  for (const CompletedOption& option : inherited) {
    const bool is_own = option.names.back() == "--help" || option.names.back() == "--version";
    if (!is_own) command.options.push_back(option);
  }
  const std::vector<CompletedOption> options = command.options;
  commands.push_back(std::move(command));
  for (const CLI::App* child : below)
    AddCommands(*child, path.empty() ? child->get_name() : absl::StrCat(path, " ", child->get_name()),
                options, commands);
}

// In single quotes, for all three shells.
std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", ""}, {"'", "’"}}), "'");
}

// The loop that finds the command on the line in bash and zsh: sets `command` to its path.
std::string FindCommand(const std::vector<CompletedCommand>& commands, const std::string& words) {
  std::string script;
  for (const CompletedCommand& command : commands) {
    for (const auto& child : command.children) {
      const std::string path =
          command.path.empty() ? child.name : absl::StrCat(command.path, " ", child.name);
      absl::StrAppend(&script, "            ", Quoted(absl::StrCat(command.path, ":", child.name)),
                      ") command=", Quoted(path), " ;;\n");
    }
  }
  return absl::StrCat("        case \"$command:", words, "\" in\n", script, "        esac\n");
}

std::string Bash(const std::string& program, const std::vector<CompletedCommand>& commands) {
  std::string values, cases;
  for (const CompletedCommand& command : commands) {
    std::vector<std::string> options, children;
    for (const CompletedOption& option : command.options) {
      options.insert(options.end(), option.names.begin(), option.names.end());
      if (!option.takes_value) continue;
      for (const std::string& name : option.names)
        absl::StrAppend(&values, "        ", Quoted(absl::StrCat(command.path, ":", name)),
                        ") words=", Quoted(absl::StrJoin(option.values, " ")), " has_value=yes ;;\n");
    }
    for (const auto& child : command.children) children.push_back(child.name);
    absl::StrAppend(&cases, "        ", Quoted(command.path),
                    ") options=", Quoted(absl::StrJoin(options, " ")),
                    " commands=", Quoted(absl::StrJoin(children, " ")), " ;;\n");
  }
  return absl::StrCat(
      "# Completion of ", program, " for bash, made by `", program, " completion bash`.\n_", program, R"(() {
    local command='' words='' options='' commands='' has_value='' i
    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    # bash takes "--output=json" for three words.
    if [ "$word" = '=' ]; then
        word=''
    elif [ "$previous" = '=' ]; then
        previous=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
)",
      FindCommand(commands, "${COMP_WORDS[i]}"), "    done\n    case \"$command:$previous\" in\n", values,
      "    esac\n    case \"$command\" in\n", cases, R"(    esac
    if [ -z "$has_value" ]; then
        case "$word" in
            -*) words=$options ;;
            *) words=$commands ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o bashdefault -o default -F _)",
      program, " ", program, "\n");
}

// For _arguments, in which brackets and colons have a meaning.
std::string ZshText(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\\", ""}, {"'", "’"}, {"[", "("}, {"]", ")"}, {":", "\\:"}});
}

std::string Zsh(const std::string& program, const std::vector<CompletedCommand>& commands) {
  std::string cases;
  for (const CompletedCommand& command : commands) {
    absl::StrAppend(&cases, "        ", Quoted(command.path), ")\n");
    for (const CompletedOption& option : command.options) {
      const std::string value = !option.takes_value ? ""
                                : option.values.empty()
                                    ? ":value:_files"
                                    : absl::StrCat(":value:(", absl::StrJoin(option.values, " "), ")");
      for (const std::string& name : option.names) {
        const std::string equals = option.takes_value && name.starts_with("--") ? "=" : "";
        absl::StrAppend(&cases, "            options+=('", name, equals, "[", ZshText(option.description),
                        "]", value, "')\n");
      }
    }
    for (const auto& child : command.children)
      absl::StrAppend(&cases, "            commands+=('", child.name, ":", ZshText(child.description),
                      "')\n");
    absl::StrAppend(&cases, "            ;;\n");
  }
  return absl::StrCat(
      "#compdef ", program, "\n# Completion of ", program, " for zsh, made by `", program,
      " completion zsh`.\n_", program, R"(() {
    local command='' i
    local -a options commands
    for ((i = 2; i < CURRENT; i++)); do
)",
      FindCommand(commands, "${words[i]}"), "    done\n    case \"$command\" in\n", cases, R"(    esac
    if ((${#commands})); then
        _arguments "${options[@]}" '*:command:{_describe command commands}'
    else
        _arguments "${options[@]}" '*:file:_files'
    fi
}
if [ "$funcstack[1]" = _)",
      program, " ]; then\n    _", program, " \"$@\"\nelse\n    compdef _", program, " ", program, "\nfi\n");
}

std::string Fish(const std::string& program, const std::vector<CompletedCommand>& commands) {
  std::string lines;
  for (const CompletedCommand& command : commands) {
    // Where this command is on the line, and none of those below it.
    std::vector<std::string> conditions, children;
    for (const auto& child : command.children) children.push_back(child.name);
    for (const absl::string_view word : absl::StrSplit(command.path, ' ', absl::SkipEmpty()))
      conditions.push_back(absl::StrCat("__fish_seen_subcommand_from ", word));
    if (!children.empty())
      conditions.push_back(absl::StrCat("not __fish_seen_subcommand_from ", absl::StrJoin(children, " ")));
    const std::string here =
        absl::StrCat("complete -c ", program, " -n ", Quoted(absl::StrJoin(conditions, "; and ")));
    for (const auto& child : command.children)
      absl::StrAppend(&lines, here, " -f -a ", child.name, " -d ", Quoted(child.description), "\n");
    for (const CompletedOption& option : command.options) {
      absl::StrAppend(&lines, here);
      for (const std::string& name : option.names)
        absl::StrAppend(&lines, name.starts_with("--") ? " -l " : " -s ",
                        name.substr(name.starts_with("--") ? 2 : 1));
      if (option.takes_value) absl::StrAppend(&lines, " -r");
      if (!option.values.empty())
        absl::StrAppend(&lines, " -f -a ", Quoted(absl::StrJoin(option.values, " ")));
      absl::StrAppend(&lines, " -d ", Quoted(option.description), "\n");
    }
  }
  return absl::StrCat("# Completion of ", program, " for fish, made by `", program, " completion fish`.\n",
                      lines);
}

}  // namespace

const std::vector<std::string>& CompletionShells() {
  static const auto* const shells = new std::vector<std::string>{"bash", "zsh", "fish"};
  return *shells;
}

std::string CompletionScript(const CLI::App& app, const std::string& shell) {
  std::vector<CompletedCommand> commands;
  AddCommands(app, "", {}, commands);
  const std::string program = app.get_name();
  if (shell == "bash") return Bash(program, commands);
  if (shell == "zsh") return Zsh(program, commands);
  return Fish(program, commands);
}

}  // namespace ckptd::ctl
