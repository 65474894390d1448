// The small records: part, run, pins, damage marks, swap intent, and those of several nodes. The first byte
// selects the record, and whether the rest is the file or the message in it, which the target frames with the
// right CRC32C.
#include <optional>

#include "ckptd/storage/v1/storage.pb.h"
#include "storage/commit/steps/records.h"
#include "storage/format/frame.h"
#include "storage/format/manifest.h"
#include "storage/format/names.h"
#include "storage/fs/posix_file_system.h"
#include "tests/fuzz/fuzz.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {
namespace {

void Part(std::string_view bytes) {
  const absl::StatusOr<storage::v1::PartRecord> record = DecodePartRecord(bytes);
  if (!record.ok()) return;
  FUZZ_CHECK(CheckTag(record->checkpoint().tag()).ok());
  FUZZ_CHECK(record->rank() >= 0 && record->rank() < record->checkpoint().world_size());
  for (const storage::v1::FileRecord& file : record->files()) FUZZ_CHECK(CheckFilePath(file.path()).ok());
  const std::string written = EncodePartRecord(*record);
  const absl::StatusOr<storage::v1::PartRecord> again = DecodePartRecord(written);
  FUZZ_CHECK(again.ok() && EncodePartRecord(*again) == written);
}

void NodePart(std::string_view bytes) {
  const absl::StatusOr<storage::v1::NodePartRecord> record = DecodeNodePartRecord(bytes);
  if (!record.ok()) return;
  FUZZ_CHECK(CheckTag(record->node()).ok() && CheckTag(record->checkpoint().tag()).ok());
  for (const storage::v1::FileRecord& file : record->files()) FUZZ_CHECK(CheckFilePath(file.path()).ok());
  const std::string written = EncodeNodePartRecord(*record);
  const absl::StatusOr<storage::v1::NodePartRecord> again = DecodeNodePartRecord(written);
  FUZZ_CHECK(again.ok() && EncodeNodePartRecord(*again) == written);
}

// The directory of a root that holds the given file.
class Files {
 public:
  Files() : fs_(MakePosixFileSystem().value()) {}
  FileSystem& fs() { return *fs_; }
  Handle at() { return dir_.fd(); }
  void Put(std::string_view name, std::string_view bytes) {
    const std::string path = dir_.path() + "/" + std::string(name);
    std::FILE* file = std::fopen(path.c_str(), "wb");
    FUZZ_CHECK(file != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size());
    FUZZ_CHECK(std::fclose(file) == 0);
  }

 private:
  TempDir dir_;
  std::unique_ptr<FileSystem> fs_;
};

// An unreadable file must be an error that names it, never a missing record.
template <typename T>
void CheckLoaded(const absl::StatusOr<std::optional<T>>& loaded, std::string_view name) {
  if (loaded.ok()) {
    FUZZ_CHECK(loaded->has_value());
  } else {
    FUZZ_CHECK(std::string(loaded.status().message()).find(name) != std::string::npos);
  }
}

void Read(uint8_t kind, std::string_view bytes) {
  static Files& files = *new Files;
  switch (kind) {
    case 0:
      return Part(bytes);
    case 1: {
      files.Put(kRunName, bytes);
      const auto record = LoadRunRecord(files.fs(), files.at(), "node");
      CheckLoaded(record, kRunName);
      if (record.ok()) FUZZ_CHECK(storage::v1::RunRecord().ParseFromString((*record)->SerializeAsString()));
      return;
    }
    case 2: {
      files.Put(kPinsName, bytes);
      const absl::StatusOr<Pins> pins = Pins::Load(files.fs(), files.at());
      FUZZ_CHECK(pins.ok() || std::string(pins.status().message()).find(kPinsName) != std::string::npos);
      return;
    }
    case 4: {
      files.Put(kDamagedName, bytes);
      const absl::StatusOr<Damages> damages = Damages::Load(files.fs(), files.at());
      FUZZ_CHECK(damages.ok() ||
                 std::string(damages.status().message()).find(kDamagedName) != std::string::npos);
      return;
    }
    case 5:
      return NodePart(bytes);
    case 6: {
      files.Put(SharedRecordName(1), bytes);
      return CheckLoaded(LoadSharedRunRecord(files.fs(), files.at(), 1), SharedRecordName(1));
    }
    default: {
      files.Put(kSwapName, bytes);
      return CheckLoaded(LoadSwapIntent(files.fs(), files.at(), "node"), kSwapName);
    }
  }
}

}  // namespace
}  // namespace ckptd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ckptd;
  constexpr FrameKind kKinds[] = {kPartRecordFrame,     kRunRecordFrame,    kPinRecordFrame,
                                  kSwapIntentFrame,     kDamageRecordFrame, kNodePartRecordFrame,
                                  kSharedRunRecordFrame};
  FuzzInput input(data, size);
  const uint8_t what = input.Byte();
  const uint8_t kind = (what & 8) != 0 ? 4 : (what & 16) != 0 ? 5 : (what & 32) != 0 ? 6 : what & 3;
  if ((what & 4) == 0) {
    Read(kind, input.Rest());
  } else {
    Read(kind, EncodeFrame(kKinds[kind], input.Rest()));
  }
  return 0;
}
