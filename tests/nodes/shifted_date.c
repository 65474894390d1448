/* Runs a program, and all that it starts, as on a machine whose date is SECONDS from this one's:
 *
 *     shifted_date SECONDS COMMAND [ARGUMENT...]
 *
 * The daemon is linked statically, so nothing can be loaded into it (as Debian's libfaketime is), and time namespaces have no date of
 * their own. So a process beside it traces it, as harness/kill_at_syscall.py does. It takes the vDSO away from each program that
 * begins, which then asks the kernel for the date, and a seccomp filter stops these calls, and those that wait until a date. All other
 * clocks stay, and so do the times of files: on a shared file system those are the server's. The program keeps its process id, and
 * gets signals as ever. (x86-64 only.) */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_WAITING 4096  /* Threads that wait until a date at the same time. */
#define BELOW_STACK 512   /* Bytes; more than the 128 below the stack that a function may use without saying so. */

struct waiting {
  pid_t thread; /* 0: none. */
  int is_sleep; /* Its date is an argument in rdx, else in r10. */
  unsigned long long its;
};

static long shift;
static struct waiting waits[MAX_WAITING];

static void fail(const char* what) {
  fprintf(stderr, "shifted_date: %s: %s\n", what, strerror(errno));
  _exit(127);
}

/* ---- the program's side */

#define FIELD(name) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, name))
#define UNLESS(value, skipped) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skipped)
#define UNLESS_ANY(bits, skipped) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, skipped)
#define STOP BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE)
#define GO_ON BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void stop_at_dates(void) {
  struct sock_filter code[] = {
      FIELD(nr),
      UNLESS(SYS_gettimeofday, 1), STOP,
      UNLESS(SYS_time, 1), STOP,
      UNLESS(SYS_clock_gettime, 8),
      FIELD(args[0]),
      UNLESS(CLOCK_REALTIME, 1), STOP,
      UNLESS(CLOCK_REALTIME_COARSE, 1), STOP,
      UNLESS(CLOCK_TAI, 1), STOP,
      GO_ON,
      UNLESS(SYS_futex, 4),
      FIELD(args[1]),
      UNLESS_ANY(FUTEX_CLOCK_REALTIME, 1), STOP,
      GO_ON,
      UNLESS(SYS_clock_nanosleep, 5),
      FIELD(args[0]),
      UNLESS(CLOCK_REALTIME, 3),
      FIELD(args[1]),
      UNLESS_ANY(TIMER_ABSTIME, 1), STOP,
      GO_ON,
  };
  struct sock_fprog program = {sizeof(code) / sizeof(*code), code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) fail("seccomp");
}

/* ---- the side that traces. Where a call fails, the thread has been killed meanwhile. */

static int copy(pid_t thread, unsigned long long address, void* data, size_t size, int into) {
  struct iovec here = {data, size}, there = {(void*)address, size};
  return (into ? process_vm_writev : process_vm_readv)(thread, &here, 1, &there, 1, 0) == (ssize_t)size;
}

/* The program has begun: rsp is at argc, then its arguments, its environment, and what the kernel tells it. */
static void take_vdso(pid_t thread) {
  struct user_regs_struct registers;
  if (ptrace(PTRACE_GETREGS, thread, 0, &registers)) return;
  unsigned long long at = registers.rsp, word = 1;
  if (!copy(thread, at, &word, sizeof(word), 0)) return;
  at += sizeof(word) * (word + 2);
  for (word = 1; word; at += sizeof(word))
    if (!copy(thread, at, &word, sizeof(word), 0)) return;
  for (Elf64_auxv_t told;; at += sizeof(told)) {
    if (!copy(thread, at, &told, sizeof(told), 0) || told.a_type == AT_NULL) return;
    if (told.a_type != AT_SYSINFO_EHDR) continue;
    told.a_type = AT_IGNORE;
    copy(thread, at, &told, sizeof(told), 1);
  }
}

static void tell_date(pid_t thread, struct user_regs_struct* registers) {
  struct timespec now;
  clock_gettime(registers->orig_rax == SYS_clock_gettime ? (clockid_t)registers->rdi : CLOCK_REALTIME, &now);
  now.tv_sec += shift;
  unsigned long long answer = 0;
  if (registers->orig_rax == SYS_clock_gettime) {
    if (!copy(thread, registers->rsi, &now, sizeof(now), 1)) answer = -EFAULT;
  } else if (registers->orig_rax == SYS_gettimeofday) {
    struct timeval rounded = {now.tv_sec, now.tv_nsec / 1000};
    if (!copy(thread, registers->rdi, &rounded, sizeof(rounded), 1)) answer = -EFAULT;
  } else {
    answer = now.tv_sec;
    if (registers->rdi) copy(thread, registers->rdi, &now.tv_sec, sizeof(now.tv_sec), 1);
  }
  registers->rax = answer;
  registers->orig_rax = -1; /* The call is not made. */
}

