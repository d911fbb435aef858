#!/usr/bin/env python3
"""The program as the worker of launchers that are not its own: torchrun and Accelerate, mpirun, Slurm.

    tests/smoke/external_launchers.py --sftrun build/bin/sftrun --launcher torchrun [--quick]   # with a Python that has torch and accelerate

A run started by each, on two processes, must compute what the program's own launcher computes, bit for bit; so must two
launchers with a process each, as on two machines. A worker of torchrun's that is killed must end the whole run; Slurm's
SIGUSR1 must leave a checkpoint from which the job continues. `accelerate launch --cpu` starts one process of several, which
the program must say. Exit code 77: the launcher is not installed.

With --quick, under torchrun: no command that a script of scripts/launch has, too, accelerate.sh on one node, and of
pytorchjob.yaml only that its command is sftrun alone.
"""

import argparse
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import bad_input
import broken_runs
import random_kills
import slurm_cluster
from free_ports import free_port

# Warned of by the front and by the engine, each once however many ranks meet it.
IDLE = {"model.revision=main": "model.revision has no effect", "tuning.double_quant=false": "tuning.double_quant changes nothing"}
OPTIONS = [*IDLE, "train.max_steps=6", "train.epochs=50", "train.global_batch_size=4", "train.learning_rate=2.0e-3"]
TRAIN = ["train", "--config", "run.yaml", "--device", "cpu"]
PATIENCE = 120  # s
STOPPED = 75
SKIPPED = 77
SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts/launch"


def own(folder):
    return [folder / "sftrun", *TRAIN, "--nproc-per-node", "2"]


def torchrun(folder):
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python",
            folder / "sftrun", *TRAIN]


def torchrun_on_two_machines(folder):
    return on_two_machines([sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", "$node", "--nproc-per-node", "1",
                            "--master-addr", "127.0.0.1", "--master-port", "$MASTER_PORT", "--no-python", folder / "sftrun", *TRAIN])


def own_on_two_machines(folder):
    return on_two_machines([folder / "sftrun", *TRAIN, "--nnodes", "2", "--node-rank", "$node", "--master-addr", "127.0.0.1", "--master-port",
                            "$MASTER_PORT"])


def on_two_machines(command):
    """Here it is one machine, on which a shell starts both."""
    words = " ".join(f'"{word}"' for word in command)
    return ["sh", "-c", f'node=1; {words} "$@" & other=$!; node=0; {words} "$@" && wait $other', "sh"]


def accelerate(folder, kind="--multi_gpu"):
    """Accelerate's own command for GPUs: it starts processes through torchrun, whether there are GPUs or not."""
    command = [pathlib.Path(sys.executable).with_name("accelerate"), "launch", kind, "--num_processes", "2", "--main_process_port",
               free_port(), "--no_python", folder / "sftrun", *TRAIN]
    return [str(word) for word in command]


def accelerate_on_cpu(folder):
    return [*accelerate(folder, "--cpu"), "--nproc-per-node", "2"]


def accelerate_through_mpi(folder):
    (folder / "hosts").write_text("localhost slots=2\n")
    command = accelerate(folder, "--cpu")
    return ["env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_hwloc_base_binding_policy=none",
            *command[:2], "--mpirun_hostfile", "hosts", *command[2:]]


def mpirun(folder):
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", folder / "sftrun", *TRAIN]


def srun(folder):
    """A task on each of two nodes."""
    return ["srun", "-N2", "-n2", folder / "sftrun", *TRAIN]


def script(name, **variables):
    """A file of scripts/launch, as a user starts it; with NODE_RANK=$node on two nodes, which are this machine."""
    def start(folder):
        settings = {"CONFIG": "run.yaml", "SFTRUN": folder / "sftrun", **variables}
        command = ["env", *(f"{key}={value}" for key, value in settings.items()), SCRIPTS / name, "--device", "cpu"]
        return on_two_machines(command) if variables.get("NODE_RANK") == "$node" else [str(word) for word in command]
    start.__name__ = name
    return start


def sbatch(folder):
    """The job of scripts/launch, until it has ended."""
    return ["sbatch", "--wait", "--nodes=2", "--ntasks=2", "--output=output", f"--chdir={folder}",
            f"--export=ALL,CONFIG=run.yaml,SFTRUN={folder}/sftrun", SCRIPTS / "slurm.sbatch", "--device", "cpu"]


def pod_command(name, kind):
    import yaml
    specs = yaml.safe_load((SCRIPTS / name).read_text())["spec"]["pytorchReplicaSpecs"]
    [container] = specs[kind]["template"]["spec"]["containers"]
    return container["command"]


