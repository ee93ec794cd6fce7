"""Started by sandbox.py for every run: walls itself off from the machine, runs one untrusted Python program, and says
how it ended.

usage: python -I -S sandbox_launcher.py SPEC_FD REPORT_FD

Reads a dict from SPEC_FD (`sandbox.Sandbox` writes it) and writes one to REPORT_FD, both as `marshal` does, which needs
no import: {"refused": "why"} where the program was not started, else {"status": as of os.waitstatus_to_exitcode,
"over": null | "wall" | "stopped", "cpu_s": seconds, "wall_s": seconds}.

Two processes: this one, which the program can neither see nor signal, keeps the time and reports; the program is the
first process of a PID namespace of its own, so its end, or this one's, ends everything that it started.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # Importing typing would double the time that a run takes to start.
    from typing import Any, NoReturn

    Spec = dict[str, Any]

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1,
    2,
    4,
    8,
    32,
    4096,
    16384,
    1 << 18,
)
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
# Nobody, on every Linux.
NOBODY = 65534
# Where the program lives, inside.
HOME = "/tmp"
# Niceness once a program has run for `quick_s`.
NICE_LATER = 5

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raises for a failed call of the C library."""
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def unshare(flags: int, what: str) -> None:
    check(libc.unshare(flags), f"unshare ({what})")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    check(
        libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]),
        f"mount {kind or source} on {target}",
    )


def map_self() -> list[tuple[str, str]]:
    """In a new user namespace: the same user and group as outside, and no others."""
    uid, gid = os.geteuid(), os.getegid()
    return [("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")]


def write_maps(maps: list[tuple[str, str]]) -> None:
    for name, text in maps:
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def bind(source: str, root: str, flags: int = MS_NOSUID | MS_NODEV) -> None:
    """The same file or folder inside the new root, read-only."""
    target = root + source
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "w").close()
    mount(source, target, None, MS_BIND | MS_REC)
    # In a user namespace what the machine forbids on that file system must stay forbidden; the values of statvfs and
    # mount are the same here.
    kept = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | flags | kept)


def enter_root(root: str, prefixes: list[str], scratch_bytes: int) -> None:
    """A root that holds the system's libraries and Python, read-only, and an empty HOME of bounded size in memory.
    `root`: an empty folder."""
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755")
    for name in ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin"):
        if os.path.islink(name):
            os.symlink(os.readlink(name), root + name)
        elif os.path.isdir(name):
            bind(name, root)
    for prefix in prefixes:
        if not os.path.exists(root + prefix):
            bind(prefix, root)
    if os.path.exists("/etc/ld.so.cache"):
        bind("/etc/ld.so.cache", root)
    for name in ("null", "zero", "random", "urandom"):
        bind(f"/dev/{name}", root, flags=MS_NOSUID)
    os.makedirs(root + "/proc")
    try:
        mount("proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError:
        pass  # Inside some containers; Python does without.
    os.makedirs(root + HOME)
    mount("tmpfs", root + HOME, "tmpfs", MS_NOSUID | MS_NODEV, f"size={scratch_bytes},nr_inodes=4096,mode=1777")
    os.chdir(root)
    mount(None, root, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    check(libc.pivot_root(b".", b"."), "pivot_root")
    check(libc.umount2(b".", MNT_DETACH), "umount of the old root")


def become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    # Changing the user made /proc/self root's; what is written there next must be possible again.
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def limit(spec: Spec) -> None:
    for name, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, spec["cpu_s"]),
        (resource.RLIMIT_AS, spec["memory_bytes"]),
        (resource.RLIMIT_FSIZE, spec["file_bytes"]),
        (resource.RLIMIT_NPROC, spec["processes"]),
        (resource.RLIMIT_NOFILE, spec["files"]),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))


