// Helpers of the commands that call a daemon.
#ifndef CKPTD_CLIENT_CKPTCTL_COMMANDS_DAEMON_CALL_H_
#define CKPTD_CLIENT_CKPTCTL_COMMANDS_DAEMON_CALL_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/ckptctl/commands/commands.h"
#include "client/cpp/session/rpc.h"
#include "storage/base/clock.h"

namespace ckptd::ctl {

// Opens a gRPC connection without a session: the daemon identifies operators by the uid of the connection.
absl::StatusOr<std::unique_ptr<client::Rpc>> Connect(const Context& context);

// The timeout of one call: --timeout, or 20 s.
Duration CallTimeout(const Context& context);
Duration FromSeconds(double seconds);

// The daemon's name, `runs/{run}/checkpoints/{tag}`, of the NAME on the command line.
absl::StatusOr<std::string> Resolve(client::Rpc& rpc, const Context& context, const std::string& name);

// adopt.cc: a finished checkpoint of another program, by the name that it would have if ckptd had written it.
// NOT_FOUND if there is none.
absl::StatusOr<v1::ForeignCheckpoint> FindForeign(client::Rpc& rpc, const Context& context,
                                                  const std::string& checkpoint);

}  // namespace ckptd::ctl
#endif  // CKPTD_CLIENT_CKPTCTL_COMMANDS_DAEMON_CALL_H_
