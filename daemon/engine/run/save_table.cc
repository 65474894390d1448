#include "daemon/engine/run/save_table.h"

#include <utility>

namespace ckptd {

Save* SaveTable::Add(std::unique_ptr<Save> save) {
  Save* added = save.get();
  added->id = next_id_++;
  saves_.emplace(added->id, added);
  TakeSequence(added->run, added->sequence);
  added->run->saves.emplace(added->sequence, std::move(save));
  return added;
}

void SaveTable::TakeSequence(Run* run, int64_t sequence) {
  const auto holder = run->saves.find(sequence);
  if (holder != run->saves.end()) Renumber(holder->second.get(), 0);
}

void SaveTable::Renumber(Save* save, int64_t sequence) {
  if (sequence == 0) sequence = -save->id;
  if (sequence == save->sequence) return;
  Run* const run = save->run;
  TakeSequence(run, sequence);
  auto entry = run->saves.extract(save->sequence);
  save->sequence = entry.key() = sequence;
  run->saves.insert(std::move(entry));
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
