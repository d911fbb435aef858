#!/usr/bin/env python3
"""Runs tests in copies of one process that has imported the reference stack: the imports take six seconds of a core, and twenty tests want them.

    reference_server.py start SOCKET                    # with the Python of the reference environment; returns as soon as it listens
    reference_server.py run SOCKET PYTHON ARGUMENTS …   # PYTHON ARGUMENTS in a copy; in a process of its own if there is no server
    reference_server.py stop SOCKET

A copy has the arguments, environment, folder, input and outputs of the process that asks, which ends with its exit code; if that process is
killed, the copy is killed with its process group. The server ends with `stop`, after 15 minutes without a copy, or if another one has its socket.
Standard library only, but for `start`.
"""

import atexit
import contextlib
import json
import os
import pathlib
import runpy
import selectors
import signal
import socket
import sys
import time
import traceback

IDLE_SECONDS = 900
POLL_SECONDS = 0.02  # how soon the end of a copy is seen
IDLE_POLL_SECONDS = 5
LONGEST_REQUEST = 1 << 20
ACCEPTED = b"+"


def import_reference():
    """What most tests import, lazy modules included. Without a network, as they run."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import peft  # noqa: F401
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, Trainer  # noqa: F401

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)  # models of tests are tiny: a second thread waits, and takes a processor for it


# ---- Asking


def connected(path):
    """None: there is no server."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        return None
    return connection


def run_alone(python, arguments):
    os.execv(python, [python, *arguments])


def run(path, python, *arguments):
    connection = connected(path)
    if not connection:
        return run_alone(python, arguments)
    script = arguments[2:] if arguments[:1] == ("-W",) else arguments  # the server was started with it
    request = {"arguments": script, "folder": os.getcwd(), "environment": dict(os.environ)}
    socket.send_fds(connection, [json.dumps(request).encode() + b"\n"], [0, 1, 2])
    if connection.recv(len(ACCEPTED)) != ACCEPTED:  # the server was about to end
        connection.close()
        return run_alone(python, arguments)
    answer = connection.makefile().readline()
    if not answer:
        sys.exit("reference_server.py: the server has ended")
    return int(answer)


def stop(path):
    if connection := connected(path):
        connection.sendall(b"\n")
        connection.makefile().read()  # until it has ended
    return 0


# ---- Serving


def exit_code_of(arguments):
    """Of a script, run as Python runs it."""
    sys.argv, sys.path[0] = list(arguments), str(pathlib.Path(arguments[0]).parent)
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def be_a_copy(request, descriptors):
    os.setsid()
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    code = exit_code_of(request["arguments"])
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Server:
    def __init__(self, path):
        self.path, self.copies, self.last_asked = path, {}, time.monotonic()  # connection -> process
        self.listener = socket.socket(socket.AF_UNIX)
        pathlib.Path(path).unlink(missing_ok=True)
        self.listener.bind(path)
        self.identity = os.stat(path).st_ino
        self.listener.listen()
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)

    def serve(self):
        """Until somebody wants it to stop, or nobody wants anything."""
        while self.copies or (self.has_socket() and time.monotonic() - self.last_asked < IDLE_SECONDS):
            for key, _ in self.selector.select(POLL_SECONDS if self.copies else IDLE_POLL_SECONDS):
                if key.fileobj is not self.listener:
                    self.forget(key.fileobj, kill=True)  # it says nothing after its request: it has ended
                elif not self.accept():
                    return
            self.reap()

    def accept(self):
        """False: to stop."""
        connection, _ = self.listener.accept()
        data, descriptors, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, 3)
        while not data.endswith(b"\n"):
            more = connection.recv(LONGEST_REQUEST)
            if not more:  # it was killed as it asked
                for descriptor in descriptors:
                    os.close(descriptor)
                connection.close()
                return True
            data += more
        if data == b"\n":
            self.stopped = connection  # closed as this process ends
            return False
        connection.sendall(ACCEPTED)
        process = os.fork()
        if process == 0:
            self.listener.close()
            for other in (connection, *self.copies):
                other.close()
            try:
                be_a_copy(json.loads(data), descriptors)
            finally:
                os._exit(1)
        for descriptor in descriptors:
            os.close(descriptor)
        self.copies[connection] = process
        self.selector.register(connection, selectors.EVENT_READ)
        return True

    def reap(self):
        for connection, process in list(self.copies.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                self.last_asked = time.monotonic()
                code = os.waitstatus_to_exitcode(status)
                with contextlib.suppress(OSError):  # who asked has ended
                    connection.sendall(f"{code if code >= 0 else 128 - code}\n".encode())
                self.forget(connection, kill=False)

    def forget(self, connection, kill):
        process = self.copies.pop(connection)
        if kill:
            for end in (os.kill, os.killpg):  # it may not have its group yet
                with contextlib.suppress(ProcessLookupError):
                    end(process, signal.SIGKILL)
            os.waitpid(process, 0)
        self.selector.unregister(connection)
        connection.close()

    def has_socket(self):
        """Not if another server has begun since in the same place."""
        with contextlib.suppress(OSError):
            return os.stat(self.path).st_ino == self.identity
        return False

    def close(self):
        for connection in list(self.copies):
            self.forget(connection, kill=True)
        if self.has_socket():
            os.unlink(self.path)


def start(path):
    readable, writable = os.pipe()
    if os.fork():
        os.close(writable)
        listens = os.read(readable, 1)
        return 0 if listens else f"the reference stack was not imported: see {path}.log"
    os.close(readable)
    os.setsid()
    log = os.open(f"{path}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for target, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(descriptor, target)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    import_reference()
    server = Server(path)
    os.write(writable, b"1")
    os.close(writable)
    try:
        server.serve()
    finally:
        server.close()
    return 0


def main():
    commands = {"start": start, "run": run, "stop": stop}
    if len(sys.argv) < 3 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    return commands[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