def program(spec: Spec, isolated: bool, was_root: bool) -> None:
    """The child's way to the program; returns only by an exception."""
    os.setsid()
    if isolated:
        unshare(CLONE_NEWNS, "mount namespace")
        enter_root(spec["root"], spec["prefixes"], spec["scratch_bytes"])
        home = HOME
    else:
        home = spec["root"]
    os.chdir(home)
    os.umask(0o022)
    with open("answer.py", "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(spec["code"])
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # If the machine runs out of memory, this goes first.
    except OSError:
        pass
    if was_root:
        if not isolated:
            os.chown(home, NOBODY, NOBODY)
        become_nobody()
        if isolated:
            # Processes are counted per user namespace: with one each, runs side by side do not share the limit.
            # Harmless if refused.
            try:
                maps = map_self()
                unshare(CLONE_NEWUSER, "user namespace")
                write_maps(maps)
            except OSError:
                pass
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    limit(spec)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    arguments = [spec["python"], "-I", "-S", "-c", spec["harness"]]
    if spec["channel"] is not None:
        os.set_inheritable(spec["channel"], True)
        arguments.append(str(spec["channel"]))
    os.execve(spec["python"], arguments, {"HOME": home, "TMPDIR": home, "PATH": "/usr/local/bin:/usr/bin:/bin"})


def sched(pid: int) -> tuple[float, float]:
    """Seconds that the process's main thread has had a core, and has waited for one."""
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            ran, waited = file.read().split()[:2]
        return int(ran) / 1e9, int(waited) / 1e9
    except (OSError, ValueError):
        return 0.0, 0.0


def children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def is_its_own_doing(pid: int, elapsed: float, wall_s: float) -> bool:
    """Whether a program whose time has passed had its share of the machine: it ran or slept for at least half of its
    limit, or its processes together had a core for so long. Otherwise it merely waited for a core."""
    if elapsed - sched(pid)[1] >= wall_s / 2:
        return True
    ran, todo = 0.0, [pid]
    while todo:
        one = todo.pop()
        ran += sched(one)[0]
        todo += children(one)
    return ran >= wall_s / 2


def keep_time(pid: int, spec: Spec, started: float) -> tuple[int, resource.struct_rusage, str | None]:
    """Waits for the program and kills it when its time is up: the wait status, what it cost, and why it was killed if
    it was.

    The time is up once `wall_s` have passed and that is its own doing. On a machine too busy to tell, it goes on until
    the grader ends it.
    """
    wanted = {signal.SIGCHLD, signal.SIGTERM}
    over, later = None, False
    while True:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            return status, usage, over
        elapsed = time.monotonic() - started
        if not later and elapsed >= spec["quick_s"]:
            later = True
            try:
                os.setpriority(os.PRIO_PGRP, pid, NICE_LATER)
            except OSError:
                pass
        if over is None and elapsed >= spec["wall_s"] and is_its_own_doing(pid, elapsed, spec["wall_s"]):
            over = "wall"
        pause = (
            0.05
            if elapsed >= spec["wall_s"]
            else (spec["wall_s"] if later else min(spec["quick_s"], spec["wall_s"])) - elapsed
        )
        if over is not None:
            os.kill(pid, signal.SIGKILL)
            pause = 1.0
        got = signal.sigtimedwait(wanted, max(pause, 0.001))
        if got is not None and got.si_signo == signal.SIGTERM:
            over = over or "stopped"


def end_descendants() -> None:
    """Without a PID namespace: what the program left behind has become this process's child, and is killed."""
    until = time.monotonic() + 5.0
    while time.monotonic() < until:
        for pid in children(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    spec_fd, report_fd = int(sys.argv[1]), int(sys.argv[2])
    with open(spec_fd, "rb") as file:
        spec: Spec = marshal.load(file)
    # The grader's death ends the program too.
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def report(told: dict[str, object]) -> NoReturn:
        os.write(report_fd, marshal.dumps(told))
        os._exit(0)

    isolated, was_root = spec["isolated"], os.geteuid() == 0
    started = time.monotonic()
    failure_read, failure_write = os.pipe()
    try:
        if isolated:
            flags = CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS
            if was_root:
                unshare(flags, "network, PID, IPC and UTS namespaces")
            else:
                maps = map_self()
                unshare(flags | CLONE_NEWUSER, "user, network, PID, IPC and UTS namespaces")
                write_maps(maps)
        pid = os.fork()
    except OSError as error:
        report({"refused": str(error)})
    if pid == 0:
        try:
            os.close(failure_read)
            os.close(report_fd)
            program(spec, isolated, was_root)
        except BaseException as error:
            os.write(failure_write, str(error).encode())
        os._exit(70)
    os.close(failure_write)
    # The program's own ends of pipes must not stay open here, or nobody would see it close them.
    for fd in (0, 1, 2, spec["channel"]):
        if fd is not None:
            os.close(fd)
    status, usage, over = keep_time(pid, spec, started)
    failure = os.read(failure_read, 4096)
    end_descendants()
    if failure:
        report({"refused": failure.decode(errors="replace")})
    report(
        {
            "status": os.waitstatus_to_exitcode(status),
            "over": over,
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
            "wall_s": round(time.monotonic() - started, 3),
        }
    )


main()
