#include "storage/base/callback_scope.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"

namespace ckptd {
namespace {

TEST(CallbackScopeTest, CallbackRunsUntilTheScopeEnds) {
  std::optional<CallbackScope> scope(std::in_place);
  std::string heard;
  const std::function<void(const std::string&)> callback =
      scope->Guard([&heard](const std::string& what) { heard += what; });
  callback("a");
  callback("b");
  scope.reset();
  callback("c");
  EXPECT_EQ(heard, "ab");
}

TEST(CallbackScopeTest, CallbackTakesWhatCanOnlyBeMoved) {
  CallbackScope scope;
  int heard = 0;
  absl::AnyInvocable<void(std::unique_ptr<int>)> callback = scope.Guard(
      [&heard, more = std::make_unique<int>(1)](std::unique_ptr<int> number) { heard = *number + *more; });
  callback(std::make_unique<int>(2));
  EXPECT_EQ(heard, 3);
}

TEST(CallbackScopeTest, EndsOnRequest) {
  CallbackScope scope;
  bool heard = false;
  auto callback = scope.Guard([&heard] { heard = true; });
  EXPECT_FALSE(scope.ended());
  scope.End();
  EXPECT_TRUE(scope.ended());
  callback();
  EXPECT_FALSE(heard);
}

TEST(CallbackScopeTest, ObserverOutlivesTheScope) {
  std::optional<CallbackScope> scope(std::in_place);
  const CallbackScope::Observer observer(*scope);
  EXPECT_FALSE(observer.ended());
  scope.reset();
  EXPECT_TRUE(observer.ended());
}

}  // namespace
}  // namespace ckptd
