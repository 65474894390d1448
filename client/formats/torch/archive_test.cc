#include "client/formats/torch/archive.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/formats/byte_source.h"
#include "client/formats/data_type.h"
#include "client/formats/torch/archive_layout.h"
#include "client/formats/torch/limits.h"
#include "client/formats/torch/value.h"
#include "client/formats/torch/zip_directory.h"
#include "client/formats/torch/zip_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "tests/testing/torch_archive_fixture.h"

namespace ckptd::torch {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<Archive> Open(std::string_view bytes, const Limits& limits = {}) {
  return OpenArchive(MemorySource(bytes, "model.pt"), limits);
}

void ExpectRefused(std::string_view bytes, absl::StatusCode code, std::string_view reason,
                   const std::string& message, const Limits& limits = {}) {
  const absl::Status status = Open(bytes, limits).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_EQ(ReasonOf(status), reason) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.pt: "));
}
void ExpectDamaged(std::string_view bytes, const std::string& message) {
  ExpectRefused(bytes, absl::StatusCode::kDataLoss, "CORRUPT_ARCHIVE", message);
}
void ExpectUnsupported(std::string_view bytes, const std::string& message) {
  ExpectRefused(bytes, absl::StatusCode::kUnimplemented, "UNSUPPORTED_ARCHIVE", message);
}

// Two tensors over one storage, one with its own, and one without bytes.
ValueRef SomeTensors() {
  Dict dict;
  const Tensor weight = NewTensor(DataType::kFloat32, {5, 3});
  Tensor column = weight;
  column.shape = {5};
  column.stride = {3};
  column.offset = 2;
  dict.Set("weight", Make(weight));
  dict.Set("column", Make(column));
  dict.Set("empty", Make(NewTensor(DataType::kInt8, {0})));
  dict.Set("step", Make(NewTensor(DataType::kInt64, {})));
  return Make(std::move(dict));
}

std::string SomeFile() { return *FileOf(*SomeTensors()); }

void PutNumber(std::string& bytes, size_t at, uint64_t value, size_t width) {
  for (size_t i = 0; i < width; ++i) bytes[at + i] = static_cast<char>(value >> (8 * i));
}
std::string Number(uint64_t value, size_t width) {
  std::string bytes(width, '\0');
  PutNumber(bytes, 0, value, width);
  return bytes;
}
// The offset of a record's entry in the directory.
size_t EntryAt(const std::string& file, const std::string& name) { return file.rfind(name) - kCentralBytes; }
size_t LocalAt(const std::string& file, const std::string& name) { return file.find(name) - kLocalBytes; }
size_t EndAt(const std::string& file) { return file.size() - kEndBytes; }
size_t LocatorAt(const std::string& file) { return EndAt(file) - kLocator64Bytes; }
size_t End64At(const std::string& file) { return LocatorAt(file) - kEnd64Bytes; }

std::string Patched(std::string file, size_t at, uint64_t value, size_t width) {
  PutNumber(file, at, value, width);
  return file;
}

// A stored ZIP archive without ZIP64, of any records.
std::string ZipOf(const std::vector<std::pair<std::string, std::string>>& records,
                  const std::string& comment = "") {
  std::string file, directory;
  for (const auto& [name, content] : records) {
    const std::string sizes = Number(content.size(), 4) + Number(content.size(), 4) + Number(name.size(), 2);
    directory += Number(kCentralSignature, 4) + std::string(16, '\0') + sizes + std::string(12, '\0') +
                 Number(file.size(), 4) + name;
    file += Number(kLocalSignature, 4) + std::string(14, '\0') + sizes + Number(0, 2) + name + content;
  }
  return file + directory + Number(kEndSignature, 4) + Number(0, 4) + Number(records.size(), 2) +
         Number(records.size(), 2) + Number(directory.size(), 4) + Number(file.size(), 4) +
         Number(comment.size(), 2) + comment;
}

const std::string kNone = "\x80\x02N.";

TEST(ArchiveTest, ReadsWhatItLaidOut) {
  const ValueRef value = SomeTensors();
  const std::string file = *FileOf(*value, {.name = "step_10"});
  const absl::StatusOr<Archive> archive = Open(file);
  ASSERT_TRUE(archive.ok()) << archive.status();
  EXPECT_EQ(Describe(*archive->root), Describe(*value));
  EXPECT_EQ(archive->name, "step_10");
  ASSERT_EQ(archive->storages.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const Storage& storage = *archive->storages[i];
    const auto bytes = static_cast<size_t>(storage.bytes);
    EXPECT_EQ(storage.key, absl::StrCat(i));
    EXPECT_EQ(file.substr(static_cast<size_t>(storage.file_offset), bytes), PatternOf(i, bytes));
    EXPECT_EQ(storage.file_offset % 64, 0);
  }
  const Tensor& column = *archive->root->As<Dict>()->Find("column")->As<Tensor>();
  EXPECT_EQ(column.file_offset(), archive->storages[0]->file_offset + 8);
}

TEST(ArchiveTest, PiecesAndStoragesCoverTheFileOnce) {
  for (const bool numbered : {false, true}) {
    for (const int64_t alignment : {1, 2, 64, 4096, 32768}) {
      const absl::StatusOr<ArchiveLayout> layout =
          LayOutArchive(*SomeTensors(), {.alignment = alignment, .numbered_format = numbered});
      ASSERT_TRUE(layout.ok()) << layout.status();
      std::vector<std::pair<int64_t, int64_t>> ranges;
      for (const ArchiveLayout::Piece& piece : layout->Pieces())
        ranges.emplace_back(piece.offset, piece.bytes.size());
      for (const ArchiveLayout::Range& range : layout->storages()) {
        EXPECT_EQ(range.offset % alignment, 0);
        if (range.storage->bytes > 0) ranges.emplace_back(range.offset, range.storage->bytes);
      }
      std::ranges::sort(ranges);
      int64_t at = 0;
      for (const auto& [offset, bytes] : ranges) {
        EXPECT_EQ(offset, at);
        at = offset + bytes;
      }
      EXPECT_EQ(at, layout->size());
      EXPECT_TRUE(Open(FileOf(*layout)).ok());
    }
  }
}

TEST(ArchiveTest, ChecksumsChangeTwoPlacesOnly) {
  const absl::StatusOr<ArchiveLayout> layout = LayOutArchive(*SomeTensors());
  ASSERT_TRUE(layout.ok());
  const std::vector<ArchiveLayout::Piece> plain = layout->Pieces();
  const std::vector<ArchiveLayout::Piece> summed =
      layout->Pieces(std::vector<uint32_t>{0x01020304, 0xffffffff, 0x05060708});
  ASSERT_EQ(plain.size(), summed.size());
  std::string differ;
  for (size_t i = 0; i < plain.size(); ++i) {
    ASSERT_EQ(plain[i].bytes.size(), summed[i].bytes.size());
    for (size_t at = 0; at < plain[i].bytes.size(); ++at) {
      if (plain[i].bytes[at] != summed[i].bytes[at]) differ.push_back(summed[i].bytes[at]);
    }
  }
  // The checksums of the first and the last storage, after its bytes and in the directory. The second has no
  // bytes.
  EXPECT_EQ(differ, "\x04\x03\x02\x01\x08\x07\x06\x05\x04\x03\x02\x01\x08\x07\x06\x05");
}

TEST(ArchiveTest, RefusesImpossibleOptions) {
  for (const LayoutOptions& options : std::vector<LayoutOptions>{{.name = ""},
                                                                 {.name = "a/b"},
                                                                 {.name = std::string("a\0b", 3)},
                                                                 {.name = "\xff"},
                                                                 {.name = std::string(256, 'x')},
                                                                 {.alignment = 0},
                                                                 {.alignment = -64},
                                                                 {.alignment = 48},
                                                                 {.alignment = 65536}}) {
    const absl::Status status = LayOutArchive(*SomeTensors(), options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(status), "INVALID_ARGUMENT");
  }
  Tensor huge = NewTensor(DataType::kInt8, {1});
  huge.storage->bytes = (int64_t{1} << 62) + 1;
  EXPECT_EQ(LayOutArchive(*Make(huge)).status().code(), absl::StatusCode::kInvalidArgument);
}

// A file laid out by LayOutArchive, with holes in place of tensors.
class SparseSource : public ByteSource {
 public:
  explicit SparseSource(const ArchiveLayout& layout) : size_(layout.size()), pieces_(layout.Pieces()) {}
  const std::string& name() const override { return name_; }
  int64_t size() const override { return size_; }
  absl::Status ReadAt(int64_t offset, std::span<std::byte> into) const override {
    std::ranges::fill(into, std::byte{0});
    const auto end = offset + static_cast<int64_t>(into.size());
    for (const ArchiveLayout::Piece& piece : pieces_) {
      const int64_t from = std::max(offset, piece.offset);
      const int64_t to = std::min(end, piece.offset + static_cast<int64_t>(piece.bytes.size()));
      if (from < to) {
        std::memcpy(into.data() + (from - offset), piece.bytes.data() + (from - piece.offset),
                    static_cast<size_t>(to - from));
      }
    }
    return absl::OkStatus();
  }

