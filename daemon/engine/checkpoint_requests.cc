// Requests about checkpoints: describing, listing, opening, locating and pinning them.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/engine/engine_impl.h"
#include "daemon/engine/seams/validate.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

// One page of `all`, newest first. The page token is the last sequence of the page before.
v1::ListCheckpointsResponse PageOf(std::map<int64_t, v1::Checkpoint> all, int64_t below, int page_size) {
  v1::ListCheckpointsResponse response;
  for (auto entry = all.rbegin(); entry != all.rend(); ++entry) {
    if (entry->first >= below) continue;
    if (response.checkpoints_size() == page_size) {
      response.set_next_page_token(absl::StrCat(response.checkpoints(page_size - 1).sequence()));
      break;
    }
    *response.add_checkpoints() = std::move(entry->second);
  }
  return response;
}

}  // namespace

// ---- describing

v1::Checkpoint Engine::Impl::Describe(const Save& save, v1::View view) const {
  v1::Checkpoint checkpoint = save.summary != nullptr ? *save.summary : ToWire(save, view);
  const bool resident = residents_.IsResident(*save.run, save.sequence);
  SetCommit(save.run->catalog.Find(save.sequence), resident, &checkpoint);
  uploads_.Describe(*save.run, save.sequence, &checkpoint);
  return checkpoint;
}

v1::Checkpoint Engine::Impl::Describe(const Run& run, const CommittedCheckpoint& committed) const {
  const int64_t sequence = committed.summary.sequence();
  CheckpointUse use;
  use.leases = leases_.Count(run, sequence);
  use.resident = residents_.IsResident(run, sequence);
  use.scrubbed_unix_us = scrubber_.LastScrubbed(run, sequence);
  v1::Checkpoint checkpoint = ToWire(run, committed, use);
  uploads_.Describe(run, sequence, &checkpoint);
  return checkpoint;
}

v1::Run Engine::Impl::Describe(const Run& run) const {
  v1::Run description;
  description.set_name(run.name);
  description.set_path(run.path);
  description.set_uid(static_cast<int>(run.uid));
  description.set_device(run.device);
  description.set_inode(run.inode);
  description.set_degraded(run.degraded);
  description.set_read_only(run.read_only);
  if (!run.open) return description;
  const DescribeCheckpoint describe = [this](const Run& of, const CommittedCheckpoint& committed) {
    return Describe(of, committed);
  };
  description.set_run_id(run.ledger->record().run_id());
  description.set_attempt(run.active_attempt);
  for (const storage::v1::Launch& launch : run.ledger->record().launches()) {
    if (launch.attempt() == description.attempt()) description.set_world_size(launch.world_size());
  }
  if (const CommittedCheckpoint* newest = run.catalog.Newest())
    *description.mutable_latest() = Describe(run, *newest);
  for (v1::Checkpoint& damaged : DamagedAfter(run, 0, describe))
    *description.add_damaged() = std::move(damaged);
  for (const auto& [sequence, save] : run.saves) {
    if (!save->remembered) *description.add_in_flight() = Describe(*save, v1::BASIC);
  }
  if (const auto& failures = ended_.failures(run); !failures.empty())
    *description.mutable_last_failure() = failures.back();
  for (int64_t victim : retention_.PredictedVictims(run))
    description.add_predicted_victims(run.catalog.Find(victim)->summary.tag());
  description.set_checkpoint_count(static_cast<int>(run.catalog.committed().size()));
  DescribeRetention(run.ledger->record(), &description);
  for (const auto& [sequence, save] : run.saves)
    description.set_pool_bytes(description.pool_bytes() +
                               pool_->Count(save->reservation) * pool_->segment_bytes());
  description.set_leases(static_cast<int>(leases_.LeasedSequences(run).size()));
  description.set_trash_bytes(trash_.bytes(run));
  uploads_.Describe(run, &description);
  fetches_.Describe(run, &description);
  if (!shared_fetches_.Describe(run).empty()) description.mutable_uploads()->mutable_fetching();
  *description.mutable_probe() = ToWire(run.probe, disk_.measured_free_bytes(run));
  if (const absl::Status unread = uploads_.WhyUnread(run); !unread.ok())
    description.mutable_uploads()->set_unread(std::string(unread.message()));
  return description;
}

// ---- looking

