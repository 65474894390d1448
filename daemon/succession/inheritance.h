// What a daemon finds that the one before it left with the service manager: the seal journal and segments.
// Nothing of it is believed before it is looked at.
#ifndef CKPTD_DAEMON_SUCCESSION_INHERITANCE_H_
#define CKPTD_DAEMON_SUCCESSION_INHERITANCE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/memory/segment_pool.h"
#include "daemon/succession/seal_journal.h"
#include "storage/base/unique_fd.h"

namespace ckptd {

// In the store; segments are called by SegmentName.
inline constexpr char kJournalName[] = "ckptd-journal";

struct NamedDescriptor {
  std::string name;
  UniqueFd fd;
};

struct Inheritance {
  std::unique_ptr<SealJournal> journal;        // Null: there was none, or none to go on with.
  std::vector<storage::v1::SealedSave> saves;  // Whole, each with all of its segments in `used`.
  std::vector<KeptSegment> used;
  std::vector<KeptSegment> unused;
  std::vector<std::string>
      useless;  // Names to take out of the store: no segment, and no journal that can be used.
  std::vector<std::string> problems;  // What is lost and why, in words.
};

// Descriptors with other names are closed. Saves that cannot be taken over are dropped from the journal.
Inheritance TakeInheritance(std::vector<NamedDescriptor> descriptors);

// Whether it describes a checkpoint that could have been sealed: ranks, names, places, sizes. Not whether its
// segments are there.
absl::Status CheckSealedSave(const storage::v1::SealedSave& save);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_SUCCESSION_INHERITANCE_H_