def pods(name):
    """The pods of a PyTorchJob of two replicas, as the operator starts them: the master as `localhost`."""
    def start(folder):
        commands = []
        for rank, kind in enumerate(("Worker", "Master")):  # the last one's exit code counts
            words = [word.replace("/run/run.yaml", "run.yaml").replace("sftrun train", f"{folder}/sftrun train --device cpu --nproc-per-node 1")
                     for word in pod_command(name, kind)]
            if words[0] == "sftrun":
                words = [str(folder / "sftrun"), *words[1:], "--device", "cpu"]
            if words[0] == "sh":  # what follows -c takes the test's settings, too
                words = [*words[:-1], words[-1] + ' "$@"', "sh"]
            place = [f"RANK={1 - rank}", "WORLD_SIZE=2", f"MASTER_ADDR={'127.0.0.1' if kind == 'Worker' else 'localhost'}"]
            commands.append(" ".join(shlex.quote(word) for word in ["env", *place, *words]) + ' "$@"')
        return ["sh", "-c", f"{commands[0]} & other=$!; {commands[1]} && wait $other", "sh"]
    start.__name__ = name
    return start


def address():
    """Where the ranks meet, for launchers that do not say."""
    port = free_port()
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def environment(folder, launcher, more):
    # accelerate is beside this Python.
    path = {"PATH": f"{folder}/bin:{pathlib.Path(sys.executable).parent}:{more.get('PATH', os.environ['PATH'])}"}
    place = address()
    if launcher is srun or launcher is sbatch:  # the nodes' names are of this test alone; Slurm gives the port
        place.pop("MASTER_PORT")
    return bad_input.environment(folder) | more | path | place


