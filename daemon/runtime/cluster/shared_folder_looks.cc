#include "daemon/runtime/cluster/shared_folder_looks.h"

#include <chrono>
#include <utility>

#include "daemon/log/log.h"

namespace ckptd {
namespace {

constexpr Duration kLookEvery = std::chrono::seconds(10);

}  // namespace

void SharedFolderLooks::SetFolders(const std::vector<std::string>& folders) {
  std::map<std::string, Folder> kept;
  for (const std::string& name : folders) {
    const auto found = folders_.find(name);
    kept.emplace(name, found == folders_.end() ? Folder() : std::move(found->second));
  }
  folders_ = std::move(kept);
  OnTick();
}

void SharedFolderLooks::OnTick() {
  for (auto& [name, folder] : folders_) {
    if (clock_->Now() >= folder.next_look && folder.running.expired()) Start(name, folder);
  }
}

void SharedFolderLooks::Start(const std::string& name, Folder& folder) {
  folder.next_look = clock_->Now() + kLookEvery;
  const auto running = std::make_shared<const bool>(true);
  folder.running = running;
  run_([look = look_, name, running] { return look(name); },
       callbacks_.Guard([this, name](const absl::Status& status) { OnLooked(name, status); }));
}

void SharedFolderLooks::OnLooked(const std::string& name, const absl::Status& status) {
  const auto found = folders_.find(name);
  if (found == folders_.end()) return;
  const absl::Status before = std::exchange(found->second.status, status);
  if (status == before) return;
  if (status.ok()) return Log(LogLevel::kInfo, "a shared folder can be used now", {{"folder", name}});
  Log(LogLevel::kWarning, "a shared folder cannot be used",
      {{"folder", name}, {"error", std::string(status.message())}});
}

void SharedFolderLooks::Describe(v1::ClusterStatus* status) const {
  for (const auto& [name, folder] : folders_) {
    if (folder.status.ok()) continue;
    v1::SharedFolderProblem& problem = *status->add_shared_folder_problems();
    problem.set_folder(name);
    problem.set_message(std::string(folder.status.message()));
  }
}

}  // namespace ckptd
