"""Creation of an experiment's display, callbacks and executor, and warnings before the start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from trainkit import settings
from trainkit.errors import did_you_mean
from trainkit.runtime import api, holdings
from trainkit.tune.callbacks.base import CALLBACKS, Callback, ReporterCallback, create_callback
from trainkit.tune.callbacks.console import ConsoleCallback
from trainkit.tune.callbacks.loggers import PolicyFiles
from trainkit.tune.config import RunConfig, TuneConfig
from trainkit.tune.controller.rules import Plan
from trainkit.tune.core.capacity import ResourceLedger
from trainkit.tune.core.checks import is_finite, is_number
from trainkit.tune.core.log import logger
from trainkit.tune.core.metrics import lookup
from trainkit.tune.core.resources import Bound
from trainkit.tune.core.setting_names import setting
from trainkit.tune.core.stoppers import AUTOMATIC, misspelt, reported_names
from trainkit.tune.core.trial import Trial
from trainkit.tune.executor.actors import ActorExecutor
from trainkit.tune.executor.base import Executor
from trainkit.tune.executor.specs import SpecFactory
from trainkit.tune.executor.tasks import ProgramExecutor, TaskExecutor
from trainkit.tune.experiment.plan import longest_way
from trainkit.tune.experiment.setup import population_of
from trainkit.tune.schedulers import PopulationBasedTraining, TrialScheduler
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.tree import constant_words, spell


def warn_if_never_perturbed(tune: TuneConfig, run: RunConfig, total_samples: int | None) -> None:
    """Warn if population based training can't change a trial: only one trial runs, or trials are short."""
    population = population_of(tune)
    if population is not None and total_samples == 1:
        logger.warning(
            "%s has only one trial, which can't copy another: set TuneConfig(num_samples=...) to 4 or more",
            type(population).__name__,
        )
    if population is not None and _never_perturbed(tune, run):
        logger.warning(
            "%s judges no trial before training_iteration=%g, but trials end at %g: no trial will be changed."
            " Make perturbation_interval or burn_in_period smaller",
            type(population).__name__,
            population.first_judgement,
            longest_way(tune, run),
        )


def warn_of_constants(space: Space) -> None:
    """Warn of constants in a search space that look like domains."""
    for site in space.leaves:
        if words := constant_words(site.leaf, alone=not space.varied):
            logger.warning("param_space[%r] is %s", spell(site.path), words)


def _never_perturbed(tune: TuneConfig, run: RunConfig) -> bool:
    population, longest = population_of(tune), longest_way(tune, run)
    if population is None or longest is None:
        return False
    return population.time_attr == "training_iteration" and longest <= population.first_judgement


def make_display(run: RunConfig, waits: Callable[[], str], *, in_memory: bool) -> Callback | None:
    """Return the display of a running experiment: the user's reporter or the console; None: no display."""
    if run.verbose and run.progress_reporter is not None:
        return ReporterCallback(run.progress_reporter, run.verbose, kept=not in_memory)
    return ConsoleCallback(verbose=run.verbose, kept=not in_memory, waits=waits) if run.verbose else None


def make_callbacks(run: RunConfig, scheduler: TrialScheduler, *, in_memory: bool) -> Sequence[Callback]:
    """Return the user's callbacks and, unless the experiment is in memory, the loggers that write files."""
    callbacks, scheduler = cast("list[Callback]", list(run.callbacks)), scheduler.deciding
    if isinstance(scheduler, PopulationBasedTraining) and scheduler.log_config and not in_memory:
        callbacks.append(PolicyFiles())
    for name in run.default_loggers if settings.loggers_come_by_themselves() and not in_memory else ():
        if not any(isinstance(callback, CALLBACKS.get(name)) for callback in callbacks):
            callbacks.append(create_callback(name))
    return callbacks


def make_watch(
    metrics: Sequence[str], scheduler: TrialScheduler, tune: TuneConfig, run: RunConfig
) -> Callback:
    """Return a callback that warns if reports lack the metric or values for scheduler or checkpoints."""
    # If no perturbation can happen, the user has already been warned at the start of the experiment.
    deciding, told = scheduler.deciding, _never_perturbed(tune, run)
    first = None if told else deciding.first_judgement
    judged_by = deciding.metric if deciding.needs_metric else None
    ranked_by = run.checkpoint_config.checkpoint_score_attribute
    limited = [each.metric for each in tune.limits]
    name = type(deciding).__name__
    return MetricWatch(metrics, deciding.time_attr, name, first, judged_by, ranked_by, limited)


