// Short texts of values, for messages.
#ifndef CKPTD_CLIENT_CONVERT_FILES_VALUE_TEXT_H_
#define CKPTD_CLIENT_CONVERT_FILES_VALUE_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/formats/torch/value.h"

namespace ckptd {

// A step into a dict, for messages: "['lr']" or "[3]".
std::string KeyText(const torch::Value& key);
// A short description of a value: "0.1", "'abc'", "a tensor float32[3, 4]", "a list of 2".
std::string ValueText(const torch::Value& value);
std::string ShapeText(const std::vector<int64_t>& shape);  // "[3, 4]"

}  // namespace ckptd
#endif  // CKPTD_CLIENT_CONVERT_FILES_VALUE_TEXT_H_
