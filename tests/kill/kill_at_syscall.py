"""Runs a program and kills all of its threads at one of the system calls by which it changes a disk.

    kill_at_syscall.py CONTROL COMMAND [ARGUMENT...]

CONTROL is a file of the size of `Control`, which the caller maps. In it the caller says from when on calls are counted and at
which one the program gets SIGKILL, and reads how many calls there were. A seccomp filter stops only these calls, for ptrace;
everything else runs at full speed. Ends when no thread of the program is left. (x86-64 only.)
"""

import ctypes
import mmap
import os
import signal
import struct
import sys
from typing import List, NoReturn, Optional

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
LIBC.ptrace.restype = ctypes.c_long

CALLS = {
    18: "pwrite64",
    74: "fsync",
    75: "fdatasync",
    76: "truncate",
    77: "ftruncate",
    82: "rename",
    83: "mkdir",
    84: "rmdir",
    86: "link",
    87: "unlink",
    88: "symlink",
    162: "sync",
    257: "openat",
    258: "mkdirat",
    263: "unlinkat",
    264: "renameat",
    265: "linkat",
    266: "symlinkat",
    277: "sync_file_range",
    285: "fallocate",
    296: "pwritev",
    306: "syncfs",
    316: "renameat2",
    326: "copy_file_range",
    328: "pwritev2",
    426: "io_uring_enter",
    437: "openat2",
}
OPENAT, OPENAT2, RENAMEAT2, IO_URING_ENTER = 257, 437, 316, 426
RENAME_EXCHANGE = 2


class Control(ctypes.Structure):
    """Shared with the caller: its instructions, and the results."""

    _fields_ = [
        ("pid", ctypes.c_int64),  # Result: the program's process id.
        ("armed", ctypes.c_int64),  # 1: count calls from now on.
        ("at", ctypes.c_int64),  # Kill at the call with this number, counted from 1; 0: at none.
        ("after", ctypes.c_int64),  # 0: kill before the call; 1: after it, before it returns to the program.
        ("kind", ctypes.c_int64),  # Count only this system call; 0: all of CALLS.
        ("at_exchange", ctypes.c_int64),  # 1: ignore `at`, and kill at the first exchange of two names.
        ("count", ctypes.c_int64),  # Result: how many calls were counted.
        ("hit", ctypes.c_int64),  # Result: the system call at which the program was killed; 0: not killed.
    ]


class Registers(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base "
            "ds es fs gs"
        ).split()
    ]


# ---- ptrace(2), seccomp(2)

CONT, GETREGS, SYSCALL, SEIZE, PEEKDATA = 7, 12, 24, 0x4206, 2
OPTIONS = 0x01 | 0x08 | 0x80 | 0x100000  # TRACESYSGOOD, TRACECLONE, TRACESECCOMP, EXITKILL
EVENT_SECCOMP = 7
SYSCALL_STOP = signal.SIGTRAP | 0x80
WALL = 0x40000000
RET_ALLOW, RET_TRACE = 0x7FFF0000, 0x7FF00000
NO_NEW_PRIVS, SET_SECCOMP, MODE_FILTER = 38, 22, 2


def ptrace(request: int, tid: int, address: int = 0, data: int = 0) -> int:
    """Returns -1 when the thread was killed meanwhile. Callers ignore that: killing threads is this program's purpose."""
    return int(LIBC.ptrace(request, tid, address, data))


def stop_at_calls() -> None:
    """Makes this process and its children stop at each of CALLS. A tracer must be there to continue them."""
    instructions = [struct.pack("HBBI", 0x20, 0, 0, 0)]  # Load the call's number.
    for number in CALLS:
        instructions.append(struct.pack("HBBI", 0x15, 0, 1, number))  # If it is another call, skip the next instruction.
        instructions.append(struct.pack("HBBI", 0x06, 0, 0, RET_TRACE))
    instructions.append(struct.pack("HBBI", 0x06, 0, 0, RET_ALLOW))
    code = ctypes.create_string_buffer(b"".join(instructions))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(code)))
    if LIBC.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or LIBC.prctl(SET_SECCOMP, MODE_FILTER, program) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def exec_when_traced(go: int, command: List[str]) -> NoReturn:
    try:
        if os.read(go, 1) != b"!":
            os._exit(127)
        stop_at_calls()
        os.execv(command[0], command)
    finally:
        os._exit(127)


# ---- tracing


def changes_disk(registers: Registers, tid: int) -> bool:
    number = registers.orig_rax
    if number == OPENAT:
        return bool(registers.rdx & os.O_CREAT)
    if number == OPENAT2:
        return bool(ptrace(PEEKDATA, tid, registers.rdx) & os.O_CREAT)  # flags is the first field of open_how.
    if number == IO_URING_ENTER:
        return bool(registers.rsi)  # How many requests it submits; with none, it only waits.
    return number in CALLS


def is_target(control: Control, registers: Registers) -> bool:
    if control.at_exchange:
        return bool(registers.orig_rax == RENAMEAT2 and registers.r8 & RENAME_EXCHANGE)
    return bool(control.at and control.count == control.at)


def follow(pid: int, control: Control) -> None:
    last: Optional[int] = None  # The thread in the targeted call: its return is when to kill.
    while True:
        try:
            tid, status = os.waitpid(-1, WALL)
        except ChildProcessError:
            return
        if not os.WIFSTOPPED(status):
            continue
        event, number, proceed, deliver = status >> 16, os.WSTOPSIG(status), CONT, 0
        if event == EVENT_SECCOMP:
            registers = Registers()
            ptrace(GETREGS, tid, 0, ctypes.addressof(registers))
            counts = control.kind in (0, registers.orig_rax)
            if control.armed and not control.hit and counts and changes_disk(registers, tid):
                control.count += 1
                if is_target(control, registers):
                    control.hit = registers.orig_rax
                    if not control.after:
                        os.kill(pid, signal.SIGKILL)
                        continue
                    last, proceed = tid, SYSCALL
        elif number == SYSCALL_STOP and tid == last:
            os.kill(pid, signal.SIGKILL)
            continue
        elif event == 0 and number != SYSCALL_STOP:
            deliver = number  # A signal for the program.
        ptrace(proceed, tid, 0, deliver)


def main() -> None:
    with open(sys.argv[1], "r+b") as file:
        control = Control.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(Control)))
    command = sys.argv[2:]
    wait, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        exec_when_traced(wait, command)
    if ptrace(SEIZE, pid, 0, OPTIONS) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    control.pid = pid
    os.write(go, b"!")
    # The program's descriptors: a reader that waits for the end of one must not wait for this process.
    os.closerange(3, 1 << 20)
    follow(pid, control)


if __name__ == "__main__":
    main()
