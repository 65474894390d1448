#include "client/cpp/session/wire_errors.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "gtest/gtest.h"
#include "storage/base/errors.h"

namespace ckptd::client {
namespace {

// google.rpc.Status by hand: code = 1, message = 2, details = 3.
std::string StatusDetails(const v1::ErrorInfo& info,
                          const std::string& type = "type.googleapis.com/google.rpc.ErrorInfo") {
  google::protobuf::Any any;
  any.set_type_url(type);
  any.set_value(info.SerializeAsString());
  const std::string detail = any.SerializeAsString();
  std::string bytes = {'\x08', '\x09', '\x12', '\x01', 'm', '\x1a'};
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.WriteVarint32(static_cast<uint32_t>(detail.size()));
  out.WriteString(detail);
  return bytes;
}

v1::ErrorInfo Info() {
  v1::ErrorInfo info;
  info.set_reason("FENCED");
  info.set_domain("ckptd");
  (*info.mutable_metadata())["tag"] = "step_1";
  (*info.mutable_metadata())["ranks"] = "0,3";
  return info;
}

TEST(WireErrors, KeepsReasonAndDetails) {
  const absl::Status status = FromWire(9, "attempt 1 is over", StatusDetails(Info()));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "attempt 1 is over");
  EXPECT_EQ(ReasonOf(status), "FENCED");
  EXPECT_EQ(DetailsOf(status), (ErrorDetails{{"tag", "step_1"}, {"ranks", "0,3"}}));
}

TEST(WireErrors, IgnoresDetailsThatDoNotParse) {
  const std::string good = StatusDetails(Info());
  v1::ErrorInfo foreign = Info();
  foreign.set_domain("example.com");
  for (const std::string& details :
       {std::string(), std::string("\xff\xff\xff"), good.substr(0, good.size() / 2), StatusDetails(foreign),
        StatusDetails(Info(), "type.googleapis.com/google.rpc.Help")}) {
    const absl::Status status = FromWire(14, "socket closed", details);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(status.message(), "socket closed");
    EXPECT_EQ(ReasonOf(status), "");
  }
}

TEST(WireErrors, NeverTurnsAnErrorIntoOk) {
  EXPECT_EQ(FromWire(0, "", "").code(), absl::StatusCode::kInternal);
  EXPECT_EQ(FromWire(99, "", "").code(), absl::StatusCode::kUnknown);
  EXPECT_FALSE(FromWire(v1::HandoffError()).ok());
  EXPECT_FALSE(FromSaveError(v1::Checkpoint()).ok());
}

TEST(WireErrors, TellsHowASaveEndedAndWhichRanksAreAtFault) {
  v1::Checkpoint checkpoint;
  checkpoint.set_tag("step_7");
  checkpoint.set_sequence(3);
  checkpoint.set_level(v1::FAILED);
  checkpoint.mutable_error()->set_code(4);
  checkpoint.mutable_error()->set_reason("RANKS_MISSING");
  checkpoint.mutable_error()->set_message("ranks 1 have not sealed");
  checkpoint.mutable_error()->add_ranks(1);
  const absl::Status status = FromSaveError(checkpoint);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(status), "RANKS_MISSING");
  EXPECT_EQ(DetailsOf(status), (ErrorDetails{{"tag", "step_7"}, {"sequence", "3"}, {"ranks", "1"}}));
  EXPECT_NE(status.message().find("ranks 1 have not sealed"), absl::string_view::npos);
}

}  // namespace
}  // namespace ckptd::client
