#include "daemon/cluster/nodes_root_io.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/ledger/keys/ledger_reasons.h"
#include "storage/base/errors.h"
#include "storage/base/reasons.h"

namespace ckptd {
namespace {

absl::Status Unsupported(const std::string& what) {
  return MakeError(absl::StatusCode::kUnimplemented, reason::kSharedRootUnsupported,
                   absl::StrCat("this version of the daemon does not ", what,
                                " in a root that several nodes share (`cluster { shared_folders }` in its "
                                "configuration)"));
}

}  // namespace

void NodesRootIo::Open(Callback<absl::StatusOr<RootSnapshot>> done) {
  files_.Open(callbacks_.Guard([this, done = std::move(done)](absl::StatusOr<RootSnapshot> root) mutable {
    if (!root.ok()) return done(std::move(root));
    files_.RunId(callbacks_.Guard([this, done = std::move(done), root = std::move(root)](
                                      const absl::StatusOr<SharedFilesIo::RunOfRoot>& run) mutable {
      if (!run.ok()) return done(run.status());
      nodes_->CheckRoot(*run, callbacks_.Guard([this, run = *run, done = std::move(done),
                                                root = std::move(root)](const absl::Status& checked) mutable {
        if (!checked.ok()) return done(checked);
        nodes_->Opened(run);
        nodes_->ApplyDecided(&*root);
        done(std::move(root));
      }));
    }));
  }));
}

void NodesRootIo::Rescan(Callback<absl::StatusOr<RootSnapshot>> done) {
  ++scanning_;
  Look([this, done = std::move(done)](absl::StatusOr<RootSnapshot> root) mutable {
    --scanning_;
    done(std::move(root));
  });
}

// Repeats a scan that is old. Otherwise a job would resume from an older checkpoint than the newest, or from
// nothing, because this node does not see yet what another node has published.
void NodesRootIo::Look(Callback<absl::StatusOr<RootSnapshot>> done) {
  files_.Rescan(callbacks_.Guard(
      [this, begun = nodes_->Now(), done = std::move(done)](absl::StatusOr<RootSnapshot> root) mutable {
        if (!root.ok()) return done(std::move(root));
        if (nodes_->IsStale(*root, begun))
          return nodes_->CallLater(
              callbacks_.Guard([this, done = std::move(done)]() mutable { Look(std::move(done)); }));
        nodes_->ApplyDecided(&*root);
        done(std::move(root));
      }));
}

void NodesRootIo::OpenCheckpoint(std::string tag, int64_t sequence,
                                 Callback<absl::StatusOr<std::shared_ptr<CheckpointReader>>> done) {
  ++opening_;
  auto answer = callbacks_.Guard(
      [this, done = std::move(done)](absl::StatusOr<std::shared_ptr<CheckpointReader>> opened) mutable {
        --opening_;
        done(std::move(opened));
      });
  nodes_->AcquireReader(
      sequence, callbacks_.Guard([this, tag = std::move(tag), sequence,
                                  answer = std::move(answer)](const absl::Status& acquired) mutable {
        if (!acquired.ok()) return answer(acquired);
        const std::function<void()> release = nodes_->ReleaserOf(sequence);
        files_.OpenCheckpoint(
            tag, sequence,
            callbacks_.Guard([this, sequence, release, answer = std::move(answer)](
                                 absl::StatusOr<std::shared_ptr<CheckpointReader>> opened) mutable {
              if (!opened.ok()) return Explain(sequence, opened.status(), release, std::move(answer));
              // The same reader, which also releases the reader key when its last user has dropped it.
              CheckpointReader* const reader = opened->get();
              answer(std::shared_ptr<CheckpointReader>(
                  reader, [release, owner = *std::move(opened)](CheckpointReader*) mutable {
                    owner.reset();
                    release();
                  }));
            }));
      }));
}

// Another node may have removed the checkpoint after this node had lost its registration, and with it the
// reader key: then the checkpoint is not damaged.
void NodesRootIo::Explain(int64_t sequence, const absl::Status& error, const std::function<void()>& release,
                          Callback<absl::StatusOr<std::shared_ptr<CheckpointReader>>> answer) {
  nodes_->ConfirmReader(
      sequence, callbacks_.Guard([this, sequence, error, release,
                                  answer = std::move(answer)](const absl::Status& confirmed) mutable {
        release();
        if (!confirmed.ok()) return answer(confirmed);
        if (ReasonOf(error) != reason::kNoCheckpoint || !nodes_->WasRemoved(sequence)) return answer(error);
        answer(MakeError(absl::StatusCode::kUnavailable, ledger_reason::kBeingRemoved,
                         absl::StrCat("the checkpoint of sequence ", sequence,
                                      " was removed, because there is a newer one; open that")));
      }));
}

// ---- What needs a trash, or another program's checkpoints

void NodesRootIo::EmptyTrash(TrashTerms, Callback<absl::StatusOr<TrashLeft>> done) {
  Answer<absl::StatusOr<TrashLeft>>(std::move(done), TrashLeft());
}

void NodesRootIo::ListTrash(Callback<absl::StatusOr<std::vector<TrashedCheckpoint>>> done) {
  Answer<absl::StatusOr<std::vector<TrashedCheckpoint>>>(std::move(done), std::vector<TrashedCheckpoint>());
}

void NodesRootIo::Undelete(std::string, int64_t, Callback<absl::StatusOr<Undeleted>> done) {
  Answer<absl::StatusOr<Undeleted>>(std::move(done), Unsupported("bring checkpoints back"));
}

void NodesRootIo::Adopt(ForeignSurvey, storage::v1::ManifestSummary, Callback<PublishResult> done) {
  Answer(std::move(done), PublishResult{PublishOutcome::kFailed, Unsupported("adopt checkpoints")});
}

}  // namespace ckptd
