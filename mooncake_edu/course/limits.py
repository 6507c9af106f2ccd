"""Runs a reader's code where it can be ended: in a copy of this process, or in a thread where copies are not safe."""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import faulthandler
import gc
import io
import json
import os
import queue
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

STEP_S = 5.0
"""Seconds between two steps of the work."""

TOTAL_S = 30.0
MEMORY = 1 << 30
"""Bytes that the work may take besides what the process has already."""

PRINTED = 2_000
"""Characters of what the work prints that are passed on."""

LONGEST = 32 << 20
"""Bytes of all messages of one piece of work; a large figure takes one or two million."""

TICK_S = 0.1

Message = dict[str, Any]
Send = Callable[[Message], None]
Work = Callable[[Send], None]


class Bug(Exception):
    """The work itself failed, not the reader's code in it."""


def messages(work: Work, step_s: float = STEP_S, copy: bool = sys.platform == "linux") -> Iterator[Message]:
    """What `work` sends; last `{"ended": why}` if it had to be ended, or ended without being done.

    A message with "step" starts the clock of `step_s` seconds anew. With `copy` the work runs in a forked process,
    which can always be ended and whose changes stay in it; macOS and Windows lack a fork that libraries survive,
    there it runs in a thread. Raises Bug if the work raises.
    """
    run = _in_copy if copy else _in_thread
    clock = _Clock(step_s)
    for message in run(work, clock):
        if "bug" in message:
            raise Bug(message["bug"])
        if "step" in message:
            clock.restart()
        yield message


class _Clock:
    """Counts seconds of waiting; a process that was stopped meanwhile, or a laptop asleep, does not count."""

    def __init__(self, step_s: float) -> None:
        self.step_s, self.step, self.total = step_s, 0.0, 0.0
        self.seen = time.monotonic()

    def restart(self) -> None:
        self.step = 0.0

    def over(self) -> str | None:
        """Why the time is over, if it is."""
        now = time.monotonic()
        passed, self.seen = min(now - self.seen, 2 * TICK_S), now
        self.step += passed
        self.total += passed
        if self.step > self.step_s:
            return f"did not end within {self.step_s:g} seconds"
        return f"took more than {TOTAL_S:g} seconds for all inputs" if self.total > TOTAL_S else None


class _Printed(io.TextIOBase):
    """Standard output of the work: its beginning is passed on, the rest dropped."""

    def __init__(self, send: Send) -> None:
        self._send, self._left = send, PRINTED

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._left > 0:
            self._send({"printed": text[: self._left]})
            self._left -= len(text)
        return len(text)


def _run(work: Work, send: Send) -> None:
    try:
        work(send)
        send({"done": True})
    except Exception:
        send({"bug": traceback.format_exc()})
    except SystemExit:  # raised by `_end`, where nothing else has caught it
        return


def _in_copy(work: Work, clock: _Clock) -> Iterator[Message]:
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a kernel has threads; none of their locks is used
        child = os.fork()
    if child == 0:
        _be_copy(work, read, write)
    os.close(write)
    try:
        yield from _received(read, clock)
    finally:
        os.close(read)
        for kill in (os.killpg, os.kill):  # what it has started goes too
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _received(read: int, clock: _Clock) -> Iterator[Message]:
    poll = select.poll()
    poll.register(read, select.POLLIN)
    rest, size = b"", 0
    while (why := clock.over()) is None:
        if not poll.poll(TICK_S * 1e3):
            continue
        data = os.read(read, 1 << 16)
        size += len(data)
        if not data or size > LONGEST:
            why = "ended the process it ran in" if not data else "gave a result too large to show"
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            yield message
            if "done" in message:
                return
    yield {"ended": why}


def _be_copy(work: Work, read: int, write: int) -> NoReturn:
    try:
        os.setsid()
        os.close(read)
        faulthandler.disable()
        gc.freeze()  # what was garbage before stays the other process's
        _silence()
        _limit_memory()
        with open(write, "w", encoding="utf-8") as pipe:

            def send(message: Message) -> None:
                pipe.write(json.dumps(message) + "\n")
                pipe.flush()

            sys.stdout = sys.stderr = _Printed(send)
            _run(work, send)
    finally:
        os._exit(0)


def _silence() -> None:
    """No way to the terminal, to the notebook's front end or to the pool of threads that stayed behind."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    builtins.input = _no_input
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _no_input(prompt: object = "") -> str:
    raise EOFError("a check gives no input")


def _limit_memory() -> None:
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = now + MEMORY if hard == resource.RLIM_INFINITY else min(now + MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _in_thread(work: Work, clock: _Clock) -> Iterator[Message]:
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    worker = threading.Thread(target=_run, args=(work, inbox.put), daemon=True)
    with contextlib.redirect_stdout(_Printed(inbox.put)):
        worker.start()
        try:
            while (why := clock.over()) is None:
                with contextlib.suppress(queue.Empty):
                    message = inbox.get(timeout=TICK_S)
                    yield message
                    if "done" in message:
                        return
        finally:
            _end(worker)
    goes_on = "; it goes on in the background until the kernel is restarted" if worker.is_alive() else ""
    yield {"ended": why + goes_on}


def _end(worker: threading.Thread) -> None:
    """Raises SystemExit in a thread, a few times since code may catch it; code in C does not see it."""
    for _ in range(20):
        worker.join(0.05)
        if not worker.is_alive() or worker.ident is None:
            return
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident), ctypes.py_object(SystemExit))
