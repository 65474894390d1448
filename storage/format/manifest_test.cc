#include "storage/format/manifest.h"

#include <sys/resource.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <sstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "storage/format/frame.h"
#include "storage/format/names.h"

namespace ckptd {
namespace {

using storage::v1::FileRecord;
using storage::v1::ManifestSummary;
using storage::v1::NodePartRecord;
using storage::v1::PartRecord;
using ::testing::HasSubstr;

FileRecord File(const std::string& path, int64_t size, int rank, std::initializer_list<uint32_t> crcs) {
  FileRecord file;
  file.set_path(path);
  file.set_size_bytes(size);
  file.set_rank(rank);
  for (const uint32_t crc : crcs) file.add_chunk_crc32c(crc);
  return file;
}

ManifestSummary Summary() {
  ManifestSummary summary;
  summary.set_format_version(1);
  summary.set_tag("step_100");
  summary.set_step(100);
  summary.set_sequence(7);
  summary.set_attempt(2);
  summary.set_ordinal(1);
  summary.set_world_size(2);
  summary.set_chunk_bytes(8 << 20);
  return summary;
}

// The checkpoint of docs/storage_format.md: two ranks, one file of nine bytes and an empty one.
Manifest Example() {
  Manifest manifest{Summary(), {}};
  *manifest.body.add_files() = File("model_0.pt", 9, 0, {0xe3069283});
  *manifest.body.add_files() = File("note.txt", 0, 1, {});
  manifest.summary.set_size_bytes(9);
  manifest.summary.set_file_count(2);
  manifest.summary.set_create_time_us(1700000000000000);
  manifest.summary.set_commit_time_us(1700000001000000);
  (*manifest.summary.mutable_metrics())["loss"] = 2.5;
  return manifest;
}

std::string Encoded(const Manifest& manifest) {
  absl::StatusOr<std::string> bytes = EncodeManifest(manifest);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.value_or("");
}

TEST(ManifestTest, DecodesWhatWasEncoded) {
  const std::string bytes = Encoded(Example());
  const absl::StatusOr<Manifest> manifest = DecodeManifest(bytes);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->summary.SerializeAsString(), Example().summary.SerializeAsString());
  EXPECT_EQ(manifest->body.SerializeAsString(), Example().body.SerializeAsString());
  const absl::StatusOr<ManifestSummary> summary = DecodeManifestHead(bytes.substr(0, kManifestHeadBytes));
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->tag(), "step_100");
  EXPECT_EQ(*ManifestSize(bytes), static_cast<int64_t>(bytes.size()));
}

TEST(ManifestTest, EncodesEqualManifestsToEqualBytes) {
  Manifest forwards = Example();
  Manifest backwards = Example();
  for (int i = 0; i < 50; ++i) {
    (*forwards.summary.mutable_metrics())[absl::StrCat("m", i)] = i;
    (*backwards.summary.mutable_metrics())[absl::StrCat("m", 49 - i)] = 49 - i;
  }
  EXPECT_EQ(Encoded(forwards), Encoded(backwards));
}

TEST(ManifestTest, FindsEveryFlippedBit) {
  const std::string bytes = Encoded(Example());
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const int mask : {0x01, 0x80, 0xff}) {
      std::string flipped = bytes;
      flipped[i] = static_cast<char>(flipped[i] ^ mask);
      const absl::Status status = DecodeManifest(flipped).status();
      EXPECT_FALSE(status.ok()) << "byte " << i;
      EXPECT_EQ(ReasonOf(status), "CORRUPT_MANIFEST") << "byte " << i;
    }
  }
}

TEST(ManifestTest, FindsEveryCutAndAnyTail) {
  const std::string bytes = Encoded(Example());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(ReasonOf(DecodeManifest(bytes.substr(0, size)).status()), "CORRUPT_MANIFEST") << size;
  }
  EXPECT_FALSE(DecodeManifest(bytes + std::string(1, '\0')).ok());
  EXPECT_FALSE(DecodeManifest(std::string(1 << 16, '\0')).ok());
}

TEST(ManifestTest, FindsATornSector) {
  Manifest large = Example();
  large.body.clear_files();
  for (int i = 0; i < 1000; ++i) {
    *large.body.add_files() = File(absl::StrFormat("f%04d", i), 1, 0, {static_cast<uint32_t>(i)});
  }
  large.summary.set_size_bytes(1000);
  large.summary.set_file_count(1000);
  const std::string bytes = Encoded(large);
  for (size_t at = 0; at < bytes.size(); at += 512) {
    std::string torn = bytes;
    const std::string before = torn;
    torn.replace(at, std::min<size_t>(512, bytes.size() - at), std::min<size_t>(512, bytes.size() - at),
                 '\0');
    if (torn == before) continue;  // The sector held zeros.
    EXPECT_FALSE(DecodeManifest(torn).ok()) << "sector at " << at;
  }
}

