// What the commands that ask a daemon share.
#ifndef CKPTD_CLIENT_CKPTCTL_DAEMON_CALL_H_
#define CKPTD_CLIENT_CKPTCTL_DAEMON_CALL_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/ckptctl/commands.h"
#include "client/cpp/rpc.h"
#include "storage/base/clock.h"

namespace ckptd::ctl {

// Operators need no session: the daemon knows them by the uid of the connection.
absl::StatusOr<std::unique_ptr<client::Rpc>> Connect(const Context& context);

// For the daemon's answer: --timeout, else 10 s.
Duration CallTimeout(const Context& context);
Duration FromSeconds(double seconds);

// NAME of the command line, as the daemon calls it.
absl::StatusOr<std::string> Resolve(client::Rpc& rpc, const Context& context, const std::string& name);

// adopt.cc: a finished checkpoint of another program, by the name that it would have as ours. NOT_FOUND.
absl::StatusOr<v1::ForeignCheckpoint> FindForeign(client::Rpc& rpc, const Context& context,
                                                  const std::string& checkpoint);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_DAEMON_CALL_H_
