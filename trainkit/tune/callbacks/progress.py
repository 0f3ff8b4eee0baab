"""A reporter in place of the console: what a user's own has to answer, and how it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainkit.resources import describe_use
from trainkit.tune.callbacks.base import Callback
from trainkit.tune.trial import Trial

ASK_S = 1.0
"""A reporter is asked at least this often, whatever happens."""


class ProgressReporter:
    """Extend this and give an object in RunConfig(progress_reporter=...)."""

    def setup(
        self,
        start_time: float | None = None,
        total_samples: int | None = None,
        metric: str | None = None,
        mode: str | None = None,
        **info: Any,
    ) -> None:
        """The experiment begins, or goes on.

        Args:
            start_time: when, in seconds since 1970.
            total_samples: trials there will be; None: endless.
            metric: of TuneConfig.
            mode: of TuneConfig.
            info: `experiment_path`, '' where that folder does not stay, and `verbose` of RunConfig.
        """

    def should_report(self, trials: Sequence[Trial], done: bool = False) -> bool:
        """Whether to call `report` now; asked after each step, so be quick. `done`: for the last time."""
        raise NotImplementedError(f"{type(self).__name__} must define should_report()")

    def report(self, trials: Sequence[Trial], done: bool, *sys_info: str) -> None:
        """Show how the trials stand; `sys_info` are lines on the experiment as a whole."""
        raise NotImplementedError(f"{type(self).__name__} must define report()")


class ReporterCallback(Callback):
    """Asks a reporter.

    Args:
        reporter: to ask.
        verbose: of RunConfig.
        kept: False: the experiment's folder is gone when it has ended, and the reporter is not told of it.
    """

    refresh_s = ASK_S

    def __init__(self, reporter: ProgressReporter, verbose: int, *, kept: bool = True) -> None:
        self._reporter = reporter
        self._verbose = verbose
        self._kept = kept

    def setup(
        self,
        stop: Any = None,
        num_samples: int | None = None,
        total_num_samples: int | None = None,
        **info: Any,
    ) -> None:
        self._reporter.setup(
            start_time=info["time"],
            total_samples=total_num_samples,
            metric=info["metric"],
            mode=info["mode"],
            experiment_path=info["experiment_path"] if self._kept else "",
            verbose=self._verbose,
        )

    def on_step_end(self, iteration: int, trials: Sequence[Trial], **info: Any) -> None:
        if self._reporter.should_report(trials, done=False):
            self._reporter.report(trials, False, _in_use(info))

    def on_experiment_end(self, trials: Sequence[Trial], **info: Any) -> None:
        if self._reporter.should_report(trials, done=True):
            ending = info.get("ending")
            self._reporter.report(
                trials, True, _in_use(info), *([f"Ended early: {ending}"] if ending else [])
            )


def _in_use(info: dict[str, Any]) -> str:
    return f"In use: {describe_use(info['resources_used'], info['resources'])}"
