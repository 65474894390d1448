// Programs that a test runs.
#ifndef CKPTD_TESTS_TESTING_CHILD_PROCESS_H_
#define CKPTD_TESTS_TESTING_CHILD_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace ckptd {

// Starts a child that ends with the test's thread, even if the test crashes. `keep`: a descriptor that the
// child inherits beside its output and its errors.
pid_t StartProgram(const std::vector<std::string>& arguments, int out, int err, int keep = -1);

// Returns the exit status; -1 if a signal has ended the process. After 60 s the test fails, and the process
// is killed.
int WaitForEnd(pid_t pid);

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_CHILD_PROCESS_H_
