#include "daemon/engine/save_table.h"

#include <utility>

namespace ckptd {

Save* SaveTable::Add(std::unique_ptr<Save> save) {
  Save* added = save.get();
  added->id = next_id_++;
  saves_.emplace(added->id, added);
  added->run->saves.emplace(added->sequence, std::move(save));
  return added;
}

std::unique_ptr<Save> SaveTable::Remove(Save* save) {
  saves_.erase(save->id);
  return std::move(save->run->saves.extract(save->sequence).mapped());
}

Save* SaveTable::Find(int64_t id) const {
  const auto found = saves_.find(id);
  return found == saves_.end() ? nullptr : found->second;
}

}  // namespace ckptd
