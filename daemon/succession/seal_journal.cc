#include "daemon/succession/seal_journal.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/format/frame.h"

namespace ckptd {
namespace {

constexpr std::string_view kMagic = "CKPTDJNL";
constexpr FrameKind kSealedSaveFrame{"CKPTDSLD", "record of a sealed save", "CORRUPT_JOURNAL"};
constexpr size_t kFrameHeadBytes = 20;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct Head {
  uint32_t version = 0;
  uint32_t records = 0;
  uint64_t generation = 0;
  uint64_t length = 0;
};

absl::Status Corrupt(const std::string& why) {
  return MakeError(absl::StatusCode::kDataLoss, "CORRUPT_JOURNAL",
                   absl::StrCat("damaged seal journal: ", why));
}

std::string Encode(const Head& head) {
  std::string bytes(kMagic);
  AppendU32(bytes, head.version);
  AppendU32(bytes, head.records);
  AppendU64(bytes, head.generation);
  AppendU64(bytes, head.length);
  AppendU32(bytes, Crc32cOf(bytes));
  return bytes;
}

// Returns nullopt unless `bytes` is an intact head.
std::optional<Head> Decode(std::string_view bytes) {
  if (!bytes.starts_with(kMagic) || LoadU32(bytes, 32) != Crc32cOf(bytes.substr(0, 32))) return std::nullopt;
  return Head{LoadU32(bytes, 8), LoadU32(bytes, 12), LoadU64(bytes, 16), LoadU64(bytes, 24)};
}

absl::StatusOr<std::string> ReadAt(int fd, int64_t offset, size_t size) {
  std::string bytes(size, '\0');
  for (size_t done = 0; done < size;) {
    const ssize_t got = ::pread(fd, bytes.data() + done, size - done, offset + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError(errno, "reading the seal journal");
    if (got == 0) return Corrupt("it is too short");
    done += static_cast<size_t>(got);
  }
  return bytes;
}

}  // namespace

SealJournal::Key SealJournal::KeyOf(const storage::v1::SealedSave& save) {
  return {save.device(), save.inode(), save.checkpoint().sequence()};
}

absl::StatusOr<std::unique_ptr<SealJournal>> SealJournal::Create() {
  UniqueFd file(::memfd_create("ckptd-journal", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return ErrnoError(errno, "memfd_create of the seal journal");
  if (::fchmod(file.get(), 0600) != 0 || ::ftruncate(file.get(), kFileBytes) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) {
    return ErrnoError(errno, "making the seal journal");
  }
  std::unique_ptr<SealJournal> journal(new SealJournal(std::move(file)));
  // Allocate the memory of both heads now, so that emptying the journal cannot fail later.
  const std::string zeros(kHeadBytes, '\0');
  for (int64_t offset : kHeadOffset) CKPTD_RETURN_IF_ERROR(journal->WriteAt(offset, zeros));
  CKPTD_RETURN_IF_ERROR(journal->WriteAll());
  return journal;
}

absl::StatusOr<SealJournal::Found> SealJournal::Open(UniqueFd file) {
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return ErrnoError(errno, "fstat of the seal journal");
  // A memfd of a locked size: no read can fail half-way because somebody truncated it.
  if (!S_ISREG(info.st_mode) || info.st_size != kFileBytes || ::fcntl(file.get(), F_GET_SEALS) != kSeals) {
    return Corrupt("it is not a memfd of the right size and seals");
  }
  std::optional<Head> head;
  int area = 0;
  for (int i = 0; i < 2; ++i) {
    CKPTD_ASSIGN_OR_RETURN(const std::string bytes, ReadAt(file.get(), kHeadOffset[i], kHeadBytes));
    const std::optional<Head> found = Decode(bytes);
    if (!found || (head && head->generation >= found->generation)) continue;
    head = found;
    area = i;
  }
  if (!head) return Corrupt("neither of its two heads is intact");
  if (head->version > kFormatVersion) return NewerFormat("seal journal", head->version);
  if (head->version == 0 || head->length > static_cast<uint64_t>(kAreaBytes)) {
    return Corrupt("the version or the length in its head is impossible");
  }
  CKPTD_ASSIGN_OR_RETURN(const std::string bytes, ReadAt(file.get(), kAreaOffset[area], head->length));

  Found found;
  found.journal.reset(new SealJournal(std::move(file)));
  SealJournal& journal = *found.journal;
  journal.generation_ = head->generation;
  journal.area_ = area;
  std::map<Key, storage::v1::SealedSave> saves;
  std::string_view left = bytes;
  for (uint32_t i = 0; i < head->records; ++i) {
    const uint64_t size =
        left.size() < kFrameHeadBytes ? kFrameHeadBytes : kFrameHeadBytes + uint64_t{LoadU32(left, 12)};
    if (size > left.size()) {
      found.damaged.push_back(absl::StrCat("records ", i + 1, " to ", head->records, " are cut off"));
      break;
    }
    const std::string_view frame = left.substr(0, size);
    left.remove_prefix(size);
    const absl::StatusOr<std::string_view> message = DecodeFrame(kSealedSaveFrame, frame);
    storage::v1::SealedSave save;
    if (!message.ok()) {
      found.damaged.push_back(absl::StrCat("record ", i + 1, " of ", head->records, ": ",
                                           std::string(message.status().message())));
    } else if (!save.ParseFromString(std::string(*message)) || save.format_version() != 1) {
      found.damaged.push_back(
          absl::StrCat("record ", i + 1, " of ", head->records, " is not a SealedSave of format version 1"));
    } else if (!journal.records_.emplace(KeyOf(save), frame).second) {
      found.damaged.push_back(
          absl::StrCat("record ", i + 1, " of ", head->records, " repeats an earlier one"));
    } else {
      saves.emplace(KeyOf(save), std::move(save));
    }
  }
  journal.size_ = static_cast<int>(journal.records_.size());
  for (auto& [key, save] : saves) found.saves.push_back(std::move(save));
  return found;
}

absl::Status SealJournal::WriteAt(int64_t offset, std::string_view bytes) {
  if (hook_) hook_(offset, bytes);
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file_.get(), bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return ErrnoError(written < 0 ? errno : EIO, "writing the seal journal");
    bytes.remove_prefix(static_cast<size_t>(written));
    offset += written;
  }
  return absl::OkStatus();
}

absl::Status SealJournal::WriteAll() {
  std::string body;
  for (const auto& [key, record] : records_) body += record;
  if (static_cast<int64_t>(body.size()) > kAreaBytes) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "JOURNAL_FULL",
        absl::StrCat("the seal journal is full: it needs ", body.size(), " bytes and may have ", kAreaBytes));
  }
  const int next = 1 - area_;
  CKPTD_RETURN_IF_ERROR(WriteAt(kAreaOffset[next], body));
  const Head head{kFormatVersion, static_cast<uint32_t>(records_.size()), generation_ + 1, body.size()};
  CKPTD_RETURN_IF_ERROR(WriteAt(kHeadOffset[next], Encode(head)));
  // The new state is in force from here on.
  const int before = std::exchange(area_, next);
  ++generation_;
  size_ = static_cast<int>(records_.size());
  return WriteAt(kHeadOffset[before], std::string(kHeadBytes, '\0'));
}

absl::Status SealJournal::Keep(const storage::v1::SealedSave& save) {
  const Key key = KeyOf(save);
  records_[key] = EncodeFrame(kSealedSaveFrame, save.SerializeAsString());
  absl::Status written = WriteAll();
  if (!written.ok()) records_.erase(key);
  return written;
}

absl::Status SealJournal::Drop(const storage::v1::SealedSave& save) {
  if (records_.erase(KeyOf(save)) == 0) return absl::OkStatus();
  const absl::Status written = WriteAll();
  if (written.ok()) return written;
  // Cannot fail for lack of memory: Create has allocated both heads.
  for (int64_t offset : kHeadOffset) (void)WriteAt(offset, std::string(kHeadBytes, '\0'));
  const size_t others = records_.size();
  records_.clear();
  size_ = 0;
  return Annotate(written, absl::StrCat("the seal journal had to be emptied; if this daemon is killed, ",
                                        others, " more sealed saves are lost"));
}

}  // namespace ckptd
