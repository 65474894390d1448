#include "daemon/ledger/save/change_save.h"

#include <memory>
#include <utility>

#include "daemon/etcd/etcd_requests.h"
#include "google/protobuf/util/message_differencer.h"

namespace ckptd {

using ledger::v1::SaveState;

bool MayEnd(const SaveState& state) {
  return state.phase() == SaveState::PROPOSED || state.phase() == SaveState::ADMITTED ||
         state.phase() == SaveState::SEALED;
}

void EndWith(const ledger::v1::SaveEnd& end, SaveState* state) {
  state->set_phase(SaveState::ENDED);
  *state->mutable_end() = end;
}

void ChangeSave(Etcd* etcd, int64_t sequence, SaveChange change,
                absl::AnyInvocable<void(absl::StatusOr<SharedSave>)> answer) {
  auto result = std::make_shared<SharedSave>();
  result->sequence = sequence;
  CompareAndSwap swap;
  swap.ranges = std::move(change.ranges);
  swap.ranges.push_back({change.state_key});
  swap.held = {std::move(change.held)};
  swap.decide = [result, decide = std::move(change.decide)](const CompareAndSwap::Found& found) {
    std::vector<etcdserverpb::RequestOp> operations;
    result->state.Clear();
    if (found.back().empty()) return operations;
    const etcdserverpb::KeyValue& before = found.back()[0];
    result->state.ParseFromString(before.value());
    const SaveState read = result->state;
    operations = decide(found, &result->state);
    // Equal messages need not have equal bytes: a map is written in any order.
    if (!google::protobuf::util::MessageDifferencer::Equals(read, result->state))
      operations.push_back(Put(before.key(), result->state.SerializeAsString()));
    return operations;
  };
  swap.purpose = std::move(change.purpose);
  swap.guess = std::move(change.guess);
  SwapIn(etcd, std::move(swap), [result, answer = std::move(answer)](const absl::Status& written) mutable {
    if (!written.ok()) return answer(written);
    answer(std::move(*result));
  });
}

}  // namespace ckptd
