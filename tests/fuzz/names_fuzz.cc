// Tags, file paths, and our own names that a scan finds. The input is used as a name of each kind in turn.
#include <filesystem>

#include "ckptd/storage/v1/storage.pb.h"
#include "storage/format/names.h"
#include "tests/fuzz/fuzz.h"

namespace ckptd {
namespace {

// A name built from a tag must yield the tag again.
void Tag(std::string_view name) {
  if (!CheckTag(name).ok()) return;
  const std::string tag(name);
  FUZZ_CHECK(!tag.empty() && tag.size() <= 200 && tag.find('/') == std::string::npos);
  FUZZ_CHECK(tag != "." && tag != ".." && tag != kOurDirectory);
  for (const int64_t sequence : {int64_t{1}, int64_t{42}, INT64_MAX}) {
    const std::string inflight = InflightName(tag, sequence, 0x0123456789abcdef);
    FUZZ_CHECK(inflight.size() <= 255);
    const std::optional<InflightId> id = ParseInflightName(inflight);
    FUZZ_CHECK(id.has_value() && id->tag == tag && id->sequence == sequence);
  }
}

// Compares with independent implementations: the standard library's for paths, and proto3's for UTF-8.
void Path(std::string_view name) {
  if (!CheckFilePath(name).ok()) return;
  const std::string path(name);
  FUZZ_CHECK(path.size() <= 1000 && path.find('\0') == std::string::npos);
  const std::filesystem::path parsed(path);
  FUZZ_CHECK(parsed.is_relative() && parsed.lexically_normal() == parsed && parsed.has_filename());
  for (const std::filesystem::path& component : parsed) {
    FUZZ_CHECK(component != ".." && component != "." && component.native().size() <= 255);
  }
  FUZZ_CHECK(*parsed.begin() != kOurDirectory);
  storage::v1::FileRecord record, again;
  record.set_path(path);
  FUZZ_CHECK(again.ParseFromString(record.SerializeAsString()) && again.path() == path);
  std::string joined;
  for (const std::string& parent : ParentDirectories(path)) {
    FUZZ_CHECK(path.starts_with(parent + "/") && parent.size() > joined.size());
    FUZZ_CHECK(CheckFilePath(parent).ok());
    joined = parent;
  }
}

void OurNames(std::string_view name) {
  if (const std::optional<int> rank = ParsePartRecordName(name)) FUZZ_CHECK(PartRecordName(*rank) == name);
  if (const std::optional<InflightId> id = ParseInflightName(name)) {
    FUZZ_CHECK(CheckTag(id->tag).ok() && id->sequence >= 1);
    FUZZ_CHECK(name.starts_with(id->tag + "." + std::to_string(id->sequence) + "."));
    FUZZ_CHECK(name.size() == id->tag.size() + std::to_string(id->sequence).size() + 18);
    FUZZ_CHECK(name.find('/') == std::string_view::npos);
  }
}

}  // namespace
}  // namespace ckptd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view name(reinterpret_cast<const char*>(data), size);
  ckptd::Tag(name);
  ckptd::Path(name);
  ckptd::OurNames(name);
  return 0;
}
