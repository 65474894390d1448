// Tags as NxD writes them, small and with known numbers, for tests; and what is in one that was made.
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

// A file of torch's.
std::string ArchiveBytes(const torch::Value& root, const StorageBytes& bytes,
                         const std::string& name = "archive");

// A tensor of known bytes: no two names give the same.
torch::ValueRef TestTensor(const std::string& name, std::vector<int64_t> shape, StorageBytes& bytes);
// The rows of shard `index` of `count` of it, padded with zeros, as the rule of ZeRO-1 has it.
std::string ShardBytes(const std::string& name, const std::vector<int64_t>& shape, int index, int count);

struct TestTag {
  int dp = 2, tp = 1, pp = 1;
  bool full = false;
  bool xser = false;
  bool markers = true;
  bool master_weights = false;
  // {id: shape}. Each has exp_avg, exp_avg_sq and a step without dimensions; but for the frozen ones, which
  // have no state.
  std::map<int64_t, std::vector<int64_t>> shapes = {
      {0, {13, 6}}, {1, {7, 5}}, {2, {1, 9}}, {3, {8, 4}}, {4, {5, 3, 2}}};
  std::vector<int64_t> frozen = {3};
  // Called with each rank's state before it is written.
  std::function<void(int dp, torch::Dict& state, StorageBytes& bytes)> change = nullptr;
};

// {path beneath the tag: content}.
std::map<std::string, std::string> MakeTag(const TestTag& tag);
// Into a directory of a file system.
void PutTag(FileSystem& fs, Handle dir, const std::map<std::string, std::string>& files);

// {path beneath `dir`: content} of all files; directories end with a slash and are empty.
std::map<std::string, std::string> ReadTree(FileSystem& fs, Handle dir);

// What is wrong with `files` as the tag that a conversion to `count` shards (or a merged state) of `tag`
// makes; empty: nothing.
std::string WrongWith(const std::map<std::string, std::string>& files, const TestTag& tag, bool full,
                      int count);

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_CONVERT_FIXTURE_H_
