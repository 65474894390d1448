// Reads a few ranges of etcd, decides, and writes if nothing in them has changed since; else again.
#ifndef CKPTD_DAEMON_LEDGER_KEYS_COMPARE_AND_SWAP_H_
#define CKPTD_DAEMON_LEDGER_KEYS_COMPARE_AND_SWAP_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "daemon/etcd/etcd.h"

namespace ckptd {

struct CompareAndSwap {
  struct Range {
    std::string key;
    bool is_prefix = false;  // All keys that begin with it.
    std::string end = "";    // If not empty: all keys from `key` on, and before this one.
  };
  // A key that the caller holds while it has this value, and the error once it has not. What is written
  // counts only if it is held at that moment.
  struct Held {
    std::string key, value;
    absl::Status lost;
    int64_t create_revision = 0;  // If not 0, the key was created at this one.
  };
  // What was found in each of the ranges, at one revision.
  using Found = std::vector<std::vector<etcdserverpb::KeyValue>>;

  // Keys that are never deleted, but with a lease: that a key has gone is not noticed.
  std::vector<Range> ranges;
  std::vector<Held> held;
  // Returns what to write; nothing: what was found is as it should be. Runs anew with each reading, so it
  // must recognize what an earlier one of its own has written: an answer may have been lost.
  std::function<std::vector<etcdserverpb::RequestOp>(const Found& found)> decide;
  std::string purpose;
  // What is believed to be in the ranges, each as it was at one moment. Then the first reading is left out:
  // what is decided from it is written if nothing was written there since, else it is read. A key with
  // mod_revision 0 is one whose value alone is known: no other writer has it, and it never has an earlier
  // value again.
  std::optional<Found> guess = std::nullopt;
};

// Compares that the range still has these keys, which are those of CompareAndSwap::guess.
etcdserverpb::Compare UnchangedFrom(const CompareAndSwap::Range& range,
                                    const std::vector<etcdserverpb::KeyValue>& keys);

// `done`: OK after the last `decide`, whose operations, if any, were applied to what it had found.
// LEDGER_UNAVAILABLE also if others have changed the ranges each time. `lost` of what is no longer held: then
// the last decision was not written, or an earlier copy of it was.
void SwapIn(Etcd* etcd, CompareAndSwap swap, absl::AnyInvocable<void(absl::Status)> done);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_KEYS_COMPARE_AND_SWAP_H_