class Folder:
    """A good run's folder, and a process that runs there."""

    def __init__(self, program):
        self.directory = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.directory.name).resolve()
        bad_input.good_folder(self.path, program)
        (self.path / "bin").mkdir()
        torchrun_command = self.path / "bin/torchrun"  # which may be in another virtual environment than this Python
        torchrun_command.write_text(f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
        torchrun_command.chmod(0o755)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.directory.cleanup()

    def start(self, launcher, variables, *more):
        with (self.path / "output").open("w") as output:
            return subprocess.Popen([*launcher(self.path), *more], cwd=self.path, stdout=output, stderr=output,
                                    env=environment(self.path, launcher, variables))

    def output(self):
        return (self.path / "output").read_text()

    def wait_for_steps(self, process, count):
        end = time.monotonic() + PATIENCE
        while random_kills.steps_done(self.path) < count:
            assert process.poll() is None and time.monotonic() < end, self.output()
            time.sleep(0.05)


OWN_SCRIPT = script("sftrun.sh", NNODES="2", NODE_RANK="$node")
OWN_PODS = pods("pytorchjob-launcher.yaml")
OWN_ON_TWO_MACHINES = (own_on_two_machines, OWN_SCRIPT, OWN_PODS)


def trained(launcher, program, variables):
    """What the run computed, and its adapter's bytes."""
    with Folder(program) as folder:
        code = folder.start(launcher, variables, *OPTIONS).wait(timeout=PATIENCE)
        assert code == 0, f"{launcher.__name__}: exit code {code}\n{folder.output()}"
        consoles = 2 if launcher in OWN_ON_TWO_MACHINES else 1  # each machine's launcher has its own
        for warning in IDLE.values():
            assert 1 <= folder.output().count(warning) <= consoles, f"{launcher.__name__}: not once: {warning}\n{folder.output()}"
        return random_kills.computed(folder.path), (folder.path / "run/adapter/adapter_model.safetensors").read_bytes()


def accelerate_on_cpu_is_refused(program):
    """Where nothing says how many processes the program is to start."""
    with Folder(program) as folder:
        code = folder.start(lambda path: accelerate(path, "--cpu"), {}, *OPTIONS).wait(timeout=PATIENCE)
        assert code != 0 and "Accelerate has started only this one" in folder.output(), folder.output()
        assert not (folder.path / "run").exists(), "a run is begun"


def a_stopped_rank_and_a_killed_one(launcher, program):
    """The ranks themselves find out that one is stopped, and the run continues with it; when one is killed the whole run ends."""
    with Folder(program) as folder:
        process = folder.start(launcher, {}, *broken_runs.LONG, "parallel.stall_after=2s")
        folder.wait_for_steps(process, 2)
        [victim] = [pid for pid, rank in broken_runs.processes_in(folder.path).items() if rank == "1"]
        os.kill(victim, signal.SIGSTOP)
        try:
            end = time.monotonic() + PATIENCE
            while not re.search(r"no progress for .*: rank 1 sends no heartbeat .*; rank 0 waits in ", folder.output()):
                assert process.poll() is None and time.monotonic() < end, folder.output()
                time.sleep(0.1)
        finally:
            os.kill(victim, signal.SIGCONT)
        print(f"{launcher.__name__}: a stopped rank is named", flush=True)
        done = random_kills.steps_done(folder.path)
        folder.wait_for_steps(process, done + 2)
        os.kill(victim, signal.SIGKILL)
        assert process.wait(timeout=PATIENCE) != 0, "the launcher reports success"
        frames = [line for line in folder.output().splitlines() if "frame #" in line]
        assert not frames, f"C++ frames reach the console: {folder.output()}"
        left = broken_runs.processes_in(folder.path)
        assert not left, f"left behind: {left}"
        print(f"{launcher.__name__}: ends when a worker is killed", flush=True)


def stops_and_goes_on(program, variables):
    """As Slurm announces the end of a job's time (--signal=USR1)."""
    with Folder(program) as folder:
        process = folder.start(srun, variables, *broken_runs.LONG)
        folder.wait_for_steps(process, 2)
        subprocess.run(["scancel", "--signal=USR1", "--user=root"], env=variables, check=True)
        code = process.wait(timeout=PATIENCE)
        assert code == STOPPED, f"exit code {code}\n{folder.output()}"
        [name] = broken_runs.checkpoints(folder.path)
        done = random_kills.steps_done(folder.path)
        process = folder.start(srun, variables, *broken_runs.LONG)
        folder.wait_for_steps(process, done + 1)
        subprocess.run(["scancel", "--signal=TERM", "--user=root"], env=variables, check=True)
        process.wait(timeout=PATIENCE)
        assert f"resuming from run/checkpoints/{name}" in folder.output(), folder.output()


class NotInstalled(Exception):
    """The launcher cannot be used on this machine."""


def check_torchrun(check, program, is_quick):
    check(torchrun, {})
    check(accelerate_on_cpu, {})
    check(OWN_SCRIPT, {})
    check(script("torchrun.sh", NNODES="2", NODE_RANK="$node", NPROC="1"), {})
    check(script("accelerate.sh", WORLD="2", **({} if is_quick else {"NNODES": "2", "NODE_RANK": "$node"})), {})
    check(OWN_PODS, {})
    if is_quick:
        for kind in ("Master", "Worker"):
            command = pod_command("pytorchjob.yaml", kind)
            assert command == ["sftrun", "train", "--config", "/run/run.yaml"], command
    else:
        for launcher in (own_on_two_machines, torchrun_on_two_machines, accelerate, pods("pytorchjob.yaml")):
            check(launcher, {})
    accelerate_on_cpu_is_refused(program)
    print("accelerate --cpu: refused where one process of several is started", flush=True)
    a_stopped_rank_and_a_killed_one(torchrun, program)


def check_mpirun(check, program, _):
    if not shutil.which("mpirun"):
        raise NotInstalled("mpirun is not installed")
    if subprocess.run([*mpirun(pathlib.Path())[:-len(TRAIN) - 1], "true"], capture_output=True).returncode != 0:
        raise NotInstalled("mpirun starts nothing on this machine")
    check(mpirun, {})
    check(accelerate_through_mpi, {})
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    check(script("mpirun.sh", NPROC="2"), as_root)


def check_slurm(check, program, _):
    if obstacle := slurm_cluster.why_not():
        raise NotInstalled(f"Slurm: {obstacle}")
    try:
        with slurm_cluster.cluster() as variables:
            check(srun, variables)
            check(sbatch, variables)
            stops_and_goes_on(program, variables)
        print("srun: SIGUSR1 leaves a checkpoint, and the job resumes from it")
    except slurm_cluster.Unavailable as obstacle:
        raise NotInstalled(f"Slurm: {obstacle}") from None


CHECKS = {"torchrun": check_torchrun, "mpirun": check_mpirun, "slurm": check_slurm}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--launcher", choices=CHECKS, required=True)
    parser.add_argument("--quick", action="store_true", help="for torchrun only the launches that nothing else covers")
    arguments = parser.parse_args()
    program = arguments.sftrun.resolve()
    expected = trained(own, program, {})
    assert len(expected[0]) == 6, expected[0]

    def check(launcher, variables):
        assert trained(launcher, program, variables) == expected, f"{launcher.__name__} computes something else"
        print(f"{launcher.__name__}: the same run, bit for bit", flush=True)

    try:
        CHECKS[arguments.launcher](check, program, arguments.quick)
    except NotInstalled as reason:
        print(f"SKIPPED: {reason}")
        return SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
