// Renders the protocol's messages as text.
#ifndef CKPTD_CLIENT_CKPTCTL_TEXT_RENDER_H_
#define CKPTD_CLIENT_CKPTCTL_TEXT_RENDER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "ckptd/v1/messages.pb.h"
#include "client/ckptctl/text/text.h"

namespace ckptd::ctl {

// `now_us` is the Unix time in microseconds, for ages.
std::string RenderStatus(const v1::Status& status, int64_t now_us);  // Everything.
// One or two lines for each run, those with trouble or a save in flight first, for at most 15 runs.
std::string RenderStatusSummary(const v1::Status& status, int64_t now_us);
// A line for each node. Those that are not well come first, and nodes that are missing first of all.
std::string RenderAllNodes(const v1::ClusterStatus& cluster, int64_t now_us);
// Whether every known node is registered and has reported how it is.
bool AllNodesReport(const v1::ClusterStatus& cluster);
// The last one deleted first.
std::string RenderTrash(const v1::ListTrashResponse& trash, int64_t now_us);
// One line for each rank of each session, the largest holders of memory first.
std::string RenderSessions(const v1::ListSessionsResponse& sessions);
// Lists ckptd's checkpoints first, then the foreign ones.
std::string RenderCheckpoints(const v1::ListCheckpointsResponse& list, int64_t now_us);
std::string RenderForeign(const v1::ForeignCheckpoint& foreign, int64_t now_us);
// One line: the outcome for one tag, or its progress.
std::string RenderAdoption(const v1::AdoptCheckpointsResponse& event);
std::string RenderCheckpoint(const v1::Checkpoint& checkpoint, int64_t now_us);  // All fields.

// COMMITTED or UPLOADED of a committed checkpoint; else its level.
std::string LevelOf(const v1::Checkpoint& checkpoint);
// "uploading, 16.0 MiB of 1.0 GiB", or why it lags. Empty: it has ended, or there is none.
std::string UploadText(const v1::Checkpoint& checkpoint, int64_t now_us);

// "FAILED: RANKS_MISSING: ranks 1 have not sealed ..." for a save that has ended otherwise than COMMITTED;
// else the level.
std::string RenderEnd(const v1::Checkpoint& checkpoint);

int64_t UnixMicros(const google::protobuf::Timestamp& time);

// Renders the progress of saves and restores, one line for each event: time, root, tag, bytes, percent, rate,
// time left. The rate is the average since the first event with progress.
class ProgressLines {
 public:
  std::string Line(const v1::WatchResponse& event);

 private:
  struct Start {
    int64_t bytes = 0;
    int64_t time_us = 0;
  };
  // The root of a checkpoint's run, or the run's name where no save has told it.
  std::string RootOf(const std::string& checkpoint) const;
  void Learn(const v1::Checkpoint& checkpoint);
  std::string RestoreLine(const v1::WatchResponse& event);
  std::string Rate(const std::pair<std::string, int64_t>& key, int64_t done, int64_t all, int64_t now_us);
  std::map<std::string, std::string> roots_;                 // By run.
  std::map<std::pair<std::string, int64_t>, Start> starts_;  // Key: run and sequence, or lease and 0.
};

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_TEXT_RENDER_H_
