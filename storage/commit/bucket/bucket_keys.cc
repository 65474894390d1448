#include "storage/commit/bucket/bucket_keys.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "storage/bucket/transfer.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

// The positive number that the text is; nullopt if it is none.
std::optional<int64_t> NumberIn(std::string_view text) {
  int64_t number = 0;
  if (text.empty() || text.find_first_not_of("0123456789") != text.npos) return std::nullopt;
  if (!absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &number) || number < 1)
    return std::nullopt;
  return number;
}

// `key` without `start`; nullopt if it begins otherwise.
std::optional<std::string_view> After(std::string_view key, const std::string& start) {
  if (!key.starts_with(start)) return std::nullopt;
  return key.substr(start.size());
}

// Cuts `text` after its first dot, and returns the number before it.
std::optional<int64_t> TakeNumber(std::string_view& text) {
  const size_t dot = text.find('.');
  if (dot == text.npos) return std::nullopt;
  const std::optional<int64_t> number = NumberIn(text.substr(0, dot));
  text.remove_prefix(dot + 1);
  return number;
}

}  // namespace

BucketKeys::BucketKeys(std::string prefix) : prefix_(std::move(prefix)) {}

std::string BucketKeys::Checkpoint(const std::string& tag) const { return CheckpointKey(prefix_, tag); }
std::string BucketKeys::Manifest(const std::string& tag) const {
  return Checkpoint(tag) + OurPath("", std::string(kManifestName));
}
std::string BucketKeys::Claim(const std::string& tag) const { return Manifest(tag) + ".new"; }

std::string BucketKeys::Ours() const { return CheckpointKey(prefix_, std::string(kOurDirectory)); }
std::string BucketKeys::Terms() const { return Ours() + "terms/"; }
std::string BucketKeys::AllUnended() const { return Ours() + "unended/"; }
std::string BucketKeys::Term(int64_t term) const { return absl::StrCat(Terms(), term); }
std::string BucketKeys::Record(int64_t term) const { return Ours() + SharedRecordName(term); }
std::string BucketKeys::Unended(const UnendedId& id) const {
  return absl::StrCat(AllUnended(), id.term, ".", id.sequence, ".", id.tag, "/");
}

std::optional<int64_t> BucketKeys::TermOf(std::string_view key) const {
  const std::optional<std::string_view> name = After(key, Terms());
  return name.has_value() ? NumberIn(*name) : std::nullopt;
}

std::optional<int64_t> BucketKeys::RecordOf(std::string_view key) const {
  const std::optional<std::string_view> name = After(key, Ours());
  return name.has_value() ? ParseSharedRecordName(*name) : std::nullopt;
}

std::optional<UnendedId> BucketKeys::UnendedOf(std::string_view key) const {
  std::optional<std::string_view> name = After(key, AllUnended());
  if (!name.has_value()) return std::nullopt;
  name = name->substr(0, name->find('/'));
  const std::optional<int64_t> term = TakeNumber(*name), sequence = TakeNumber(*name);
  if (!term || !sequence || !CheckTag(*name).ok()) return std::nullopt;
  return UnendedId{*term, *sequence, std::string(*name)};
}

}  // namespace ckptd
