#include "daemon/runtime/start/manager_inheritance.h"

#include <chrono>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/log/log.h"
#include "storage/base/clock.h"

namespace ckptd {
namespace {

// Waits for the service manager to confirm one descriptor.
constexpr Duration kManagerTimeout = std::chrono::seconds(5);

// Makes a new journal and gives it to the store. Null, with a warning, if that fails.
std::unique_ptr<SealJournal> MakeJournal(ManagerStore& store, int store_size) {
  absl::StatusOr<std::unique_ptr<SealJournal>> journal = SealJournal::Create();
  absl::Status kept = journal.status();
  if (kept.ok()) kept = store.Put(kJournalName, (*journal)->fd());
  if (kept.ok()) {
    Log(LogLevel::kInfo, "the service manager keeps sealed saves for the next daemon",
        {{"descriptors", store_size}});
    return *std::move(journal);
  }
  Log(LogLevel::kWarning,
      "the service manager does not keep sealed saves: they are lost if this daemon is killed",
      {{"error", std::string(kept.message())}});
  return nullptr;
}

}  // namespace

ManagerInheritance TakeManagerInheritance(Notifier* notifier) {
  std::vector<NamedDescriptor> descriptors = TakeManagerDescriptors();
  std::set<std::string> held;
  for (const NamedDescriptor& descriptor : descriptors) held.insert(descriptor.name);
  ManagerInheritance inherited{TakeInheritance(std::move(descriptors)), nullptr, nullptr};
  const Inheritance& left = inherited.left;
  for (const std::string& problem : left.problems) Log(LogLevel::kWarning, problem);
  if (!held.empty()) {
    Log(LogLevel::kInfo, "taking over from an earlier daemon",
        {{"sealed_saves", left.saves.size()},
         {"segments", left.used.size()},
         {"segments_freed", left.unused.size()}});
  }
  const int most = ManagerStoreSize();
  if (most == 0 && held.empty()) return inherited;
  inherited.store = std::make_unique<ManagerStore>(notifier, most, std::move(held), kManagerTimeout);
  for (const std::string& name : left.useless) (void)inherited.store->Remove(name);
  inherited.journal = std::move(inherited.left.journal);
  if (!inherited.journal) inherited.journal = MakeJournal(*inherited.store, most);
  return inherited;
}

}  // namespace ckptd
