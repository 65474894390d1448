// For tests of torch archives: values as text, and whole files in memory.
#ifndef CKPTD_TESTS_TESTING_TORCH_ARCHIVE_FIXTURE_H_
#define CKPTD_TESTS_TESTING_TORCH_ARCHIVE_FIXTURE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "client/formats/torch/archive_layout.h"
#include "client/formats/torch/value.h"

namespace ckptd::torch {

// Returns a text similar to Python's repr: equal trees have equal texts. Sharing is not shown.
std::string Describe(const Value& value);

// Returns the bytes that the test writes into a storage: different for each storage.
std::string PatternOf(size_t storage, size_t bytes);
// Returns the file of a layout, with its checksums.
std::string FileOf(const ArchiveLayout& layout);
absl::StatusOr<std::string> FileOf(const Value& root, const LayoutOptions& options = {});

}  // namespace ckptd::torch
#endif  // CKPTD_TESTS_TESTING_TORCH_ARCHIVE_FIXTURE_H_
