"""Runs of the program over the stand-in, and the events that it logs."""

import collections
import json
import os
import pathlib
import re
import subprocess

TIMEOUT_S = 240
# What is done on a device: all of a rank's is on its own.
ON_A_DEVICE = {"launch", "captured_launch", "product", "captured_product", "copy", "captured_copy", "memset", "captured_memset", "malloc",
               "host_malloc", "host_register", "sync", "event_record", "stream_create", "graph_launch", "nccl", "nccl_init"}


def environment(folder):
    """LibTorch's own search path comes before LD_LIBRARY_PATH: the driver, and with it the others, are loaded before LibTorch asks."""
    preloaded = [str(folder / "libcuda.so.1"), os.environ.get("LD_PRELOAD", "")]
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "LD_PRELOAD": ":".join(filter(None, preloaded))}


class Run:
    """What a run printed, and what it did on its devices."""

    def __init__(self, code, output, log):
        self.code, self.output, self._log = code, output, log

    def events(self, rank):
        path = pathlib.Path(f"{self._log}.{rank}")
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Session:
    def __init__(self, sftrun, stand_in, folder):
        self.sftrun, self.stand_in, self.folder = sftrun, stand_in, folder

    def run(self, name, command, devices, **settings):
        """Every run has a log and a cache of its own: none sees what another one kept."""
        place = self.folder / "logs" / re.sub(r"\W+", "-", name)
        place.mkdir(parents=True)
        env = {**environment(self.stand_in), "SFTRUN_STANDIN_DEVICES": str(devices), "SFTRUN_STANDIN_LOG": str(place / "events"),
               "XDG_CACHE_HOME": str(place / "cache"), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **settings}
        try:
            done = subprocess.run([self.sftrun, *map(str, command)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  errors="replace", timeout=TIMEOUT_S)
            code, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            code, output = -1, f"{(late.stdout or b'').decode(errors='replace')}\nstill running after {TIMEOUT_S} s"
        (place / "output").write_text(output)
        return Run(code, output, place / "events")


def processes(events):
    """Events of each process that wrote a log: a rank's file holds all of them, one after the other."""
    found = []
    for event in events:
        if event["event"] == "start":
            found.append([])
        elif found:
            found[-1].append(event)
    return found


def left_open(events):
    """Registered ranges and communicators, as counted at the end, or of what was logged where a process left without one."""
    count = collections.Counter(event["event"] for event in events)
    if count["end"]:
        end = events[-1]
        return end["registered"], end["communicators"]
    return (count["host_register"] - count["host_unregister"],
            count["nccl_init"] - count["nccl_destroy"] - count["nccl_abort"])


def metrics(run_directory):
    return [json.loads(line) for line in (run_directory / "metrics.jsonl").read_text().splitlines()]