 private:
  std::string name_ = "sparse";
  int64_t size_;
  std::vector<ArchiveLayout::Piece> pieces_;
};

TEST(ArchiveTest, FindsStoragesBeyond4GiB) {
  constexpr int64_t k4GiB = int64_t{1} << 32;
  List list;
  for (const int64_t bytes : {k4GiB - 2, k4GiB - 1, k4GiB, 5 * k4GiB, int64_t{8}, int64_t{0}}) {
    list.items.push_back(Make(NewTensor(DataType::kUInt8, {bytes})));
  }
  const absl::StatusOr<ArchiveLayout> layout = LayOutArchive(*Make(std::move(list)));
  ASSERT_TRUE(layout.ok()) << layout.status();
  const absl::StatusOr<Archive> archive = OpenArchive(SparseSource(*layout));
  ASSERT_TRUE(archive.ok()) << archive.status();
  ASSERT_EQ(archive->storages.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(archive->storages[i]->file_offset, layout->storages()[i].offset);
    EXPECT_EQ(archive->storages[i]->bytes, layout->storages()[i].storage->bytes);
  }
}

TEST(ArchiveTest, ReadsAnArchiveOfPythonsZipfile) {
  EXPECT_TRUE(Open(ZipOf({{"a/data.pkl", kNone}})).ok());
  EXPECT_TRUE(
      Open(ZipOf({{"a/data.pkl", kNone}, {"other", "x"}, {"a/extra/notes.txt", "y"}}, "a comment")).ok());
  EXPECT_TRUE(Open(ZipOf({{"a/data.pkl", kNone}, {"a/byteorder", "little"}, {"a/version", "3\n"}})).ok());
}

TEST(ArchiveTest, RefusesAndNamesOtherFiles) {
  ExpectDamaged("", "has only 0 bytes");
  ExpectDamaged(std::string(1000, '\0'), "not a ZIP archive");
  ExpectDamaged("PK\x03\x04" + std::string(1000, '\0'), "no ZIP directory");
  ExpectUnsupported("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", "torch before 1.6");
  ExpectUnsupported(ZipOf({{"a/data.pkl", kNone}, {"a/constants.pkl", kNone}}), "TorchScript");
  ExpectUnsupported(ZipOf({{"a/data.pkl", kNone}, {"a/byteorder", "big"}}), "big-endian");
  ExpectDamaged(ZipOf({{"a/data.pkl", kNone}, {"a/byteorder", "middle"}}), "byteorder");
  ExpectUnsupported(ZipOf({{"a/data.pkl", kNone}, {"a/version", "11\n"}}), "version is 11");
  ExpectDamaged(ZipOf({{"a/data.pkl", kNone}, {"a/version", "x"}}), "version is \"x\"");
  ExpectDamaged(ZipOf({{"a/data", kNone}}), "no data.pkl");
  ExpectDamaged(ZipOf({{"b/x", ""}, {"a/data.pkl", kNone}}), "no data.pkl");
  ExpectDamaged("PK" + ZipOf({}), "places the directory of 0 bytes at 0");
  ExpectDamaged(ZipOf({}), "empty ZIP");
}

TEST(ArchiveTest, RefusesAPickleThatNamesCodeAndNamesTheFile) {
  ExpectRefused(ZipOf({{"a/data.pkl",
                        "\x80\x02"
                        "cos\nsystem\nX\x02\0\0\0id\x85R."}}),
                absl::StatusCode::kFailedPrecondition, "UNSAFE_PICKLE",
                "data.pkl, byte 2: the pickle asks for os.system");
}

TEST(ArchiveTest, EnforcesLimits) {
  const std::string file = SomeFile();
  ExpectRefused(file, absl::StatusCode::kResourceExhausted, "ARCHIVE_TOO_LARGE", "directory_bytes",
                {.directory_bytes = 100});
  ExpectRefused(file, absl::StatusCode::kResourceExhausted, "ARCHIVE_TOO_LARGE", "data.pkl has",
                {.pickle_bytes = 100});
  ExpectRefused(file, absl::StatusCode::kResourceExhausted, "ARCHIVE_TOO_LARGE", "objects", {.objects = 20});
}

TEST(HostileArchiveTest, RefusesEveryCut) {
  const std::string file = SomeFile();
  for (size_t at = 0; at < file.size(); ++at)
    EXPECT_FALSE(Open(std::string_view(file).substr(0, at)).ok()) << at;
}

TEST(HostileArchiveTest, FlippedBitsNeverLeadBeyondTheFile) {
  const std::string file = SomeFile();
  for (size_t at = 0; at < file.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = file;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      const absl::StatusOr<Archive> archive = Open(changed);
      if (!archive.ok()) continue;
      for (const StorageRef& storage : archive->storages) {
        EXPECT_GE(storage->file_offset, 0);
        EXPECT_LE(storage->file_offset + storage->bytes, static_cast<int64_t>(file.size()));
      }
    }
  }
}

