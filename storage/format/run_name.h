// The protocol's name of a run, which is derived from its root directory.
#ifndef CKPTD_STORAGE_FORMAT_RUN_NAME_H_
#define CKPTD_STORAGE_FORMAT_RUN_NAME_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"

namespace ckptd {

// "runs/{16 hex digits}", from the root's st_dev and st_ino. The name does not change as long as the directory
// exists and is mounted.
inline std::string RunName(uint64_t device, uint64_t inode) {
  uint64_t x = device * 0x9e3779b97f4a7c15u ^ inode;  // splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return absl::StrFormat("runs/%016x", x ^ (x >> 31));
}

// Of a root in a folder that several nodes share: the same on all of them. Each has the folder at the same path, and
// sees the same inode numbers there; the device number is its own.
inline std::string SharedRunName(std::string_view folder, uint64_t inode) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a.
  for (const char each : folder) hash = (hash ^ static_cast<unsigned char>(each)) * 0x100000001b3u;
  return RunName(hash, inode);
}

}  // namespace ckptd
#endif  // CKPTD_STORAGE_FORMAT_RUN_NAME_H_
