// SaveTable finds the saves of all runs that have not ended.
#ifndef CKPTD_DAEMON_ENGINE_RUN_SAVE_TABLE_H_
#define CKPTD_DAEMON_ENGINE_RUN_SAVE_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>

#include "daemon/engine/run/run.h"
#include "daemon/engine/run/save.h"

namespace ckptd {

class SaveTable {
 public:
  // Numbers the save and adds it to its run and to this table. A save of a shared run that was to get its
  // sequence, and did not, has none any more.
  Save* Add(std::unique_ptr<Save> save);
  // Gives a save of a shared run that has not been admitted another sequence. 0: it has none for now, and a
  // negative one stands in its place.
  void Renumber(Save* save, int64_t sequence);
  // Takes an ended save out of its run and out of this table.
  std::unique_ptr<Save> Remove(Save* save);
  // nullptr if the save has ended.
  Save* Find(int64_t id) const;
  // By number, which is the order in which they began.
  const std::map<int64_t, Save*>& all() const { return saves_; }

 private:
  void TakeSequence(Run* run, int64_t sequence);

  std::map<int64_t, Save*> saves_;  // Owned by their runs.
  int64_t next_id_ = 1;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_RUN_SAVE_TABLE_H_
