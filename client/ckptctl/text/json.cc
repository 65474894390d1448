#include "client/ckptctl/text/json.h"

#include <google/protobuf/util/json_util.h>

#include "client/ckptctl/text/text.h"

namespace ckptd::ctl {

std::string ToJson(const google::protobuf::Message& message, bool one_line) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = !one_line;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  // Unreachable: strings in messages are UTF-8 and times are in range.
  if (!status.ok()) return "{}\n";
  while (!json.empty() && json.back() == '\n') json.pop_back();
  return json + "\n";
}

google::protobuf::Value JsonText(const std::string& text) {
  google::protobuf::Value value;
  value.set_string_value(Printable(text));
  return value;
}

google::protobuf::Value JsonNumber(double number) {
  google::protobuf::Value value;
  value.set_number_value(number);
  return value;
}

google::protobuf::Value JsonBool(bool boolean) {
  google::protobuf::Value value;
  value.set_bool_value(boolean);
  return value;
}

google::protobuf::Value JsonTexts(const std::vector<std::string>& texts) {
  google::protobuf::Value value;
  value.mutable_list_value();
  for (const std::string& text : texts) *value.mutable_list_value()->add_values() = JsonText(text);
  return value;
}

}  // namespace ckptd::ctl
