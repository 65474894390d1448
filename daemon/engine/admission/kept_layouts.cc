#include "daemon/engine/admission/kept_layouts.h"

#include <utility>

namespace ckptd {

int64_t KeptLayouts::Keep(uid_t uid, const Owner& owner, std::shared_ptr<FilePlaces> places) {
  Key key(owner.session, owner.run, owner.rank);
  if (const auto last = layouts_.find(key); last != layouts_.end()) Drop(last);
  const auto count = static_cast<int64_t>(places->size());
  if (count == 0) return 0;
  const auto files = files_.try_emplace(uid, 0).first;
  if (files->second + count > limits_.files_per_uid) {
    if (files->second == 0) files_.erase(files);
    return 0;
  }
  files->second += count;
  layouts_.emplace(std::move(key), Layout{uid, ++last_number_, std::move(places)});
  return last_number_;
}

std::shared_ptr<FilePlaces> KeptLayouts::Find(const Owner& owner, int64_t number) const {
  const auto found = layouts_.find(Key(owner.session, owner.run, owner.rank));
  return found == layouts_.end() || found->second.number != number ? nullptr : found->second.places;
}

void KeptLayouts::OnSessionEnded(SessionId session) {
  for (auto each = layouts_.lower_bound(Key(session, "", 0));
       each != layouts_.end() && std::get<SessionId>(each->first) == session;)
    each = Drop(each);
}

KeptLayouts::Layouts::iterator KeptLayouts::Drop(Layouts::iterator layout) {
  const auto files = files_.find(layout->second.uid);
  files->second -= static_cast<int64_t>(layout->second.places->size());
  if (files->second == 0) files_.erase(files);
  return layouts_.erase(layout);
}

}  // namespace ckptd
