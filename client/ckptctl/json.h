// Protobuf messages as JSON: names as in the .proto files, every field there, 64-bit numbers as strings
// (proto3's JSON mapping).
#ifndef CKPTD_CLIENT_CKPTCTL_JSON_H_
#define CKPTD_CLIENT_CKPTCTL_JSON_H_

#include <google/protobuf/message.h>
#include <google/protobuf/struct.pb.h>

#include <string>

namespace ckptd::ctl {

// Over several lines, or in one; a newline at the end.
std::string ToJson(const google::protobuf::Message& message, bool one_line = false);

// For what is in no message: `object["key"] = ...` on a Struct.
google::protobuf::Value JsonText(const std::string& text);
google::protobuf::Value JsonNumber(double number);  // Exact up to 2^53.
google::protobuf::Value JsonBool(bool value);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_JSON_H_
