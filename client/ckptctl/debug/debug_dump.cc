#include "client/ckptctl/debug/debug_dump.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <ostream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/ckptctl/debug/sections.h"
#include "client/ckptctl/text/json.h"
#include "client/ckptctl/text/text.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"

namespace ckptd::ctl {
namespace {

constexpr char kHead[] =
    "A debug dump of ckptd, for a bug report. Passwords, tokens, keys and credentials are left out. Names of "
    "hosts,\n"
    "users, roots and runs are in it: read it before you send it.\n";

std::string DefaultName() {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char when[32] = {};
  std::strftime(when, sizeof when, "%Y%m%d-%H%M%S", &local);
  return absl::StrCat("ckptd-debug-", host, "-", when, ".txt");
}

absl::StatusOr<UniqueFd> Create(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file) return file;
  if (errno == EEXIST) {
    return MakeError(
        absl::StatusCode::kAlreadyExists, "EEXIST",
        absl::StrCat(path, " is there already; remove it, or name another file with --output_file"));
  }
  return ErrnoError(errno, absl::StrCat("making ", path));
}

absl::Status WriteAll(int file, const std::string& path, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(file, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError(errno, absl::StrCat("writing ", path));
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

std::string Why(const Section& section) { return std::string(section.text.status().message()); }

std::string Joined(const std::vector<Section>& sections) {
  std::string text = kHead;
  for (const Section& section : sections) {
    absl::StrAppend(&text, "\n==== ", section.name, " ====\n");
    absl::StrAppend(&text,
                    section.text.ok() ? *section.text : absl::StrCat("not here: ", Why(section), "\n"));
    if (!absl::EndsWith(text, "\n")) text += '\n';
  }
  return text;
}

std::string Json(const std::string& path, size_t bytes, const std::vector<Section>& sections) {
  google::protobuf::Struct json;
  auto& fields = *json.mutable_fields();
  fields["file"] = JsonText(path);
  fields["size_bytes"] = JsonNumber(static_cast<double>(bytes));
  auto& list = *fields["sections"].mutable_list_value();
  for (const Section& section : sections) {
    auto& entry = *list.add_values()->mutable_struct_value()->mutable_fields();
    entry["name"] = JsonText(section.name);
    entry["included"] = JsonBool(section.text.ok());
    entry["size_bytes"] = JsonNumber(section.text.ok() ? static_cast<double>(section.text->size()) : 0);
    entry["why_not"] = JsonText(section.text.ok() ? "" : Why(section));
  }
  return ToJson(json);
}

std::string Summary(const std::string& path, size_t bytes, const std::vector<Section>& sections) {
  std::string text = absl::StrCat(Printable(path), ": ", HumanBytes(static_cast<int64_t>(bytes)),
                                  ", without secrets; read it before you send it\n");
  for (const Section& section : sections) {
    if (!section.text.ok())
      absl::StrAppend(&text, "  without ", section.name, ": ", OneLine(Why(section)), "\n");
  }
  return text;
}

}  // namespace

absl::StatusOr<ExitCode> DebugDump(const Context& context, const std::string& output_file) {
  const std::string path = output_file.empty() ? DefaultName() : output_file;
  // Before anything is asked, which takes time.
  CKPTD_ASSIGN_OR_RETURN(const UniqueFd file, Create(path));
  const std::vector<Section> sections = GatherSections(context);
  const std::string text = Joined(sections);
  if (const absl::Status written = WriteAll(file.get(), path, text); !written.ok()) {
    ::unlink(path.c_str());
    return written;
  }
  if (context.json) {
    *context.out << Json(path, text.size(), sections);
  } else {
    WriteText(context, Summary(path, text.size(), sections));
  }
  return kOk;
}

}  // namespace ckptd::ctl
