#!/usr/bin/env python3
"""Runs on two machines, each with the program's own launcher; the machines are two network namespaces.

    tests/smoke/two_nodes.py --sftrun build/bin/sftrun [--case NAME]

Standard library only. The link between them has a latency of 2 ms and loses packets. The result must be that of two
processes on one machine, bit for bit. What differs between the nodes, a master that cannot be reached, a port in use, a
link that is cut, a worker that is killed: each must end, or restart, on both nodes with one clear message. Exit code 77:
no namespaces on this machine. Three cases run at the same time, each with two machines of its own.
"""

import argparse
import concurrent.futures
import functools
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import bad_input
import broken_runs
import node_link
import random_kills
import two_processes

SKIPPED = 77
TOGETHER = 3  # cases: they wait most of the time
ONE_MACHINE = threading.Lock()
PATIENCE = 120  # s
SOON = 45  # s, with room for a busy machine; the messages come within a few
DELAY_MS, LOSS = 2, 0.005
PORT = "29511"
TRAIN = ["train", "--config", "run.yaml", "--device", "cpu"]
SHORT = ["train.max_steps=6", "train.epochs=50", "train.global_batch_size=4", "train.learning_rate=2.0e-3", "train.save_steps=2"]
FORTY = ["train.max_steps=40", "train.epochs=100"]  # behind SHORT: time enough to kill somebody


class Node:
    """The launcher of one node, in the background."""

    def __init__(self, folder, link, node, *more, master=node_link.Link.addresses[0], nproc=1):
        self.errors = folder / f"stderr-{node}"
        command = [folder / "sftrun", *TRAIN, "--nnodes", "2", "--node-rank", str(node), "--master-addr", master, "--master-port",
                   PORT, "--nproc-per-node", str(nproc), *more]
        with self.errors.open("a") as errors:
            self.process = subprocess.Popen([*link.prefix(node), *command], cwd=folder, env=bad_input.environment(folder),
                                            stdout=subprocess.DEVNULL, stderr=errors)

    def text(self):
        return self.errors.read_text()

    def end(self, patience=PATIENCE):
        return self.process.wait(timeout=patience), self.text(), 0


def start(folder, link, *more, of_node=((), ()), **options):
    return [Node(folder, link, node, *more, *of_node[node], **options) for node in (0, 1)]


def wait_for_steps(folder, nodes, count):
    end = time.monotonic() + PATIENCE
    while random_kills.steps_done(folder) < count:
        for node in nodes:
            broken_runs.expect(node.process.poll() is None, "ended early", node.text())
        broken_runs.expect(time.monotonic() < end, "no step", nodes[0].text())
        time.sleep(0.05)


def wait_for_text(node, pattern):
    end = time.monotonic() + PATIENCE
    while not re.search(pattern, node.text()):
        broken_runs.expect(node.process.poll() is None and time.monotonic() < end, f"no /{pattern}/", node.text())
        time.sleep(0.05)


def expect_text(node, pattern):
    broken_runs.expect(re.search(pattern, node.text()), f"no /{pattern}/", node.text())


def result(folder):
    return random_kills.computed(folder), (folder / "run/adapter/adapter_model.safetensors").read_bytes()


@functools.cache
def computed_on_one_machine(program, processes, *more):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        bad_input.good_folder(folder, program)
        broken_runs.expect_success(broken_runs.Run(folder, processes, *SHORT, *more).end())
        return result(folder)


def on_one_machine(program, processes, *more):
    """Once for all cases."""
    with ONE_MACHINE:
        return computed_on_one_machine(program, processes, *more)


# The cases

def expect_same(folder, link, program, processes, *more):
    expected = on_one_machine(program, 2 * processes, *more)
    for node in start(folder, link, *SHORT, *more, nproc=processes):
        broken_runs.expect_success(node.end())
    broken_runs.expect(result(folder) == expected, f"another result with {processes} on each node {more}")


def same_losses(folder, link, program):
    """As two processes of one machine."""
    expect_same(folder, link, program, 1)


def same_losses_of_fsdp(folder, link, program):
    """As four processes of one machine."""
    expect_same(folder, link, program, 2, "parallel.strategy=fsdp")


def link_is_cut(folder, link, _):
    """Each side names the other, and ends after parallel.timeout."""
    nodes = start(folder, link, *broken_runs.LONG, "parallel.timeout=8s")
    wait_for_steps(folder, nodes, 2)
    link.cut()
    for node in nodes:
        broken_runs.expect_error(node.end(), 5, "failed")
    # Of the node without the store; rank 0 sees that rank 1 is silent.
    expect_text(nodes[1], "rank 0 sends no heartbeat")
    expect_text(nodes[0], "rank 1 sends no heartbeat")


def worker_killed(folder, link, program):
    """With --max-restarts both nodes go on from the last checkpoint, to the same result."""
    expected = on_one_machine(program, 2, *FORTY)
    more = [*SHORT, *FORTY, "--max-restarts", "1"]
    nodes = start(folder, link, *more)
    wait_for_steps(folder, nodes, 5)
    [victim] = [pid for pid, rank in broken_runs.processes_in(folder).items() if rank == "1"]
    os.kill(victim, signal.SIGKILL)
    for node in nodes:
        code, text, _ = node.end()
        broken_runs.expect(code == 0, f"exit code {code}", text)
        expect_text(node, "restart 1 of 1, from the last checkpoint")
    expect_text(nodes[0], "resuming from run/checkpoints/step-")
    broken_runs.expect(result(folder) == expected, "another result after the restart")


