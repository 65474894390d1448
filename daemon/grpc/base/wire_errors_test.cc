#include "daemon/grpc/base/wire_errors.h"

#include <gtest/gtest.h>

#include <string>

#include "ckptd/v1/types.pb.h"
#include "google/protobuf/any.pb.h"
#include "google/protobuf/unknown_field_set.h"
#include "storage/base/errors.h"

namespace ckptd {
namespace {

// google.rpc.Status, parsed by its field numbers.
struct Decoded {
  int64_t code = -1;
  std::string message;
  google::protobuf::Any detail;
  v1::ErrorInfo info;
};

Decoded Decode(const grpc::Status& status) {
  Decoded decoded;
  google::protobuf::UnknownFieldSet fields;
  EXPECT_TRUE(fields.ParseFromString(status.error_details()));
  EXPECT_EQ(fields.field_count(), 3);
  for (int i = 0; i < fields.field_count(); ++i) {
    const auto& field = fields.field(i);
    if (field.number() == 1) decoded.code = static_cast<int64_t>(field.varint());
    if (field.number() == 2) decoded.message = field.length_delimited();
    if (field.number() == 3) {
      EXPECT_TRUE(decoded.detail.ParseFromString(field.length_delimited()));
    }
  }
  EXPECT_TRUE(decoded.info.ParseFromString(decoded.detail.value()));
  return decoded;
}

TEST(WireErrors, GivesOkNoDetails) {
  const grpc::Status status = ToGrpcStatus(absl::OkStatus());
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.error_details(), "");
}

TEST(WireErrors, EncodesReasonAndDetailsAsErrorInfo) {
  const grpc::Status status =
      ToGrpcStatus(MakeError(absl::StatusCode::kDeadlineExceeded, "RANKS_MISSING",
                             "ranks 1, 3 have not sealed", {{"ranks", "1,3"}, {"tag", "step_5"}}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(status.error_message(), "ranks 1, 3 have not sealed");
  const Decoded decoded = Decode(status);
  EXPECT_EQ(decoded.code, 4);
  EXPECT_EQ(decoded.message, "ranks 1, 3 have not sealed");
  EXPECT_EQ(decoded.detail.type_url(), "type.googleapis.com/google.rpc.ErrorInfo");
  EXPECT_EQ(decoded.info.reason(), "RANKS_MISSING");
  EXPECT_EQ(decoded.info.domain(), "ckptd");
  EXPECT_EQ(decoded.info.metadata().at("ranks"), "1,3");
  EXPECT_EQ(decoded.info.metadata().at("tag"), "step_5");
}

TEST(WireErrors, KeepsTheNumberOfEachCode) {
  for (int code = 1; code <= 16; ++code) {
    EXPECT_EQ(ToGrpcStatus(absl::Status(static_cast<absl::StatusCode>(code), "x")).error_code(), code);
  }
}

TEST(WireErrors, CutsALongErrorToTheMetadataLimitOfClients) {
  std::string ranks = "0";
  for (int rank = 1; rank < 10000; ++rank) ranks += "," + std::to_string(rank);
  ErrorDetails details = {{"ranks", ranks}, {"path", std::string(5000, 'p')}};
  for (int i = 0; i < 50; ++i) details["detail" + std::to_string(i)] = std::string(1000, 'd');
  const grpc::Status status =
      ToGrpcStatus(MakeError(absl::StatusCode::kInternal, "R", std::string(100000, 'm'), details));

  EXPECT_LE(status.error_message().size(), kMaxWireMessage);
  EXPECT_EQ(status.error_message().substr(kMaxWireMessage - 5), "mm...");
  EXPECT_LE(status.error_details().size() * 4 / 3 + status.error_message().size(), 8192u - 512u);
}

TEST(WireErrors, CutsAListOfRanksBetweenTwoRanks) {
  std::string ranks = "10000";
  while (ranks.size() < 5000) ranks += ",10001";
  const Decoded decoded =
      Decode(ToGrpcStatus(MakeError(absl::StatusCode::kAborted, "SAVE_ABORTED", "m", {{"ranks", ranks}})));
  const std::string cut = decoded.info.metadata().at("ranks");
  EXPECT_LE(cut.size(), kMaxWireDetail);
  EXPECT_EQ(cut, ranks.substr(0, cut.size()));
  EXPECT_EQ(ranks[cut.size()], ',');
}

TEST(WireErrors, ReplacesInvalidUtf8AndCutsBetweenCharacters) {
  EXPECT_EQ(ToGrpcStatus(absl::InternalError("a\xff\x62")).error_message(), "a?b");
  std::string umlauts;
  while (umlauts.size() < 2 * kMaxWireMessage) umlauts += "\xc3\xa4";
  const std::string message = ToGrpcStatus(absl::InternalError(umlauts)).error_message();
  EXPECT_EQ(message.substr(message.size() - 5), "\xc3\xa4...");
}

}  // namespace
}  // namespace ckptd
