// FilePlaces says which files a part has, and where they lie in its memory.
#ifndef CKPTD_DAEMON_ENGINE_RUN_FILE_PLACES_H_
#define CKPTD_DAEMON_ENGINE_RUN_FILE_PLACES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ckptd {

struct PlacedFile {
  std::string path;
  int64_t size = 0;
  int64_t offset = 0;  // In the part, in bytes.
};

// A file of a sealed part.
struct SealedFile {
  const PlacedFile* placed = nullptr;
  int64_t size = 0;  // At most placed->size.
};

// A part may have ten thousand files, and most requests name them in the order in which they were placed. So Find
// takes a guess, and the index by path is not made before a guess is wrong.
class FilePlaces {
 public:
  FilePlaces() = default;
  FilePlaces(const FilePlaces&) = delete;  // `by_path_` refers to `files_`.
  FilePlaces& operator=(const FilePlaces&) = delete;

  // A file whose path is new. It stays where it is in memory.
  const PlacedFile& Add(std::string path, int64_t size, int64_t offset) {
    return files_.emplace_back(PlacedFile{std::move(path), size, offset});
  }
  // Null: there is none. guess: its number, most likely.
  const PlacedFile* Find(std::string_view path, size_t guess = 0) const {
    if (guess < files_.size() && files_[guess].path == path) return &files_[guess];
    while (by_path_.size() < files_.size()) {
      const PlacedFile& file = files_[by_path_.size()];
      by_path_.emplace(file.path, &file);
    }
    const auto found = by_path_.find(path);
    return found == by_path_.end() ? nullptr : found->second;
  }

  const std::deque<PlacedFile>& files() const { return files_; }  // In the order in which they were added.
  size_t size() const { return files_.size(); }
  // All files as they were placed.
  std::vector<SealedFile> Sealed() const {
    std::vector<SealedFile> sealed;
    sealed.reserve(files_.size());
    for (const PlacedFile& file : files_) sealed.push_back({&file, file.size});
    return sealed;
  }

 private:
  std::deque<PlacedFile> files_;
  mutable std::unordered_map<std::string_view, const PlacedFile*> by_path_;  // Of the first files, or of all.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RUN_FILE_PLACES_H_
