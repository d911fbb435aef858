"""Free TCP ports of this machine, for programs that a test starts. Standard library only.

They are below the range from which systems take ports of outgoing connections, as those that sftrun chooses (src/launch/launch_plan.cpp):
between the probe and the program's start, a connection could get a port of that range.
"""

import contextlib
import random
import socket

FIRST, COUNT, TRIES = 15000, 15000, 64


def free_ports(count):
    """So many that are free together."""
    with contextlib.ExitStack() as stack:
        ports = []
        for port in random.SystemRandom().sample(range(FIRST, FIRST + COUNT), TRIES + count):
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # taken
                probe.bind(("127.0.0.1", port))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise OSError(f"fewer than {count} free TCP ports among {TRIES + count}")


def free_port():
    return free_ports(1)[0]