TEST(HostileArchiveTest, RefusesInconsistentEndRecords) {
  const std::string file = SomeFile();
  const size_t end = EndAt(file), end64 = End64At(file), locator = LocatorAt(file);
  ASSERT_TRUE(Open(file).ok());
  for (const uint64_t lie : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 31, uint64_t{0xfffffffe}}) {
    ExpectDamaged(Patched(file, end + 12, lie, 4), "two end records do not agree");
    ExpectDamaged(Patched(file, end + 16, lie, 4), "two end records do not agree");
  }
  ExpectDamaged(Patched(file, end + 10, 5, 2), "two end records do not agree");
  ExpectDamaged(Patched(file, end + 20, 1, 2), "no ZIP directory");
  // If the short record says that the values do not fit, only the long one has them.
  std::string open = Patched(Patched(file, end + 8, 0xffffffff, 4), end + 12, 0xffffffff, 4);
  PutNumber(open, end + 16, 0xffffffff, 4);
  ASSERT_TRUE(Open(open).ok());
  for (const uint64_t lie : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, uint64_t{1} << 63, ~uint64_t{0}}) {
    ExpectDamaged(Patched(open, end64 + 40, lie, 8), "its end record places the directory");  // Bytes.
    ExpectDamaged(Patched(open, end64 + 48, lie, 8), "its end record places the directory");  // Offset.
    ExpectDamaged(Patched(open, locator + 8, lie, 8), "is not before the locator");
  }
  for (const uint64_t lie : {uint64_t{1} << 20, uint64_t{1} << 63, ~uint64_t{0}}) {  // Records.
    ExpectDamaged(Patched(Patched(open, end64 + 24, lie, 8), end64 + 32, lie, 8), "records in");
  }
  ExpectDamaged(Patched(Patched(open, end64 + 24, 10, 8), end64 + 32, 10, 8), "ends within an entry");
  ExpectDamaged(Patched(Patched(open, end64 + 24, 8, 8), end64 + 32, 8, 8), "bytes follow the last entry");
  ExpectUnsupported(Patched(open, end64 + 24, 8, 8), "several disks");
  ExpectUnsupported(Patched(open, end64 + 16, 1, 4), "several disks");
  ExpectUnsupported(Patched(open, end64 + 20, 1, 4), "several disks");
  ExpectUnsupported(Patched(open, end + 4, 1, 2), "several disks");
  ExpectUnsupported(Patched(open, locator + 4, 1, 4), "several disks");
  ExpectUnsupported(Patched(open, locator + 16, 2, 4), "several disks");
  ExpectDamaged(Patched(open, end64 + 4, 45, 8), "no ZIP64 end record");
  ExpectDamaged(Patched(open, end64, 0, 4), "no ZIP64 end record");
  ExpectDamaged(Patched(open, locator, 0, 4),
                "its end record places the directory");  // No locator: no ZIP64.
}

