// How the doctors of several nodes find each other and talk: by files in a directory of the folder that they
// examine.
#ifndef CKPTD_CLIENT_CKPTCTL_NODES_MEETING_H_
#define CKPTD_CLIENT_CKPTCTL_NODES_MEETING_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/ckptctl/nodes/node_files.h"
#include "storage/base/clock.h"

namespace ckptd::ctl {

inline constexpr char kMeetingDirectory[] = ".ckptd-doctor-nodes";

// One doctor among others. Each wait has a deadline, and its error names the node that is missing.
class Meeting {
 public:
  struct Options {
    std::string root;
    std::string name;  // Of this node; no two nodes have the same.
    int nodes = 2;     // How many meet.
    std::chrono::milliseconds patience = std::chrono::seconds(60);  // For each wait.
  };

  // Returns when as many nodes are there.
  //   DEADLINE_EXCEEDED    fewer have come; the message names those that have
  //   FAILED_PRECONDITION  more have come
  static absl::StatusOr<std::unique_ptr<Meeting>> Enter(NodeFiles* files, Options options);

  const std::vector<std::string>& nodes() const { return nodes_; }  // Sorted; equal on all of them.
  const std::string& self() const { return options_.name; }
  bool IsFirst() const { return nodes_.front() == self(); }

  std::string Directory() const;
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

  // Waits until all have done so; then the first node removes what is there.
  void Leave();
  // Removes what is there without waiting: the meeting has failed.
  void Abandon();

 private:
  Meeting(NodeFiles* files, Options options) : files_(files), options_(std::move(options)) {}

  absl::Status Gather();
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

// Calls `is_done` until it returns true, at first often. False: not in time, by `clock`.
bool Until(Clock& clock, std::chrono::milliseconds patience, const std::function<bool()>& is_done);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_NODES_MEETING_H_
