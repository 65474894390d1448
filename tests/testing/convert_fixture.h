// Small tags in NxD's layout with known numbers, for tests, and checks of converted tags.
#ifndef CKPTD_TESTS_TESTING_CONVERT_FIXTURE_H_
#define CKPTD_TESTS_TESTING_CONVERT_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "client/formats/torch/value.h"
#include "storage/fs/file_system.h"

namespace ckptd {

using StorageBytes = std::unordered_map<const torch::Storage*, std::string>;

// Returns a torch file.
std::string ArchiveBytes(const torch::Value& root, const StorageBytes& bytes,
                         const std::string& name = "archive");

// Returns a tensor of known bytes, different for each name.
torch::ValueRef TestTensor(const std::string& name, std::vector<int64_t> shape, StorageBytes& bytes);
// Returns the rows of shard `index` of `count`, padded with zeros, as ZeRO-1 does.
std::string ShardBytes(const std::string& name, const std::vector<int64_t>& shape, int index, int count);

struct TestTag {
  int dp = 2, tp = 1, pp = 1;
  bool full = false;
  bool xser = false;
  bool markers = true;
  bool master_weights = false;
  // {id: shape}. Each has exp_avg, exp_avg_sq and a scalar step, except the frozen ones, which have no state.
  std::map<int64_t, std::vector<int64_t>> shapes = {
      {0, {13, 6}}, {1, {7, 5}}, {2, {1, 9}}, {3, {8, 4}}, {4, {5, 3, 2}}};
  std::vector<int64_t> frozen = {3};
  // Called with each rank's state before it is written.
  std::function<void(int dp, torch::Dict& state, StorageBytes& bytes)> change = nullptr;
};

// {path beneath the tag: content}.
std::map<std::string, std::string> MakeTag(const TestTag& tag);
// Writes the files into a directory of a file system.
void PutTag(FileSystem& fs, Handle dir, const std::map<std::string, std::string>& files);

// {path beneath `dir`: content} of all files; directories end with a slash and are empty.
std::map<std::string, std::string> ReadTree(FileSystem& fs, Handle dir);

// Returns what is wrong with `files` as the result of converting `tag` to `count` shards (or a merged state);
// empty: nothing.
std::string WrongWith(const std::map<std::string, std::string>& files, const TestTag& tag, bool full,
                      int count);

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_CONVERT_FIXTURE_H_
