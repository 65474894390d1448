#include "client/formats/safetensors/safetensors.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/formats/byte_source.h"
#include "client/formats/data_type.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"

namespace ckptd::safetensors {
namespace {

using ::testing::HasSubstr;

std::string Length(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(length >> (8 * i)));
  return bytes;
}

std::string FileOf(const std::string& header, size_t data_bytes) {
  return Length(header.size()) + header + std::string(data_bytes, '\x5a');
}

absl::StatusOr<File> Read(std::string_view bytes) { return Open(MemorySource(bytes, "model.safetensors")); }

void ExpectRefused(const std::string& bytes, absl::StatusCode code, std::string_view reason,
                   const std::string& message) {
  const absl::Status status = Read(bytes).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_EQ(ReasonOf(status), reason) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.safetensors: "));
}
void ExpectDamaged(const std::string& bytes, const std::string& message) {
  ExpectRefused(bytes, absl::StatusCode::kDataLoss, "CORRUPT_ARCHIVE", message);
}
void ExpectDamagedHeader(const std::string& header, const std::string& message, size_t data_bytes = 8) {
  ExpectDamaged(FileOf(header, data_bytes), message);
}

File SomeTensors() {
  File file;
  file.tensors = {{"b.bias", DataType::kFloat32, {3}},
                  {"step", DataType::kInt64, {}},
                  {"a \"q\" \xc3\xbc", DataType::kBFloat16, {2, 3}},
                  {"empty", DataType::kFloat64, {0, 5}},
                  {"mask", DataType::kBool, {5}},
                  {"four", DataType::kFloat4E2M1FnX2, {3, 2}}};
  file.metadata = {{"format", "pt"}, {"note", "line\n\\"}};
  return file;
}

TEST(SafetensorsTest, ReadsWhatItLaidOut) {
  const absl::StatusOr<Layout> layout = LayOut(SomeTensors());
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->header.size() % 8, 0u);
  std::string bytes = layout->header;
  bytes.resize(static_cast<size_t>(layout->size));
  const absl::StatusOr<File> file = Read(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata, SomeTensors().metadata);
  ASSERT_EQ(file->tensors.size(), 6u);
  auto at = static_cast<int64_t>(layout->header.size());
  for (size_t i = 0; i < 6; ++i) {
    const Tensor& laid = layout->tensors[i];
    const Tensor& read = file->tensors[i];
    EXPECT_EQ(read.name, laid.name);
    EXPECT_EQ(read.dtype, laid.dtype);
    EXPECT_EQ(read.shape, laid.shape);
    EXPECT_EQ(read.bytes, laid.bytes);
    EXPECT_EQ(read.offset, laid.offset);
    EXPECT_EQ(read.offset, at);
    EXPECT_EQ(read.offset % InfoOf(read.dtype).item_bytes, 0) << "not aligned";
    at += read.bytes;
  }
  EXPECT_EQ(at, layout->size);
}

TEST(SafetensorsTest, HasTheBytesOfTheFormat) {
  File file;
  file.tensors = {{"w", DataType::kFloat32, {1, 2}}};
  const absl::StatusOr<Layout> layout = LayOut(file);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->header, Length(56) + R"({"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})");
  EXPECT_EQ(layout->size, 72);
  EXPECT_EQ(LayOut(File())->header, Length(8) + "{}      ");
}

TEST(SafetensorsTest, SupportsEveryDtypeOfTheFormat) {
  int written = 0;
  for (const DataTypeInfo& info : AllDataTypes()) {
    File file;
    file.tensors = {{"x", info.type, {4}}};
    const absl::StatusOr<Layout> layout = LayOut(file);
    EXPECT_EQ(layout.ok(), !info.safetensors_name.empty()) << info.torch_name;
    if (!layout.ok()) continue;
    std::string bytes = layout->header;
    bytes.resize(static_cast<size_t>(layout->size));
    const absl::StatusOr<File> read = Read(bytes);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->tensors[0].dtype, info.type);
    EXPECT_EQ(read->tensors[0].shape, std::vector<int64_t>{4});
    ++written;
  }
  EXPECT_EQ(written, 20);
}

TEST(SafetensorsTest, RefusesWhatCannotBeWritten) {
  const auto refused = [](const Tensor& tensor) {
    const absl::Status status = LayOut(File{{tensor}, {}}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(ReasonOf(status), "INVALID_ARGUMENT");
  };
  refused({"__metadata__", DataType::kFloat32, {1}});
  refused({"\xff", DataType::kFloat32, {1}});
  refused({"x", DataType::kComplex128, {1}});
  refused({"x", DataType::kFloat32, {-1}});
  refused({"x", DataType::kFloat32, {int64_t{1} << 40, int64_t{1} << 40}});
  refused({"x", DataType::kFloat32, {int64_t{1} << 61}});
  refused({"x", DataType::kFloat4E2M1FnX2, {}});
  refused({"x", DataType::kFloat4E2M1FnX2, {0, (int64_t{1} << 62) + 1}});
  EXPECT_FALSE(LayOut(File{{{"x", DataType::kInt8, {1}}, {"x", DataType::kInt8, {1}}}, {}}).ok());
  EXPECT_FALSE(LayOut(File{{}, {{"\xff", "x"}}}).ok());
  EXPECT_FALSE(LayOut(File{{}, {{"x", "\xed\xa0\x80"}}}).ok());
}

TEST(HostileSafetensorsTest, RefusesEveryCutAndAnyTail) {
  const std::string bytes = FileOf(R"({"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})", 8);
  ASSERT_TRUE(Read(bytes).ok());
  for (size_t at = 0; at < bytes.size(); ++at) EXPECT_FALSE(Read(bytes.substr(0, at)).ok()) << at;
  ExpectDamaged(bytes + "x", "and the file at 73");
}