TEST(ManifestTest, NamesANewerVersion) {
  Manifest newer = Example();
  newer.summary.set_format_version(2);
  const absl::Status status = DecodeManifest(Encoded(newer)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), "NEWER_FORMAT");
}

TEST(ManifestTest, DoesNotEncodeAnInconsistentManifest) {
  const std::pair<const char*, std::function<void(Manifest&)>> cases[] = {
      {"files, and", [](Manifest& m) { m.summary.set_file_count(3); }},
      {"larger than the summary", [](Manifest& m) { m.summary.set_size_bytes(8); }},
      {"smaller than the summary", [](Manifest& m) { m.summary.set_size_bytes(10); }},
      {"checksums", [](Manifest& m) { m.body.mutable_files(0)->clear_chunk_crc32c(); }},
      {"checksums", [](Manifest& m) { m.body.mutable_files(1)->add_chunk_crc32c(1); }},
      {"checksums", [](Manifest& m) { m.summary.set_chunk_bytes(4); }},
      {"is there twice", [](Manifest& m) { *m.body.mutable_files(1) = File("model_0.pt", 0, 1, {}); }},
      {"order of paths", [](Manifest& m) { m.body.mutable_files()->SwapElements(0, 1); }},
      {"is a file and the directory", [](Manifest& m) { m.body.mutable_files(1)->set_path("model_0.pt/x"); }},
      {"begins with .ckptd", [](Manifest& m) { m.body.mutable_files(0)->set_path(".ckptd/x"); }},
      {"component . or ..", [](Manifest& m) { m.body.mutable_files(1)->set_path("../x"); }},
      {"of rank 2", [](Manifest& m) { m.body.mutable_files(1)->set_rank(2); }},
      {"of rank -1", [](Manifest& m) { m.body.mutable_files(1)->set_rank(-1); }},
      {"has size -1", [](Manifest& m) { m.body.mutable_files(1)->set_size_bytes(-1); }},
      {"smaller than", [](Manifest& m) { m.summary.set_size_bytes(std::numeric_limits<int64_t>::max()); }},
      {"world size 0", [](Manifest& m) { m.summary.set_world_size(0); }},
      {"sequence 0", [](Manifest& m) { m.summary.set_sequence(0); }},
      {"attempt 0", [](Manifest& m) { m.summary.set_attempt(0); }},
      {"ordinal 0", [](Manifest& m) { m.summary.set_ordinal(0); }},
      {"chunks of 0", [](Manifest& m) { m.summary.set_chunk_bytes(0); }},
      {"chunks of 67108865 bytes; they have 1 to 67108864",
       [](Manifest& m) { m.summary.set_chunk_bytes((64 << 20) + 1); }},
      {"file count 1000001", [](Manifest& m) { m.summary.set_file_count(1'000'001); }},
      {"is reserved", [](Manifest& m) { m.summary.set_tag("latest"); }},
  };
  for (const auto& [message, spoil] : cases) {
    Manifest manifest = Example();
    spoil(manifest);
    const absl::Status status = EncodeManifest(manifest).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

void Overwrite(std::string& bytes, size_t at, const std::string& with) {
  bytes.replace(at, with.size(), with);
}

// Such a record takes 2 bytes in the file and some hundred in memory.
TEST(ManifestTest, DoesNotParseABodyWithMoreRecordsThanTheSummarySays) {
  std::string bytes = Encoded(Example()).substr(0, kManifestHeadBytes);
  std::string body;
  for (int i = 0; i < 3'000'000; ++i) body += std::string("\n\0", 2);
  std::string numbers;
  AppendU32(numbers, Crc32cOf(body));
  AppendU64(numbers, body.size());
  Overwrite(bytes, 20, numbers);
  numbers.clear();
  AppendU32(numbers, Crc32cOf(bytes.substr(0, 32)));
  Overwrite(bytes, 32, numbers);
  bytes += body;
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  const absl::Status status = DecodeManifest(bytes).status();
  getrusage(RUSAGE_SELF, &after);
  EXPECT_EQ(ReasonOf(status), "CORRUPT_MANIFEST");
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 files, and 3000000 are there"));
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 32 << 10);  // KiB.
}

TEST(ManifestTest, SkipsFieldsOfALaterFormatInTheBody) {
  std::string bytes = Encoded(Example());
  bytes += std::string("\x50\x01\x5a\x02hi", 6);  // Fields 10 and 11.
  const std::string body = bytes.substr(kManifestHeadBytes);
  std::string numbers;
  AppendU32(numbers, Crc32cOf(body));
  AppendU64(numbers, body.size());
  Overwrite(bytes, 20, numbers);
  numbers.clear();
  AppendU32(numbers, Crc32cOf(bytes.substr(0, 32)));
  Overwrite(bytes, 32, numbers);
  const absl::StatusOr<Manifest> decoded = DecodeManifest(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->body.files_size(), 2);
}

TEST(ManifestTest, FindsAFileThatIsAlsoADirectoryOfAnother) {
  Manifest manifest{Summary(), {}};
  *manifest.body.add_files() = File("a", 0, 0, {});
  *manifest.body.add_files() = File("a-b", 0, 0, {});  // Sorts between "a" and "a/b".
  *manifest.body.add_files() = File("a/b", 0, 0, {});
  manifest.summary.set_file_count(3);
  EXPECT_FALSE(EncodeManifest(manifest).ok());
}

TEST(ManifestTest, RefusesMetricsThatAreTooLarge) {
  Manifest manifest = Example();
  (*manifest.summary.mutable_metrics())[std::string(4000, 'm')] = 1;
  const absl::Status status = EncodeManifest(manifest).status();
  EXPECT_EQ(ReasonOf(status), "METRICS_TOO_LARGE");
}

// Otherwise a save would be refused only after all of it is written.
TEST(ManifestTest, LargestAllowedMetricsAndPointersFit) {
  Manifest manifest = Example();
  ManifestSummary& summary = manifest.summary;
  summary.clear_metrics();
  for (int i = 0; i < 32; ++i)
    (*summary.mutable_metrics())[std::string(62, 'm') + absl::StrCat(10 + i)] = -1.5;
  std::map<std::string, std::string> pointers;
  for (int i = 0; i < static_cast<int>(kMaxPointers); ++i) pointers[absl::StrCat(i)] = std::string(127, 'c');
  ASSERT_TRUE(CheckPointers("t", pointers).ok());
  summary.mutable_pointers()->insert(pointers.begin(), pointers.end());
  summary.set_run_id(std::string(200, 'r'));
  summary.set_tag(std::string(200, 't'));
  summary.set_step(-1);
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  summary.set_sequence(kLargest);
  summary.set_attempt(kLargest);
  summary.set_ordinal(kLargest);
  summary.set_create_time_us(kLargest);
  summary.set_commit_time_us(kLargest);
  summary.set_world_size(65536);
  EXPECT_TRUE(EncodeManifest(manifest).ok());
}

TEST(ManifestTest, TakesAPointerOutOfTheRootForDamage) {
  for (const char* name : {"../etc", "a/b", ".ckptd", ""}) {
    Manifest manifest = Example();
    (*manifest.summary.mutable_pointers())[name] = "step_100";
    EXPECT_FALSE(EncodeManifest(manifest).ok()) << name;
  }
}

TEST(ManifestTest, OnlyAnAdoptedCheckpointHasNoAttempt) {
  Manifest manifest = Example();
  manifest.summary.set_attempt(0);
  manifest.summary.set_ordinal(0);
  EXPECT_FALSE(EncodeManifest(manifest).ok());
  manifest.summary.set_adopted_from("nxd");
  const absl::StatusOr<std::string> bytes = EncodeManifest(manifest);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(DecodeManifest(*bytes)->summary.adopted_from(), "nxd");
  manifest.summary.set_attempt(-1);
  EXPECT_FALSE(EncodeManifest(manifest).ok());
}

TEST(ManifestTest, AcceptsNanAsAMetric) {
  Manifest manifest = Example();
  (*manifest.summary.mutable_metrics())["loss"] = std::nan("");
  const absl::StatusOr<Manifest> decoded = DecodeManifest(Encoded(manifest));
  ASSERT_TRUE(decoded.ok());
  EXPECT_TRUE(std::isnan(decoded->summary.metrics().at("loss")));
}

PartRecord ExamplePart() {
  PartRecord record;
  record.set_format_version(1);
  record.set_rank(1);
  record.set_sequence(7);
  record.set_chunk_bytes(8 << 20);
  *record.mutable_checkpoint() = Summary();
  *record.add_files() = File("a/b.pt", 9, 1, {0xe3069283});
  return record;
}

TEST(PartRecordTest, DecodesWhatWasEncoded) {
  const absl::StatusOr<PartRecord> record = DecodePartRecord(EncodePartRecord(ExamplePart()));
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->SerializeAsString(), ExamplePart().SerializeAsString());
}

