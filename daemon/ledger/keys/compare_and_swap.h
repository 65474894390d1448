// Reads a few ranges of etcd, decides, and writes if nothing in them has changed since; else starts again.
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
  // The caller holds `key` as long as the key has `value`. A decision is written only if the caller holds the
  // key at that moment. `lost`: the error if it does not.
  struct Held {
    std::string key, value;
    absl::Status lost;
    int64_t create_revision = 0;  // If not 0: the revision at which the key was created.
  };
  // The keys of each range, as found at one revision.
  using Found = std::vector<std::vector<etcdserverpb::KeyValue>>;

  // A deletion between the read and the write is detected only in ranges of one key. In other ranges a decision
  // must stay right after a deletion: their keys are deleted by the expiry of a lease, or together with a single
  // key that is among the ranges.
  std::vector<Range> ranges;
  std::vector<Held> held;
  // Returns the operations to write; none: `found` needs no change. Runs again after each reading, and must
  // recognize its own earlier write, whose answer may have been lost.
  std::function<std::vector<etcdserverpb::RequestOp>(const Found& found)> decide;
  std::string purpose;
  // What the caller believes to be in the ranges, each as it was at one moment. If set, `decide` first runs
  // with the guess, without a reading. Its operations are written if nothing was written in the ranges since;
  // if something was, or it returns none, the ranges are read. Of a key with mod_revision 0 only the value is
  // known: no other writer changes such a key, and it never takes an earlier value again.
  std::optional<Found> guess = std::nullopt;
};

// Compares that the range still has `keys`, its part of a CompareAndSwap::guess.
etcdserverpb::Compare UnchangedFrom(const CompareAndSwap::Range& range,
                                    const std::vector<etcdserverpb::KeyValue>& keys);

// `done`: OK if the operations of the last `decide` were applied to the keys that it had found, or it
// returned none. LEDGER_UNAVAILABLE also if other writers have changed the ranges in every round. `lost` of a
// key that is no longer held: the last decision was not written, unless an earlier copy of the request wrote
// it.
void SwapIn(Etcd* etcd, CompareAndSwap swap, absl::AnyInvocable<void(absl::Status)> done);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_KEYS_COMPARE_AND_SWAP_H_
