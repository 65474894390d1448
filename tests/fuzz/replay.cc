// Runs the corpus of a fuzz target without libFuzzer: each file, each truncation of it, and each variant with
// one byte changed.
//
//   replay FOLDER
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "tests/fuzz/fuzz.h"

namespace {

constexpr size_t kMaxVariants =
    600;  // Of each kind, of one file: a large one has its bytes changed here and there.

void Run(const std::string& input) {
  // A separate allocation, so that AddressSanitizer detects a read beyond the end.
  const std::string exact(input.data(), input.size());
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(exact.data()), exact.size());
}

void RunVariants(const std::string& seed) {
  Run(seed);
  const size_t stride = std::max<size_t>(1, seed.size() / kMaxVariants);
  for (size_t at = 0; at < seed.size(); at += stride) {
    Run(seed.substr(0, at));
    std::string changed = seed;
    changed[at] = static_cast<char>(changed[at] ^ (1 << at % 8));
    Run(changed);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: replay FOLDER\n");
    return 2;
  }
  std::set<std::filesystem::path> files;  // Sorted, so that each run is the same.
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) files.insert(entry.path());
  for (const std::filesystem::path& path : files) {
    std::ifstream file(path, std::ios::binary);
    const std::string seed{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    std::printf("%s: %zu bytes\n", path.c_str(), seed.size());
    std::fflush(stdout);
    RunVariants(seed);
  }
  if (files.empty()) std::fprintf(stderr, "no corpus in %s\n", argv[1]);
  return files.empty() ? 1 : 0;
}
