"""One start of the program: what it prints, its end, and how it is stopped."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence

from sftrun.errors import PREFIX, SftrunError, error_of
from sftrun.program import find_program, program_environment

POLL_S = 0.1
PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
_libc = ctypes.CDLL(None)
_sigterm = int(signal.SIGTERM)


def _end_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, _sigterm)


class Process:
    """The program with these words.

    It has a session of its own, so that a signal of the terminal or of Jupyter does not reach it beside Python's own: `stop` sends the one that it gets. When Python
    ends, however it ends, the kernel sends the program SIGTERM: it saves and ends, too. The kernel does so when the thread that started the program ends; hence a
    thread that lives as long as the program.
    """

    def __init__(self, words: Sequence[str], stdin: bytes = b"", has_settings: bool = True, is_shown: bool = True) -> None:
        program = find_program()
        self._words, self._environment = [program, *words], program_environment(program, has_settings)
        self._files = self._stdin, self._stdout, self._stderr = tempfile.TemporaryFile(), tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self._stdin.write(stdin)
        self._stdin.seek(0)
        self._is_shown = is_shown
        self._shown = 0  # bytes of standard error that were printed
        self._popen: subprocess.Popen[bytes] | None = None
        self._failure: Exception | None = None
        self._has_begun, self._has_ended = threading.Event(), threading.Event()
        threading.Thread(target=self._live, daemon=True).start()
        with self.stopping_on_exceptions():
            self._has_begun.wait()
        if self._failure:
            raise self._failure

    def __del__(self) -> None:
        for file in getattr(self, "_files", ()):
            file.close()

    def _live(self) -> None:
        try:
            self._popen = subprocess.Popen(self._words, stdin=self._stdin, stdout=self._stdout, stderr=self._stderr, env=self._environment,
                                           start_new_session=True, preexec_fn=_end_with_parent)
        except Exception as error:  # of the operating system, or of words that no command line can have
            self._failure = error
        self._has_begun.set()
        if self._popen:
            self._popen.wait()
        self._has_ended.set()

    @property
    def pid(self) -> int:
        assert self._popen
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return not self._has_ended.is_set()

    @property
    def exit_code(self) -> int:
        """Of a program that has ended."""
        assert self._popen and self._popen.returncode is not None
        return self._popen.returncode

    @property
    def stdout(self) -> str:
        return _read(self._stdout.fileno(), 0).decode(errors="replace")

    def polls(self) -> Iterator[None]:
        """Yields now and then while the program runs, and once after its end. Shows what it logs."""
        while not self._has_ended.wait(POLL_S):
            self._show()
            yield
        self._show()
        yield

    def wait(self) -> None:
        """Waits for the end."""
        with self.stopping_on_exceptions():
            for _ in self.polls():
                pass

    def result(self) -> str:
        """Waits for the end. @return standard output    @throws SftrunError if the program failed"""
        self.wait()
        if self.exit_code != 0:
            raise self.error()
        return self.stdout

    def error(self) -> SftrunError:
        return error_of(self.exit_code, _read(self._stderr.fileno(), 0).decode(errors="replace"))

    @contextlib.contextmanager
    def stopping_on_exceptions(self) -> Iterator[None]:
        """An exception in the block stops the program before it goes on: KeyboardInterrupt as Ctrl-C does, others as SIGTERM does."""
        try:
            yield
        except BaseException as error:
            self.stop(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
            raise

    def stop(self, number: signal.Signals) -> None:
        """Sends the signal, and waits for the end. A training run saves first; KeyboardInterrupt meanwhile is the second signal, which ends it at once."""
        while True:
            try:
                self._has_begun.wait()
                if self._popen and self.is_running:
                    self._popen.send_signal(number)
                for _ in self.polls():
                    pass
                return
            except KeyboardInterrupt:
                number = signal.SIGINT

    def _show(self) -> None:
        """Prints the lines of standard error that are new, up to an error, which becomes an exception."""
        text = b"" if not self._is_shown else _read(self._stderr.fileno(), self._shown)
        for line in text.splitlines(keepends=True):
            if line.startswith(PREFIX.encode()) or (not line.endswith(b"\n") and self.is_running):
                break
            self._shown += len(line)
            print(line.decode(errors="replace"), end="", file=sys.stderr, flush=True)


def _read(file: int, begin: int) -> bytes:
    return os.pread(file, max(0, os.fstat(file).st_size - begin), begin)
