// The data.pkl of a torch archive with two storages. What was read can be written, and is the same when it is
// read again.
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/formats/torch/limits.h"
#include "client/formats/torch/pickler.h"
#include "client/formats/torch/unpickler.h"
#include "client/formats/torch/value.h"
#include "storage/base/errors.h"
#include "tests/fuzz/fuzz.h"
#include "tests/testing/torch_archive_fixture.h"

namespace ckptd::torch {
namespace {

// Small enough for an input to reach them.
constexpr Limits kLimits = {
    .pickle_bytes = 1 << 20, .depth = 20, .objects = 5000, .memo_entries = 500, .string_bytes = 1 << 16};

std::optional<StoragePlace> Find(const std::string& key) {
  if (key == "0") return StoragePlace{64, 24};
  if (key == "1") return StoragePlace{1 << 20, 1 << 30};
  return std::nullopt;
}

void Check(std::string_view pickle) {
  const absl::StatusOr<Unpickled> read = Unpickle(pickle, Find, kLimits);
  if (!read.ok()) {
    FUZZ_CHECK(!ReasonOf(read.status()).empty() && !read.status().message().empty());
    return;
  }
  const absl::StatusOr<Pickled> written = Pickle(*read->root, {});
  // The writer detects two dtypes over one storage when a carried object has one of them.
  if (!written.ok()) {
    FUZZ_CHECK(written.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  const FindStorage find = [&](const std::string& key) -> std::optional<StoragePlace> {
    for (size_t i = 0; i < written->storages.size(); ++i) {
      if (std::to_string(i) == key) return StoragePlace{0, written->storages[i]->bytes};
    }
    return std::nullopt;
  };
  const absl::StatusOr<Unpickled> again = Unpickle(written->bytes, find, {});
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(Describe(*again->root) == Describe(*read->root));
}

}  // namespace
}  // namespace ckptd::torch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::torch::Check(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