TEST(HostileArchiveTest, RefusesInconsistentEntries) {
  const std::string file = SomeFile();
  const size_t entry = EntryAt(file, "archive/data/0"), other = EntryAt(file, "archive/data/2");
  for (const uint64_t lie : {file.size(), file.size() - 10, size_t{0xfffffffe}}) {
    ExpectDamaged(Patched(file, entry + 42, lie, 4), "not within the file");
    ExpectDamaged(Patched(Patched(file, entry + 20, lie, 4), entry + 24, lie, 4), "not within the file");
  }
  ExpectDamaged(Patched(file, entry + 20, 59, 4), "(59 stored)");
  ExpectDamaged(Patched(file, entry + 42, 0, 4), "differs from its directory entry");  // data.pkl's header
  ExpectDamaged(Patched(file, entry + 42, 1, 4), "differs from its directory entry");  // no header
  ExpectDamaged(Patched(file, other + 42, LocalAt(file, "archive/data/0"), 4),
                "differs from its directory entry");
  ExpectDamaged(Patched(file, entry, 0, 4), "that are not an entry");
  ExpectDamaged(Patched(file, entry + 28, 0xffff, 2), "ends within an entry");  // Name.
  ExpectDamaged(Patched(file, entry + 30, 0xffff, 2), "ends within an entry");  // Extra.
  ExpectDamaged(Patched(file, entry + 32, 0xffff, 2), "ends within an entry");  // Comment.
  ExpectUnsupported(Patched(file, entry + 34, 1, 2), "several disks");
  for (const uint64_t method : {8, 12, 99})
    ExpectUnsupported(Patched(file, entry + 10, method, 2), "is compressed");
  for (const uint64_t flag : {0x801, 0x840, 0x2800})
    ExpectUnsupported(Patched(file, entry + 8, flag, 2), "is encrypted");
}

