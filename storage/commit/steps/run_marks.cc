#include "storage/commit/steps/run_marks.h"

#include <algorithm>

namespace ckptd {
namespace {

using storage::v1::Damage;
using storage::v1::Pin;
using storage::v1::SharedRunRecord;

template <typename Marks>
auto FindMark(Marks& marks, const std::string& tag, int64_t sequence) {
  return std::find_if(marks.begin(), marks.end(),
                      [&](const auto& mark) { return mark.sequence() == sequence && mark.tag() == tag; });
}

}  // namespace

void SetPinned(SharedRunRecord& record, const std::string& tag, int64_t sequence, bool pinned) {
  auto& pins = *record.mutable_pins()->mutable_pins();
  const auto found = FindMark(pins, tag, sequence);
  if (pinned == (found != pins.end())) return;
  if (!pinned) {
    pins.erase(found);
    return;
  }
  Pin& pin = *pins.Add();
  pin.set_tag(tag);
  pin.set_sequence(sequence);
}

void SetDamage(SharedRunRecord& record, const std::string& tag, int64_t sequence,
               const std::optional<Damage>& damage) {
  auto& damages = *record.mutable_damages()->mutable_damages();
  const auto found = FindMark(damages, tag, sequence);
  if (damage.has_value() == (found != damages.end())) return;
  if (!damage.has_value()) {
    damages.erase(found);
    return;
  }
  Damage& mark = *damages.Add();
  mark = *damage;
  mark.set_tag(tag);
  mark.set_sequence(sequence);
}

void ForgetCheckpoint(SharedRunRecord& record, const std::string& tag, int64_t sequence) {
  SetPinned(record, tag, sequence, false);
  SetDamage(record, tag, sequence, std::nullopt);
}

void MarkCheckpoints(const SharedRunRecord& record, std::map<int64_t, CommittedCheckpoint>& checkpoints) {
  for (auto& [sequence, checkpoint] : checkpoints) {
    const std::string& tag = checkpoint.summary.tag();
    const auto& pins = record.pins().pins();
    checkpoint.pinned = FindMark(pins, tag, sequence) != pins.end();
    const auto& damages = record.damages().damages();
    const auto damage = FindMark(damages, tag, sequence);
    checkpoint.damage = damage == damages.end() ? std::nullopt : std::optional<Damage>(*damage);
  }
}

}  // namespace ckptd
