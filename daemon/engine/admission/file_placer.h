// FilePlacer gives the files of a save their places in the parts, and enforces the limits on their number.
//
// A file name belongs to one rank, and so does every directory that it implies. Files begin on whole pages.
#ifndef CKPTD_DAEMON_ENGINE_ADMISSION_FILE_PLACER_H_
#define CKPTD_DAEMON_ENGINE_ADMISSION_FILE_PLACER_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "ckptd/v1/messages.pb.h"
#include "daemon/engine/run/save.h"
#include "daemon/engine/seams/limits.h"

namespace ckptd {

class FilePlacer {
 public:
  using Files = google::protobuf::RepeatedPtrField<v1::FileSpec>;

  FilePlacer(const EngineLimits& limits, int32_t chunk_bytes) : limits_(limits), chunk_bytes_(chunk_bytes) {}

  // Count for files that are placed from now on.
  void SetLimits(const EngineLimits& limits) { limits_ = limits; }

  // Places the files at the end of the part. A file that was placed before, with the same size, keeps its
  // place: the call is a retry. SAVE_CONFLICT, FILE_CONFLICT or LIMIT_EXCEEDED fails the save.
  absl::Status Place(Save* save, Part& part, const Files& files);
  // The same for a part that has no files yet, with the places that an earlier part had.
  absl::Status PlaceAs(Save* save, Part& part, std::shared_ptr<FilePlaces> places);
  // The save has ended: its files do not count for its user any more.
  void Forget(const Save& save);

 private:
  absl::Status PlaceOne(Save* save, Part& part, const v1::FileSpec& file);
  absl::Status Count(Save* save, const Part& part, size_t files, const std::string& path, int64_t size);

  EngineLimits limits_;
  const int32_t chunk_bytes_;
  std::map<uid_t, int64_t> files_in_flight_;  // Files in saves that have not ended.
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_ADMISSION_FILE_PLACER_H_
