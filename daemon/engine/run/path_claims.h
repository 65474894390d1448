// PathClaims knows which rank of a save has claimed which file, and which directories that implies.
#ifndef CKPTD_DAEMON_ENGINE_RUN_PATH_CLAIMS_H_
#define CKPTD_DAEMON_ENGINE_RUN_PATH_CLAIMS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace ckptd {

// A save may have ten thousand files whose names begin alike, as those of a sharded model do: a claim costs
// no comparison with the others.
class PathClaims {
 public:
  struct Claim {
    int rank = 0;
    std::string path;
  };

  // What keeps `path` from being used: the same path, a parent directory of it that is a file, or a file
  // below it.
  std::optional<Claim> Find(const std::string& path) const;
  // A path for which Find has found nothing. It is not copied: it must stay valid as long as the claims are used.
  void Add(std::string_view path, int rank);
  void Reserve(size_t files) { files_.reserve(files_.size() + files); }  // So many are about to be added.
  void Clear();

  size_t size() const { return files_.size(); }
  int64_t path_bytes() const { return path_bytes_; }  // Of all paths together.

 private:
  std::unordered_map<std::string_view, int> files_;  // To the rank.
  std::unordered_map<std::string, Claim> below_;     // Each directory, to the first file below it.
  std::string last_directory_;                       // It, and all of its parents, are in below_.
  int64_t path_bytes_ = 0;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RUN_PATH_CLAIMS_H_
