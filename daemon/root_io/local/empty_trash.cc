#include "daemon/root_io/local/empty_trash.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "storage/commit/local/root_store.h"

namespace ckptd {
namespace {

// One call of EmptyTrashOf, while it is under way.
struct Emptying {
  std::shared_ptr<ThreadedRoot> root;
  std::shared_ptr<FileSystemWorkers> workers, remover;
  TrashTerms terms;
  absl::AnyInvocable<void(absl::StatusOr<TrashLeft>)> answer;
};

void Step(Emptying emptying);

// On the metadata worker.
void Removed(Emptying emptying, const std::string& name, const Trash::Removal& removal) {
  const absl::Status removed = emptying.root->store->RemovedFromTrash(name, removal);
  if (!removed.ok()) return emptying.answer(removed);
  emptying.terms.room_bytes = std::max<int64_t>(0, emptying.terms.room_bytes - removal.bytes);
  Step(std::move(emptying));
}

// On the remover.
void Remove(Emptying emptying, std::string name) {
  if (emptying.root->abandoned.load()) return;
  const Trash::Removal removal = emptying.root->store->RemoveFromTrash(name);
  FileSystemWorkers& back = *emptying.workers;
  back.PostUrgent([emptying = std::move(emptying), name = std::move(name), removal]() mutable {
    Removed(std::move(emptying), name, removal);
  });
}

// On the metadata worker.
void Choose(Emptying emptying) {
  ThreadedRoot& root = *emptying.root;
  if (root.abandoned.load()) return;
  if (root.store == nullptr) return emptying.answer(RootNotOpen());
  absl::StatusOr<std::optional<std::string>> next =
      root.store->NextInTrash(root.readers->Sequences(), emptying.terms);
  if (!next.ok()) return emptying.answer(next.status());
  if (!next->has_value()) return emptying.answer(root.store->LeftInTrash(emptying.terms));
  FileSystemWorkers& remover = *emptying.remover;
  remover.PostIdle([emptying = std::move(emptying), name = **std::move(next)]() mutable {
    Remove(std::move(emptying), std::move(name));
  });
}

void Step(Emptying emptying) {
  FileSystemWorkers& on = *emptying.workers;
  on.PostIdle([emptying = std::move(emptying)]() mutable { Choose(std::move(emptying)); });
}

}  // namespace

void EmptyTrashOf(std::shared_ptr<ThreadedRoot> root, std::shared_ptr<FileSystemWorkers> workers,
                  std::shared_ptr<FileSystemWorkers> remover, TrashTerms terms,
                  absl::AnyInvocable<void(absl::StatusOr<TrashLeft>)> answer) {
  Step({std::move(root), std::move(workers), std::move(remover), terms, std::move(answer)});
}

}  // namespace ckptd