TEST(PartRecordTest, FindsEveryFlippedByteAndEveryCut) {
  const std::string bytes = EncodePartRecord(ExamplePart());
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_FALSE(DecodePartRecord(bytes.substr(0, i)).ok()) << "cut at " << i;
    for (const int mask : {0x01, 0x80, 0xff}) {
      std::string flipped = bytes;
      flipped[i] = static_cast<char>(flipped[i] ^ mask);
      EXPECT_FALSE(DecodePartRecord(flipped).ok()) << "byte " << i;
    }
  }
}

TEST(PartRecordTest, TakesAnImpossibleRecordForDamage) {
  for (const auto& spoil : std::initializer_list<std::function<void(PartRecord&)>>{
           [](PartRecord& r) { r.set_rank(2); }, [](PartRecord& r) { r.set_rank(-1); },
           [](PartRecord& r) { r.set_sequence(0); }, [](PartRecord& r) { r.set_chunk_bytes(0); },
           [](PartRecord& r) { r.clear_checkpoint(); },
           [](PartRecord& r) { r.mutable_files(0)->set_path("../x"); },
           [](PartRecord& r) { r.mutable_files(0)->set_size_bytes(int64_t{1} << 40); }}) {
    PartRecord record = ExamplePart();
    spoil(record);
    EXPECT_EQ(ReasonOf(DecodePartRecord(EncodePartRecord(record)).status()), "CORRUPT_PART_RECORD");
  }
}

