// Templates of trainer.h.
#ifndef CKPTD_TESTS_SIM_TRAINER_INL_H_
#define CKPTD_TESTS_SIM_TRAINER_INL_H_

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/trainer.h"

namespace ckptd::sim {

template <typename T, typename Handler>
Reply<T> Trainer::Expect(const std::string& what, Handler handler) {
  return world_.Expect<T>(absl::StrCat(what, " of ", Who()),
                          [self = shared_from_this(), connection = connection_,
                           handler = std::move(handler)](absl::StatusOr<T> answer) mutable {
                            if (!self->dead_ && self->connection_ == connection) handler(std::move(answer));
                          });
}

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_TRAINER_INL_H_
