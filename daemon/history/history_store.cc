#include "daemon/history/history_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/history/save_outlook.h"
#include "google/protobuf/util/json_util.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/base/unique_fd.h"

namespace ckptd {
namespace {

constexpr size_t kMaxMessageBytes = 1000;
constexpr int kDefaultEntries = 100, kMaxEntries = 10000;

// At most `kMaxMessageBytes`, and no part of a character.
void Shorten(std::string* text) {
  if (text->size() <= kMaxMessageBytes) return;
  size_t end = kMaxMessageBytes;
  while (end > 0 && (static_cast<unsigned char>((*text)[end]) & 0xc0) == 0x80) --end;
  text->resize(end);
}

std::string LineOf(v1::HistoryEntry entry) {
  Shorten(entry.mutable_message());
  std::string line;
  if (!google::protobuf::util::MessageToJsonString(entry, &line).ok()) return "";
  return line + "\n";
}

absl::Status WriteAll(int fd, std::string_view bytes, const std::string& path) {
  const ssize_t written = ::write(fd, bytes.data(), bytes.size());
  if (written == static_cast<ssize_t>(bytes.size())) return absl::OkStatus();
  return ErrnoError(written < 0 ? errno : ENOSPC, absl::StrCat("write ", path));
}

absl::StatusOr<std::string> ReadAll(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) return ErrnoError(errno, absl::StrCat("open ", path));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return ErrnoError(errno, absl::StrCat("look at ", path));
  std::string text(static_cast<size_t>(std::max<off_t>(info.st_size, 0)), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + done, text.size() - done);
    if (got < 0) return ErrnoError(errno, absl::StrCat("read ", path));
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  text.resize(done);
  return text;
}

// Whether the last append was cut off.
absl::StatusOr<bool> IsTorn(int fd, int64_t size, const std::string& path) {
  if (size == 0) return false;
  char last = 0;
  if (::pread(fd, &last, 1, size - 1) != 1) return ErrnoError(errno, absl::StrCat("read ", path));
  return last != '\n';
}

// Nothing for a line that is no entry: one that was cut off, or of a damaged disk.
bool Parse(std::string_view line, v1::HistoryEntry* entry) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // A newer daemon may have added fields.
  const auto parsed = google::protobuf::util::JsonStringToMessage({line.data(), line.size()}, entry, options);
  return parsed.ok() && entry->kind() != v1::HistoryEntry::KIND_UNSPECIFIED;
}

}  // namespace

HistoryStore::HistoryStore(Options options) : options_(std::move(options)) {}
HistoryStore::~HistoryStore() = default;

std::string HistoryStore::PathOf(const RootKey& root) const {
  return absl::StrFormat("%s/%d-%x-%08x.jsonl", options_.directory, root.uid, root.inode,
                         Crc32c(std::as_bytes(std::span(root.path))));
}

void HistoryStore::Add(RootKey root, v1::HistoryEntry entry) {
  if (pending_ >= options_.pending_entries) return options_.dropped();
  ++pending_;
  thread_.Submit([this, root = std::move(root), entry = std::move(entry)]() mutable {
    const absl::Status added = Append(root, LineOf(std::move(entry)));
    --pending_;
    if (added.ok()) {
      failing_ = false;
      return;
    }
    options_.dropped();
    if (std::exchange(failing_, true)) return;
    options_.warn(absl::StrCat("the history of ", root.path,
                               " in the state directory cannot be written: ", std::string(added.message()),
                               "; saves go on, and ckptctl history lacks what happens meanwhile"));
  });
}

absl::Status HistoryStore::Append(const RootKey& root, const std::string& line) {
  if (line.empty()) return absl::InternalError("the entry cannot be written as JSON");
  const std::string path = PathOf(root);
  constexpr int kFlags = O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  UniqueFd file(::open(path.c_str(), kFlags));
  if (!file && errno == ENOENT) {
    CKPTD_RETURN_IF_ERROR(MakePlace(root));
    file = UniqueFd(::open(path.c_str(), kFlags | O_CREAT, 0600));
  }
  if (!file) return ErrnoError(errno, absl::StrCat("open ", path));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return ErrnoError(errno, absl::StrCat("look at ", path));
  CKPTD_ASSIGN_OR_RETURN(const bool is_torn, IsTorn(file.get(), info.st_size, path));
  CKPTD_RETURN_IF_ERROR(WriteAll(file.get(), is_torn ? "\n" + line : line, path));
  if (info.st_size + static_cast<int64_t>(line.size()) <= options_.file_bytes) return absl::OkStatus();
  return Halve(path);
}

