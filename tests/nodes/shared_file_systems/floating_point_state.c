/* Loaded into Linux 6.1 in user mode (LD_PRELOAD). That gives the floating-point state of a process back to the processor's
 * kernel in the size that a processor without AMX has; the kernel refuses any size but its own. This adds what is missing, as
 * the state of units that the process has not used. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static unsigned state_bytes(void) {
  unsigned eax, ebx = 0, ecx, edx;
  __get_cpuid_count(0xd, 0, &eax, &ebx, &ecx, &edx);
  return ebx;
}

long ptrace(enum __ptrace_request request, ...) {
  va_list list;
  va_start(list, request);
  const pid_t pid = va_arg(list, pid_t);
  void* address = va_arg(list, void*);
  void* data = va_arg(list, void*);
  va_end(list);
  if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE) {
    const struct iovec* given = data;
    const unsigned size = state_bytes();
    if (given->iov_len < size) {
      char whole[size];
      memset(whole, 0, size);
      memcpy(whole, given->iov_base, given->iov_len);
      struct iovec state = {whole, size};
      return syscall(SYS_ptrace, request, pid, address, &state);
    }
  }
  if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
    /* The system call stores the word that the function returns. */
    long word = 0;
    const long failed = syscall(SYS_ptrace, request, pid, address, &word);
    return failed == 0 ? word : failed;
  }
  return syscall(SYS_ptrace, request, pid, address, data);
}