static void forget(pid_t thread) {
  for (struct waiting* wait = waits; wait < waits + MAX_WAITING; ++wait)
    if (wait->thread == thread) wait->thread = 0;
}

/* Lets a thread wait until the same moment, as this machine's clock has it. Whether its registers are to be restored after that. */
static int move_date(pid_t thread, struct user_regs_struct* registers) {
  const int is_sleep = registers->orig_rax == SYS_clock_nanosleep;
  unsigned long long* argument = is_sleep ? &registers->rdx : &registers->r10;
  const unsigned long long moved = (registers->rsp - BELOW_STACK) & ~15ull;
  struct timespec until;
  if (!*argument || !copy(thread, *argument, &until, sizeof(until), 0)) return 0;
  until.tv_sec = until.tv_sec > shift ? until.tv_sec - shift : 0;
  if (!copy(thread, moved, &until, sizeof(until), 1)) return 0;
  for (struct waiting* wait = waits; wait < waits + MAX_WAITING; ++wait) {
    if (wait->thread) continue;
    *wait = (struct waiting){thread, is_sleep, *argument};
    *argument = moved;
    return 1;
  }
  return 0;
}

static void restore(pid_t thread) {
  struct user_regs_struct registers;
  for (struct waiting* wait = waits; wait < waits + MAX_WAITING; ++wait) {
    if (wait->thread != thread) continue;
    wait->thread = 0;
    if (ptrace(PTRACE_GETREGS, thread, 0, &registers)) return;
    *(wait->is_sleep ? &registers.rdx : &registers.r10) = wait->its;
    ptrace(PTRACE_SETREGS, thread, 0, &registers);
  }
}

/* How the thread goes on from a call that the filter has stopped. */
static enum __ptrace_request at_date(pid_t thread) {
  struct user_regs_struct registers;
  enum __ptrace_request go_on = PTRACE_CONT;
  if (ptrace(PTRACE_GETREGS, thread, 0, &registers)) return go_on;
  if (registers.orig_rax == SYS_futex || registers.orig_rax == SYS_clock_nanosleep) {
    if (move_date(thread, &registers)) go_on = PTRACE_SYSCALL;
  } else {
    tell_date(thread, &registers);
  }
  ptrace(PTRACE_SETREGS, thread, 0, &registers);
  return go_on;
}

static void follow(void) {
  for (;;) {
    int status;
    const pid_t thread = waitpid(-1, &status, __WALL);
    if (thread < 0) return;
    if (!WIFSTOPPED(status)) {
      forget(thread); /* It has ended, perhaps while it waited. */
      continue;
    }
    const int event = status >> 16, number = WSTOPSIG(status);
    enum __ptrace_request go_on = PTRACE_CONT;
    long deliver = 0;
    if (event == PTRACE_EVENT_SECCOMP) {
      go_on = at_date(thread);
    } else if (event == PTRACE_EVENT_EXEC) {
      take_vdso(thread);
    } else if (event == PTRACE_EVENT_STOP && number != SIGTRAP) {
      go_on = PTRACE_LISTEN; /* It stays stopped until SIGCONT. */
    } else if (event == 0 && number == (SIGTRAP | 0x80)) {
      restore(thread);
    } else if (event == 0) {
      deliver = number;
    }
    ptrace(go_on, thread, 0, deliver);
  }
}

static void trace(pid_t program, int go) {
  const long options = PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACESECCOMP | PTRACE_O_TRACEEXEC | PTRACE_O_TRACECLONE |
                       PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK;
  if (ptrace(PTRACE_SEIZE, program, 0, options)) fail("ptrace");
  if (write(go, "!", 1) != 1) fail("write");
  setsid();
  close_range(0, ~0u, 0); /* Who waits for the end of one of the program's pipes must not wait for this process. */
  follow();
  _exit(0);
}

int main(int count, char** words) {
  if (count < 3) {
    fprintf(stderr, "use: shifted_date SECONDS COMMAND [ARGUMENT...]\n");
    return 2;
  }
  shift = atol(words[1]);
  const pid_t program = getpid();
  int go[2];
  if (pipe(go)) fail("pipe");
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* Where the kernel lets only a parent trace. */
  const pid_t between = fork();              /* So that the program does not get a child that it does not know. */
  if (between == 0) {
    if (fork() == 0) trace(program, go[1]);
    _exit(0);
  }
  close(go[1]);
  char word;
  if (between < 0 || waitpid(between, NULL, 0) != between || read(go[0], &word, 1) != 1) fail("fork");
  close(go[0]);
  stop_at_dates();
  execvp(words[2], words + 2);
  fail(words[2]);
}