void Engine::Impl::GetCheckpoint(const Caller& caller, const v1::GetCheckpointRequest& request,
                                 Reply<v1::Checkpoint> reply) {
  std::string tag;
  absl::StatusOr<Run*> found = RunOfCheckpointName(caller, request.name(), &tag);
  if (!found.ok()) return reply(found.status());
  Run* run = *found;
  if (tag != "latest") {
    for (auto save = run->saves.rbegin(); save != run->saves.rend(); ++save) {
      if (save->second->key.tag == tag) return reply(Describe(*save->second, request.view()));
    }
  }
  const CommittedCheckpoint* committed = run->catalog.FindTag(tag);
  if (committed == nullptr && tag == "latest") committed = run->catalog.Newest();
  if (committed != nullptr) return GetCommitted(run, *committed, caller, request, std::move(reply));
  const std::deque<v1::Checkpoint>& failures = ended_.failures(*run);
  for (auto failure = failures.rbegin(); failure != failures.rend(); ++failure) {
    if (failure->tag() == tag) return reply(*failure);
  }
  reply(NoCheckpoint(
      tag, tag == "latest"
               ? absl::StrCat("nothing that is neither damaged nor suspect is committed in ", run->path)
               : absl::StrCat("no checkpoint ", tag, " is known in ", run->path)));
}

void Engine::Impl::GetCommitted(Run* run, const CommittedCheckpoint& committed, const Caller& caller,
                                const v1::GetCheckpointRequest& request, Reply<v1::Checkpoint> reply) {
  v1::Checkpoint checkpoint = Describe(*run, committed);
  if (request.view() != v1::FULL) return reply(std::move(checkpoint));
  const std::string tag = checkpoint.tag();
  const int64_t sequence = checkpoint.sequence();
  run->io->OpenCheckpoint(
      tag, sequence,
      [this, run, caller, request, checkpoint = std::move(checkpoint),
       reply = std::move(reply)](absl::StatusOr<std::shared_ptr<CheckpointReader>> reader) mutable {
        if (!reader.ok() && checkpoint.has_damage()) return reply(std::move(checkpoint));
        if (!reader.ok() && IndicatesDamage(*run, reader.status())) {
          return damage_.Mark(
              run, checkpoint.sequence(), DamageFromError(reader.status()),
              [this, caller, request, reply = std::move(reply)](const absl::Status& marked) mutable {
                if (!marked.ok()) return reply(marked);
                GetCheckpoint(caller, request, std::move(reply));
              });
        }
        if (!reader.ok()) return reply(reader.status());
        AddFiles((*reader)->manifest(), &checkpoint);
        reply(std::move(checkpoint));
      });
}

// The newest `count` below a sequence: a page costs what it shows, however many checkpoints the run has.
std::map<int64_t, v1::Checkpoint> Engine::Impl::CommittedBelow(const Run& run, int64_t below,
                                                               int count) const {
  std::map<int64_t, v1::Checkpoint> found;
  const std::set<int64_t> leaving = retention_.Leaving(run);
  const auto& committed = run.catalog.committed();
  for (auto entry = std::make_reverse_iterator(committed.lower_bound(below));
       entry != committed.rend() && std::ssize(found) < count; ++entry) {
    if (!leaving.contains(entry->first)) found.emplace(entry->first, Describe(run, entry->second));
  }
  return found;
}

void Engine::Impl::ListCheckpoints(const Caller& caller, const v1::ListCheckpointsRequest& request,
                                   Reply<v1::ListCheckpointsResponse> reply) {
  absl::StatusOr<Run*> found = FindRun(caller, request.parent());
  if (!found.ok()) return reply(found.status());
  Run* run = *found;
  if (request.page_size() < 0 || request.page_size() > 1000) {
    return reply(InvalidArgument(absl::StrCat("page_size is ", request.page_size(), "; it is in [0, 1000]")));
  }
  int64_t below = INT64_MAX;
  if (!request.page_token().empty() && (!absl::SimpleAtoi(request.page_token(), &below) || below < 1)) {
    return reply(InvalidArgument("page_token is not one that this method answered"));
  }
  const int page_size = request.page_size() == 0 ? 100 : request.page_size();
  std::map<int64_t, v1::Checkpoint> all = CommittedBelow(*run, below, page_size + 1);
  if (request.show_all()) {
    for (const v1::Checkpoint& failure : ended_.failures(*run)) all.emplace(failure.sequence(), failure);
    for (const auto& [sequence, save] : run->saves)
      all.insert_or_assign(sequence, Describe(*save, request.view()));
  }
  v1::ListCheckpointsResponse response = PageOf(std::move(all), below, page_size);
  if (request.show_foreign() && response.next_page_token().empty())
    return adoptions_.ListForeign(run, std::move(response), std::move(reply));
  reply(std::move(response));
}

// ---- reading

void Engine::Impl::OpenCheckpoint(const Caller& caller, const v1::OpenCheckpointRequest& request,
                                  Reply<v1::OpenCheckpointResponse> reply) {
  if (!sessions_.IsOpen(caller.session)) {
    return reply(MakeError(absl::StatusCode::kUnauthenticated, reason::kUnknownToken,
                           "OpenCheckpoint needs a session"));
  }
  std::string tag;
  absl::StatusOr<Run*> run = RunOfCheckpointName(caller, request.name(), &tag);
  if (!run.ok()) return reply(run.status());
  OpenCheckpoint(caller.session, *run, tag, request.strict(), std::move(reply));
}

