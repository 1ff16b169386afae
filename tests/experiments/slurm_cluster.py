"""A Slurm cluster of one node on this machine: munged, slurmctld and slurmd, on loopback, in a folder."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
CONFIG = """
ClusterName=osae
SlurmctldHost={host}(127.0.0.1)
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=2000
PartitionName=main Nodes={host} Default=YES MaxTime=60 DefaultTime=30
SlurmctldPort={controller}
SlurmdPort={daemon}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=5
MinJobAge=10
"""


def is_possible() -> bool:
    """Return whether the programs of Slurm and munge are installed, and may be started by this user."""
    os.environ["PATH"] += ":/usr/sbin"
    return os.geteuid() == 0 and all(map(shutil.which, PROGRAMS))


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[Path]:
    """Yield the configuration of a cluster that runs until the end of the block."""
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(parents=True, mode=0o755)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    config = folder / "slurm.conf"
    controller, daemon = _free_port(), _free_port()
    config.write_text(
        CONFIG.format(host=socket.gethostname(), folder=folder, controller=controller, daemon=daemon)
    )
    munge = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    words = [f"--{option}={folder}/munge/{name}" for option, name in munge.items()]
    with ExitStack() as running:
        start = lambda *command: running.enter_context(_running(folder, config, *command))  # noqa: E731
        start("munged", "--foreground", "--force", *words)
        start("slurmctld", "-D", "-i")
        start("slurmd", "-D")
        _wait_until_idle(config)
        yield config


@contextmanager
def _running(folder: Path, config: Path, *command: str) -> Iterator[None]:
    with open(folder / f"{command[0]}.out", "wb") as out:
        environment = os.environ | {"SLURM_CONF": str(config)}
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait_until_idle(config: Path, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        asked = subprocess.run(
            ["sinfo", "--noheader", "--format=%T"],
            env=os.environ | {"SLURM_CONF": str(config)},
            capture_output=True,
            text=True,
        )
        if asked.stdout.strip() == "idle":
            return
        time.sleep(0.5)
    raise TimeoutError(f"the node of {config} does not become idle")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
