#include "storage/commit/steps/records.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "google/protobuf/message_lite.h"
#include "storage/base/errors.h"
#include "storage/base/status_macros.h"
#include "storage/commit/checkpoint/checkpoint_dir.h"
#include "storage/format/frame.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::Damage;
using storage::v1::DamageRecord;
using storage::v1::PinRecord;
using storage::v1::RunRecord;
using storage::v1::SharedRunRecord;
using storage::v1::SwapIntent;

constexpr int64_t kMaxRecordBytes = int64_t{64} << 20;

// A record to read: where it is, and what is lost without it.
struct RecordFile {
  std::string_view name;
  std::string path;  // Relative to the root.
  const FrameKind& kind;
  std::string_view without;
};

absl::Status Unreadable(const RecordFile& file, const absl::Status& cause) {
  if (CouldNotFindOut(cause)) {
    // The record may be good. The errno is kept, so that the caller knows to try again.
    return MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_UNREADABLE",
                     absl::StrCat(file.path, " in the root cannot be read: ", std::string(cause.message()),
                                  "; check the disk; ckptd tries again"),
                     {{"path", file.path}, {"errno", absl::StrCat(ErrnoOf(cause))}});
  }
  return MakeError(absl::StatusCode::kFailedPrecondition, "ROOT_UNREADABLE",
                   absl::StrCat(file.path, " in the root cannot be read: ", std::string(cause.message()),
                                "; to go on without it (", std::string(file.without), ") move it away: mv ",
                                file.path, " ", file.path, ".damaged"),
                   {{"path", file.path}});
}

template <typename Message>
absl::StatusOr<std::optional<Message>> Load(FileSystem& fs, Handle dir, const RecordFile& file) {
  const absl::StatusOr<std::string> bytes = ReadSmallFile(fs, dir, file.name, kMaxRecordBytes);
  if (IsMissing(bytes.status())) return std::nullopt;
  if (!bytes.ok()) return Unreadable(file, bytes.status());
  const absl::StatusOr<std::string_view> framed = DecodeFrame(file.kind, *bytes);
  if (ReasonOf(framed.status()) == "NEWER_FORMAT") return Annotate(framed.status(), file.path);
  if (!framed.ok()) return Unreadable(file, framed.status());
  Message message;
  if (!message.ParseFromArray(framed->data(), static_cast<int>(framed->size()))) {
    return Unreadable(file, absl::DataLossError("its message does not parse"));
  }
  return message;
}

absl::Status Store(FileSystem& fs, Handle dir, std::string_view name, const FrameKind& kind,
                   const google::protobuf::MessageLite& message) {
  return ReplaceFileDurably(fs, dir, name, EncodeFrame(kind, message.SerializeAsString()));
}

}  // namespace

absl::StatusOr<std::optional<RunRecord>> LoadRunRecord(FileSystem& fs, Handle node,
                                                       const std::string& node_path) {
  return Load<RunRecord>(fs, node,
                         {kRunName, absl::StrCat(node_path, "/", std::string(kRunName)), kRunRecordFrame,
                          "attempts are numbered from those of the checkpoints on, and how past saves ended "
                          "is forgotten; no checkpoint is lost"});
}

absl::Status StoreRunRecord(FileSystem& fs, Handle node, const RunRecord& record) {
  return Store(fs, node, kRunName, kRunRecordFrame, record);
}

absl::StatusOr<std::optional<SharedRunRecord>> LoadSharedRunRecord(FileSystem& fs, Handle shared,
                                                                   int64_t term) {
  const std::string name = SharedRecordName(term);
  return Load<SharedRunRecord>(
      fs, shared,
      {name, absl::StrCat(std::string(kOurDirectory), "/", std::string(kSharedDirectory), "/", name),
       kSharedRunRecordFrame,
       "no checkpoint is pinned or known to be damaged then, and how past saves ended is forgotten; no "
       "checkpoint is lost"});
}

absl::Status StoreSharedRunRecord(FileSystem& fs, Handle shared, const SharedRunRecord& record) {
  return Store(fs, shared, SharedRecordName(record.term()), kSharedRunRecordFrame, record);
}

