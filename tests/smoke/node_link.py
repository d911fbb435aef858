"""Two network namespaces as two machines, with a link whose latency and loss can be set. Standard library only; needs root,
iproute2 and /dev/net/tun.

    tests/smoke/node_link.py FD DELAY_MS LOSS    # one end of a link, in its namespace: `Link` starts it

The link is a TUN device in each namespace, whose packets a process passes on to the other's, later, and not all of them: the
kernel's netem does the same, but is often not there.
"""

import collections
import contextlib
import fcntl
import itertools
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MAX_BYTES = 65536
DEVICE = "tun0"


class Unavailable(Exception):
    """What this machine lacks."""


def why_not():
    """Why there can be no namespaces; None: there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip"):
        return "no `ip` (package iproute2)"
    if not os.path.exists("/dev/net/tun"):
        return "no /dev/net/tun"
    return None


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise Unavailable(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Link:
    """Two namespaces, at 10.77.0.1 and 10.77.0.2, which only this link connects."""

    addresses = ("10.77.0.1", "10.77.0.2")
    numbers = itertools.count()  # of the links of this process, some of which are there at the same time

    def __init__(self, delay_ms=0.0, loss=0.0):
        number = next(self.numbers)
        self.names = [f"sftrun-{os.getpid()}-{number}-{node}" for node in (0, 1)]
        self.relays = []
        self.settings = [str(delay_ms), str(loss)]

    def __enter__(self):
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def open(self):
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for name, own, other, end in zip(self.names, self.addresses, reversed(self.addresses), ends):
            ip("netns", "add", name)
            ip("-n", name, "tuntap", "add", "dev", DEVICE, "mode", "tun")
            ip("-n", name, "addr", "add", own, "peer", other, "dev", DEVICE)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", DEVICE, "up")
            command = ["ip", "netns", "exec", name, sys.executable, __file__, str(end.fileno()), *self.settings]
            self.relays.append(subprocess.Popen(command, pass_fds=[end.fileno()]))
        for end in ends:
            end.close()

    def prefix(self, node):
        """Of a command that runs on this node."""
        return ("ip", "netns", "exec", self.names[node])

    def cut(self):
        """No packet passes any more, and nobody is told."""
        for relay in self.relays:
            relay.send_signal(signal.SIGSTOP)

    def close(self):
        for relay in self.relays:
            relay.kill()
            relay.wait()
        for name in self.names:
            with contextlib.suppress(Unavailable):
                ip("netns", "del", name)


def relay(peer, delay_s, loss):
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    choice, late = random.Random(1), collections.deque()  # (when, packet) that came from the peer
    while True:
        wait = max(0.0, late[0][0] - time.monotonic()) if late else None
        readable, _, _ = select.select([device, peer], [], [], wait)
        if device in readable:
            with contextlib.suppress(OSError):  # the other end is gone
                peer.send(os.read(device, MAX_BYTES))
        if peer in readable:
            packet = peer.recv(MAX_BYTES)
            if not packet:
                return
            if choice.random() >= loss:
                late.append((time.monotonic() + delay_s, packet))
        while late and late[0][0] <= time.monotonic():
            with contextlib.suppress(OSError):  # a device that is down
                os.write(device, late.popleft()[1])


if __name__ == "__main__":
    relay(socket.socket(fileno=int(sys.argv[1])), float(sys.argv[2]) / 1e3, float(sys.argv[3]))
