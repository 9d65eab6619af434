"""A real Slurm of one node, without systemd and without touching the system's own: all of it lives in one folder.

munged, slurmctld and slurmd are started as root from Debian's packages, stopped by process id, and know the node twice:
a GPU is a generic resource backed by /dev/null, so that jobs ask for it as they do on a real cluster.
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from filelock import FileLock

# Options of Snakemake here: the node has fewer cores than the profiles ask for.
HERE = ("--set-threads", "measure_case=1")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")


def find(program):
    """Return the path of a program, those of /usr/sbin included."""
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def obstacle():
    """Return why Slurm cannot be started here, or None; as root on Debian its missing packages are installed."""
    if os.geteuid() != 0:
        return "a real Slurm is started by root only: run `make test-cluster` as root, in a container for example"
    with FileLock(Path(tempfile.gettempdir()) / "spectile-tests-slurm.lock"):  # two workers install once
        _install()
    missing = [program for program in PROGRAMS if not find(program)]
    return f"{', '.join(missing)} are not found: install Debian's slurm-wlm and munge" if missing else None


def _install():
    if not all(map(find, PROGRAMS)) and shutil.which("apt-get"):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "slurm-wlm", "munge"]
        if subprocess.run(install, env=environment, **quiet).returncode != 0:
            subprocess.run(["apt-get", "update", "-q"], env=environment, **quiet)
            subprocess.run(install, env=environment, **quiet)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _end_with_parent():
    """Ask Linux to end a daemon when the tests are killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class Slurm:
    """One node with `cpus` processors and `gpus` GPUs of the model h200, in `folder`."""

    def __init__(self, folder, cpus=2, gpus=1):
        self.folder = Path(folder)
        self.node = socket.gethostname().split(".")[0]
        self.cpus, self.gpus = cpus, gpus
        self._daemons = {}

    @property
    def environment(self):
        """Variables with which sbatch and its kin find this Slurm."""
        path = f"{self.folder}/bin:{os.environ.get('PATH', '')}"
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}

    def __enter__(self):
        try:
            self._write_configuration()
            self.start("munged")
            self._wait_for("munge's socket", lambda: (self.folder / "munge/socket").exists())
            self.start("slurmctld")
            self._wait_for("slurmctld", self.answers)
            self.start("slurmd")
            self._wait_for("the node", lambda: self.node_state() == "IDLE")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if "slurmctld" in self._daemons and self.answers():
            self.run("scancel", "--user", "root", check=False)
            self._wait_for("an empty queue", lambda: not self.jobs(), seconds=20, must=False)
        for name in ("slurmd", "slurmctld", "munged"):
            self.stop(name)

    def _write_configuration(self):
        for name in ("munge", "state", "spool", "bin"):
            (self.folder / name).mkdir(mode=0o755, parents=True)
        # Snakemake's plugin takes Slurm's variables from the job step, SLURM_CONF included; srun gets it back here.
        srun = self.folder / "bin/srun"
        srun.write_text(f'#!/bin/sh\nSLURM_CONF={self.folder}/slurm.conf exec {find("srun")} "$@"\n')
        srun.chmod(0o755)
        key = self.folder / "munge/key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20 - 512
        (self.folder / "gres.conf").write_text(
            "".join(f"NodeName={self.node} Name=gpu Type=h200 File=/dev/null\n" for _ in range(min(self.gpus, 1)))
        )
        (self.folder / "slurm.conf").write_text(f"""\
ClusterName=spectile
SlurmctldHost={self.node}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge/socket
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
ReturnToService=2
SwitchType=switch/none
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd.pid
SlurmctldTimeout=120
SlurmdTimeout=120
KillWait=1
AccountingStorageType=accounting_storage/none
GresTypes=gpu
NodeName={self.node} NodeAddr=127.0.0.1 CPUs={self.cpus} RealMemory={memory} Gres=gpu:h200:{self.gpus}
PartitionName=main Nodes={self.node} Default=YES MaxTime=INFINITE State=UP
""")

    def start(self, name):
        """Start one daemon in the foreground, so that its process id is known."""
        munge = self.folder / "munge"
        command = {
            "munged": [
                "--foreground", "--force", "--num-threads=2", f"--socket={munge}/socket", f"--key-file={munge}/key",
                f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed",
            ],
            "slurmctld": ["-D", "-f", self.folder / "slurm.conf", "-L", self.folder / "slurmctld.log"],
            "slurmd": ["-D", "-f", self.folder / "slurm.conf", "-L", self.folder / "slurmd.log", "-N", self.node],
        }[name]  # fmt: skip
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                [find(name), *command],
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=_end_with_parent,
                env=os.environ | self.environment,
            )

    def stop(self, name, how=signal.SIGTERM):
        """Stop one daemon by its process id."""
        daemon = self._daemons.pop(name, None)
        if daemon is None:
            return
        daemon.send_signal(how)
        try:
            daemon.wait(timeout=20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def run(self, program, *words, check=True):
        """Run one of Slurm's programs; return what it prints."""
        command = [find(program), *map(str, words)]
        done = subprocess.run(
            command, env=os.environ | self.environment, capture_output=True, text=True, check=False, timeout=1200
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def answers(self):
        return "UP" in self.run("scontrol", "ping", check=False)

    def node_state(self):
        words = self.run("scontrol", "--oneliner", "show", "node", self.node, check=False).split()
        return next((word.partition("=")[2] for word in words if word.startswith("State=")), "")

    def jobs(self, states="PENDING,RUNNING,COMPLETING"):
        """Return the jobs in the queue as {id: (state, comment)}."""
        text = self.run("squeue", "--noheader", "--states", states, "--format", "%i|%T|%k", check=False)
        return {line.split("|")[0]: tuple(line.split("|")[1:]) for line in text.split("\n") if line}

    def _wait_for(self, what, ready, seconds=1200, must=True):
        until = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > until:
                if must:
                    raise RuntimeError(f"{what} did not come within {seconds} s; the logs are in {self.folder}")
                return
            time.sleep(0.05)
