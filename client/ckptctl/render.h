// The protocol's messages as text for people.
#ifndef CKPTD_CLIENT_CKPTCTL_RENDER_H_
#define CKPTD_CLIENT_CKPTCTL_RENDER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "ckptd/v1/messages.pb.h"
#include "client/ckptctl/text.h"

namespace ckptd::ctl {

// `now_us`: Unix time in microseconds, for ages.
std::string RenderStatus(const v1::Status& status, int64_t now_us);
// Ours first, then those of other programs.
std::string RenderCheckpoints(const v1::ListCheckpointsResponse& list, int64_t now_us);
std::string RenderForeign(const v1::ForeignCheckpoint& foreign, int64_t now_us);
// What became of one checkpoint, or how far it is, in one line.
std::string RenderAdoption(const v1::AdoptCheckpointsResponse& event);
std::string RenderCheckpoint(const v1::Checkpoint& checkpoint, int64_t now_us);  // All of it.

// "FAILED: RANKS_MISSING: ranks 1 have not sealed ..." for one that ended, else the level.
std::string RenderEnd(const v1::Checkpoint& checkpoint);

int64_t UnixMicros(const google::protobuf::Timestamp& time);

// A checkpoint's progress as one line: bytes, percent, rate, time left. The rate is that since the first
// event with progress.
class ProgressLines {
 public:
  std::string Line(const v1::WatchResponse& event);

 private:
  struct Start {
    int64_t bytes = 0;
    int64_t time_us = 0;
  };
  std::string RestoreLine(const v1::WatchResponse& event);
  std::string Rate(const std::pair<std::string, int64_t>& key, int64_t done, int64_t all, int64_t now_us);
  std::map<std::pair<std::string, int64_t>, Start> starts_;  // By run, or lease, and sequence.
};

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_RENDER_H_
