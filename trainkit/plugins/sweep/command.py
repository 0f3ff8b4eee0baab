"""Command `trainkit tune`: run the search that a sweep file describes, or resume it."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainkit import settings, tune
from trainkit.cli import HELP, Command
from trainkit.errors import ConfigError, StoreError
from trainkit.plugins.sweep.file import LIMITS, Sweep, read_sweep
from trainkit.plugins.sweep.program import run_program
from trainkit.tune.core.setting_names import SettingNames, named_as
from trainkit.tune.space.search_space import Space
from trainkit.tune.store.ownership import Ownership, make_private

_RECORD = "sweep.json"
"""File in the experiment's folder with the content of the sweep file."""

_LOCK = "sweep.lock"

_NAMES = SettingNames(other="{}", resume="give the same command again to resume")


class Tune(Command):
    """Command `trainkit tune`."""

    help = HELP["tune"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="sweep file (YAML)")
        parser.add_argument(
            "--name", help="name of the experiment (default: name in the file, or the file's)"
        )
        parser.add_argument(
            "--storage-path", type=Path, metavar="DIR", help="folder for experiments (default: as for Tuner)"
        )
        parser.add_argument(
            "--resume", choices=("auto", "never", "must"), default="auto",
            help="whether to resume an experiment of this name (default: auto, if there is an experiment)",
        )  # fmt: skip
        parser.add_argument("--rerun-failed", action="store_true", help="run the failed trials again")
        parser.add_argument(
            "--dry-run", action="store_true", help="print three commands from the space, and run nothing"
        )
        parser.add_argument("--verbose", type=int, choices=range(4), default=1, help="as for RunConfig")

    def run(self, arguments: argparse.Namespace) -> int:
        sweep = read_sweep(arguments.file)
        if arguments.name:
            sweep = replace(sweep, name=arguments.name)
        if arguments.dry_run:
            sys.stdout.writelines(f"{line}\n" for line in first_commands(sweep))
            return 0
        storage = (arguments.storage_path or settings.results_dir()).expanduser().absolute()
        folder = storage / sweep.name
        _check_folder(folder, storage, arguments.resume)
        with named_as(_NAMES), contextlib.closing(_ownership(folder)):
            tuner = tuner_of(sweep, storage, arguments.verbose, restart_errored=arguments.rerun_failed)
            return _report(sweep, tuner.fit(), folder)


def first_commands(sweep: Sweep, number: int = 3) -> list[str]:
    """Return commands with random values from the space."""
    import numpy as np

    space, rng = Space.of(sweep.space), np.random.default_rng(sweep.tune_config.seed or 0)
    own = {"trial_dir": "TRIAL_DIR", "trial_id": "TRIAL_ID"}
    configs = [space.walk(lambda name, domain: domain.draw(rng), rng) for _ in range(number)]
    return [shlex.join(sweep.program.command(config, own)) for config in configs]


def _check_folder(folder: Path, storage: Path, resume: str) -> None:
    """Raise an error if the folder is not in the storage, or if `resume` rules it out."""
    if folder.parent != storage or folder.name == "..":
        raise ConfigError(f"--name is the name of a folder in {storage}, not a path: {folder}")
    exists = tune.Tuner.can_restore(folder)
    if exists and resume == "never":
        raise ConfigError(f"{folder} contains an experiment already: choose another --name")
    if not exists and resume == "must":
        raise ConfigError(f"{folder} contains no experiment to resume: see `trainkit ls {storage}`")


def _ownership(folder: Path) -> Ownership:
    """Return a lock on the folder, so that no second program begins or resumes the experiment.

    Raises:
        ConfigError: another program has the lock.
    """
    make_private(folder)
    try:
        return Ownership(folder, _LOCK)
    except StoreError as error:
        raise ConfigError(
            f"{error}. To search together with it, give another --name, and a `storage` to search_alg"
        ) from None


def tuner_of(sweep: Sweep, storage: Path, verbose: int, *, restart_errored: bool = False) -> tune.Tuner:
    """Return a new Tuner, or a restored Tuner if the folder contains the sweep's experiment.

    Args:
        sweep: the sweep.
        storage: folder for experiments.
        verbose: amount of output, as for RunConfig.
        restart_errored: True: failed trials run again.

    Raises:
        ConfigError: the experiment was begun with other settings.
    """
    folder = storage / sweep.name
    trainable = tune.with_parameters(run_program, program=sweep.program)
    if sweep.resources:
        trainable = tune.with_resources(trainable, dict(sweep.resources))
    run_config = tune.RunConfig(
        name=sweep.name,
        storage_path=str(storage),
        stop=sweep.stop,
        failure_config=tune.FailureConfig(max_failures=sweep.max_failures),
        chdir_to_trial_dir=False,
        verbose=verbose,
    )
    if not tune.Tuner.can_restore(folder):
        (folder / _RECORD).write_text(json.dumps(sweep.content, indent=1, default=str))
        return tune.Tuner(
            trainable, param_space=sweep.space, tune_config=sweep.tune_config, run_config=run_config
        )
    _check_record(folder, sweep.content)
    given = (*LIMITS, "search_alg")  # a searcher with a storage isn't in the experiment's file
    return tune.Tuner.restore(
        folder,
        trainable,
        restart_errored=restart_errored,
        tune_config=tune.TuneConfig(**{name: getattr(sweep.tune_config, name) for name in given}),
        run_config=tune.RunConfig(verbose=verbose),
    )


def _check_record(folder: Path, content: Mapping[str, Any]) -> None:
    """Raise an error if the experiment was made from another content than now.

    Raises:
        ConfigError: as described; the message names the first key that differs.
    """
    path = folder / _RECORD
    if not path.exists():
        raise ConfigError(f"{folder} contains an experiment without a sweep file: choose another --name")
    before, now = json.loads(path.read_text()), json.loads(json.dumps(content, default=str))
    for key in sorted({*before, *now}):
        if before.get(key) != now.get(key):
            raise ConfigError(
                f"{folder} was begun with {key}: {before.get(key)!r}, and the file now has {now.get(key)!r}: "
                "change it back to resume the experiment, or choose another --name"
            )


def _report(sweep: Sweep, results: tune.ResultGrid, folder: Path) -> int:
    """Print the best trial.

    Returns:
        0; or 1 if no trial has a result; or 130 if the search was interrupted.
    """
    unfinished = f", {results.num_unfinished} unfinished" if results.num_unfinished else ""
    sys.stdout.write(f"{len(results)} trials, {results.num_errors} failed{unfinished}: {folder}\n")
    if results.num_errors:
        sys.stdout.write("--rerun-failed runs the failed trials again\n")
    metric, code = sweep.program.metric, 130 if results.num_unfinished else 0
    if not any(_is_number((each.metrics or {}).get(metric)) for each in results if not each.error):
        sys.stdout.write(f"no trial has reported a finite number as {metric}: see `trainkit show {folder}`\n")
        return code or 1
    best = results.get_best_result()
    own = {"trial_dir": str(best.path), "trial_id": Path(best.path).name}
    words = shlex.join(sweep.program.command(best.config, own))
    sys.stdout.write(f"best {metric}: {best.metrics[metric]}\n{words}\n")
    return code


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
