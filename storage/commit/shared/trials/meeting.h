// How the nodes that try a folder together find each other and talk: by files in a directory of that folder.
#ifndef CKPTD_STORAGE_COMMIT_SHARED_TRIALS_MEETING_H_
#define CKPTD_STORAGE_COMMIT_SHARED_TRIALS_MEETING_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/clock.h"
#include "storage/commit/shared/trials/node_files.h"

namespace ckptd {

// One node among others. Each wait has a deadline, and its error names the node that is missing.
class Meeting {
 public:
  struct Options {
    std::string directory;  // Where they meet, a name in the folder.
    std::string name;       // Of this node; no two nodes have the same.
    int nodes = 2;          // How many meet.
    std::chrono::milliseconds patience = std::chrono::seconds(60);  // For each wait.
    std::vector<std::string> names = {};                            // Who meets; empty: whoever comes.
    std::function<bool()> stopped = nullptr;  // True: all calls end with CANCELLED. Null: never.
  };

  // Returns when as many nodes are there.
  //   DEADLINE_EXCEEDED    fewer have come; the message names those that have
  //   FAILED_PRECONDITION  more have come
  static absl::StatusOr<std::unique_ptr<Meeting>> Enter(NodeFiles* files, Options options);

  const std::vector<std::string>& nodes() const { return nodes_; }  // Sorted; equal on all of them.
  const std::string& self() const { return options_.name; }
  bool IsFirst() const { return nodes_.front() == self(); }

  const std::string& Directory() const { return options_.directory; }
  // The path of a file of this meeting.
  std::string Path(const std::string& name) const;

  // Tells all nodes something under a name that is used once.
  absl::Status Say(const std::string& what, const std::string& text = "");
  absl::StatusOr<std::string> Hear(const std::string& node, const std::string& what);
  // From all other nodes, by node.
  absl::StatusOr<std::map<std::string, std::string>> HearAll(const std::string& what);
  // Says it and hears it from all.
  absl::StatusOr<std::map<std::string, std::string>> Exchange(const std::string& what,
                                                              const std::string& text = "");

  // Calls `is_done` until it returns true, at first often. False: not in time, by `clock`, or stopped.
  bool Await(Clock& clock, std::chrono::milliseconds patience, const std::function<bool()>& is_done) const;

  // Waits until all have done so; then the first node removes what is there.
  void Leave();
  // Removes what is there without waiting: the meeting has failed.
  void Abandon();

 private:
  Meeting(NodeFiles* files, Options options) : files_(files), options_(std::move(options)) {}

  absl::Status Gather();
  bool IsExpected(const std::string& node) const;
  bool IsStopped() const { return options_.stopped && options_.stopped(); }
  // What to say of a wait that has ended without what it was for.
  absl::Status Missing(const std::string& what) const;
  // Shows the others that this process lives: what a killed one has left stays as it is.
  absl::Status Beat();
  // What is at Path(name), however long this node's client of the file system keeps names.
  absl::StatusOr<std::string> ReadNow(const std::string& name);

  NodeFiles* const files_;
  const Options options_;
  std::string nonce_;
  int64_t beats_ = 0;
  std::vector<std::string> nodes_;
  std::string session_;  // Tells this meeting from an earlier one.
};

}  // namespace ckptd
#endif  // CKPTD_STORAGE_COMMIT_SHARED_TRIALS_MEETING_H_