NodePartRecord ExampleNodePart() {
  NodePartRecord record;
  record.set_format_version(1);
  record.set_node("trn1-7");
  record.set_incarnation("5f3a");
  record.add_ranks(0);
  record.add_ranks(1);
  *record.mutable_checkpoint() = Summary();
  *record.add_files() = File("a/b.pt", 9, 1, {0xe3069283});
  return record;
}

TEST(NodePartRecordTest, DecodesWhatWasEncoded) {
  const auto record = DecodeNodePartRecord(EncodeNodePartRecord(ExampleNodePart()));
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->SerializeAsString(), ExampleNodePart().SerializeAsString());
}

TEST(NodePartRecordTest, IsNoRecordOfOneRank) {
  EXPECT_FALSE(DecodeNodePartRecord(EncodePartRecord(ExamplePart())).ok());
  EXPECT_FALSE(DecodePartRecord(EncodeNodePartRecord(ExampleNodePart())).ok());
}

TEST(NodePartRecordTest, TakesAnImpossibleRecordForDamage) {
  for (const auto& spoil : std::initializer_list<std::function<void(NodePartRecord&)>>{
           [](NodePartRecord& r) { r.set_node("../x"); }, [](NodePartRecord& r) { r.add_ranks(2); },
           [](NodePartRecord& r) { r.add_ranks(1); }, [](NodePartRecord& r) { r.set_ranks(0, -1); },
           [](NodePartRecord& r) { r.clear_ranks(); }, [](NodePartRecord& r) { r.clear_checkpoint(); },
           [](NodePartRecord& r) { r.mutable_files(0)->set_path("../x"); },
           [](NodePartRecord& r) { r.mutable_files(0)->set_size_bytes(int64_t{1} << 40); }}) {
    NodePartRecord record = ExampleNodePart();
    spoil(record);
    EXPECT_EQ(ReasonOf(DecodeNodePartRecord(EncodeNodePartRecord(record)).status()), "CORRUPT_PART_RECORD");
  }
  NodePartRecord newer = ExampleNodePart();
  newer.set_format_version(2);
  EXPECT_EQ(ReasonOf(DecodeNodePartRecord(EncodeNodePartRecord(newer)).status()), "NEWER_FORMAT");
}

// The rows "offset  hex bytes  text" of the document's example, without those of zeros.
std::string HexDump(const std::string& bytes) {
  std::string dump;
  for (size_t at = 0; at < bytes.size(); at += 16) {
    const std::string row = bytes.substr(at, 16);
    if (row.find_first_not_of('\0') == std::string::npos) {
      if (!dump.ends_with("*\n")) dump += "*\n";
      continue;
    }
    std::string hex, text;
    for (const char c : row) {
      absl::StrAppendFormat(&hex, "%02x ", static_cast<uint8_t>(c));
      text += c >= ' ' && c <= '~' ? c : '.';
    }
    dump += absl::StrFormat("%08x  %-48s |%s|\n", at, hex, text);
  }
  return dump;
}

TEST(StorageFormatDocumentTest, ExampleIsWhatTheCodeWrites) {
  std::ifstream file("docs/storage_format.md");
  ASSERT_TRUE(file.good()) << "docs/storage_format.md is not beside the test";
  std::stringstream document;
  document << file.rdbuf();
  EXPECT_THAT(document.str(), HasSubstr(HexDump(Encoded(Example()))));
  PartRecord part;
  part.set_format_version(1);
  part.set_rank(1);
  part.set_sequence(7);
  part.set_chunk_bytes(8 << 20);
  *part.mutable_checkpoint() = Summary();
  *part.add_files() = File("note.txt", 0, 1, {});
  EXPECT_THAT(document.str(), HasSubstr(HexDump(EncodePartRecord(part))));
}

}  // namespace
}  // namespace ckptd
