// WriteStreams keeps the WriteFile streams that are open, so that a save which fails can take its memory back
// whatever its clients do.
#ifndef CKPTD_DAEMON_ENGINE_SAVE_WRITE_STREAMS_H_
#define CKPTD_DAEMON_ENGINE_SAVE_WRITE_STREAMS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/engine/run/save.h"
#include "daemon/engine/run/save_table.h"
#include "daemon/engine/seams/engine_types.h"

namespace ckptd {

class WriteStreams {
 public:
  using Revoke = std::function<void(const absl::Status&)>;
  explicit WriteStreams(const SaveTable* saves) : saves_(saves) {}

  // The memory of a placed file. UNKNOWN_FILE, SEALED, or the error of a failing save.
  absl::StatusOr<WriteTarget> Open(Save* save, int rank, const std::string& path, Revoke revoke);
  // No-op if the stream was revoked.
  void Close(int64_t id);
  // Ends all streams of the save with its error.
  void RevokeAll(Save* save);

 private:
  struct Stream {
    int64_t save = 0;
    int rank = 0;
    Revoke revoke;
  };
  const SaveTable* const saves_;
  std::map<int64_t, Stream> streams_;
  int64_t next_id_ = 1;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SAVE_WRITE_STREAMS_H_
