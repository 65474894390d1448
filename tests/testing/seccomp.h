// Forbids this thread one system call, as the seccomp filters of container runtimes do.
#ifndef CKPTD_TESTS_TESTING_SECCOMP_H_
#define CKPTD_TESTS_TESTING_SECCOMP_H_

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <thread>

namespace ckptd {

// Runs `body` on a thread for which `system_call` fails with `error`. Returns false if the filter could not
// be set.
template <typename Body>
bool WithoutSystemCall(unsigned system_call, unsigned error, Body body) {
  bool filtered = false;
  std::thread([&] {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, system_call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program = {4, filter};
    filtered = ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
               ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
    if (filtered) body();
  }).join();
  return filtered;
}

}  // namespace ckptd
#endif  // CKPTD_TESTS_TESTING_SECCOMP_H_
