"""Command `trainkit submit`: submit a script to Slurm, as a job that resumes by itself."""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainkit.cli import HELP, Command
from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.plugins.slurm.batch import OWN_OPTIONS, Batch
from trainkit.plugins.slurm.code import Code, code_of
from trainkit.plugins.slurm.jobs import RECORD, call, jobs_folder, user_name
from trainkit.plugins.slurm.settings import KINDS, settings_of

_DEFAULTS = {"signal_before": 120, "max_requeues": 100}

_HELP = {
    "nodes": "number of nodes",
    "gpus": "GPUs of each node: a number, or TYPE:NUMBER",
    "cpus": "CPUs of each node",
    "mem": "memory of each node, such as 16G",
    "time": "time limit, such as 4:00:00, or minutes",
    "partition": "partition (queue)",
    "account": "account that pays",
    "job_name": "name of the job (default: the script's name)",
    "signal_before": "seconds before the time limit at which the program saves and ends (default: 120)",
    "max_requeues": "number of times that the job continues after its time limit (default: 100)",
    "python": "Python of the job (default: this Python)",
}


class Submit(Command):
    """Command `trainkit submit`."""

    help = HELP["submit"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = "trainkit submit [flags] script.py [arguments]"
        parser.allow_abbrev = False
        parser.add_argument("--slurm", action="store_true", help="accepted; Slurm is the only batch system")
        parser.add_argument(
            "--cluster", metavar="NAME", help="settings of this name in clusters.toml or pyproject.toml"
        )
        for name, text in _HELP.items():
            kind = int if KINDS[name] is int else str
            parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=text)
        parser.add_argument("--array", help="run several tasks, such as 0-9 or 0-9%%4")
        parser.add_argument(
            "--workers", metavar="N", help="start N ranks on each node by `trainkit run`; or gpu, cpu"
        )
        parser.add_argument(
            "--option", action="append", default=[], metavar="KEY=VALUE", help="option of sbatch"
        )
        parser.add_argument("--no-copy", action="store_true", help="use the code in its folder, not a copy")
        parser.add_argument(
            "--dry-run", action="store_true", help="print the batch script, and submit nothing"
        )
        parser.add_argument(
            "-m", dest="module", action="store_true", help="the script is the name of a module"
        )
        parser.add_argument("script", help="script, module with -m, sweep file (.yaml), or program")
        parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")

    def run(self, arguments: argparse.Namespace) -> int:
        here = Path.cwd()
        chosen = settings_from(arguments, here)
        script = arguments.script
        stem = script.rpartition(".")[2] if arguments.module else Path(script).stem
        name = str(chosen.get("job_name") or re.sub(r"[^\w.-]", "_", stem))
        stamp = SYSTEM.now()
        folder = jobs_folder() / f"{re.sub(r'[^a-zA-Z0-9.-]', '_', name)}-{int(stamp)}-{secrets.token_hex(4)}"
        if not arguments.module and not (here / script).is_file():
            raise ConfigError(f"{script} is not a file in {here}: name a script, or a module after -m")
        code = code_of(script, here, None if arguments.no_copy else folder / "code")
        batch = batch_of(arguments, chosen, name, folder, code)
        if arguments.dry_run:
            sys.stdout.write(batch.text())
            return 0
        try:
            folder.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise ConfigError(f"the job's folder can't be made: {error}: set TRAINKIT_RESULTS_DIR") from error
        try:
            code.copy(folder / "code")
            path = folder / "script.sh"
            path.write_text(batch.text())
            # Variables such as SBATCH_PARTITION override the options in a script, but not those given here.
            job_id = call("sbatch", "--parsable", *batch.options(), str(path)).split(";")[0]
        except Exception:
            shutil.rmtree(folder)
            raise
        record = {
            "id": job_id,
            "name": name,
            "command": shlex.join(batch.command),
            "time": stamp,
            "user": user_name(),
            "commit": code.commit,
            "is_dirty": code.is_dirty,
            "working_folder": str(here),
        }
        part = folder / f"{RECORD}.part"
        part.write_text(json.dumps(record, indent=1))
        part.replace(folder / RECORD)
        sys.stdout.write(f"job {job_id}: {folder}\n{code.text}\nfollow it: trainkit logs -f {job_id}\n")
        return 0


def settings_from(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the settings of the cluster, overridden by the command line.

    Raises:
        ConfigError: a setting or an option is wrong.
    """
    chosen: dict[str, Any] = {**_DEFAULTS, "python": sys.executable, **settings_of(arguments.cluster, folder)}
    given = {name: getattr(arguments, name) for name in (*_HELP, "array")}
    chosen |= {name: value for name, value in given.items() if value is not None}
    chosen["options"] = {**chosen.get("options", {}), **dict(_option(each) for each in arguments.option)}
    for option in OWN_OPTIONS.keys() & chosen["options"].keys():
        raise ConfigError(f"the option {option} of sbatch belongs to trainkit: use {OWN_OPTIONS[option]}")
    limit = seconds_of(str(chosen["time"])) if chosen.get("time") is not None else None
    if limit is not None and limit <= 2 * chosen["signal_before"]:
        raise ConfigError(
            f"--time {chosen['time']} leaves too little time: the program is asked to end "
            f"{chosen['signal_before']} s before: give a larger --time, or a smaller --signal-before"
        )
    return chosen


def _option(text: str) -> tuple[str, str | None]:
    name, equals, value = text.removeprefix("--").partition("=")
    return name, value if equals else None


def seconds_of(time: str) -> int | None:
    """Return the seconds of a time limit (minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S); None: no limit.

    Raises:
        ConfigError: the text has another form.
    """
    if time.upper() in ("UNLIMITED", "INFINITE", "0"):
        return None
    days, dash, clock = time.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in [*parts, *([days] if dash else [])]) or len(parts) > 3:
        raise ConfigError(f"--time {time}: give minutes, hours as 4:00:00, or days as 2-12:00:00")
    numbers = [int(part) for part in parts]
    if dash or len(numbers) == 3:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    else:
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def batch_of(
    arguments: argparse.Namespace, chosen: Mapping[str, Any], name: str, folder: Path, code: Code
) -> Batch:
    """Return the job that the arguments describe."""
    # -P: import from the copy of the code, not from the working folder.
    python = [str(chosen["python"]), *(["-P"] if code.paths else [])]
    script, module = code.script, arguments.module
    given = [*(["-m"] if module else []), script, *arguments.arguments]
    if script.endswith((".yaml", ".yml")):
        command = [*python, "-m", "trainkit", "tune", *given]
    elif arguments.workers is not None:
        nodes = ["--nnodes", f"{chosen['nodes']}"] if int(chosen.get("nodes") or 1) > 1 else []
        command = [*python, "-m", "trainkit", "run", *nodes, "--workers", arguments.workers, *given]
    elif module:
        command = [*python, *given]
    elif script.endswith(".py"):
        command = [python[0], *given]
    elif not os.access(arguments.script, os.X_OK):
        raise ConfigError(f"{arguments.script} is not executable: chmod +x {shlex.quote(arguments.script)}")
    else:
        command = [os.path.join(".", script) if os.sep not in script else script, *arguments.arguments]
    return Batch(name, folder, Path.cwd(), command, chosen, code.paths)
