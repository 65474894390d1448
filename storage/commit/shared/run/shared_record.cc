#include "storage/commit/shared/run/shared_record.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/shared/run/look_again.h"
#include "storage/commit/steps/records.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::SharedRunRecord;

RecordVersion VersionOf(const SharedRunRecord& record) { return {record.term(), record.number()}; }

std::string Shown(RecordVersion version) {
  return absl::StrCat("number ", version.number, " of term ", version.term);
}

// Nullopt: there is none. ENOENT if it is removed while it is looked for: then there is a newer one.
absl::StatusOr<std::optional<SharedRunRecord>> LoadHighest(const SharedLayout& layout) {
  CKPTD_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, layout.fs->List(layout.shared.get()));
  int64_t term = 0;
  for (const DirEntry& entry : entries) term = std::max(term, ParseSharedRecordName(entry.name).value_or(0));
  if (term == 0) return std::nullopt;
  CKPTD_ASSIGN_OR_RETURN(std::optional<SharedRunRecord> record,
                         LoadSharedRunRecord(*layout.fs, layout.shared.get(), term));
  if (!record.has_value()) return ErrnoError(ENOENT, SharedRecordName(term));
  return record;
}

// Removes those that do not count any more. Best effort: the highest term is read.
void RemoveOlder(const SharedLayout& layout, int64_t term) {
  const absl::StatusOr<std::vector<DirEntry>> entries = layout.fs->List(layout.shared.get());
  if (!entries.ok()) return;
  for (const DirEntry& entry : *entries) {
    const std::optional<int64_t> older = ParseSharedRecordName(entry.name);
    if (older.has_value() && *older < term)
      layout.fs->Remove(layout.shared.get(), entry.name, FileType::kRegular).IgnoreError();
  }
}

}  // namespace

absl::StatusOr<SharedRunRecord> SharedRecords::Load(RecordVersion at_least) {
  const absl::StatusOr<std::optional<SharedRunRecord>> found = LoadHighest(layout_);
  if (MayBeAnothersChange(found.status())) return LookAgain("the run's record", found.status());
  CKPTD_RETURN_IF_ERROR(found.status());
  const RecordVersion version = found->has_value() ? VersionOf(**found) : RecordVersion{};
  if (version < at_least) {
    return LookAgain(absl::StrCat("the run's record, ", Shown(at_least)),
                     absl::StrCat("it is ", Shown(version)));
  }
  number_ = std::max(number_, version.number);
  return found->value_or(SharedRunRecord());
}

absl::StatusOr<RecordVersion> SharedRecords::Store(SharedRunRecord record, int64_t term) {
  record.set_format_version(1);
  record.set_term(term);
  record.set_number(++number_);
  CKPTD_RETURN_IF_ERROR(StoreSharedRunRecord(*layout_.fs, layout_.shared.get(), record));
  RemoveOlder(layout_, term);
  return VersionOf(record);
}

}  // namespace ckptd
