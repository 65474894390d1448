// Random numbers that depend on the seed alone: not on the machine, the library or the order of addresses.
#ifndef CKPTD_TESTS_SIM_RANDOM_H_
#define CKPTD_TESTS_SIM_RANDOM_H_

#include <cstdint>
#include <string_view>

#include "storage/base/clock.h"

namespace ckptd::sim {

// The mixing step of splitmix64, used as a hash.
inline uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
inline uint64_t Mix(uint64_t a, uint64_t b) { return Mix(Mix(a) ^ b); }

inline uint64_t Mix(std::string_view words) {
  uint64_t hash = 0;
  for (char c : words) hash = hash * 0x100000001b3u + static_cast<unsigned char>(c);
  return Mix(hash);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(Mix(seed)) {}
  uint64_t Next() { return Mix(state_ += 0x9e3779b97f4a7c15u); }
  // In [0, n).
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  int64_t Between(int64_t first, int64_t last) { return first + Below(last - first + 1); }
  bool Percent(int percent) { return Below(100) < percent; }
  // Returns a duration between the bounds, with a distribution that favours short ones: the range grows by a
  // factor of four with probability 60 %.
  Duration Spread(Duration shortest, Duration longest) {
    Duration most = shortest;
    while (most < longest && Percent(60)) most *= 4;
    return Duration(Between(shortest.count(), (most < longest ? most : longest).count()));
  }

 private:
  uint64_t state_;
};

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_RANDOM_H_
