"""`trainkit tail`: new reports of an experiment, or new output of a trial."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterator

from trainkit.cli import HELP, Command
from trainkit.cli.experiments import TRIAL, add_experiment, experiment_folder, find_trial, whole_number
from trainkit.clock import SYSTEM, Clock
from trainkit.errors import ConfigError
from trainkit.tune.core.checks import is_number
from trainkit.tune.core.metrics import flatten
from trainkit.tune.core.stoppers import AUTOMATIC
from trainkit.tune.results.overview import LogReader, Report, kept_files
from trainkit.tune.store.ownership import owner_of

_EVERY_S = 0.5


class Tail(Command):
    """`trainkit tail`."""

    help = HELP["tail"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_experiment(parser)
        parser.add_argument("trial", metavar="TRIAL", nargs="?", help=f"only this trial: {TRIAL}")
        parser.add_argument(
            "--lines",
            "-n",
            type=whole_number,
            default=10,
            help="number of earlier lines to print (default: 10)",
        )
        parser.add_argument("--no-follow", action="store_true", help="do not wait for further lines")
        parser.add_argument("--printed", action="store_true", help="show TRIAL's output, kept by log_to_file")

    def run(self, arguments: argparse.Namespace) -> int:
        return tail(
            arguments.experiment,
            arguments.trial,
            lines=arguments.lines,
            follow=not arguments.no_follow,
            printed=arguments.printed,
        )


def tail(
    word: str, trial: str | None, *, lines: int, follow: bool, printed: bool, clock: Clock = SYSTEM
) -> int:
    """Print the last reports of an experiment or trial, and new reports until it ends.

    Args:
        word: path or name of the experiment.
        trial: id, name or number of a trial; None means all trials.
        lines: number of existing reports to print.
        follow: True waits for new reports.
        printed: True prints the output of the trial instead of its reports.
        clock: clock for the waits.

    Raises:
        ConfigError: the experiment or trial does not exist, or the trial's output is not kept.
    """
    folder = experiment_folder(word)
    if printed and trial is None:
        raise ConfigError("--printed needs a trial: type `trainkit tail --printed EXPERIMENT TRIAL`")
    with LogReader(folder) as reader:
        chosen = None if trial is None else find_trial(reader.trials(), trial)
        if printed and chosen is not None:
            new = _printed(reader, chosen.dirname, lines)
        else:
            new = _reported(reader, None if chosen is None else chosen.trial_id, lines)
        try:
            while True:
                # The owner is looked up before the output is read. So output that was written just before the
                # owner's end is still shown.
                running = owner_of(folder) is not None
                sys.stdout.write("".join(f"{line}\n" for line in next(new)))
                sys.stdout.flush()
                if not (running and follow):
                    return 0
                clock.sleep(_EVERY_S)
        except KeyboardInterrupt:  # Ctrl-C is the usual way to end this command
            return 0


def _reported(reader: LogReader, trial_id: str | None, lines: int) -> Iterator[list[str]]:
    last, latest = 0, deque[Report](maxlen=lines)
    for last, report in reader.reports_after(0, trial_id):  # noqa: B007 - the last one's is used
        latest.append(report)
    yield list(map(_line, latest))
    while True:
        found = list(reader.reports_after(last, trial_id))
        last = found[-1][0] if found else last
        yield [_line(report) for _, report in found]


def _line(report: Report) -> str:
    """Return a line such as '5f3a_00007  12  loss=0.25 step=12'."""
    shown = [
        f"{name}={value:.6g}" if is_number(value) else f"{name}={str(value)[:50]}"
        for name, value in flatten(report.result).items()
        if name not in AUTOMATIC
    ]
    return f"{report.trial_id}  {report.iteration}  {' '.join(shown)}"


def _printed(reader: LogReader, dirname: str, lines: int) -> Iterator[list[str]]:
    """Yield, at each step, the lines that were added to the trial's output files since the previous step."""
    files = kept_files(reader, dirname)
    seen = dict.fromkeys(files, 0)
    limit: int | None = lines
    while True:
        news: list[str] = []
        for path in files:
            with open(path, "rb") as file:
                file.seek(seen[path])
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]  # a line is shown once it is complete
            seen[path] += len(whole)
            news += whole.decode(errors="replace").splitlines()
        yield news if limit is None else news[max(0, len(news) - limit) :]
        limit = None