absl::StatusOr<std::optional<SwapIntent>> LoadSwapIntent(FileSystem& fs, Handle node,
                                                         const std::string& node_path) {
  return Load<SwapIntent>(
      fs, node,
      {kSwapName, absl::StrCat(node_path, "/", std::string(kSwapName)), kSwapIntentFrame,
       "a checkpoint whose re-save was cut off may then lie in inflight/ or trash/ instead of at its "
       "tag: look there first"});
}

absl::Status StoreSwapIntent(FileSystem& fs, Handle node, const SwapIntent& intent) {
  return Store(fs, node, kSwapName, kSwapIntentFrame, intent);
}

absl::Status RemoveSwapIntent(FileSystem& fs, Handle node) {
  CKPTD_RETURN_IF_ERROR(fs.Remove(node, kSwapName, FileType::kRegular));
  return fs.Sync(node, SyncMode::kAll);
}

absl::StatusOr<Pins> Pins::Load(FileSystem& fs, Handle ours) {
  CKPTD_ASSIGN_OR_RETURN(
      const std::optional<PinRecord> record,
      ckptd::Load<PinRecord>(fs, ours,
                             {kPinsName, OurPath("", std::string(kPinsName)), kPinRecordFrame,
                              "no checkpoint is pinned then, so pin them again before the next save"}));
  Pins pins;
  if (record.has_value()) {
    for (const storage::v1::Pin& pin : record->pins()) pins.pins_.emplace(pin.tag(), pin.sequence());
  }
  return pins;
}

absl::Status Pins::Set(FileSystem& fs, Handle ours, const std::string& tag, int64_t sequence, bool pinned) {
  std::set<std::pair<std::string, int64_t>> wanted = pins_;
  if (pinned) {
    wanted.emplace(tag, sequence);
  } else {
    wanted.erase({tag, sequence});
  }
  if (wanted == pins_) return absl::OkStatus();
  std::swap(wanted, pins_);
  const absl::Status stored = Store(fs, ours);
  if (!stored.ok()) std::swap(wanted, pins_);
  return stored;
}

absl::Status Pins::Store(FileSystem& fs, Handle ours) const {
  PinRecord record;
  for (const std::pair<std::string, int64_t>& pin : pins_) {
    storage::v1::Pin& added = *record.add_pins();
    added.set_tag(pin.first);
    added.set_sequence(pin.second);
  }
  return ckptd::Store(fs, ours, kPinsName, kPinRecordFrame, record);
}

absl::StatusOr<Damages> Damages::Load(FileSystem& fs, Handle ours) {
  CKPTD_ASSIGN_OR_RETURN(
      const std::optional<DamageRecord> record,
      ckptd::Load<DamageRecord>(fs, ours,
                                {kDamagedName, OurPath("", std::string(kDamagedName)), kDamageRecordFrame,
                                 "checkpoints that are known to be damaged are then offered again, until a "
                                 "reader finds it again"}));
  Damages damages;
  if (record.has_value()) {
    for (const Damage& damage : record->damages()) damages.damages_.emplace(damage.sequence(), damage);
  }
  return damages;
}

const Damage* Damages::Find(const std::string& tag, int64_t sequence) const {
  const auto found = damages_.find(sequence);
  return found != damages_.end() && found->second.tag() == tag ? &found->second : nullptr;
}

absl::Status Damages::Set(FileSystem& fs, Handle ours, const std::string& tag, int64_t sequence,
                          const std::optional<Damage>& damage) {
  if (damage.has_value() == (Find(tag, sequence) != nullptr)) return absl::OkStatus();
  std::map<int64_t, Damage> wanted = damages_;
  if (damage.has_value()) {
    Damage& entry = wanted[sequence] = *damage;
    entry.set_tag(tag);
    entry.set_sequence(sequence);
  } else {
    wanted.erase(sequence);
  }
  std::swap(wanted, damages_);
  const absl::Status stored = Store(fs, ours);
  if (!stored.ok()) std::swap(wanted, damages_);
  return stored;
}

absl::Status Damages::Store(FileSystem& fs, Handle ours) const {
  DamageRecord record;
  for (const auto& [number, mark] : damages_) *record.add_damages() = mark;
  return ckptd::Store(fs, ours, kDamagedName, kDamageRecordFrame, record);
}

}  // namespace ckptd
