#include "storage/bucket/index.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "storage/base/checksums/crc32c.h"
#include "storage/base/status_macros.h"
#include "storage/bucket/transfer.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::ManifestSummary;

constexpr std::string_view kIndexDirectory = "index";  // In PREFIX/.ckptd/.
constexpr char kAfterTag = '!';                        // No tag has it.
constexpr size_t kMaxKeyBytes = 1024;                  // S3's.
constexpr size_t kCrcBytes = 4;
constexpr uint8_t kByDaemon = 1, kIncomplete = 2;  // Flags.

std::string IndexFolder(const std::string& prefix) {
  return absl::StrCat(CheckpointKey(prefix, std::string(kOurDirectory)), std::string(kIndexDirectory), "/");
}

std::string Checksum(std::string_view tag, std::string_view info) {
  const std::string covered = absl::StrCat(std::string(tag), std::string(info));
  const uint32_t crc = Crc32c(std::as_bytes(std::span(covered)));
  std::string bytes;
  for (size_t i = 0; i < kCrcBytes; ++i) bytes.push_back(static_cast<char>(crc >> (8 * i)));
  return bytes;
}

// Equal summaries have equal names.
std::string Serialize(const ManifestSummary& summary) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  summary.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

std::string KeyOf(const std::string& prefix, const IndexName& name) {
  ManifestSummary summary = name.summary;
  summary.clear_tag();
  const uint8_t flags = (name.by_daemon ? kByDaemon : 0) | (name.is_complete ? 0 : kIncomplete);
  const std::string info = absl::StrCat(std::string(1, static_cast<char>(flags)), Serialize(summary));
  const std::string& tag = name.summary.tag();
  return absl::StrCat(IndexFolder(prefix), tag, std::string(1, kAfterTag),
                      absl::WebSafeBase64Escape(absl::StrCat(Checksum(tag, info), info)));
}

// Calls `each` with the keys that begin so.
absl::Status ForEachKey(ObjectStore& store, const std::string& beginning,
                        const std::function<void(const std::string& key)>& each) {
  std::string page;
  do {
    CKPTD_ASSIGN_OR_RETURN(const ObjectPage listed, store.List(beginning, "", page));
    for (const ObjectInfo& object : listed.objects) each(object.key);
    page = listed.next;
  } while (!page.empty());
  return absl::OkStatus();
}

}  // namespace

bool IsSameCheckpoint(const ManifestSummary& a, const ManifestSummary& b) {
  return a.sequence() == b.sequence() && a.commit_time_us() == b.commit_time_us();
}

std::optional<std::string> IndexKey(const std::string& prefix, const IndexName& name) {
  std::string key = KeyOf(prefix, name);
  if (key.size() > kMaxKeyBytes) {
    IndexName shorter = name;
    shorter.summary.clear_metrics();
    shorter.summary.clear_pointers();
    shorter.is_complete = false;
    key = KeyOf(prefix, shorter);
  }
  return key.size() <= kMaxKeyBytes ? std::optional(std::move(key)) : std::nullopt;
}

std::optional<IndexName> ParseIndexName(std::string_view name) {
  const size_t end = name.find(kAfterTag);
  if (end == name.npos) return std::nullopt;
  const std::string_view tag = name.substr(0, end);
  std::string bytes;
  if (!CheckTag(tag).ok() || !absl::WebSafeBase64Unescape(std::string(name.substr(end + 1)), &bytes) ||
      bytes.size() <= kCrcBytes)
    return std::nullopt;
  const std::string_view info = std::string_view(bytes).substr(kCrcBytes);
  if (Checksum(tag, info) != bytes.substr(0, kCrcBytes)) return std::nullopt;
  const auto flags = static_cast<uint8_t>(info[0]);
  IndexName parsed;
  if ((flags & ~(kByDaemon | kIncomplete)) != 0 ||
      !parsed.summary.ParseFromString(std::string(info.substr(1))))
    return std::nullopt;
  parsed.summary.set_tag(std::string(tag));
  parsed.by_daemon = (flags & kByDaemon) != 0;
  parsed.is_complete = (flags & kIncomplete) == 0;
  return parsed;
}

absl::Status PutIndexName(ObjectStore& store, const std::string& prefix, const IndexName& name) {
  const std::optional<std::string> key = IndexKey(prefix, name);
  return key.has_value() ? PutText(store, *key, "", PutMode::kReplace) : absl::OkStatus();
}

absl::Status RemoveIndexNames(ObjectStore& store, const std::string& prefix, const std::string& tag,
                              const ManifestSummary* but) {
  const std::string folder = IndexFolder(prefix);
  std::vector<std::string> others;
  const auto look = [&](const std::string& key) {
    const std::optional<IndexName> name = ParseIndexName(key.substr(folder.size()));
    const bool stays = but != nullptr && name.has_value() && IsSameCheckpoint(name->summary, *but);
    if (!stays) others.push_back(key);
  };
  CKPTD_RETURN_IF_ERROR(ForEachKey(store, absl::StrCat(folder, tag, std::string(1, kAfterTag)), look));
  for (const std::string& key : others) CKPTD_RETURN_IF_ERROR(store.Delete(key));
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, TagNames>> ReadIndex(ObjectStore& store, const std::string& prefix) {
  const std::string folder = IndexFolder(prefix);
  std::map<std::string, TagNames> index;
  const auto look = [&](const std::string& key) {
    const std::string name = key.substr(folder.size());
    const auto [place, is_first] = index.try_emplace(name.substr(0, name.find(kAfterTag)));
    TagNames& names = place->second;
    names.keys.push_back(key);
    std::optional<IndexName> parsed = ParseIndexName(name);
    if (is_first) {
      names.agreed = std::move(parsed);
    } else if (!parsed.has_value() || !names.agreed.has_value() ||
               !IsSameCheckpoint(parsed->summary, names.agreed->summary)) {
      names.agreed.reset();
    } else {
      names.agreed->by_daemon |= parsed->by_daemon;
    }
  };
  CKPTD_RETURN_IF_ERROR(ForEachKey(store, folder, look));
  return index;
}

absl::Status RepairIndex(ObjectStore& store, const std::string& prefix, const IndexRepairs& repairs,
                         int threads) {
  // In this order: among several names of a tag may be the right one, too.
  CKPTD_RETURN_IF_ERROR(
      RunParallel(threads, repairs.wrong.size(), [&](size_t i) { return store.Delete(repairs.wrong[i]); }));
  return RunParallel(threads, repairs.missing.size(),
                     [&](size_t i) { return PutIndexName(store, prefix, repairs.missing[i]); });
}

}  // namespace ckptd
