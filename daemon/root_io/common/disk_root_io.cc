#include "daemon/root_io/common/disk_root_io.h"

#include <utility>

namespace ckptd {

void SurveyInSteps(std::shared_ptr<OpenedRoot> root, std::shared_ptr<FileSystemWorkers> scrubber,
                   std::unique_ptr<ForeignReader> reader,
                   absl::AnyInvocable<void(absl::StatusOr<ForeignSurvey>)> answer) {
  FileSystemWorkers& on = *scrubber;
  on.PostIdle([root = std::move(root), scrubber = std::move(scrubber), reader = std::move(reader),
               answer = std::move(answer)]() mutable {
    if (root->abandoned.load()) return;
    const absl::StatusOr<bool> more = reader->Step();
    if (!more.ok()) return answer(more.status());
    if (!*more) return answer(reader->Take());
    SurveyInSteps(std::move(root), std::move(scrubber), std::move(reader), std::move(answer));
  });
}

}  // namespace ckptd
