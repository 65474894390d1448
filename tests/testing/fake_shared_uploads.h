// What all nodes know of a run's uploads, for tests of the engine: the test is etcd, and the other nodes.
#ifndef CKPTD_TESTS_TESTING_FAKE_SHARED_UPLOADS_H_
#define CKPTD_TESTS_TESTING_FAKE_SHARED_UPLOADS_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckptd/storage/v1/storage.pb.h"
#include "daemon/engine/seams/shared_uploads.h"

namespace ckptd {

class FakeSharedUploads : public SharedUploads {
 public:
  Known etcd;   // What is there now.
  Known shown;  // What this node has heard.
  // Calls that the test answers, the oldest first.
  std::deque<absl::AnyInvocable<void(absl::StatusOr<Known>)>> reads;
  struct Written {
    storage::v1::UploadRecord record;
    int64_t counted_through = 0;
    int64_t sequences_above = 0;
    absl::AnyInvocable<void(absl::Status)> done;
  };
  std::deque<Written> writes;
  // What this node has asked the coordinator, which the test answers.
  struct Asked {
    Restore restore;
    absl::AnyInvocable<void(absl::StatusOr<Newest>)> brought;
  };
  std::deque<Asked> restores;
  int64_t sequence = 0;  // That the last save has got.
  int64_t term = 1;
  std::shared_ptr<bool> leads = std::make_shared<bool>(true);  // Of this leadership.

  void Show() {
    shown = etcd;
    ++version_;
  }
  void AnswerRead() {
    auto read = std::move(reads.front());
    reads.pop_front();
    read(etcd);
  }
  void FailRead(const absl::Status& why) {
    auto read = std::move(reads.front());
    reads.pop_front();
    read(why);
  }
  void AnswerWrite(const absl::Status& status = absl::OkStatus()) {
    Written write = std::move(writes.front());
    writes.pop_front();
    if (status.ok()) {
      etcd.record = write.record;
      etcd.counted_through = write.counted_through;
      sequence = std::max(sequence, write.sequences_above);
    }
    write.done(status);
  }
  // Another node coordinates from now on.
  void EndTerm() {
    *leads = false;
    leads = std::make_shared<bool>(true);
  }

  // ---- SharedUploads
  Known Shown() const override { return shown; }
  int64_t version() const override { return version_; }
  void Read(absl::AnyInvocable<void(absl::StatusOr<Known>)> read) override {
    reads.push_back(std::move(read));
  }
  void Write(const storage::v1::UploadRecord& record, int64_t counted_through, int64_t sequences_above,
             absl::AnyInvocable<void(absl::Status)> written) override {
    writes.push_back({record, counted_through, sequences_above, std::move(written)});
  }
  void BringBack(const Restore& restore, absl::AnyInvocable<void(absl::StatusOr<Newest>)> brought) override {
    restores.push_back({restore, std::move(brought)});
  }
  int64_t Term() const override { return term; }
  std::function<bool()> StillCoordinates() const override {
    return [leads = leads] { return *leads; };
  }

 private:
  int64_t version_ = 0;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_FAKE_SHARED_UPLOADS_H_
