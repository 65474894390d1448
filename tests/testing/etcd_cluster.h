// Real etcd members as child processes, on free ports of the loopback interface.
#ifndef CKPTD_TESTS_TESTING_ETCD_CLUSTER_H_
#define CKPTD_TESTS_TESTING_ETCD_CLUSTER_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "etcd/service.grpc.pb.h"
#include "tests/testing/temp_dir.h"

namespace ckptd {

class EtcdCluster {
 public:
  // Returns once all members serve. `flags` are added to the command line of each. With `scheme` https the
  // flags name the certificates, and whether a member serves is not asked. `parent`: of the folder with the
  // members' data; empty: in memory where that is possible.
  explicit EtcdCluster(int members = 1, std::vector<std::string> flags = {}, std::string scheme = "http",
                       const std::string& parent = "");
  ~EtcdCluster();  // Kills the members and removes their data.

  // host:port of each member.
  std::vector<std::string> endpoints() const;
  int size() const { return static_cast<int>(members_.size()); }

  void Kill(int member);   // SIGKILL; returns after the process has ended.
  void Start(int member);  // With the data that it has.
  void Stop(int member);   // SIGSTOP: connections stay, and nothing is answered from its return on.
  void Continue(int member);
  void WaitUntilServing(int member);
  // The member that leads now.
  int Leader();
  // Calls of etcd's own, for what the client under test does not do.
  std::unique_ptr<etcdserverpb::KV::Stub> NewKv(int member) const;
  // From now on every request needs a user, root or this one, who may read and write what begins with
  // `prefix`.
  void RequireUser(const std::string& user, const std::string& password, const std::string& prefix) const;
  // Replaces a member's data by what another one, which must be killed too, had when it was copied.
  void CopyData(int member, const std::string& to) const;
  void RestoreData(int member, const std::string& from) const;
  std::string Log(int member) const;

 private:
  struct Member {
    int client_port = 0, peer_port = 0;
    pid_t pid = -1;
  };
  std::string Name(int member) const { return "member" + std::to_string(member); }
  std::string DataFolder(int member) const { return folder_.path() + "/" + Name(member); }
  std::string PeerUrl(int member) const;
  void ChoosePorts();
  bool HasEnded(int member);
  // Waits a second at most.
  bool Serves(int member) const;
  bool Leads(int member) const;

  const std::vector<std::string> flags_;
  const std::string scheme_;
  TempDir folder_;
  std::vector<Member> members_;
};

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_ETCD_CLUSTER_H_
