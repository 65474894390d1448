// Inheritance: the seal journal and the segments that the daemon before this one left with the service
// manager. Everything is validated before it is used.
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

// Name of the journal in the descriptor store. Segments have the names that SegmentName gives.
inline constexpr char kJournalName[] = "ckptd-journal";

struct NamedDescriptor {
  std::string name;
  UniqueFd fd;
};

struct Inheritance {
  std::unique_ptr<SealJournal> journal;        // Null: there was none, or none that can be continued.
  std::vector<storage::v1::SealedSave> saves;  // Complete: all segments of each are in `used`.
  std::vector<KeptSegment> used;
  std::vector<KeptSegment> unused;
  std::vector<std::string>
      useless;  // Names to remove from the store: neither a segment nor a journal that can be used.
  std::vector<std::string> problems;  // One message for each loss, with the reason.
};

// Sorts and validates the descriptors. Closes those with other names, and drops saves that cannot be
// inherited from the journal.
Inheritance TakeInheritance(std::vector<NamedDescriptor> descriptors);

// OK if `save` describes a checkpoint that could have been sealed: checks ranks, names, places and sizes, not
// whether its segments exist. Else DATA_LOSS, reason CORRUPT_JOURNAL.
absl::Status CheckSealedSave(const storage::v1::SealedSave& save);

}  // namespace ckptd
#endif  // CKPTD_DAEMON_SUCCESSION_INHERITANCE_H_
