// For tests of single classes of the engine: a run that several nodes share, and that has a bucket.
#ifndef CKPTD_TESTS_TESTING_SHARED_RUN_FIXTURE_H_
#define CKPTD_TESTS_TESTING_SHARED_RUN_FIXTURE_H_

#include <memory>
#include <utility>

#include "tests/testing/engine_class_fixture.h"
#include "tests/testing/fake_shared_run.h"
#include "tests/testing/fake_upload_io.h"

namespace ckptd {

class SharedRunTest : public ClassTest {
 protected:
  SharedRunTest() {
    run_ = AddRun(1000);
    auto run = std::make_unique<FakeSharedRun>(ios_.at(run_));
    nodes_ = run.get();
    run_->authority = std::move(run);
    run_->ledger = nodes_->ledger();
    auto io = std::make_unique<FakeUploadIo>();
    io_ = io.get();
    run_->uploads = std::move(io);
  }
  FakeSharedUploads& etcd() { return nodes_->uploaded; }

  ckptd::Run* run_ = nullptr;
  FakeSharedRun* nodes_ = nullptr;  // The run's authority.
  FakeUploadIo* io_ = nullptr;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_SHARED_RUN_FIXTURE_H_