@dataclass(eq=False)
class MetricWatch(Callback):
    """Callback that warns of values missing from the first report or from the first checkpoint's report.

    A trial without the metric fails only at its end, because a later report may have the metric.

    Attributes:
        metrics: metrics that trials must report.
        time_attr: `time_attr` setting of the scheduler.
        scheduler: name of the scheduler's class.
        first_judgement: lowest value of `time_attr` at which the scheduler judges a trial; None: don't warn
            of too short trials.
        judged_by: metric that the scheduler compares, or None.
        ranked_by: value that ranks checkpoints, or None.
        limited: metrics of constraints; a NaN among them causes a warning too.
    """

    metrics: Sequence[str]
    time_attr: str
    scheduler: str
    first_judgement: float | None
    judged_by: str | None
    ranked_by: str | None
    limited: Sequence[str] = ()
    _seen: bool = False

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: Mapping[str, Any], **info: Any
    ) -> None:
        if unlike := [name for name in self.limited if is_number(it := lookup(result, name)) and it != it]:
            self.limited = [name for name in self.limited if name not in unlike]
            names = ", ".join(unlike)
            logger.warning("trial %s reported NaN as %s, so it counts as infeasible", trial.trial_id, names)
        if self._seen:
            return
        self._seen = True
        judged_by = () if self.judged_by is None else (self.judged_by,)
        for metric in dict.fromkeys((*self.metrics, *judged_by, *self.limited)):
            if metric in self.metrics and misspelt(metric, result) is not None:
                continue  # a misspelt metric needs no warning, because it ends the experiment with an error
            if lookup(result, metric) is None:
                logger.warning(
                    "the first report has no %r, which is %s: %s %s",
                    metric,
                    "the metric of a constraint" if metric in self.limited else "the metric",
                    reported_words(metric, result),
                    " ".join(self._effects(metric)),
                )
        if lookup(result, self.time_attr) is None:
            logger.warning(
                "the first report has no %r, which is the time_attr: %s %s judges no trial by such a report",
                self.time_attr,
                reported_words(self.time_attr, result),
                self.scheduler,
            )

    def on_trial_save(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        name, self.ranked_by = self.ranked_by, None
        if name is not None and not is_number(lookup(trial.last_result, name)):
            logger.warning(
                "the report of the first checkpoint has no number %r, the checkpoint_score_attribute: %s "
                "Checkpoints without it rank last, and all checkpoints are kept until one has it",
                name,
                reported_words(name, trial.last_result),
            )

    def on_experiment_end(self, trials: Sequence[Trial], **info: Any) -> None:
        first, name = self.first_judgement, self.time_attr
        if first is None or not all(trial.status.is_finished for trial in trials):
            return
        times = [time for trial in trials if is_finite(time := lookup(trial.last_result, name))]
        if times and max(times) < first * (1 - 1e-9):  # if no report has a time, an earlier warning said so
            logger.warning(
                "%s has judged no trial: no trial reached %s=%g, and the largest value was %.4g. Give "
                "another time_attr, such as 'training_iteration', or let the scheduler judge earlier",
                self.scheduler,
                name,
                first,
                max(times),
            )

    def _effects(self, metric: str) -> Iterator[str]:
        if metric == self.judged_by:
            yield f"{self.scheduler} judges no trial by a report without it."
        if metric in self.limited:
            yield "A trial whose last report lacks it is not known to be feasible."
        if metric in self.metrics:
            yield "A later report may have it; a trial that ends without it fails"


def reported_words(name: str, result: Mapping[str, Any]) -> str:
    """Return text with the names that `result` has instead of `name`, and with a similar name, if any."""
    names = reported_names(result)
    reported = sorted(set(names) - AUTOMATIC)
    text = f"reported names are {', '.join(reported)}" if reported else "nothing else was reported"
    return f"{text}.{did_you_mean(name, names, cutoff=0.6)}"


def make_executor(
    bound: Bound, specs: SpecFactory, plan: Plan, *, reuse: bool, now: Callable[[], float]
) -> Executor:
    """Return the executor: it runs a process per trial, a task per step, or the steps in this process."""
    if bound.here:
        return ProgramExecutor(bound, specs, now=now)
    if bound.ahead is not None:
        return TaskExecutor(bound, specs, now=now)
    timed = plan.trial_timeout_s is not None
    return ActorExecutor(bound, specs, now=now, leave_s=plan.cleanup_s, reuse=reuse, timed=timed)


def require_sendable(space: Space) -> None:
    """Check that the values of the search space can be sent to workers, before files are written.

    Raises:
        SerializationError: a value can't be sent.
    """
    for name, value in space.values():
        if not isinstance(value, (str, int, float, bool, type(None))):
            api.ensure_serializable(value, f"the value {value!r:.100} of {setting('param_space')}[{name!r}]")


def require_startable(bound: Bound, config: dict[str, Any], ledger: ResourceLedger) -> None:
    """Check that a trial with this configuration could run.

    If necessary, free the resources of objects that are no longer in use.

    Raises:
        InfeasibleError: the requested resources do not exist.
    """
    request, what = bound.request(config), f"a trial of {bound.name}"
    ledger.require_feasible(request, what=what)
    if not (ledger.is_simulated or bound.here):
        holdings.make_room(request.group, ledger.existing, what)
