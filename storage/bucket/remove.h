// Removes a checkpoint, or what an upload that has not ended has left of one, from a bucket.
//
// 1. Claim: put manifest.new, with the manifest, if there is none: from now on nobody uploads another
//    checkpoint of that tag.
// 2. Delete the tag's names in the index (index.h): readers find the checkpoint by its tag.
// 3. Delete the manifest: from now on nobody lists or fetches the checkpoint.
// 4. Delete the files that the manifest names, and what is beneath TAG/.ckptd/.
// 5. Delete the claim.
//
// A process that dies in between leaves a claim, with which the next call goes on.
#ifndef CKPTD_STORAGE_BUCKET_REMOVE_H_
#define CKPTD_STORAGE_BUCKET_REMOVE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "storage/object/object_store.h"

namespace ckptd {

enum class RemoveWhat {
  kAll,
  kUnfinished,  // ALREADY_EXISTS, reason OBJECT_EXISTS, and nothing is removed, if the checkpoint is whole there.
};

// Sequence and commit time identify the checkpoint: OK, and nothing is removed, if something else has its
// tag. Touches no object that ckptd has not written.
absl::Status RemoveUploaded(ObjectStore& store, const std::string& prefix, const std::string& tag,
                            int64_t sequence, int64_t commit_time_us, RemoveWhat what = RemoveWhat::kAll);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BUCKET_REMOVE_H_
