"""Trials made from a searcher's suggestions.

Suggestions are completed, and checked for repetitions and against the rules of the space.

    searcher.suggest -> whole configuration -> forbidden, or drawn before? -> on_rejected, and once more
                                            -> otherwise a trial

Only suggestions that were drawn at random are rejected. Repetitions that come from a grid, constants or the
user's points are kept. After TRIES rejections in a row the searcher must provide alternatives, which end when
a finite space is exhausted. A search over two values therefore ends after two trials, and reports the reason.
A restore repeats the checks and rejections, and so creates the same trials.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trainkit.errors import ConfigError, message_of
from trainkit.tune.core.checks import is_finite, meant
from trainkit.tune.core.constraints import VIOLATION, is_feasible
from trainkit.tune.core.metrics import flatten, lookup, merge_dicts
from trainkit.tune.core.objectives import Objective, replaced
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.core.seeds import addition_generator, suggestion_generator
from trainkit.tune.core.setting_names import setting
from trainkit.tune.core.trial import Namer, Trial, experiment_tag, trial_dirname, trial_id_of
from trainkit.tune.schedulers.base import Decision
from trainkit.tune.search.base import Searcher, called
from trainkit.tune.space.computed import compute
from trainkit.tune.space.configurations import constants, copied, fingerprint, nested
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.serialization import encode_config, holds_opaque
from trainkit.tune.space.tree import in_config, spell

ONE_CPU = PlacementGroupFactory([{"CPU": 1}])

TRIES = 20
"""Number of consecutive rejected suggestions after which the searcher is asked for alternatives."""

PATIENCE = 200
"""Number of consecutive rejected suggestions after which a search without alternatives ends."""


@dataclass(slots=True)
class Additions:
    """Configurations that users add to a running experiment.

    Attributes:
        waiting: configurations that have no trial yet, oldest first, each with the number of configurations
            that were added before it.
        number: number of all added configurations.
        left_out: number of added configurations that will have no trial.
    """

    waiting: deque[tuple[int, dict[str, Any]]] = field(default_factory=deque)
    number: int = 0
    left_out: int = 0

    def add(self, config: dict[str, Any]) -> None:
        """Add a configuration."""
        self.waiting.append((self.number, config))
        self.number += 1

    def take_back(self) -> None:
        """Remove the last configuration."""
        self.waiting.pop()
        self.number -= 1

    def leave_out(self, number: int) -> None:
        """Remove the configuration that was added after `number` others; it gets no trial."""
        self.waiting = deque(each for each in self.waiting if each[0] != number)
        self.left_out += 1

    def take(self) -> None:
        """Remove the first configuration, which now has a trial."""
        self.waiting.popleft()


class Penalties:
    """Losses for searchers that know no constraints: an infeasible report gets a worse loss than its own.

    Its loss is the worst feasible loss of the ended trials, plus a part of the range of feasible losses that
    grows with the violation. Until a trial is feasible, the losses of all ended trials count.

    Args:
        objectives: the searcher's objectives.
    """

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._objectives = objectives
        self._ranges: dict[tuple[Objective, bool], tuple[float, float]] = {}
        """Least and largest loss of ended trials, by objective; True: of feasible trials, False: of all."""

    def applied(self, report: dict[str, Any], *, ended: bool = False) -> dict[str, Any]:
        """Return the report that the searcher receives; `ended`: it is the last report of its trial."""
        if VIOLATION not in report:
            return report
        losses = {
            each: float(value) if each.mode == "min" else -float(value)
            for each in self._objectives
            if is_finite(value := lookup(report, each.metric))
        }
        feasible = is_feasible(report)
        for each, loss in losses.items() if ended else ():
            for key in ((each, True), (each, False)) if feasible else ((each, False),):
                low, high = self._ranges.get(key, (loss, loss))
                self._ranges[key] = min(low, loss), max(high, loss)
        if feasible or (not ended and math.isnan(report[VIOLATION])):
            return report
        excess = report[VIOLATION]
        share = excess / (1 + excess) if math.isfinite(excess) else 1.0
        return replaced(report, {each: self._penalized(each, loss, share) for each, loss in losses.items()})

    def _penalized(self, objective: Objective, loss: float, share: float) -> float:
        whole = self._ranges.get((objective, False), (loss, loss))
        low, high = self._ranges.get((objective, True), whole)
        return high + share * ((high - low) or abs(high) or 1.0)


class TrialSource:
    """Link between an experiment and its searcher that creates the trials and passes results on to the
    searcher.

    Args:
        searcher: a searcher whose `begin` was called.
        space: search space of the experiment.
        seed: seed of the experiment.
        allow_duplicates: True: a drawn configuration may be tried again.
        prefix: common prefix of all trial ids of the experiment.
        trainable_name: name of the trainable, used for trials and folders.
        request_of: function, possibly the user's, that returns the resources of a trial from its
            configuration; None: one CPU.
        namer: object that names trials and folders with the user's functions.

    Attributes:
        name: class name of the searcher, for messages.
        space: space of the experiment.
        experiment_path: path of the experiment's folder; '' if the experiment has no folder.
        hears_results, hears_decisions: True if the searcher overrides `on_trial_result` or
            `on_trial_decision`.
        created: number of existing trials.
        added: configurations that users have added.
    """

    def __init__(
        self,
        searcher: Searcher,
        space: Space,
        *,
        seed: int = 0,
        allow_duplicates: bool = False,
        prefix: str = "",
        trainable_name: str = "",
        request_of: Callable[[dict[str, Any]], PlacementGroupFactory] | None = None,
        namer: Namer | None = None,
    ) -> None:
        self._searcher = called(searcher)
        # The number is cached, because each turn of the experiment's loop reads it several times.
        self._total_samples = partial(meant(type(searcher), Searcher, "total_samples").fget, searcher)
        self.name = type(searcher).__name__
        self.space = space
        self._prefix = prefix
        self._trainable_name = trainable_name
        self._request_of = request_of
        self._namer = namer or Namer()
        self.experiment_path = ""
        self.created = 0
        self.added = Additions()
        self._finished = False
        self.hears_results, self.hears_decisions = (
            getattr(getattr(searcher, verb), "__func__", None) is not getattr(Searcher, verb)
            for verb in ("on_trial_result", "on_trial_decision")
        )
        self._seed = seed
        goal = (Objective(searcher.metric, searcher.mode),) if searcher.metric and searcher.mode else ()
        heeds = self._searcher.heeds_constraints
        self._penalties = Penalties(() if heeds else self._searcher.objectives or goal)
        self._constants = constants(space.tree)
        self._proposed = 0
        self._allow_duplicates = allow_duplicates
        self._first: dict[bytes, str] = {}
        """Id of the first trial with each configuration, by the configuration's fingerprint."""
        self._results: dict[str, dict[str, Any] | None] = {}
        self._unknown: set[str] = set()
        """Trials that the searcher does not know, so that it does not receive their results."""
        self.corrected = 0
        """Number of trials for which a restored searcher did not repeat its original suggestion."""
        self._ahead: dict[str, dict[str, Any] | str] = {}
        self._gave_up = False
        self.reason = ""
        """Reason why the search ended with fewer trials than requested; otherwise ''."""

    @property
    def num_samples(self) -> int:
        """Number of samples that the searcher was asked for; -1: unlimited."""
        return self._searcher.num_samples

    @property
    def exhausted(self) -> bool:
        """True once no further trial will come."""
        return not self.added.waiting and (self._finished or self.to_come == 0)

    @property
    def total(self) -> int | None:
        """Upper limit on the number of trials; None: unlimited.

        An added configuration usually counts as one of the samples, like a point to evaluate. An added
        configuration is an additional trial in two cases: the space has a grid, which is always tried
        completely, or all samples were already suggested.
        """
        total = self._suggested
        return None if total is None else max(total, self._enough)

    @property
    def _suggested(self) -> int | None:
        """Number of the searcher's trials, plus added configurations beyond the samples; None: unlimited."""
        total: int | None = self._total_samples()
        added = self.added.number - self.added.left_out
        if total is None or not added:
            return total
        # A searcher that ends although `num_samples` is -1 suggests a fixed list. Configurations that users
        # add to a fixed list are additional trials.
        beside = self.space.axes or self._searcher.in_units or self.num_samples == -1
        return total + added if beside else total

    @property
    def _enough(self) -> int:
        """Number of existing trials, plus added configurations that have no trial yet."""
        return self.created + len(self.added.waiting)

    @property
    def to_come(self) -> int | None:
        """Upper limit on the number of trials still to come; None: unlimited."""
        total = self.total
        if self._finished:
            return len(self.added.waiting)
        return None if total is None else total - self.created

    @property
    def hears_again(self) -> bool:
        """True if the searcher must also be notified of the second end of a trial that was run again."""
        return self._searcher.hears_again

    def next_trial(self) -> Trial | None:
        """Return the next trial; None if no trial can be created yet, or if no further trial will come.

        Raises:
            ConfigError: the searcher raised an exception, or returned something other than a configuration.
        """
        if self.exhausted:
            return None
        trial_id = trial_id_of(self._prefix, self.created)
        config: dict[str, Any] | str | None
        if self.added.waiting and trial_id not in self._ahead:
            config = self.note(trial_id, self.added.waiting[0][1])
            self.added.take()
        else:
            config = self.propose(trial_id)
        self._finished = self._finished or isinstance(config, str)
        if not isinstance(config, dict):
            return None
        trial = make_trial(trial_id, self.created, config, self._trainable_name, self.space.varied)
        trial.experiment_path = self.experiment_path
        self._namer.name(trial)
        self.created += 1
        return trial

    def request(self, trial: Trial) -> PlacementGroupFactory:
        """Return the resource request of `trial`; the user's function may raise an error."""
        return ONE_CPU if self._request_of is None else self._request_of(trial.config)

    def go_on_after(self, trials: Sequence[Trial]) -> None:
        """Resume the numbering of trials and folder names after the `trials` of a restored experiment."""
        self.created = len(trials)
        self._namer.reserve(trial.dirname for trial in trials)

    def propose(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the configuration of a new trial; None: wait for results; FINISHED: no more trials.

        Raises:
            ConfigError: the searcher raised an exception, returned something other than a configuration, or
                repeats forbidden configurations.
        """
        if trial_id in self._ahead:
            return self._ahead.pop(trial_id)
        rejected = 0
        while True:
            suggestion = self._ask(trial_id)
            if suggestion is None:
                return None
            if isinstance(suggestion, str):
                ended = f"{self.name} has no further suggestion{getattr(suggestion, 'how_to_repeat', '')}"
                self.reason = self._why() if self._gave_up else ended
                return Searcher.FINISHED
            config = suggestion if self._searcher.whole else self._whole(suggestion)
            drawn = self._searcher.is_drawn(trial_id)
            rule = self.space.forbidden_by(config) if self.space.rules else None
            if rule is not None and not drawn:
                raise ConfigError(f"a configuration to try, {config!r}, is forbidden by the rule {rule}")
            print_of_it = None if self._allow_duplicates else fingerprint(config)
            known = self._first.get(print_of_it) if drawn and print_of_it is not None else None
            if rule is None and known is None:
                return self._accept(trial_id, config, print_of_it)
            self._tell("on_rejected", trial_id, self._results.get(known or ""))
            rejected += 1
            if rejected < TRIES:
                continue
            alternatives = self._searcher.alternatives(trial_id)
            if alternatives is None and rejected < PATIENCE:
                continue
            if (other := self._first_new(trial_id, alternatives or ())) is not None:
                return self._accept(trial_id, other)
            if rule is not None and not self._searcher.whole:
                raise ConfigError(
                    f"{self.name}.suggest() returned {rejected} configurations in a row that are forbidden "
                    f"or were tried before; {rule} forbids the last, {config!r}"
                )
            self._gave_up = True
            if not self._searcher.give_up(trial_id):
                self.reason = self._why()
                return Searcher.FINISHED
            rejected = 0

    def ahead(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return, in advance, the configuration that `propose` will return for the next trial."""
        if trial_id not in self._ahead and (config := self.propose(trial_id)) is not None:
            self._ahead[trial_id] = config
        return self._ahead.get(trial_id)

    def add(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Add a configuration to be tried next; return the configuration with drawn values in place of
        missing values.

        Raises:
            ConfigError: the configuration does not belong to the space.
        """
        config = self.completed(given, self.added.number)
        self.added.add(config)
        return config

    def completed(self, given: Mapping[str, Any], number: int) -> dict[str, Any]:
        """Return a configuration that a user adds, with drawn values in place of missing values.

        Args:
            given: hyperparameters, by name or nested.
            number: number of configurations that were added earlier.

        Raises:
            ConfigError: the configuration does not belong to the space.
        """
        if not self._searcher.whole and not self.space.parameters:  # the searcher has its own space
            config = self._whole(dict(given))
            if not self._searcher.knows(config):
                raise ConfigError(
                    f"{config!r} is not in the space of {self.name}: give every parameter a valid value"
                )
        else:
            self.space.point(given)
            preset = self.space.preset(given)
            if open_axes := [spell(path) for path in self.space.axes if path not in preset]:
                raise ConfigError(f"{', '.join(open_axes)} is missing: give a value for each grid axis")
            config = self.space.configuration(0, addition_generator(self._seed, number), preset)
        if (rule := self.space.forbidden_by(config)) is not None:
            raise ConfigError(f"{config!r} is forbidden by the rule {rule}")
        return config

    def resize(self, num_samples: int) -> None:
        """Change the searcher's total number of samples, including samples already suggested.

        Raises:
            ConfigError: more trials than the new number exist or wait, or the number of trials would not
                change.
        """
        before, total_before, enough = self.num_samples, self._suggested, self._enough
        self._resize_searcher(num_samples)
        total = self._suggested
        problem = ""
        if total == total_before and num_samples != before:
            many = "changes nothing" if total is None else f"makes {total} trials, as before"
            problem = (
                f"{many}, by the count of {self.name}: give another number, add configurations one by one"
            )
        elif total is not None and total < enough:
            problem = f"makes {total} trials, but {enough} are already suggested: use a larger number"
        if problem:
            self._resize_searcher(before)
            raise ConfigError(f"num_samples={num_samples} {problem}, or stop the experiment")
        self._finished = False

    def _resize_searcher(self, num_samples: int) -> None:
        try:
            self._searcher.resize(num_samples)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{self.name}.resize({num_samples}) raised {type(error).__name__}: {message_of(error)}"
            ) from error

    def note(self, trial_id: str, config: dict[str, Any]) -> dict[str, Any]:
        """Return the configuration of a trial that a user added; notify the searcher of the trial."""
        if not self._tell("note", trial_id, config):
            self._unknown.add(trial_id)
        return self._accept(trial_id, config)

    def replay(
        self, trial_id: str, stored: dict[str, Any], *, same_space: bool = True
    ) -> dict[str, Any] | None:
        """Rebuild the searcher's state after it suggested `stored`.

        Args:
            trial_id: id of the trial.
            stored: configuration of the trial.
            same_space: False if the configuration was drawn from a different space than the current space.

        Returns:
            The suggestion, with the original objects in place of the names that the store keeps. None if the
            searcher has ended.
        """
        config = self._searcher.replay(trial_id, stored, same_space=same_space)
        if config is not None:
            return self._accept(trial_id, config)
        proposed = self.propose(trial_id)
        if proposed is None:
            # The searcher waits for the end of an earlier trial. During the restore, the searcher does not
            # receive this end, because the earlier trial will resume.
            self._unknown.add(trial_id)
            return self._accept(trial_id, stored)
        if isinstance(proposed, str):
            return None
        # An object without a text form is stored only by its name, so the two configurations can't be
        # compared.
        if holds_opaque(stored) or encode_config(proposed) == encode_config(stored):
            return proposed
        return self._corrected(trial_id, stored, proposed)

    def _corrected(self, trial_id: str, stored: dict[str, Any], proposed: dict[str, Any]) -> dict[str, Any]:
        """Use the configuration `stored`, although the searcher now suggests `proposed`, because it was
        changed or has no seed.
        """
        self.corrected += 1
        if self._searcher.is_drawn(trial_id):
            self._tell("on_rejected", trial_id, None)
            if not self._searcher.take(trial_id, stored):
                self._unknown.add(trial_id)
        if self._first.get(fingerprint(proposed)) == trial_id:
            del self._first[fingerprint(proposed)]
        self._proposed -= 1  # both suggestions belong to one trial, so they count once
        return self._accept(trial_id, stored)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Notify the searcher of a trial's report.

        Raises:
            ConfigError: the searcher raised an exception.
        """
        self._tell("on_trial_result", trial_id, self._penalties.applied(result))

    def on_trial_decision(self, trial_id: str, result: dict[str, Any], decision: Decision) -> None:
        """Notify the searcher of the scheduler's decision on the last report, if the decision had a reason.

        Raises:
            ConfigError: the searcher raised an exception.
        """
        self._tell("on_trial_decision", trial_id, self._penalties.applied(result), decision)

    def on_pause(self, trial_id: str) -> None:
        """Notify the searcher of a trial's pause.

        Raises:
            ConfigError: the searcher raised an exception.
        """
        self._tell("on_pause", trial_id)

    def on_unpause(self, trial_id: str) -> None:
        """Notify the searcher of the resumption of a paused trial.

        Raises:
            ConfigError: the searcher raised an exception.
        """
        self._tell("on_unpause", trial_id)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Notify the searcher of a trial's end, with its last report, or of its final failure.

        Raises:
            ConfigError: the searcher raised an exception.
        """
        again = trial_id in self._results
        if result is not None:
            result = self._penalties.applied(result, ended=not error)
        self._results[trial_id] = None if error else result
        if not again or self.hears_again:
            self._tell("on_trial_complete", trial_id, result, error)

    def _tell(self, verb: str, trial_id: str, *news: Any) -> Any:
        """Call a method of the searcher, unless the searcher does not know the trial."""
        if trial_id in self._unknown:
            return None
        try:
            return getattr(self._searcher, verb)(trial_id, *news)
        except Exception as error:
            kind = type(error).__name__
            raise ConfigError(
                f"{self.name}.{verb}() raised {kind} for trial {trial_id}: {message_of(error)}"
            ) from error

    # --- a suggestion -----------------------------------------------------------------------------

    def _ask(self, trial_id: str) -> dict[str, Any] | str | None:
        try:
            suggestion = self._searcher.suggest(trial_id)
        except Exception as error:
            raise ConfigError(
                f"trial {self._proposed} has no configuration: "
                f"{self.name}.suggest() raised {type(error).__name__}: {message_of(error)}"
            ) from error
        if suggestion is None or isinstance(suggestion, dict):
            return suggestion
        if isinstance(suggestion, str) and suggestion == Searcher.FINISHED:
            return suggestion
        raise ConfigError(
            f"{self.name}.suggest() returned {suggestion!r}: return a dictionary, None or Searcher.FINISHED"
        )

    def _whole(self, suggestion: dict[str, Any]) -> dict[str, Any]:
        """Return a suggestion's whole configuration, with constants, and with keys such as 'a/b' nested."""
        config = merge_dicts(copied(self._constants), nested(suggestion))
        for parameter in self.space.parameters:
            if not parameter.is_conditional and not _reaches(config, in_config(parameter.path)):
                raise ConfigError(
                    f"{self.name}.suggest() returned no value for {parameter.name}: let set_search_properties"
                    f" accept the space, or leave only constants in {setting('param_space')}"
                )
        if self.space.computed:
            compute(config, suggestion_generator(self._seed, self._proposed))
        return config

    def _first_new(self, trial_id: str, alternatives: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
        for suggestion in alternatives:
            config = suggestion if self._searcher.whole else self._whole(suggestion)
            if (
                self.space.forbidden_by(config) is None
                and (self._allow_duplicates or fingerprint(config) not in self._first)
                and self._searcher.take(trial_id, suggestion)
            ):
                return config
        return None

    def _accept(
        self, trial_id: str, config: dict[str, Any], print_of_it: bytes | None = None
    ) -> dict[str, Any]:
        self._proposed += 1
        if not self._allow_duplicates:
            self._first.setdefault(print_of_it or fingerprint(config), trial_id)
        return config

    def _why(self) -> str:
        number = self.space.cardinality() if self.space.parameters else None
        may_repeat = self._first and not self._allow_duplicates
        again = "; TuneConfig(allow_duplicates=True) tries some of them again" if may_repeat else ""
        if number is not None and len(self._first) >= number:
            of_all = f"all {number} configurations" if number > 1 else "the only configuration"
            return f"{of_all} of the space {'were' if number > 1 else 'was'} tried{again}"
        return f"{self.name} found no new configuration that is allowed{again}"


def _reaches(config: Any, path: tuple[Any, ...]) -> bool:
    for part in path:
        try:
            config = config[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def make_trial(
    trial_id: str, index: int, config: dict[str, Any], trainable_name: str, varied: set[str]
) -> Trial:
    """Return a trial that has not run yet."""
    evaluated = evaluated_of(config, varied)
    tag = experiment_tag(index, evaluated)
    return Trial(
        trial_id=trial_id,
        index=index,
        config=config,
        name=f"{trainable_name}_{trial_id}",
        dirname=trial_dirname(trainable_name, trial_id, tag),
        tag=tag,
        trainable_name=trainable_name,
        evaluated_params=evaluated,
    )


def evaluated_of(config: Mapping[str, Any], varied: Collection[str]) -> dict[str, Any]:
    """Return the hyperparameters of `config` that are in `varied`, by flat name."""
    return {name: value for name, value in flatten(config).items() if name in varied}
