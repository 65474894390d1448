// The directory of a coordinator's term, in which it makes the files that it renames into the root.
#ifndef CKPTD_STORAGE_COMMIT_SHARED_RUN_SHARED_TERM_H_
#define CKPTD_STORAGE_COMMIT_SHARED_RUN_SHARED_TERM_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "storage/commit/shared/run/shared_layout.h"
#include "storage/fs/file_system.h"

namespace ckptd {

// Makes the directory of this term, and removes those of earlier terms. A file that does not carry its
// term in its name, a pointer file (pointers.h), is made in this directory and renamed from there to its
// place; so is the directory of a checkpoint that comes from a bucket. When BeginTerm has returned, a coordinator
// of an earlier term that goes on after a pause finds neither its file nor a directory to make it in, and replaces
// nothing. Directories are moved into the trash, so they have names of inflight/.
//
// That holds if each coordinator calls it before its ledger says, once more, that it has the leadership, and does
// nothing in the root before that: otherwise a late one may make its directory after it was to be removed. It
// also rests on a fresh listing: what is replaced after all, the next update of the pointers puts right.
absl::StatusOr<ScopedHandle> BeginTerm(const SharedLayout& layout, int64_t term);

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_SHARED_RUN_SHARED_TERM_H_
