// What a daemon has begun at a tag of a root in a bucket, and how another one ends it after a crash.
//
//   PREFIX/.ckptd/unended/<term>.<sequence>.<tag>/save         or `removal`: comes first, goes last; empty
//   PREFIX/.ckptd/unended/<term>.<sequence>.<tag>/part-NNNNN   PartRecord without checksums: the files of that rank,
//                                                              put before the first of them is sent
//
// Both a save and a removal hold the tag by an upload's claim, PREFIX/TAG/.ckptd/manifest.new: that of a save
// is a manifest without files, that of a removal is the checkpoint's own. Neither an upload nor another save
// takes the tag meanwhile.
//
// A save commits by a conditional put of PREFIX/TAG/.ckptd/manifest. To give it up for good, although the
// daemon that has begun it may only be paused, its manifest's key is taken: by an object without a byte,
// which everybody takes for none. The next save of the tag removes that, when it has the claim.
#ifndef CKPTD_STORAGE_COMMIT_BUCKET_UNENDED_H_
#define CKPTD_STORAGE_COMMIT_BUCKET_UNENDED_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "storage/commit/bucket/bucket_keys.h"
#include "storage/object/object_store.h"

namespace ckptd {

// The claim of a save. `tag` is valid.
std::string ClaimOfSave(const std::string& tag, int64_t sequence);

enum class Unended { kSave, kRemoval };
absl::StatusOr<std::vector<std::pair<UnendedId, Unended>>> ListUnended(ObjectStore& store,
                                                                       const BucketKeys& keys);

// Says that it has begun, before its claim.
absl::Status PutBegun(ObjectStore& store, const BucketKeys& keys, const UnendedId& id, Unended what);
// By a daemon that knows that it has ended: only its claim and its own objects are left.
absl::Status ForgetUnended(ObjectStore& store, const BucketKeys& keys, const UnendedId& id);

enum class WhoEnds {
  kItself,  // The daemon that has begun it, whose requests have all been answered, and which has not tried to commit.
  kGivesUp,  // That daemon, and a put of the manifest may still have its effect, or has had it: it is no checkpoint.
  kAnother,  // A daemon of a later term.
};
enum class HowEnded {
  kNothingThere,
  kRemoved,
  // A save had committed, or a removal had not begun to remove: the checkpoint is there.
  kIsThere,
};
// Removes what is there of it, and nothing that ckptd has not written, unless it turns out to be a
// checkpoint. After an error it may be called again.
absl::StatusOr<HowEnded> EndUnended(ObjectStore& store, const BucketKeys& keys, const UnendedId& id,
                                    WhoEnds who);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_BUCKET_UNENDED_H_