TEST(HostileArchiveTest, RefusesInconsistentZip64Fields) {
  const std::string file = SomeFile();
  const size_t entry = EntryAt(file, "archive/data/0");
  // Without its field; then with a field, in place of the name's last bytes, that is too short or wrong.
  ExpectDamaged(Patched(file, entry + 42, 0xffffffff, 4), "ZIP64 field is missing");
  ExpectDamaged(Patched(Patched(file, entry + 20, 0xffffffff, 4), entry + 24, 0xffffffff, 4),
                "ZIP64 field is missing");
  const auto with_field = [](const std::string& extra, uint64_t size) {
    const std::string name = "a/data.pkl";
    const std::string local = Number(kLocalSignature, 4) + std::string(14, '\0') + Number(4, 4) +
                              Number(4, 4) + Number(name.size(), 2) + Number(0, 2) + name + kNone;
    const std::string directory = Number(kCentralSignature, 4) + std::string(16, '\0') + Number(size, 4) +
                                  Number(size, 4) + Number(name.size(), 2) + Number(extra.size(), 2) +
                                  std::string(10, '\0') + Number(0, 4) + name + extra;
    return local + directory + Number(kEndSignature, 4) + Number(0, 4) + Number(1, 2) + Number(1, 2) +
           Number(directory.size(), 4) + Number(local.size(), 4) + Number(0, 2);
  };
  const auto field = [](const std::string& values) {
    return Number(1, 2) + Number(values.size(), 2) + values;
  };
  EXPECT_TRUE(Open(with_field("", 4)).ok());
  EXPECT_TRUE(Open(with_field(field(Number(4, 8) + Number(4, 8)), kMost32)).ok());
  EXPECT_TRUE(
      Open(with_field("FB" + Number(2, 2) + "ZZ" + field(Number(4, 8) + Number(4, 8)), kMost32)).ok());
  ExpectDamaged(with_field(field(Number(4, 8)), kMost32), "missing or too short");
  ExpectDamaged(with_field(field(""), kMost32), "missing or too short");
  ExpectDamaged(with_field(Number(1, 2) + Number(16, 2) + Number(4, 8), kMost32), "missing or too short");
  ExpectDamaged(with_field("FB" + Number(0xffff, 2), kMost32), "missing or too short");
  ExpectDamaged(with_field("FB", kMost32), "missing or too short");
  for (const uint64_t lie : {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 32}) {
    ExpectDamaged(with_field(field(Number(lie, 8) + Number(lie, 8)), kMost32), "not within the file");
  }
}

