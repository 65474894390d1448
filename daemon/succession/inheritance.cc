#include "daemon/succession/inheritance.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/memory/huge_pages.h"
#include "storage/base/status_macros.h"
#include "storage/format/names.h"
#include "storage/format/retention_record.h"

namespace ckptd {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kLargestSegment = 1 << 30;
constexpr int kMaxRanks = 65536;

absl::Status Unfit(const std::string& why) {
  return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_JOURNAL", why);
}

// Returns the size in bytes of a descriptor that must be one of our segments; an error says why it is not.
absl::StatusOr<int64_t> SegmentSize(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return ErrnoError(errno, "fstat of a segment");
  const int seals = ::fcntl(fd, F_GET_SEALS);
  const bool size_locked = seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && (seals & F_SEAL_GROW) != 0;
  const bool writable = (::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR && (seals & F_SEAL_WRITE) == 0;
  if (!S_ISREG(info.st_mode) || !size_locked || !writable)
    return Unfit("it is not a writable memfd of a locked size");
  if (info.st_size <= 0 || info.st_size > kLargestSegment || info.st_size % kHugePageBytes != 0) {
    return Unfit(absl::StrCat("a segment cannot have ", static_cast<int64_t>(info.st_size), " bytes"));
  }
  return static_cast<int64_t>(info.st_size);
}

// False if the memfd has holes: its pages were punched out, and their bytes are lost.
bool IsPopulated(int fd, int64_t size) { return ::lseek(fd, 0, SEEK_HOLE) == size; }

absl::Status CheckPart(const storage::v1::SealedPart& part) {
  int64_t room = 0;
  for (const storage::v1::SealedSegment& segment : part.segments()) {
    if (segment.size_bytes() <= 0 || segment.size_bytes() > kLargestSegment)
      return Unfit(absl::StrCat("a segment cannot have ", segment.size_bytes(), " bytes"));
    room += segment.size_bytes();
  }
  std::map<int64_t, int64_t> places;  // Offset -> size.
  for (const storage::v1::SealedFile& file : part.files()) {
    CKPTD_RETURN_IF_ERROR(CheckFilePath(file.path()));
    const int64_t offset = file.offset(), size = file.size_bytes();
    if (offset < 0 || size < 0 || offset % kPage != 0 || offset > room || size > room - offset) {
      return Unfit(absl::StrCat("file ", file.path(), " lies outside its part"));
    }
    if (size > 0 && !places.emplace(offset, size).second) return Unfit("two files lie at the same offset");
  }
  int64_t end = 0;
  for (const auto& [offset, size] : places) {
    if (offset < end) return Unfit("two files overlap");
    end = offset + size;
  }
  return absl::OkStatus();
}

// Returns the ids of a save's segments. Fails when one of them is missing, has another size than the journal
// says, or is named twice.
absl::StatusOr<std::vector<SegmentId>> SegmentsOf(const storage::v1::SealedSave& save,
                                                  const std::map<SegmentId, KeptSegment>& there) {
  std::set<SegmentId> ids;
  for (const storage::v1::SealedPart& part : save.parts()) {
    for (const storage::v1::SealedSegment& segment : part.segments()) {
      auto found = there.find(segment.id());
      if (found == there.end() || found->second.size != segment.size_bytes()) {
        return Unfit(absl::StrCat("segment ", segment.id(), " is missing or has another size"));
      }
      if (!IsPopulated(found->second.fd.get(), found->second.size)) {
        return Unfit(absl::StrCat("segment ", segment.id(), " has lost its bytes"));
      }
      if (!ids.insert(segment.id()).second) return Unfit("a segment is named twice");
    }
  }
  return std::vector<SegmentId>(ids.begin(), ids.end());
}

}  // namespace

absl::Status CheckSealedSave(const storage::v1::SealedSave& save) {
  const storage::v1::ManifestSummary& checkpoint = save.checkpoint();
  CKPTD_RETURN_IF_ERROR(CheckTag(checkpoint.tag()));
  if (checkpoint.sequence() < 1 || checkpoint.attempt() < 1 || checkpoint.ordinal() < 1) {
    return Unfit("sequence, attempt and ordinal must be at least 1");
  }
  if (checkpoint.world_size() < 1 || checkpoint.world_size() > kMaxRanks ||
      checkpoint.world_size() != save.parts_size()) {
    return Unfit(absl::StrCat(save.parts_size(), " parts for ", checkpoint.world_size(), " ranks"));
  }
  CKPTD_RETURN_IF_ERROR(
      CheckPointers(checkpoint.tag(), {checkpoint.pointers().begin(), checkpoint.pointers().end()}));
  if (checkpoint.suspect().size() > kMaxSuspectBytes)
    return Unfit("it says in too many words why it is suspect");
  if (save.has_num_kept_ckpts() && save.num_kept_ckpts() < 1)
    return Unfit("num_kept_ckpts must be at least 1");
  if (!IsValidRetention(save.retention())) return Unfit("its retention policy has values out of range");
  std::set<std::string> files, directories;
  for (int rank = 0; rank < save.parts_size(); ++rank) {
    const storage::v1::SealedPart& part = save.parts(rank);
    if (part.rank() != rank) return Unfit("its parts are not in the order of their ranks");
    CKPTD_RETURN_IF_ERROR(CheckPart(part));
    for (const storage::v1::SealedFile& file : part.files()) {
      if (!files.insert(file.path()).second)
        return Unfit(absl::StrCat("file ", file.path(), " is named twice"));
      for (const std::string& parent : ParentDirectories(file.path())) directories.insert(parent);
    }
  }
  for (const std::string& directory : directories) {
    if (files.contains(directory)) return Unfit(absl::StrCat(directory, " is both a file and a directory"));
  }
  return absl::OkStatus();
}

Inheritance TakeInheritance(std::vector<NamedDescriptor> descriptors) {
  Inheritance inheritance;
  std::map<SegmentId, KeptSegment> segments;
  UniqueFd journal;
  for (NamedDescriptor& descriptor : descriptors) {
    if (descriptor.name == kJournalName) {
      journal = std::move(descriptor.fd);
      continue;
    }
    const std::optional<SegmentId> id = SegmentOfName(descriptor.name);
    if (!id) continue;
    const absl::StatusOr<int64_t> size = SegmentSize(descriptor.fd.get());
    if (!size.ok()) {
      inheritance.useless.push_back(descriptor.name);
      inheritance.problems.push_back(absl::StrCat(
          descriptor.name, " cannot be used as a segment: ", std::string(size.status().message())));
    } else {
      segments.try_emplace(*id, KeptSegment{*id, std::move(descriptor.fd), *size});
    }
  }
  absl::StatusOr<SealJournal::Found> found = SealJournal::Found();
  if (journal) found = SealJournal::Open(std::move(journal));
  if (!found.ok()) {
    inheritance.useless.push_back(kJournalName);
    inheritance.problems.push_back(absl::StrCat("the sealed saves of an earlier daemon are lost: ",
                                                std::string(found.status().message())));
    found = SealJournal::Found();
  }
  inheritance.journal = std::move(found->journal);
  for (const std::string& damage : found->damaged) {
    inheritance.problems.push_back(absl::StrCat("a sealed save of an earlier daemon is lost: ", damage));
  }
  for (storage::v1::SealedSave& save : found->saves) {
    absl::Status fit = CheckSealedSave(save);
    absl::StatusOr<std::vector<SegmentId>> ids = std::vector<SegmentId>();
    if (fit.ok()) {
      ids = SegmentsOf(save, segments);
      fit = ids.status();
    }
    if (!fit.ok()) {
      inheritance.problems.push_back(absl::StrCat("the sealed save ", save.checkpoint().tag(), " of ",
                                                  save.path(), " is lost: ", std::string(fit.message())));
      if (absl::Status dropped = inheritance.journal->Drop(save); !dropped.ok()) {
        inheritance.problems.push_back(std::string(dropped.message()));
      }
      continue;
    }
    for (SegmentId id : *ids) inheritance.used.push_back(std::move(segments.extract(id).mapped()));
    inheritance.saves.push_back(std::move(save));
  }
  for (auto& [id, segment] : segments) inheritance.unused.push_back(std::move(segment));
  return inheritance;
}

}  // namespace ckptd
