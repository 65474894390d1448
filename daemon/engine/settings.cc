// Settings that change while the engine runs.
#include <utility>

#include "daemon/engine/engine_impl.h"

namespace ckptd {

RunTable::Options Engine::Impl::RunTableOptions() const {
  return {options_.root_lock_timeout, options_.attach_timeout,       options_.idle_root,
          options_.roots_per_uid,     options_.file_systems_per_uid, options_.shared_folder};
}

void Engine::Impl::SetLimits(const EngineOptions& options) {
  options_ = options;  // Also those of SaveIntake, which refers to them.
  runs_.SetOptions(RunTableOptions());
  joiner_.SetMostRanksPerRun(options_.limits.ranks_per_run);
  placer_.SetLimits(options_.limits);
  layouts_.SetLimits(options_.limits);
  trash_.SetGrace(options_.trash_grace);
  shares_.SetMostPercentPerUser(options_.max_pool_percent_per_user);
  queue_.SetOverShareGrace(options_.over_share_grace);
  watches_.SetMostPerUser(options_.limits.watches_per_uid);
  leases_.SetLimits({options_.limits.leases_per_uid, options_.limits.manifest_bytes_per_uid});
  residents_.SetMostReaderPercentPerUser(options_.max_reader_pool_percent_per_user);
  // Its next pass may be due only when the old grace is over.
  for (const auto& [name, run] : runs_.all()) {
    if (run->open && trash_.HasInGrace(*run)) trash_.Empty(run.get());
  }
  queue_.TryAdmitAll();
}

void Engine::SetLimits(const EngineOptions& options) { impl_->SetLimits(options); }

std::vector<std::string> Engine::CloseIdleRoots(
    const std::function<bool(const std::string& own_path)>& which) {
  return impl_->runs_.CloseIdle([&which](const Run& run) { return which(run.own_path); });
}

}  // namespace ckptd
