#include "daemon/grpc/calls/watch_queue.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "storage/base/errors.h"

namespace ckptd {
namespace {

v1::WatchResponse Event(const std::string& name, v1::Level level, int64_t written = 0) {
  v1::WatchResponse event;
  event.mutable_checkpoint()->set_name(name);
  event.mutable_checkpoint()->set_sequence(1);
  event.mutable_checkpoint()->set_level(level);
  event.mutable_checkpoint()->set_written_bytes(written);
  return event;
}

TEST(WatchQueue, DeliversEventsInOrder) {
  WatchQueue queue;
  EXPECT_TRUE(queue.Push(Event("a", v1::OPEN)).ok());
  EXPECT_TRUE(queue.Push(Event("a", v1::OPEN, 5)).ok());
  EXPECT_TRUE(queue.Push(Event("a", v1::SEALED)).ok());
  EXPECT_EQ(queue.Pop()->checkpoint().written_bytes(), 0);
  EXPECT_EQ(queue.Pop()->checkpoint().written_bytes(), 5);
  EXPECT_EQ(queue.Pop()->checkpoint().level(), v1::SEALED);
  EXPECT_FALSE(queue.Pop().has_value());
}

TEST(WatchQueue, DropsProgressButNoLevelOfASlowWatcher) {
  WatchQueue queue(/*progress_limit=*/3, /*limit=*/100);
  EXPECT_TRUE(queue.Push(Event("a", v1::OPEN)).ok());
  for (int written = 1; written <= 50; ++written) EXPECT_TRUE(queue.Push(Event("a", v1::OPEN, written)).ok());
  EXPECT_TRUE(queue.Push(Event("a", v1::SEALED)).ok());
  EXPECT_TRUE(queue.Push(Event("a", v1::SEALED, 99)).ok());
  EXPECT_TRUE(queue.Push(Event("a", v1::COMMITTED)).ok());

  std::vector<v1::Level> levels;
  while (const auto event = queue.Pop()) levels.push_back(event->checkpoint().level());
  EXPECT_EQ(levels, (std::vector<v1::Level>{v1::OPEN, v1::OPEN, v1::OPEN, v1::SEALED, v1::COMMITTED}));
}

TEST(WatchQueue, RefusesMoreLevelChangesThanTheLimit) {
  WatchQueue queue(/*progress_limit=*/2, /*limit=*/4);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(queue.Push(Event(std::to_string(i), v1::COMMITTED)).ok());
  EXPECT_EQ(ReasonOf(queue.Push(Event("5", v1::COMMITTED))), "WATCHER_TOO_SLOW");
}

TEST(WatchQueue, CountsRestoreEventsAsProgress) {
  WatchQueue queue(/*progress_limit=*/2, /*limit=*/4);
  v1::WatchResponse read;
  read.mutable_restore()->set_ended(true);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(queue.Push(read).ok());
  EXPECT_TRUE(queue.Push(Event("a", v1::COMMITTED)).ok());
  EXPECT_TRUE(queue.Pop()->has_restore());
  EXPECT_TRUE(queue.Pop()->has_restore());
  EXPECT_EQ(queue.Pop()->checkpoint().level(), v1::COMMITTED);
}

TEST(WatchQueue, CountsASecondSaveOfATagAsALevelChange) {
  WatchQueue queue(/*progress_limit=*/1, /*limit=*/4);
  v1::WatchResponse again = Event("a", v1::OPEN);
  EXPECT_TRUE(queue.Push(again).ok());
  again.mutable_checkpoint()->set_sequence(2);
  EXPECT_TRUE(queue.Push(again).ok());
  EXPECT_EQ(queue.Pop()->checkpoint().sequence(), 1);
  EXPECT_EQ(queue.Pop()->checkpoint().sequence(), 2);
}

}  // namespace
}  // namespace ckptd
