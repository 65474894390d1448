#include "daemon/root_io/common/part_record.h"

namespace ckptd {

storage::v1::PartRecord PartRecordOf(storage::v1::PartRecord part, int32_t chunk_bytes,
                                     const std::vector<WrittenFile>& written) {
  part.clear_files();
  part.set_chunk_bytes(chunk_bytes);
  for (const WrittenFile& file : written) {
    storage::v1::FileRecord& entry = *part.add_files();
    entry.set_path(file.path);
    entry.set_size_bytes(file.size);
    entry.set_rank(part.rank());
    entry.mutable_chunk_crc32c()->Add(file.chunk_crc32c.begin(), file.chunk_crc32c.end());
  }
  return part;
}

}  // namespace ckptd
