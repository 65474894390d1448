// A safetensors file. The first byte selects the format of the rest: 0 is a file; otherwise a header alone,
// to which the target adds its length and as many data bytes as the byte says, because a fuzzer cannot guess
// them together.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/formats/byte_source.h"
#include "client/formats/safetensors/safetensors.h"
#include "storage/base/errors.h"
#include "tests/fuzz/fuzz.h"

namespace ckptd::safetensors {
namespace {

void Check(std::string_view bytes) {
  absl::StatusOr<File> file = Open(MemorySource(bytes, "input"));
  if (!file.ok()) {
    FUZZ_CHECK(!ReasonOf(file.status()).empty() && file.status().message().substr(0, 5) == "input");
    return;
  }
  int64_t at = 0;
  for (const Tensor& tensor : file->tensors) {
    FUZZ_CHECK(tensor.bytes >= 0 && (at == 0 || tensor.offset == at));
    at = tensor.offset + tensor.bytes;
  }
  FUZZ_CHECK(file->tensors.empty() || at == static_cast<int64_t>(bytes.size()));
  const size_t tensors = file->tensors.size();
  const absl::StatusOr<Layout> layout = LayOut(*std::move(file));
  FUZZ_CHECK(layout.ok());
  std::string written = layout->header;
  written.resize(static_cast<size_t>(layout->size));
  const absl::StatusOr<File> again = Open(MemorySource(written, "again"));
  FUZZ_CHECK(again.ok() && again->tensors.size() == tensors);
}

}  // namespace
}  // namespace ckptd::safetensors

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::FuzzInput input(data, size);
  const uint8_t behind = input.Byte();
  std::string bytes;
  if (behind != 0) {
    for (int shift = 0; shift < 64; shift += 8)
      bytes.push_back(static_cast<char>(input.Rest().size() >> shift));
  }
  bytes.append(input.Rest());
  bytes.append(behind, '\0');
  ckptd::safetensors::Check(bytes);
  return 0;
}
