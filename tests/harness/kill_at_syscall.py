"""Runs a program and kills all of its threads at one of the system calls by which it changes a disk.

    kill_at_syscall.py CONTROL COMMAND [ARGUMENT...]

CONTROL is a file of the size of `Control`, which the caller maps. In it the caller says from when on calls are counted, which
ones, and at which one of them the program gets SIGKILL, or its thread is held, and reads how many there were. A seccomp filter
stops only these calls and those that open files, for ptrace; everything else runs at full speed. Ends when no thread of the
program is left. (x86-64 only.)
"""

import ctypes
import mmap
import os
import re
import signal
import struct
import sys
import time
from typing import List, NamedTuple, NoReturn, Optional, Tuple

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
LIBC.ptrace.restype = ctypes.c_long


class Call(NamedTuple):
    """A system call, and the registers with its paths: of a descriptor, and of a name beneath it; either may be missing."""

    name: str
    paths: Tuple[Tuple[str, str], ...] = ()


def on_file(name: str, descriptor: str = "rdi") -> Call:
    return Call(name, ((descriptor, ""),))


def on_name(name: str) -> Call:
    return Call(name, (("rdi", "rsi"),))


CALLS = {
    18: on_file("pwrite64"),
    74: on_file("fsync"),
    75: on_file("fdatasync"),
    76: Call("truncate", (("", "rdi"),)),
    77: on_file("ftruncate"),
    82: Call("rename", (("", "rdi"), ("", "rsi"))),
    83: Call("mkdir", (("", "rdi"),)),
    84: Call("rmdir", (("", "rdi"),)),
    86: Call("link", (("", "rdi"), ("", "rsi"))),
    87: Call("unlink", (("", "rdi"),)),
    88: Call("symlink", (("", "rsi"),)),
    162: Call("sync"),
    257: on_name("openat"),
    258: on_name("mkdirat"),
    263: on_name("unlinkat"),
    264: Call("renameat", (("rdi", "rsi"), ("rdx", "r10"))),
    265: Call("linkat", (("rdi", "rsi"), ("rdx", "r10"))),
    266: Call("symlinkat", (("rsi", "rdx"),)),
    277: on_file("sync_file_range"),
    285: on_file("fallocate"),
    296: on_file("pwritev"),
    306: on_file("syncfs"),
    316: Call("renameat2", (("rdi", "rsi"), ("rdx", "r10"))),
    326: on_file("copy_file_range", "rdx"),
    328: on_file("pwritev2"),
    426: Call("io_uring_enter"),
    437: on_name("openat2"),
}
OPENAT, OPENAT2, RENAMEAT2, IO_URING_ENTER = 257, 437, 316, 426
RENAME_EXCHANGE = 2
AT_FDCWD = -100
HELD_POLL_SECONDS = 0.01
CHANGES = r"^(?!open )"  # The pattern of all calls but those that only open what is there.
MAX_PATTERN_BYTES, MAX_CALL_BYTES = 1024, 4096


class Control(ctypes.Structure):
    """Shared with the caller: its instructions, and the results."""

    _fields_ = [
        ("pid", ctypes.c_int64),  # Result: the program's process id.
        ("armed", ctypes.c_int64),  # 1: count calls from now on.
        ("since", ctypes.c_char * MAX_PATTERN_BYTES),  # If not empty: count only calls after one that it matches.
        ("pattern", ctypes.c_char * MAX_PATTERN_BYTES),  # Count the calls whose description (`describe`) it matches.
        ("at", ctypes.c_int64),  # Kill at the call with this number, counted from 1.
        ("after", ctypes.c_int64),  # 0: kill before the call; 1: after it, before it returns to the program.
        ("hold", ctypes.c_int64),  # 1: do not kill, but hold the thread before the call until this is 0 again.
        ("count", ctypes.c_int64),  # Result: how many calls were counted.
        ("call", ctypes.c_char * MAX_CALL_BYTES),  # Result: the call at which the program was killed, or held.
        ("hit", ctypes.c_int64),  # Result: 1 when it was.
        ("judging", ctypes.c_int64),  # 1: a call is being compared with the pattern, and may become the hit.
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


def path_of(tid: int, descriptor: int) -> str:
    place = "cwd" if descriptor == AT_FDCWD else f"fd/{descriptor}"
    try:
        return os.readlink(f"/proc/{tid}/{place}")
    except OSError:
        return "?"  # It is not open, or the thread was killed meanwhile.


def name_at(tid: int, address: int) -> str:
    try:
        with open(f"/proc/{tid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            return os.fsdecode(memory.read(os.pathconf("/", "PC_PATH_MAX")).split(b"\0")[0])
    except (OSError, ValueError):
        return "?"


def describe(registers: Registers, tid: int) -> str:
    """A call and what it is about, such as `renameat2 /run/a -> /run/b`; `<->` if the two change their names. An open that
    makes nothing is called `open`. Empty: nothing that is counted.
    """
    number = registers.orig_rax
    if number not in CALLS:
        return ""
    name, places = CALLS[number]
    if number == IO_URING_ENTER and not registers.rsi:  # How many requests it submits; with none, it only waits.
        return ""
    flags = registers.rdx if number == OPENAT else 0
    if number == OPENAT2:
        flags = ptrace(PEEKDATA, tid, registers.rdx)  # The first field of open_how.
    if number in (OPENAT, OPENAT2) and not flags & os.O_CREAT:
        name = "open"
    paths = []
    for descriptor, beneath in places:
        folder = path_of(tid, ctypes.c_int(getattr(registers, descriptor)).value) if descriptor else ""
        paths.append(os.path.join(folder, name_at(tid, getattr(registers, beneath))) if beneath else folder)
    exchanges = number == RENAMEAT2 and registers.r8 & RENAME_EXCHANGE
    return " ".join([name, *([(" <-> " if exchanges else " -> ").join(paths)] if paths else [])])


def counts(control: Control, call: str) -> bool:
    """Counts a call if it is one of those that the caller has named."""
    pattern = os.fsdecode(control.since or control.pattern)
    if not call or not re.search(pattern, call):
        return False
    if control.since:
        control.since = b""
        return False
    control.count += 1
    return True


def is_target(control: Control, tid: int) -> bool:
    """Whether the thread stands before the call that was asked for. Then the call is the hit."""
    registers = Registers()
    ptrace(GETREGS, tid, 0, ctypes.addressof(registers))
    call = describe(registers, tid)
    if not counts(control, call) or control.count != control.at:
        return False
    control.call = os.fsencode(call)[: MAX_CALL_BYTES - 1]
    control.hit = 1
    return True


def follow(pid: int, control: Control) -> None:
    last: Optional[int] = None  # The thread in the targeted call: its return is when to kill.
    held: Optional[int] = None  # The thread that is held. The caller cannot wake this process when it lets the thread go.
    while True:
        try:
            tid, status = os.waitpid(-1, WALL if held is None else WALL | os.WNOHANG)
        except ChildProcessError:
            return
        if held is not None and not control.hold:
            ptrace(CONT, held)
            held = None
        if tid == 0:
            time.sleep(HELD_POLL_SECONDS)
            continue
        if not os.WIFSTOPPED(status):
            continue
        event, number, proceed, deliver = status >> 16, os.WSTOPSIG(status), CONT, 0
        if event == EVENT_SECCOMP:
            control.judging = 1  # Before it looks at `armed`: see Killer.disarm.
            is_hit = control.armed and not control.hit and is_target(control, tid)
            control.judging = 0
            if is_hit:
                if control.hold:
                    held = tid
                    continue
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
