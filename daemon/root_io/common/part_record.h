// The record of one rank's part, once its files are on disk.
#ifndef CKPTD_DAEMON_ROOT_IO_COMMON_PART_RECORD_H_
#define CKPTD_DAEMON_ROOT_IO_COMMON_PART_RECORD_H_

#include <cstdint>
#include <vector>

#include "ckptd/storage/v1/storage.pb.h"
#include "storage/io/part_writer.h"

namespace ckptd {

// `part` with the files that were written.
storage::v1::PartRecord PartRecordOf(storage::v1::PartRecord part, int32_t chunk_bytes,
                                     const std::vector<WrittenFile>& written);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ROOT_IO_COMMON_PART_RECORD_H_