TEST(HostileArchiveTest, RefusesALocalHeaderThatDiffers) {
  const std::string file = SomeFile();
  const size_t local = LocalAt(file, "archive/data/0");
  ExpectDamaged(Patched(file, local, 0, 4), "differs from its directory entry");
  ExpectDamaged(Patched(file, local + 6, 0x801, 2), "differs from its directory entry");  // Flags.
  ExpectDamaged(Patched(file, local + 8, 8, 2), "differs from its directory entry");      // Method.
  ExpectDamaged(Patched(file, local + 18, 59, 4), "differs from its directory entry");    // Stored size.
  ExpectDamaged(Patched(file, local + 22, 61, 4), "differs from its directory entry");    // Size.
  ExpectDamaged(Patched(file, local + 26, 13, 2), "differs from its directory entry");  // Length of the name.
  ExpectDamaged(Patched(file, local + kLocalBytes, 'A', 1), "differs from its directory entry");  // Name.
  ExpectDamaged(Patched(file, local + 28, 0xffff, 2), "reaches into the directory");
  EXPECT_TRUE(Open(Patched(file, local + 22, 60, 4)).ok());
}

TEST(HostileArchiveTest, RefusesOverlappingRecords) {
  // A second header within the bytes of another record.
  const std::string inner = Number(kLocalSignature, 4) + std::string(14, '\0') + Number(1, 4) + Number(1, 4) +
                            Number(3, 2) + Number(0, 2) + "a/i" + "x";
  std::string file = ZipOf({{"a/data.pkl", kNone}, {"a/o", inner}, {"a/i", "x"}});
  ASSERT_TRUE(Open(file).ok());
  PutNumber(file, EntryAt(file, "a/i") + 42, file.find(inner), 4);
  ExpectDamaged(file, "records a/o and a/i overlap");
}

TEST(HostileArchiveTest, RefusesANameThatOccursTwice) {
  ExpectDamaged(ZipOf({{"a/data.pkl", kNone}, {"a/data.pkl", kNone}}), "occurs twice");
  ExpectDamaged(ZipOf({{"a/data.pkl", kNone}, {"a/DATA.pkl", kNone}}), "occurs twice");
}

TEST(HostileArchiveTest, ReturnsTheErrorOfAFailedRead) {
  class Failing : public MemorySource {
   public:
    Failing(std::string_view bytes, int64_t fails) : MemorySource(bytes, "model.pt"), left_(fails) {}
    absl::Status ReadAt(int64_t offset, std::span<std::byte> into) const override {
      if (left_-- == 0) return MakeError(absl::StatusCode::kDataLoss, "IO_ERROR", "the disk is gone");
      return MemorySource::ReadAt(offset, into);
    }

   private:
    mutable int64_t left_;
  };
  const std::string file = SomeFile();
  int64_t failed = 0;
  while (true) {
    const absl::Status status = OpenArchive(Failing(file, failed)).status();
    if (status.ok()) break;
    EXPECT_EQ(ReasonOf(status), "IO_ERROR");
    EXPECT_EQ(std::string(status.message()), "model.pt: the disk is gone");
    ++failed;
  }
  EXPECT_GT(failed, 10);
}

}  // namespace
}  // namespace ckptd::torch
