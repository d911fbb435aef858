"""A Slurm of two nodes, which are this machine, for tests: munged, slurmctld and a slurmd for each node, started as root in a
folder of their own."""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from free_ports import free_ports

NEEDED = ["munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "sinfo", "squeue"]
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort={controller_port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName=node0 NodeHostname={host} NodeAddr=127.0.0.1 Port={node_ports[0]} CPUs=2 State=UNKNOWN
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node_ports[1]} CPUs=2 State=UNKNOWN
PartitionName=main Nodes=node0,node1 Default=YES MaxTime=INFINITE State=UP
"""
PATIENCE = 30  # s, until the nodes are idle


class Unavailable(Exception):
    """The daemons do not come up on this machine; says nothing of the program under test."""


def why_not():
    """What keeps a cluster from being started here; empty for nothing."""
    missing = [name for name in NEEDED if shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin") is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return "" if os.geteuid() == 0 else "needs root"


@contextlib.contextmanager
def cluster():
    """Yields the environment in which srun and scancel find it."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)  # munged wants its socket to be reachable
        environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": os.environ["PATH"] + ":/usr/sbin"}
        controller_port, *node_ports = free_ports(3)
        (folder / "slurm.conf").write_text(CONFIGURATION.format(
            folder=folder, host=socket.gethostname().split(".")[0], controller_port=controller_port, node_ports=node_ports))
        for part in ("state", "spool-node0", "spool-node1"):
            (folder / part).mkdir()
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        daemons = []
        try:
            files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log",
                     "seed-file": "munge.seed"}
            for command in (["munged", "--foreground", "--force", *(f"--{k}={folder / v}" for k, v in files.items())],
                            ["slurmctld", "-D"], ["slurmd", "-D", "-N", "node0"], ["slurmd", "-D", "-N", "node1"]):
                daemons.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                time.sleep(1)
            wait_until_idle(environment, folder)
            yield environment
        finally:
            for daemon in reversed(daemons):
                daemon.send_signal(signal.SIGTERM)
            for daemon in daemons:
                daemon.wait(timeout=PATIENCE)


def wait_until_idle(environment, folder):
    end = time.monotonic() + PATIENCE
    while True:
        answer = subprocess.run(["sinfo", "--noheader", "--format=%T"], env=environment, capture_output=True, text=True)
        if answer.stdout.split() == ["idle"]:  # all nodes in one line
            return
        logs = "".join(path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("*.log")))
        if time.monotonic() > end:
            raise Unavailable(f"no node became idle: {answer.stdout}{answer.stderr}\n{logs}")
        time.sleep(0.2)
