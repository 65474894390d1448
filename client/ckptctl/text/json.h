// Prints protobuf messages as JSON: fields are named as in the .proto files, all fields are printed, and
// 64-bit numbers are strings (proto3's JSON mapping).
#ifndef CKPTD_CLIENT_CKPTCTL_TEXT_JSON_H_
#define CKPTD_CLIENT_CKPTCTL_TEXT_JSON_H_

#include <google/protobuf/message.h>
#include <google/protobuf/struct.pb.h>

#include <string>
#include <vector>

namespace ckptd::ctl {

// On several lines, or on one. Ends with a newline.
std::string ToJson(const google::protobuf::Message& message, bool one_line = false);

// For values that are in no message: `object["key"] = ...` on a Struct.
google::protobuf::Value JsonText(const std::string& text);
google::protobuf::Value JsonNumber(double number);  // Exact up to 2^53.
google::protobuf::Value JsonBool(bool value);
google::protobuf::Value JsonTexts(const std::vector<std::string>& texts);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_TEXT_JSON_H_
