"""One worker process seen from the parent: start it, talk with it, time out, end its whole process group.

The parent sleeps in the kernel while a worker computes: on a machine with few cores a polling parent would take time from what it measures.
It waits for a reply and for the worker's exit at once, since a grandchild may hold the pipe open after the worker has died.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from llmbench import temporary
from llmbench.protocol import Command, Reply, Status, decode, encode

#: A reply longer than this is not one of ours.
_MAX_REPLY_BYTES = 256 * 2**20
#: How long a worker may take to leave after it has answered `close`.
_EXIT_GRACE_S = 10.0


class WorkerFailed(Exception):
    """A command was not carried out. `status` and `reason` are what the row shows; `alive` says whether the worker still answers."""

    def __init__(self, status: Status, reason: str, alive: bool = False) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.alive = alive


class Worker:
    """A worker process. Use it as a context manager: leaving ends the process and everything it started."""

    def __init__(self, log: Path, *, python: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        """Starts the process; its output goes to `log`. `python` is the interpreter with its flags, this one by default."""
        # The worker's current folder, so its first import path, holds the package and nothing else: none of our site-packages leak into
        # another interpreter, no module in the user's folder shadows a library, and what a library writes beside itself is thrown away.
        try:
            self._folder = temporary.folder("worker")
            (Path(self._folder.name) / "llmbench").symlink_to(Path(__file__).resolve().parent, target_is_directory=True)
        except OSError as error:
            raise WorkerFailed(Status.FAILED, f"no folder for a worker can be made in {tempfile.gettempdir()}: {error.strerror}") from None
        home = Path(self._folder.name)
        self._oom_kills = _oom_kills()
        self._number = 0
        self._buffer = bytearray()
        command_read, self._commands = os.pipe()
        self._events, event_write = os.pipe()
        self._exited, exited_write = os.pipe()
        foreign = bool(python) and python[0] != sys.executable
        # PYTHONSAFEPATH would hide the current folder from the worker; the other two belong to our interpreter.
        hidden = {"PYTHONSAFEPATH", *(("PYTHONPATH", "PYTHONHOME") if foreign else ())}
        variables = {name: value for name, value in os.environ.items() if name not in hidden}
        try:
            with _open_log(log) as output:
                self._process = subprocess.Popen(
                    [*(python or (sys.executable,)), "-m", "llmbench.worker.main", str(command_read), str(event_write)],
                    cwd=home,
                    env={**variables, **(environment or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(command_read, event_write),
                    start_new_session=True,  # Ctrl-C reaches the parent alone, which then decides
                )
        except OSError as error:
            for descriptor in (self._commands, self._events, self._exited, exited_write):
                os.close(descriptor)
            self._folder.cleanup()
            raise WorkerFailed(
                Status.UNAVAILABLE, f"the interpreter {python[0] if python else sys.executable} can't be started: {error}"
            ) from None
        finally:
            os.close(command_read)
            os.close(event_write)
        os.set_blocking(self._events, False)
        os.set_blocking(self._commands, False)
        self._waiter = threading.Thread(target=self._watch, args=(exited_write,), daemon=True)
        self._waiter.start()
        self._closed = False

    def _watch(self, exited_write: int) -> None:
        """Sleeps until the process has exited, then wakes `ask`. Leaves it a zombie, so that its group's number stays its own until `end`."""
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        os.close(exited_write)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, do: str, *, timeout_s: float, **arguments: Any) -> dict[str, Any]:
        """Has one command carried out and returns its result. Raises WorkerFailed; after a timeout or a death the worker has ended."""
        if self._closed:
            raise WorkerFailed(Status.CRASHED, f"the worker had ended before {do!r}")
        self._number += 1
        deadline = time.monotonic() + timeout_s
        self._send(json.dumps(encode(Command(self._number, do, arguments))).encode() + b"\n", do, deadline, timeout_s)
        reply = self._receive(do, deadline, timeout_s)
        if reply.status is not Status.OK:
            raise WorkerFailed(reply.status, reply.reason or do, alive=True)
        return reply.result

    def _send(self, line: bytes, do: str, deadline: float, timeout_s: float) -> None:
        """Writes a command, which may be longer than the pipe, to a worker that may not be reading."""
        view = memoryview(line)
        with selectors.DefaultSelector() as selector:
            selector.register(self._commands, selectors.EVENT_WRITE)
            selector.register(self._exited, selectors.EVENT_READ)
            while view:
                ready = {key.fd for key, _ in selector.select(max(0.0, deadline - time.monotonic()))}
                if not ready:
                    raise self._timeout(do, timeout_s)
                if self._commands not in ready:  # it has died, and something of it holds a full pipe open
                    raise self._death(do)
                try:
                    view = view[os.write(self._commands, view) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError:
                    raise self._death(do) from None

    def _timeout(self, do: str, timeout_s: float) -> WorkerFailed:
        self.end()
        return WorkerFailed(Status.TIMED_OUT, f"no answer to {do!r} within {timeout_s:g} s; the worker was ended")

    def _receive(self, do: str, deadline: float, timeout_s: float) -> Reply:
        with selectors.DefaultSelector() as selector:
            selector.register(self._events, selectors.EVENT_READ)
            selector.register(self._exited, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select(max(0.0, deadline - time.monotonic()))}
                if self._events in ready or self._exited in ready:
                    ended = not self._read_events()
                    line, newline, rest = self._buffer.partition(b"\n")
                    if newline:
                        self._buffer = rest
                        return self._parse(line)
                    if self._exited in ready:
                        raise self._death(do)
                    if ended:  # the pipe is closed but the process lives: wait for its exit alone
                        selector.unregister(self._events)
                if not ready:
                    raise self._timeout(do, timeout_s)

    def _read_events(self) -> bool:
        """Takes in what has arrived. False once the pipe is closed at the other end."""
        while True:
            try:
                piece = os.read(self._events, 2**16)
            except BlockingIOError:
                return True
            if not piece:
                return False
            self._buffer += piece
            if len(self._buffer) > _MAX_REPLY_BYTES:
                self.end()
                raise WorkerFailed(Status.CRASHED, "the worker wrote something that is no reply; it was ended")

    def _parse(self, line: bytes | bytearray) -> Reply:
        try:
            reply = decode(Reply, json.loads(line))
            if reply.number != self._number:
                raise ValueError
        except (ValueError, TypeError, AttributeError):
            self.end()
            raise WorkerFailed(Status.CRASHED, "the worker wrote something that is no reply; it was ended") from None
        return reply

    def _death(self, do: str) -> WorkerFailed:
        code = self.end()
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in {entry.value for entry in signal.Signals} else f"signal {-code}"
            if -code == signal.SIGKILL and _oom_kills() > self._oom_kills:
                return WorkerFailed(Status.OUT_OF_HOST_MEMORY, f"killed by the kernel during {do!r}: host memory ran out")
            return WorkerFailed(Status.CRASHED, f"the worker was ended by {name} during {do!r}")
        return WorkerFailed(Status.CRASHED, f"the worker left with exit code {code} during {do!r}, without an answer")

    def close(self, timeout_s: float = 30.0) -> None:
        """Lets the engine close and the worker leave by itself, then ends what is left of it. Never raises WorkerFailed."""
        try:
            self.ask("close", timeout_s=timeout_s)
            self._waiter.join(_EXIT_GRACE_S)
        except WorkerFailed:
            pass
        self.end()

    def end(self) -> int | None:
        """Kills the whole process group, Inductor's compile workers included, and reaps the worker. Returns its exit code."""
        if self._closed:
            return self._process.returncode
        self._closed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._waiter.join()
        code = self._process.wait()
        for descriptor in (self._commands, self._events, self._exited):
            os.close(descriptor)
        self._folder.cleanup()
        return code

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()


def _open_log(path: Path) -> BinaryIO:
    """The log to append to, or nowhere where it can't be opened: a full disk costs the log and not the measurement."""
    try:
        return path.open("ab")
    except OSError:
        return Path(os.devnull).open("ab")


def _oom_kills() -> int:
    """How many processes the kernel has killed for memory so far, on this machine and in this control group (v2, v1)."""
    total = 0
    for path in ("/proc/vmstat", "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            lines = Path(path).read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total
