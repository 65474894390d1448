// A member of etcd in the test's process: it serves an EtcdModel over gRPC, and fails as it is told.
#ifndef CKPTD_TESTS_TESTING_ETCD_FAKE_MEMBER_H_
#define CKPTD_TESTS_TESTING_ETCD_FAKE_MEMBER_H_

#include <grpcpp/support/status.h>

#include <functional>
#include <memory>
#include <string>

#include "tests/testing/etcd_model.h"

namespace ckptd {

// Thread-safe.
class EtcdFakeMember {
 public:
  EtcdFakeMember();
  ~EtcdFakeMember();

  std::string endpoint() const;
  // Of this member alone.
  void WithModel(const std::function<void(EtcdModel&)>& use);
  // Ends a lease, as if its time were over.
  void EndLease(int64_t id);

  // Each of these is for one request to KV or Lease, in the order in which they were told.
  void AnswerNext();
  void FailNext(grpc::Status status);  // It is not applied.
  void LoseNextAnswer();               // It is applied, and answered with UNAVAILABLE.
  void IgnoreNext();                   // It is not applied, and not answered.
  // Breaks the open watches now, and the `streams` next ones after they were created.
  void BreakWatches(int streams);

  // What the headers of answers say, instead of the model's.
  void SetClusterId(uint64_t id);
  void SetRevisionBack(int64_t by);

  // Every request needs the token of a user with this password. Tokens of before are invalid.
  void RequireUser(const std::string& user, const std::string& password);

  int requests() const;  // To KV and Lease, those that failed among them.
  int authentications() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_ETCD_FAKE_MEMBER_H_