// Makes the directory, and removes the user's files that were written least recently, until there is room for
// one more.
absl::Status HistoryStore::MakePlace(const RootKey& root) {
  if (::mkdir(options_.directory.c_str(), 0700) != 0 && errno != EEXIST)
    return ErrnoError(errno, absl::StrCat("make ", options_.directory));
  const std::string prefix = absl::StrCat(root.uid, "-");
  std::set<std::pair<std::filesystem::file_time_type, std::string>> files;  // Oldest first.
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(options_.directory, error)) {
    if (!std::string_view(file.path().filename().native()).starts_with(prefix)) continue;
    std::error_code unknown;
    files.emplace(file.last_write_time(unknown), file.path());
  }
  while (static_cast<int>(files.size()) >= options_.files_per_uid) {
    ::unlink(files.begin()->second.c_str());
    files.erase(files.begin());
  }
  return absl::OkStatus();
}

absl::Status HistoryStore::Halve(const std::string& path) const {
  CKPTD_ASSIGN_OR_RETURN(std::string text, ReadAll(path));
  const size_t keep = static_cast<size_t>(options_.file_bytes) / 2;
  if (text.size() > keep) {
    const size_t line_end = text.find('\n', text.size() - keep);
    text.erase(0, line_end == std::string::npos ? text.size() : line_end + 1);
  }
  const std::string fresh = path + ".new";
  UniqueFd file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return ErrnoError(errno, absl::StrCat("open ", fresh));
  CKPTD_RETURN_IF_ERROR(WriteAll(file.get(), text, fresh));
  if (::rename(fresh.c_str(), path.c_str()) != 0) return ErrnoError(errno, absl::StrCat("rename ", fresh));
  return absl::OkStatus();
}

void HistoryStore::Read(RootKey root, v1::GetHistoryRequest request, Reply<v1::GetHistoryResponse> reply) {
  if (request.max_entries() < 0 || request.max_entries() > kMaxEntries) {
    return reply(InvalidArgument(
        absl::StrCat("max_entries is ", request.max_entries(), "; allowed are 0 to ", kMaxEntries)));
  }
  if (!(request.seconds_between_failures() >= 0) || std::isinf(request.seconds_between_failures())) {
    return reply(
        InvalidArgument(absl::StrCat("seconds_between_failures is ", request.seconds_between_failures(),
                                     "; allowed are 0 (as the history shows) and more")));
  }
  thread_.Submit(
      [this, root = std::move(root), request = std::move(request), reply = std::move(reply)]() mutable {
        options_.post([answer = ReadNow(root, request), reply = std::move(reply)]() mutable {
          reply(std::move(answer));
        });
      });
}

absl::StatusOr<v1::GetHistoryResponse> HistoryStore::ReadNow(const RootKey& root,
                                                             const v1::GetHistoryRequest& request) const {
  v1::GetHistoryResponse response;
  const absl::StatusOr<std::string> text = ReadAll(PathOf(root));
  if (!text.ok()) {
    if (ErrnoOf(text.status()) == ENOENT) return response;
    return Annotate(text.status(), absl::StrCat("reading the history of ", root.path));
  }
  std::vector<v1::HistoryEntry> entries;  // Oldest first.
  // Twice if a daemon was killed before the root's own record had the save: the first one knows more.
  std::set<std::pair<int64_t, int>> seen;
  OutlookMaker outlook;
  for (size_t begin = 0; begin < text->size();) {
    const size_t end = std::min(text->find('\n', begin), text->size());
    v1::HistoryEntry entry;
    const bool is_entry = Parse(std::string_view(*text).substr(begin, end - begin), &entry);
    begin = end + 1;
    if (!is_entry) continue;
    outlook.Add(entry);
    if (!response.has_begin_time()) *response.mutable_begin_time() = entry.time();
    if (!request.tag().empty() && entry.tag() != request.tag()) continue;
    if (entry.kind() == v1::HistoryEntry::SAVE && entry.sequence() > 0 &&
        !seen.emplace(entry.sequence(), entry.level()).second)
      continue;
    entries.push_back(std::move(entry));
  }
  const size_t most = request.max_entries() == 0 ? kDefaultEntries : request.max_entries();
  const size_t count = std::min(most, entries.size());
  for (size_t i = 0; i < count; ++i) *response.add_entries() = std::move(entries[entries.size() - 1 - i]);
  if (auto made = outlook.Make(request.seconds_between_failures())) *response.mutable_outlook() = *made;
  return response;
}

}  // namespace ckptd
