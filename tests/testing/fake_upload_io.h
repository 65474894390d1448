// A bucket for tests of the engine: what was asked of it, with answers that the test gives.
#ifndef CKPTD_TESTS_TESTING_FAKE_UPLOAD_IO_H_
#define CKPTD_TESTS_TESTING_FAKE_UPLOAD_IO_H_

#include <deque>
#include <string>
#include <utility>

#include "daemon/engine/seams/upload_io.h"
#include "storage/base/errors.h"

namespace ckptd {

class FakeUploadIo : public UploadIo {
 public:
  struct Asked {
    std::string url;
    storage::v1::UploadedCheckpoint checkpoint;
    MayGoOn may_go_on;
    std::shared_ptr<std::atomic<int64_t>> arrived;
    absl::AnyInvocable<void(absl::StatusOr<int64_t>)> done;
  };
  struct Listing {
    std::string url;
    absl::AnyInvocable<void(absl::StatusOr<Contents>)> done;
  };
  struct Fetched {
    std::string tag;
    Term term;
    std::shared_ptr<std::atomic<int64_t>> arrived;
    absl::AnyInvocable<void(absl::Status)> done;
  };
  struct Removal {
    storage::v1::UploadedCheckpoint checkpoint;
    absl::AnyInvocable<void(absl::Status)> done;
  };

  absl::Status Check(const std::string& url) const override {
    if (url == "s3://forbidden")
      return MakeError(absl::StatusCode::kPermissionDenied, "UPLOAD_NOT_ALLOWED", "not allowed");
    return absl::OkStatus();
  }
  void Upload(std::string url, storage::v1::UploadedCheckpoint checkpoint, MayGoOn may_go_on,
              std::shared_ptr<std::atomic<int64_t>> arrived,
              absl::AnyInvocable<void(absl::StatusOr<int64_t>)> done) override {
    uploads.push_back(
        {std::move(url), std::move(checkpoint), std::move(may_go_on), std::move(arrived), std::move(done)});
  }
  void Remove(std::string, storage::v1::UploadedCheckpoint checkpoint, MayGoOn,
              absl::AnyInvocable<void(absl::Status)> done) override {
    removals.push_back({std::move(checkpoint), std::move(done)});
  }

  void List(std::string url, absl::AnyInvocable<void(absl::StatusOr<Contents>)> done) override {
    lists.push_back({std::move(url), std::move(done)});
  }
  void Fetch(std::string, std::string tag, Term term, std::shared_ptr<std::atomic<int64_t>> arrived,
             absl::AnyInvocable<void(absl::Status)> done) override {
    fetches.push_back({std::move(tag), std::move(term), std::move(arrived), std::move(done)});
  }

  // Answers the oldest call.
  void EndUpload(const absl::StatusOr<int64_t>& sent) {
    Asked asked = std::move(uploads.front());
    uploads.pop_front();
    asked.done(sent);
  }
  void EndRemoval(const absl::Status& removed) {
    Removal removal = std::move(removals.front());
    removals.pop_front();
    removal.done(removed);
  }
  void EndList(absl::StatusOr<Contents> contents) {
    Listing listing = std::move(lists.front());
    lists.pop_front();
    listing.done(std::move(contents));
  }
  void EndFetch(const absl::Status& fetched) {
    Fetched fetch = std::move(fetches.front());
    fetches.pop_front();
    fetch.done(fetched);
  }

  std::deque<Asked> uploads;
  std::deque<Removal> removals;
  std::deque<Listing> lists;
  std::deque<Fetched> fetches;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_FAKE_UPLOAD_IO_H_
