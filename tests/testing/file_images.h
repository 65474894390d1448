// The files of a part, in memory as a trainer leaves them there.
#ifndef CKPTD_TESTS_TESTING_FILE_IMAGES_H_
#define CKPTD_TESTS_TESTING_FILE_IMAGES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "storage/io/part_writer.h"

namespace ckptd {

// A part in memory as in segments: each image begins at a multiple of 4096 bytes.
class Images {
 public:
  void Add(const std::string& path, int64_t size, char seed) {
    constexpr int64_t kBlock = 4096;
    const int64_t space = (size + kBlock - 1) / kBlock * kBlock;
    std::byte* data = nullptr;
    if (space > 0) {
      data = static_cast<std::byte*>(::operator new(space, kAlignment));
      owned_.emplace_back(data);
      for (int64_t i = 0; i < space; ++i) data[i] = static_cast<std::byte>(seed + i * 7 + i / kBlock);
    }
    FileImage image{path, size, {}};
    if (size > 0) image.runs.push_back(std::span<const std::byte>(data, size));
    files_.push_back(std::move(image));
  }
  const std::vector<FileImage>& files() const { return files_; }
  std::string Bytes(const std::string& path) const {
    for (const FileImage& file : files_) {
      if (file.path == path && file.size > 0) {
        return std::string(reinterpret_cast<const char*>(file.runs[0].data()), file.size);
      }
    }
    return "";
  }

 private:
  static constexpr std::align_val_t kAlignment{4096};
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, kAlignment); }
  };
  std::vector<std::unique_ptr<std::byte, Free>> owned_;
  std::vector<FileImage> files_;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_FILE_IMAGES_H_
