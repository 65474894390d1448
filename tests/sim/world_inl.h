// Templates of world.h.
#ifndef CKPTD_TESTS_SIM_WORLD_INL_H_
#define CKPTD_TESTS_SIM_WORLD_INL_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/world.h"

namespace ckptd::sim {

template <typename... Args>
void World::Trace(const Args&... args) {
  if (!tracing_) return;
  result_.trace.push_back(absl::StrCat(schedule_.elapsed() / std::chrono::microseconds(1), " us: ", args...));
}

template <typename T, typename Handler>
struct World::Expected {
  Expected(World* w, int64_t i, Handler h) : world(w), id(i), handler(std::move(h)) {}
  ~Expected() {
    auto pending = world->pending_.find(id);
    if (pending == world->pending_.end()) return;
    // (A callback that the clock still holds for a killed daemon is destroyed later.)
    if (pending->second.daemon == world->daemon_ && world->engine_ != nullptr)
      world->oracle_.Violated(absl::StrCat("the reply to ", pending->second.what, " was dropped"));
    world->pending_.erase(pending);
  }
  void Answer(absl::StatusOr<T> answer) {
    auto pending = world->pending_.find(id);
    if (pending == world->pending_.end()) return world->oracle_.Violated("a reply was called twice");
    world->Trace(pending->second.what, " -> ", answer.ok() ? "OK" : answer.status().ToString());
    world->pending_.erase(pending);
    handler(std::move(answer));
  }
  World* const world;
  const int64_t id;
  Handler handler;
};

template <typename T, typename Handler>
Reply<T> World::Expect(std::string what, Handler handler) {
  const int64_t id = next_pending_++;
  pending_.emplace(id, Pending{std::move(what), daemon_});
  auto expected = std::make_unique<Expected<T, Handler>>(this, id, std::move(handler));
  return [expected = std::move(expected)](absl::StatusOr<T> answer) { expected->Answer(std::move(answer)); };
}

}  // namespace ckptd::sim
#endif  // CKPTD_TESTS_SIM_WORLD_INL_H_
