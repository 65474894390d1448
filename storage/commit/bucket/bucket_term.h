// Which daemon has a root in a bucket: the one that has opened it last. A bucket has no locks, so each daemon
// that opens a root takes the next term, by a conditional put, and from then on no daemon of an earlier one
// changes anything: it looks before each step that others could see. Beneath terms/ the highest number
// counts.
#ifndef CKPTD_STORAGE_COMMIT_BUCKET_BUCKET_TERM_H_
#define CKPTD_STORAGE_COMMIT_BUCKET_BUCKET_TERM_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/commit/bucket/bucket_keys.h"
#include "storage/object/object_store.h"

namespace ckptd {

// Takes the term above all others, and removes the objects of earlier ones. `owner` tells people which daemon
// has it, in one line. UNIMPLEMENTED, reason STORE_UNSUITABLE, if the server ignores the condition of a put.
absl::StatusOr<int64_t> TakeTerm(ObjectStore& store, const BucketKeys& keys, const std::string& owner);

// OK while no other daemon has opened the root since. FAILED_PRECONDITION, reason ROOT_TAKEN_OVER, names that
// one. Errors of the store: it is not known.
absl::Status CheckTerm(ObjectStore& store, const BucketKeys& keys, int64_t term);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_BUCKET_BUCKET_TERM_H_