def node_lost(folder, link, program):
    """A node is gone with its launcher, and started again: the other has restarted and waits for it."""
    expected = on_one_machine(program, 2, *FORTY)
    more = [*SHORT, *FORTY, "--max-restarts", "2"]
    nodes = start(folder, link, *more)
    wait_for_steps(folder, nodes, 5)
    nodes[1].process.send_signal(signal.SIGKILL)
    nodes[1].end()
    wait_for_text(nodes[0], "restart 1 of 2, from the last checkpoint")
    nodes[1] = Node(folder, link, 1, *more)
    for node in nodes:
        broken_runs.expect_success(node.end())
    broken_runs.expect(result(folder) == expected, "another result after the restart")


def stalled_rank(folder, link, _):
    """A rank of the other node is stopped: both nodes say it."""
    nodes = start(folder, link, *broken_runs.LONG, "parallel.stall_after=2s")
    wait_for_steps(folder, nodes, 2)
    [victim] = [pid for pid, rank in broken_runs.processes_in(folder).items() if rank == "1"]
    os.kill(victim, signal.SIGSTOP)
    try:
        end = time.monotonic() + PATIENCE
        patterns = (r"rank 1 sends no heartbeat .*; rank 0 waits in ", r"rank 1 is stopped by a signal \(SIGSTOP\)")
        while not all(re.search(pattern, node.text()) for pattern, node in zip(patterns, nodes)):
            broken_runs.expect(time.monotonic() < end, "the stopped rank is not named", nodes[0].text() + nodes[1].text())
            time.sleep(0.1)
    finally:
        os.kill(victim, signal.SIGCONT)
    done = random_kills.steps_done(folder)
    wait_for_steps(folder, nodes, done + 2)
    for node in nodes:
        node.process.send_signal(signal.SIGTERM)
    for node in nodes:
        code, text, _ = node.end()
        broken_runs.expect(code == 75, f"exit code {code}", text)


def expect_both_refuse(nodes, code, *patterns):
    begin = time.monotonic()
    for node in nodes:
        ended = node.end()
        broken_runs.expect(ended[0] == code, f"exit code {ended[0]}, not {code}", ended[1])
    broken_runs.expect(time.monotonic() - begin < SOON, "the message comes late")
    for node in nodes:
        for pattern in patterns:
            expect_text(node, pattern)


def configurations_differ(folder, link, _):
    """The setting is named."""
    expect_both_refuse(start(folder, link, *SHORT, of_node=((), ("train.learning_rate=1.0e-3",))), 2,
                       r"rank 1 has another run than rank 0: train\.learning_rate is 0\.001, on rank 0 0\.002")


def data_differs(folder, link, _):
    """The data set of one node has other records."""
    two_processes.write_lines(folder / "other.jsonl", [two_processes.record(n) for n in range(7)])
    (folder / "link").mkdir()
    for node, name in enumerate(("train.jsonl", "other.jsonl")):
        (folder / f"node-{node}").mkdir()
        (folder / f"node-{node}/train.jsonl").write_bytes((folder / name).read_bytes())
    bind = 'mount --bind "$0" link && exec "$@"'  # the same path on both nodes
    nodes = []
    for node in (0, 1):
        class Bound:
            @staticmethod
            def prefix(number):
                return (*link.prefix(number), "unshare", "-m", "sh", "-c", bind, str(folder / f"node-{number}"))
        nodes.append(Node(folder, Bound, node, *SHORT, "data.train=link/train.jsonl"))
    expect_both_refuse(nodes, 2, "rank 1 has another run than rank 0: the data set differs from that of rank 0")


def master_is_unreachable(folder, link, _):
    """Nobody has the master's address."""
    node = Node(folder, link, 1, *SHORT, master="10.77.0.9")
    expect_both_refuse([node], 5, r"rank 1 cannot reach rank 0: .*", r"at   10\.77\.0\.9:29511", "--master-addr")


# The longest first.
CASES = [same_losses_of_fsdp, master_is_unreachable, link_is_cut, same_losses, worker_killed, node_lost, stalled_rank, configurations_differ, data_differs]


def run_case(case, program):
    with tempfile.TemporaryDirectory() as name, node_link.Link(DELAY_MS, LOSS) as link:
        folder = pathlib.Path(name).resolve()
        bad_input.good_folder(folder, program)
        try:
            case(folder, link, program)
            left = broken_runs.processes_in(folder)
            broken_runs.expect(not left, f"left behind: {left}")
        except (AssertionError, subprocess.TimeoutExpired) as failure:
            return f"{case.__name__}: {type(failure).__name__}: {failure}"
        finally:
            broken_runs.kill(broken_runs.processes_in(folder))
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--case", help="only this one")
    arguments = parser.parse_args()
    chosen = [case for case in CASES if arguments.case in (None, case.__name__)]
    assert chosen, f"no case {arguments.case}"
    if obstacle := node_link.why_not():
        print(f"SKIPPED: {obstacle}")
        return SKIPPED
    program = arguments.sftrun.resolve()

    def run(case):
        begin = time.monotonic()
        try:
            problem = run_case(case, program)
        except node_link.Unavailable as obstacle:
            obstacles.append(str(obstacle))
            return None
        print(f"{case.__name__}: {'failed' if problem else 'ok'} ({time.monotonic() - begin:.0f} s)", flush=True)
        return problem

    obstacles = []
    with concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool:
        problems = [problem for problem in pool.map(run, chosen) if problem]
    for problem in problems:
        print(problem)
    print(f"{len(chosen)} cases, {len(problems)} problems")
    if obstacles and not problems:
        print(f"SKIPPED: {obstacles[0]}")
        return SKIPPED
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
