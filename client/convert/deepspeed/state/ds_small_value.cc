#include "client/convert/deepspeed/state/ds_small_value.h"

#include <span>

#include "client/convert/deepspeed/state/ds_value.h"
#include "client/convert/files/value_text.h"
#include "client/formats/data_type.h"
#include "storage/base/status_macros.h"

namespace ckptd {

bool SmallValue::Equals(const SmallValue& other) const {
  if (value == nullptr || other.value == nullptr) return value == other.value;
  return bytes == other.bytes && ValueText(*value) == ValueText(*other.value);
}

absl::StatusOr<SmallValue> ReadSmallValue(FileSystem& fs, Handle tag, const std::string& path,
                                          const torch::ValueRef& value) {
  SmallValue small = {.value = value, .bytes = {}};
  const auto* tensor = value->As<torch::Tensor>();
  if (tensor == nullptr) return small;
  if (tensor->elements() != 1) return ds::Unexpected("step", value.get(), "a number");
  small.bytes.resize(static_cast<size_t>(InfoOf(tensor->dtype).item_bytes));
  CKPTD_ASSIGN_OR_RETURN(const ScopedHandle file, OpenScoped(fs, tag, path, OpenMode::kRead));
  CKPTD_RETURN_IF_ERROR(ReadFully(fs, file.get(), tensor->file_offset(),
                                  std::as_writable_bytes(std::span(small.bytes.data(), small.bytes.size()))));
  torch::Tensor own = torch::NewTensor(tensor->dtype, tensor->shape);
  small.value = torch::Make(std::move(own));
  return small;
}

}  // namespace ckptd
