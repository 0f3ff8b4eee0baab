"""Machines that a program may use: the nodes of a Slurm job, or hosts that are reached by SSH.

Machines.allocated()                             # the nodes of this Slurm job; None outside of a job
Machines.named("ssh://kim@gpu1:2222,gpu2")       # hosts for SSH
Machines.named("hosts.txt")                      # hosts for SSH, with one host in each line
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, overload

from trainkit.errors import ConfigError

SCHEME = "ssh://"


@dataclass(frozen=True)
class Machine:
    """Machine on which commands can be started.

    Attributes:
        name: name of the host, as Slurm or SSH's settings know it.
        by: "slurm": commands start by `srun`; "ssh": by `ssh`; "here": directly, because it is this machine.
        user: user name for SSH; "": the name in SSH's settings.
        port: port of SSH's server; None: the port in SSH's settings.
        cpus: number of CPUs that the job has on this machine; None if unknown.
        gpus: number of GPUs that the job has on this machine; None if unknown.
    """

    name: str
    by: Literal["slurm", "ssh", "here"] = "ssh"
    user: str = ""
    port: int | None = None
    cpus: int | None = None
    gpus: int | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Machines(Sequence[Machine]):
    """Machines that a program may use together, in a fixed order.

    Attributes:
        each: the machines.
        job: id of the Slurm job; "" for hosts that are reached by SSH.
    """

    each: tuple[Machine, ...]
    job: str = ""

    @overload
    def __getitem__(self, index: int) -> Machine: ...

    @overload
    def __getitem__(self, index: slice) -> Machines: ...

    def __getitem__(self, index: int | slice) -> Machine | Machines:
        return Machines(self.each[index], self.job) if isinstance(index, slice) else self.each[index]

    def __len__(self) -> int:
        return len(self.each)

    def __iter__(self) -> Iterator[Machine]:
        return iter(self.each)

    @classmethod
    def allocated(cls, variables: Mapping[str, str] = os.environ) -> Machines | None:
        """Return the nodes of the Slurm job in which this program runs; None outside of a job.

        Args:
            variables: environment variables of the program. Slurm tells the number of GPUs only for the node
                on which the program runs, so all nodes get this number.

        Raises:
            ConfigError: Slurm's list of nodes can't be read.
        """
        nodes = variables.get("SLURM_JOB_NODELIST") or variables.get("SLURM_NODELIST")
        job = variables.get("SLURM_JOB_ID") or variables.get("SLURM_JOBID")
        if not nodes or not job:
            return None
        names = _expanded(nodes)
        cpus = cpus_of(variables.get("SLURM_JOB_CPUS_PER_NODE", ""))
        gpus = variables.get("SLURM_GPUS_ON_NODE", "")
        known = len(cpus) == len(names)
        each = (
            Machine(
                name,
                "slurm",
                cpus=cpus[index] if known else None,
                gpus=int(gpus) if gpus.isdecimal() else None,
            )
            for index, name in enumerate(names)
        )
        return cls(tuple(each), job)

    @classmethod
    def named(cls, text: str) -> Machines:
        """Return the machines that a user names for SSH.

        Args:
            text: hosts, separated by commas, each as "[user@]host[:port]", with or without "ssh://" before
                the first host; or the path of a file with one host in each line. In a file, "#" begins a
                comment, and "slots=4" after a host means 4 CPUs, as for MPI.

        Raises:
            ConfigError: `text` names no host, or a host twice.
        """
        if not text.startswith(SCHEME) and os.path.isfile(text):
            with open(text, encoding="utf-8") as file:
                lines = [line.partition("#")[0].split() for line in file]
            machines = [_host(words[0], words[1:]) for words in lines if words]
        else:
            machines = [_host(part.strip()) for part in text.removeprefix(SCHEME).split(",") if part.strip()]
        if not machines:
            raise ConfigError(f"{text!r} names no host: write hosts as host1,host2 or ssh://host1,host2")
        if len({(machine.name, machine.port) for machine in machines}) < len(machines):
            raise ConfigError(f"{text!r} names a host twice: name each host once")
        return cls(tuple(machines))


def _host(text: str, words: Sequence[str] = ()) -> Machine:
    found = re.fullmatch(
        r"(?:(?P<user>[^@\s:/-][^@\s:/]*)@)?"
        r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<name>[^@\s:/\[\]-][^@\s:/\[\]]*))(?::(?P<port>\d{1,5}))?/?",
        text,
    )
    slots = [word.partition("=")[2] for word in words if word.startswith("slots=")]
    if found is None or len(slots) != len(words) or not all(map(str.isdecimal, slots)):
        raise ConfigError(f"{' '.join([text, *words])!r} is not a host: write it as [user@]host[:port]")
    port, name = found["port"], found["name"] or found["six"]
    return Machine(
        name, "ssh", found["user"] or "", int(port) if port else None, int(slots[0]) if slots else None
    )


def _expanded(nodes: str) -> list[str]:
    """Return the names in a list of nodes as Slurm writes it, by Slurm's own program where it exists."""
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=False, timeout=60
        )
    except FileNotFoundError:
        return nodes_of(nodes)
    if done.returncode or not done.stdout.split():
        raise ConfigError(f"Slurm's list of nodes {nodes!r} can't be read: {done.stderr.strip()}")
    return done.stdout.split()


def nodes_of(text: str) -> list[str]:
    """Return the names of nodes in Slurm's short form, such as "gpu[01-03,7],login".

    Raises:
        ConfigError: `text` has another form.
    """
    parts = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if ",".join(parts) != text:
        raise ConfigError(f"{text!r} is not a list of nodes: give names such as gpu[01-03],login")
    return [name for part in parts for name in _of_part(part)]


def _of_part(part: str) -> list[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inside, _, after = rest.partition("]")
    names = []
    for numbers in inside.split(","):
        first, _, last = numbers.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise ConfigError(f"{part!r} is not a list of nodes: give names such as gpu[01-03],login")
        for number in range(int(first), int(last or first) + 1):
            names += [f"{before}{number:0{len(first)}d}{end}" for end in _of_part(after)]
    return names


def cpus_of(text: str) -> list[int]:
    """Return the numbers of CPUs of each node in Slurm's short form, such as "72(x2),36"."""
    counts: list[int] = []
    for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(number)] * int(times or 1)
    return counts
