#include "storage/base/unique_fd.h"

#include <fcntl.h>

#include <utility>

#include "gtest/gtest.h"

namespace ckptd {
namespace {

int OpenNull() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFdTest, ClosesInItsDestructor) {
  int number = -1;
  {
    const UniqueFd fd(OpenNull());
    number = fd.get();
    EXPECT_TRUE(fd);
    EXPECT_TRUE(IsOpen(number));
  }
  EXPECT_FALSE(IsOpen(number));
}

TEST(UniqueFdTest, MoveTransfersOwnership) {
  UniqueFd first(OpenNull());
  const int number = first.get();
  UniqueFd second(OpenNull());
  const int replaced = second.get();
  second = std::move(first);
  EXPECT_EQ(second.get(), number);
  EXPECT_FALSE(IsOpen(replaced));
  EXPECT_TRUE(IsOpen(number));
}

TEST(UniqueFdTest, ReleaseKeepsItOpen) {
  UniqueFd fd(OpenNull());
  const UniqueFd owner(fd.release());
  EXPECT_FALSE(fd);
  EXPECT_TRUE(IsOpen(owner.get()));
}

}  // namespace
}  // namespace ckptd
