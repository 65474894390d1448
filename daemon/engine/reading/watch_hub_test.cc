#include "daemon/engine/reading/watch_hub.h"

#include "storage/base/errors.h"
#include "storage/base/reasons.h"
#include "tests/testing/engine_class_fixture.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;

class WatchHubTest : public ClassTest {
 protected:
  int64_t Watch(uid_t uid, const std::string& parent, int* events, bool goes_on = true) {
    v1::WatchRequest request;
    request.set_parent(parent);
    Caller caller;
    caller.uid = uid;
    const absl::StatusOr<int64_t> id = hub_.Add(caller, request, [events, goes_on](const v1::WatchResponse&) {
      ++*events;
      return goes_on;
    });
    refused_ = id.status();
    return id.value_or(0);
  }
  void Tick(Run* run) {
    hub_.OnTick(clock_.Now(), {{run, [] { return v1::WatchResponse(); }}});
  }

  absl::Status refused_;
  WatchHub hub_{&clock_, 2, [](const Caller& caller, const Run& run) { return caller.uid == run.uid; }};
};

TEST_F(WatchHubTest, TellsThoseWhoMaySeeTheRunAndWatchIt) {
  Run* run = AddRun(1000);
  Run* other = AddRun(1000);
  int all = 0, one = 0, stranger = 0;
  Watch(1000, "", &all);
  Watch(1000, run->name, &one);
  Watch(1001, "", &stranger);
  hub_.Notify(*run, {});
  hub_.Notify(*other, {});
  EXPECT_EQ(all, 2);
  EXPECT_EQ(one, 1);
  EXPECT_EQ(stranger, 0);
  EXPECT_TRUE(hub_.IsWatched(*run));
  EXPECT_FALSE(hub_.IsWatched(*other)) << "who watches everything keeps no run open";
}

TEST_F(WatchHubTest, SendsProgressOncePerInterval) {
  Run* run = AddRun(1000);
  int events = 0;
  Watch(1000, "", &events);
  Tick(run);
  Tick(run);
  EXPECT_EQ(events, 1);
  clock_.Advance(milliseconds(500));
  Tick(run);
  EXPECT_EQ(events, 2);
}

TEST_F(WatchHubTest, EndsAWatchWhoseListenerHasGone) {
  Run* run = AddRun(1000);
  int events = 0;
  Watch(1000, run->name, &events, /*goes_on=*/false);
  hub_.Notify(*run, {});
  hub_.Notify(*run, {});
  EXPECT_EQ(events, 1);
  EXPECT_FALSE(hub_.IsWatched(*run));
}

TEST_F(WatchHubTest, AUserHasALimitedNumberOfWatches) {
  int events = 0;
  const int64_t first = Watch(1000, "", &events);
  Watch(1000, "", &events);
  EXPECT_EQ(Watch(1000, "", &events), 0);
  EXPECT_EQ(ReasonOf(refused_), reason::kLimitExceeded);
  EXPECT_NE(Watch(1001, "", &events), 0);
  hub_.Remove(first);
  EXPECT_NE(Watch(1000, "", &events), 0);
}

}  // namespace
}  // namespace ckptd
