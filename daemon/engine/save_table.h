// SaveTable finds the saves of all runs that have not ended.
#ifndef CKPTD_DAEMON_ENGINE_SAVE_TABLE_H_
#define CKPTD_DAEMON_ENGINE_SAVE_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>

#include "daemon/engine/run.h"
#include "daemon/engine/save.h"

namespace ckptd {

class SaveTable {
 public:
  // Numbers the save and adds it to its run and to this table.
  Save* Add(std::unique_ptr<Save> save);
  // Takes an ended save out of its run and out of this table.
  std::unique_ptr<Save> Remove(Save* save);
  // nullptr if the save has ended.
  Save* Find(int64_t id) const;
  // By number, which is the order in which they began.
  const std::map<int64_t, Save*>& all() const { return saves_; }

 private:
  std::map<int64_t, Save*> saves_;  // Owned by their runs.
  int64_t next_id_ = 1;
};

}  // namespace ckptd
#endif  // CKPTD_DAEMON_ENGINE_SAVE_TABLE_H_
