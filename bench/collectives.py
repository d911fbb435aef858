#!/usr/bin/env python3
"""Times all-reduce and all-gather of torch's Gloo on this machine, for the model of docs/scaling.md.

    .venv-ref/bin/python bench/collectives.py > bench/collectives.json

The shortest of many repetitions of each size: other work on the machine only makes them longer. Then run `scripts/scaling.py --write`.
"""

import json
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

SIZES = [2**power for power in range(12, 25, 2)]  # bytes of the whole tensor
REPETITIONS, SECONDS = 400, 1.5  # at most


def shortest(collective):
    """@return seconds. Every process repeats equally often: the first one decides."""
    best, begin = float("inf"), time.perf_counter()
    for _ in range(REPETITIONS):
        dist.barrier()
        start = time.perf_counter()
        collective()
        best = min(best, time.perf_counter() - start)
        done = torch.tensor([time.perf_counter() - begin > SECONDS], dtype=torch.int32)
        dist.broadcast(done, 0)
        if done.item():
            break
    return best


def measure(rank, processes, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=processes)
    rows = []
    for size in SIZES:
        whole = torch.zeros(size // 4)
        part = whole[: whole.numel() // processes].clone()
        for name, collective in {"all-reduce": lambda: dist.all_reduce(whole), "all-gather": lambda: dist.all_gather_into_tensor(whole, part)}.items():
            rows.append({"collective": name, "processes": processes, "bytes": size, "seconds": round(shortest(collective), 7)})
    if rank == 0:
        with open(f"{folder}/rows.json", "w") as out:
            json.dump(rows, out)
    dist.destroy_process_group()


def main():
    rows = []
    for processes in (2, 4):
        with tempfile.TemporaryDirectory() as folder:
            start_processes(measure, args=(processes, folder), nprocs=processes, start_method="fork")
            with open(f"{folder}/rows.json") as file:
                rows += json.load(file)
    machine = {"cores": os.cpu_count(), "torch": torch.__version__, "load": round(os.getloadavg()[0], 1), "date": time.strftime("%Y-%m-%d")}
    print(json.dumps({"machine": machine, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