TEST(HostileSafetensorsTest, RefusesImpossibleLengthsWithoutAllocating) {
  for (const uint64_t length : {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 40, uint64_t{3}}) {
    ExpectDamaged(Length(length) + "{}", "it claims a header of");
  }
  class Huge : public MemorySource {
   public:
    Huge(std::string_view bytes) : MemorySource(bytes, "huge") {}
    int64_t size() const override { return int64_t{1} << 50; }
  };
  const std::string length = Length(100'000'001);
  const absl::Status status = Open(Huge(length)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(ReasonOf(status), "ARCHIVE_TOO_LARGE");
}

TEST(HostileSafetensorsTest, RefusesOffsetsThatDoNotCoverTheData) {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}";
  };
  EXPECT_TRUE(Read(FileOf(two("[0,4]", "[4,8]"), 8)).ok());
  EXPECT_TRUE(Read(FileOf(two("[4,8]", "[0,4]"), 8)).ok());
  ExpectDamagedHeader(two("[0,4]", "[0,4]"), "begins at byte");      // Twice.
  ExpectDamagedHeader(two("[0,4]", "[3,7]"), "begins at byte");      // Overlap.
  ExpectDamagedHeader(two("[0,4]", "[5,9]"), "begins at byte", 9);   // A hole.
  ExpectDamagedHeader(two("[1,5]", "[5,9]"), "begins at byte", 9);   // A hole before the first.
  ExpectDamagedHeader(two("[0,4]", "[4,8]"), "and the file at", 9);  // A tail.
  ExpectDamagedHeader(two("[0,4]", "[4,8]"), "claims to be at", 7);  // Beyond.
  ExpectDamagedHeader(two("[0,4]", "[8,4]"), "claims to be at");
  ExpectDamagedHeader(two("[0,4]", "[4,9]"), "claims to be at", 9);
  ExpectDamagedHeader(two("[0,4]", "[18446744073709551612,18446744073709551615]"), "claims to be at");
  ExpectDamagedHeader(two("[0,4]", "[4]"), "lacks its");
  ExpectDamagedHeader(two("[0,4]", "[4,8,8]"), "lacks its");
  ExpectDamagedHeader(two("[0,4]", "[4,-8]"), "a negative number");
  ExpectDamagedHeader(two("[0,4]", "[4,8.0]"), "a fraction");
  ExpectDamagedHeader(two("[0,4]", "[4,18446744073709551616]"), "a number that is too large");
}

TEST(HostileSafetensorsTest, RefusesShapesBeyond63Bits) {
  for (const char* shape : {"[4294967296,4294967296]", "[9223372036854775808]", "[18446744073709551615]",
                            "[4611686018427387904,4]"}) {
    ExpectDamagedHeader(std::string(R"({"w":{"dtype":"F32","shape":)") + shape + R"(,"data_offsets":[0,8]}})",
                        "more than 2^63 bytes");
  }
  ExpectDamagedHeader(R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "of 12 bytes");
}

TEST(HostileSafetensorsTest, RefusesAHeaderOfAnotherStructure) {
  const std::string entry = R"({"dtype":"U8","shape":[8],"data_offsets":[0,8]})";
  for (const std::string& header :
       {std::string(""),
        std::string("[]"),
        std::string(" {}"),
        std::string("null"),
        std::string("{"),
        std::string("{}}"),
        std::string("{}{}"),
        "{\"w\":" + entry,
        std::string("{\"w\":[]}"),
        std::string("{\"w\":null}"),
        std::string("{\"w\":\"x\"}"),
        std::string("{\"w\":1}"),
        std::string("{\"w\":true}"),
        "{\"w\":" + entry + ",\"w\":" + entry + "}",
        std::string("{\"\xff\":{}}"),
        std::string(R"({"__metadata__":{"a":1}})"),
        std::string(R"({"__metadata__":{"a":{}}})"),
        std::string(R"({"__metadata__":{"a":"b","a":"c"}})"),
        std::string(R"({"__metadata__":"a"})"),
        std::string(R"({"w":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}})"),
        std::string(R"({"w":{"dtype":"U8","shape":[8],"shape":[8],"data_offsets":[0,8]}})"),
        std::string(R"({"w":{"dtype":"U8","shape":[[8]],"data_offsets":[0,8]}})"),
        std::string(R"({"w":{"dtype":"U8","shape":{"x":1},"data_offsets":[0,8]}})"),
        std::string(R"({"w":{"dtype":"U8","shape":8,"data_offsets":[0,8]}})"),
        std::string(R"({"w":{"dtype":8,"shape":[8],"data_offsets":[0,8]}})"),
        std::string(R"({"w":{"shape":[8],"data_offsets":[0,8]}})"),
        std::string(R"({"w":{"dtype":"U8","data_offsets":[0,8]}})"),
        std::string(R"({"w":{"dtype":"U8","shape":[8]}})")}) {
    ExpectDamagedHeader(header, "");
  }
  ExpectDamagedHeader(std::string(1'000'000, '['), "does not begin with {");
  ExpectDamagedHeader("{\"w\":{\"shape\":" + std::string(1'000'000, '['), "a list where none belongs");
}

TEST(HostileSafetensorsTest, NamesAnUnknownDtype) {
  ExpectRefused(FileOf(R"({"w":{"dtype":"F6_E2M3","shape":[8],"data_offsets":[0,6]}})", 6),
                absl::StatusCode::kUnimplemented, "UNSUPPORTED_ARCHIVE", "F6_E2M3");
  ExpectRefused(FileOf(R"({"w":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2),
                absl::StatusCode::kUnimplemented, "UNSUPPORTED_ARCHIVE", "do not fill its last byte");
}

}  // namespace
}  // namespace ckptd::safetensors