void Engine::Impl::OpenCheckpoint(SessionId session, Run* run, const std::string& tag, bool strict,
                                  Reply<v1::OpenCheckpointResponse> reply) {
  const bool latest = tag == "latest";
  const CommittedCheckpoint* wanted = run->catalog.FindTag(tag);
  if (wanted == nullptr && latest) wanted = run->catalog.Newest();
  const int64_t sequence = wanted == nullptr ? 0 : wanted->summary.sequence();
  std::vector<v1::Checkpoint> damaged, passed;
  if (latest) {
    damaged = DamagedAfter(*run, sequence, DescribeHook());
    passed = PassedOver(*run, sequence, DescribeHook());
  }
  if (strict && run->catalog.IsDamaged(sequence)) damaged.push_back(Describe(*run, *wanted));
  if ((strict || sequence == 0) && !damaged.empty()) {
    return reply(DamagedError(*run, damaged,
                              sequence == 0
                                  ? "there is no other"
                                  : "a strict open opens neither it nor an older one in its place"));
  }
  if (const CommittedCheckpoint* suspect = run->catalog.NewestWithSuspects();
      latest && sequence == 0 && suspect != nullptr)
    return reply(SuspectError(*suspect, "there is no other; open it by its tag"));
  if (sequence == 0) {
    return reply(
        NoCheckpoint(tag, latest ? absl::StrCat("nothing is committed in ", run->path)
                                 : absl::StrCat("no checkpoint ", tag, " is committed in ", run->path)));
  }
  leases_.Open(
      session, run, sequence, /*resumes=*/false,
      [this, session, run, tag, strict, latest, sequence, passed = std::move(passed),
       reply = std::move(reply)](absl::StatusOr<std::pair<std::string, v1::Checkpoint>> lease) mutable {
        if (!lease.ok() && latest && run->catalog.IsDamaged(sequence) && sessions_.IsOpen(session))
          return OpenCheckpoint(session, run, tag, strict, std::move(reply));  // The next older one.
        if (!lease.ok()) return reply(lease.status());
        v1::OpenCheckpointResponse response;
        response.set_lease(lease->first);
        *response.mutable_checkpoint() = std::move(lease->second);
        for (v1::Checkpoint& each : passed) *response.add_passed_over() = std::move(each);
        reply(std::move(response));
      });
}

void Engine::Impl::LocateFiles(const Caller& caller, const v1::LocateFilesRequest& request,
                               Reply<v1::LocateFilesResponse> reply) {
  const absl::StatusOr<const Lease*> lease = leases_.Find(caller, request.lease());
  if (!lease.ok()) return reply(lease.status());
  Run* run = (*lease)->run;
  if (!prefetcher_.IsReading(*run, (*lease)->sequence))
    return residents_.Locate(**lease, request, std::move(reply));
  // Waiting is faster than reading the checkpoint twice at once.
  prefetcher_.AfterPrefetch(run, [this, caller, request, reply = std::move(reply)]() mutable {
    LocateFiles(caller, request, std::move(reply));
  });
}

// ---- pinning

void Engine::Impl::SetPinned(Run* run, const std::string& tag, bool pinned, Reply<v1::Checkpoint> reply) {
  const CommittedCheckpoint* committed = run->catalog.FindTag(tag);
  const int64_t sequence = committed == nullptr ? 0 : committed->summary.sequence();
  if (committed == nullptr || run->catalog.evicting().contains(sequence))
    return reply(NoCheckpoint(tag, absl::StrCat("no checkpoint ", tag, " is committed in ", run->path)));
  if (pinned) retention_.BeginPin(run, sequence);
  run->authority->SetPinned(
      tag, sequence, pinned,
      [this, run, sequence, pinned, before = Describe(*run, *committed),
       reply = std::move(reply)](absl::Status set) mutable {
        if (pinned) retention_.EndPin(run, sequence);
        const CommittedCheckpoint* known = run->catalog.Find(sequence);
        if (known == nullptr && set.ok() && !pinned) {  // Retention may have removed it since.
          before.set_pinned(false);
          return reply(std::move(before));
        }
        if (known == nullptr) {
          return reply(MakeError(absl::StatusCode::kNotFound, reason::kNoCheckpoint,
                                 "it was replaced in the meantime"));
        }
        if (set.ok()) {
          reply(Describe(*run, *known));
        } else {
          reply(set);
        }
        retention_.Apply(run);  // An unpinned checkpoint may have to go.
      });
}

}  // namespace ckptd
