// Which processes are connected, and what they hold.
#include <map>

#include "daemon/engine/engine_impl.h"

namespace ckptd {

v1::Session Engine::Impl::Describe(const SessionInfo& session, int64_t pool_bytes) const {
  v1::Session description;
  description.set_uid(static_cast<int>(session.uid));
  description.set_pid(session.pid);
  description.set_client_name(session.client_name);
  description.set_shared_memory(session.descriptors);
  description.set_pool_bytes(pool_bytes);
  description.set_leases(leases_.CountOf(session.id));
  for (const auto& [name, run] : runs_.all()) {
    for (const Member& member : run->members.OfSession(session.id)) {
      v1::Membership& membership = *description.add_memberships();
      membership.set_run(run->name);
      membership.set_path(run->path);
      membership.set_rank(member.rank);
      membership.set_world_size(member.world_size);
      membership.set_attempt(member.attempt);
    }
  }
  return description;
}

// A caller sees the sessions of its uid, and a privileged one sees all. A caller of another namespace sees
// only those of that namespace.
v1::ListSessionsResponse Engine::Impl::ListSessions(const Caller& caller) const {
  v1::ListSessionsResponse response;
  const std::map<SessionId, int64_t> lent = pool_->LentBytes();
  for (const auto& [id, session] : sessions_.all()) {
    const bool same_place = caller.tenant == 0 || (caller.tenant > 0 && session.tenant == caller.tenant);
    const bool own = session.uid == caller.uid && same_place;
    if (!caller.privileged && !own) continue;
    const auto bytes = lent.find(id);
    *response.add_sessions() = Describe(session, bytes == lent.end() ? 0 : bytes->second);
  }
  return response;
}

}  // namespace ckptd
