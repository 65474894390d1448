// The objects beneath a prefix as a FileSystem that can only be read, so that scans, verification and lists
// of roots work on a bucket, too. A directory is what has objects beneath it.
//
// Errors are ENOENT and EROFS (ErrnoError), and otherwise those of object_store.h: CouldNotFindOut knows
// them.
#ifndef CKPTD_STORAGE_BUCKET_OBJECT_FILE_SYSTEM_H_
#define CKPTD_STORAGE_BUCKET_OBJECT_FILE_SYSTEM_H_

#include <memory>
#include <set>
#include <string>

#include "storage/fs/file_system.h"
#include "storage/object/object_store.h"

namespace ckptd {

// `store` must outlive it. `prefix` has no slash at its end. List leaves out the names `hidden` in the directory of the
// prefix, such as what the caller knows already.
std::unique_ptr<FileSystem> MakeObjectFileSystem(ObjectStore* store, std::string prefix,
                                                 std::set<std::string> hidden = {});
// The directory of the prefix itself; open from the start.
inline constexpr Handle kObjectRoot = 0;

}  // namespace ckptd
#endif  // CKPTD_STORAGE_BUCKET_OBJECT_FILE_SYSTEM_H_
