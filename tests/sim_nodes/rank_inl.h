// Templates of rank.h.
#ifndef CKPTD_TESTS_SIM_NODES_RANK_INL_H_
#define CKPTD_TESTS_SIM_NODES_RANK_INL_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/sim_nodes/rank.h"

namespace ckptd::sim_nodes {

template <typename Response, typename Request>
void Rank::Ask(void (Engine::*call)(const Caller&, const Request&, Reply<Response>), const std::string& what,
               const Request& request, std::function<void(const absl::StatusOr<Response>&)> heard) {
  node_.Call([self = shared_from_this(), connection = connection_, caller = Caller{session_, 1000, false},
              call, what, request, heard = std::move(heard)](Engine& engine) {
    (engine.*call)(
        caller, request,
        self->node_.Expect<Response>(absl::StrCat(what, " of ", self->process_),
                                     [self, connection, heard](const absl::StatusOr<Response>& answer) {
                                       if (!self->dead_ && self->connection_ == connection) heard(answer);
                                     }));
  });
}

}  // namespace ckptd::sim_nodes
#endif  // CKPTD_TESTS_SIM_NODES_RANK_INL_H_
