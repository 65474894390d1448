// The requests about what a run keeps: its retention policy, the deletion of single checkpoints, and the
// trash.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "daemon/engine/retention/retention_policy.h"
#include "daemon/engine/run/wire.h"
#include "daemon/engine/seams/validate.h"

namespace ckptd {
namespace {

constexpr size_t kMaxListed = 1000;  // So that the answer fits into a message.

}  // namespace

void Engine::Impl::SetRetention(Run* run, const v1::SetRetentionRequest& request, Reply<v1::Run> reply) {
  std::optional<RetentionPolicy> policy;
  if (request.has_policy()) policy = FromWire(request.policy());
  retention_.SetOverride(run, policy,
                         [this, run, reply = std::move(reply)](absl::StatusOr<bool> set) mutable {
                           if (!set.ok()) return reply(set.status());
                           reply(Describe(*run));
                         });
}

void Engine::Impl::ExplainRetention(Run* run, const v1::ExplainRetentionRequest& request,
                                    Reply<v1::ExplainRetentionResponse> reply) {
  const RetentionPolicy policy =
      request.has_policy() ? FromWire(request.policy()) : retention_.NextPolicy(*run);
  retention_.Explain(
      run, policy,
      [run, policy, reply = std::move(reply)](absl::StatusOr<Retention::Keepers> keepers) mutable {
        if (!keepers.ok()) return reply(keepers.status());
        v1::ExplainRetentionResponse response;
        *response.mutable_policy() = ToWire(policy);
        for (auto entry = keepers->rbegin(); entry != keepers->rend(); ++entry) {
          const CommittedCheckpoint* checkpoint = run->catalog.Find(entry->first);
          if (checkpoint != nullptr) *response.add_decisions() = ToWire(checkpoint->summary, entry->second);
        }
        reply(std::move(response));
      });
}

void Engine::Impl::DeleteCheckpoint(Run* run, const std::string& tag, const Caller& caller, bool force,
                                    Reply<v1::Checkpoint> reply) {
  const CommittedCheckpoint* committed = run->catalog.FindTag(tag);
  if (committed == nullptr)
    return reply(NoCheckpoint(tag, absl::StrCat("no checkpoint ", tag, " is committed in ", run->path)));
  v1::Checkpoint described = Describe(*run, *committed);
  run->authority->Delete(
      tag, committed->summary.sequence(), force,
      [this, removal = RemovalOf(*run, committed->summary, caller.uid), described = std::move(described),
       reply = std::move(reply)](const absl::Status& deleted) mutable {
        if (!deleted.ok()) return reply(deleted);
        observer_->OnRemoved(removal);
        reply(std::move(described));
      });
}

void Engine::Impl::ListTrash(Run* run, Reply<v1::ListTrashResponse> reply) {
  run->coordinator_io->ListTrash([this, run, reply = std::move(reply)](
                                     absl::StatusOr<std::vector<TrashedCheckpoint>> trashed) mutable {
    if (!trashed.ok()) return reply(trashed.status());
    std::sort(trashed->begin(), trashed->end(), [](const TrashedCheckpoint& a, const TrashedCheckpoint& b) {
      return a.moved_us != b.moved_us ? a.moved_us > b.moved_us
                                      : a.checkpoint.summary.sequence() > b.checkpoint.summary.sequence();
    });
    if (trashed->size() > kMaxListed) trashed->resize(kMaxListed);
    v1::ListTrashResponse response;
    for (const TrashedCheckpoint& one : *trashed) {
      v1::TrashedCheckpoint& added = *response.add_checkpoints();
      *added.mutable_checkpoint() = Describe(*run, one.checkpoint);
      SetTime(one.moved_us, added.mutable_delete_time());
      SetTime(trash_.PurgeTime(one.moved_us), added.mutable_purge_time());
    }
    reply(std::move(response));
  });
}

void Engine::Impl::UndeleteCheckpoint(Run* run, const std::string& tag, int64_t sequence,
                                      Reply<v1::Checkpoint> reply) {
  trash_.Undelete(run, tag, sequence,
                  [this, run, reply = std::move(reply)](absl::StatusOr<CommittedCheckpoint> back) mutable {
                    if (!back.ok()) return reply(back.status());
                    reply(Describe(*run, *back));
                  });
}

}  // namespace ckptd
