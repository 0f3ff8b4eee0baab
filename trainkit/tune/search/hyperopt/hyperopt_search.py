"""hyperopt's tree-structured Parzen estimator as a searcher, over our spaces and its own."""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune.checks import checked_points, is_number, is_whole, require
from trainkit.tune.optional import load
from trainkit.tune.search.alternatives import alternatives
from trainkit.tune.search.hyperopt.spaces import Declared, Form, Values, form_of
from trainkit.tune.search.modelled import ModelledSearcher
from trainkit.tune.seeds import suggestion_generator, suggestion_words
from trainkit.tune.spaces.variants import Space
from trainkit.tune.values import encode_config, lookup


class HyperOptSearch(ModelledSearcher):
    """Suggest configurations by hyperopt's TPE: J. Bergstra et al., "Algorithms for Hyper-Parameter
    Optimization" (NeurIPS 2011), section 4.

    Suggestion n draws with a generator that is made from the seed and n. Trials that run, and those whose
    last report of the metric is NaN or infinite, count as worse than all others; one that fails is left out.
    Trials that a scheduler has stopped or paused count by their last report.

    Args:
        space: domains as in `param_space`, or a space of hyperopt's, with `hp.choice` and the like in it.
            None: `param_space`. With a space here, `param_space` may only hold constants, which every
            configuration gets.
        metric: what to optimise; None: as in the TuneConfig.
        mode: the same.
        points_to_evaluate: configurations, or parts of them, to try first; they count for `num_samples`.
        n_initial_points: trials before the first that the model suggests; these are drawn at random.
        random_state_seed: for the draws; None: the TuneConfig's.
        gamma: of n trials, the ceil(gamma * sqrt(n)) best, and at most 25, count as good.

    Raises:
        MissingDependencyError: hyperopt is not installed.
        ConfigError: an argument is wrong.
    """

    def __init__(
        self,
        space: Any = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        n_initial_points: int = 20,
        random_state_seed: int | None = None,
        gamma: float = 0.25,
    ) -> None:
        self._load()
        super().__init__(metric, mode)
        self._points = checked_points(points_to_evaluate)
        require(
            is_whole(n_initial_points) and n_initial_points >= 1,
            f"n_initial_points={n_initial_points!r}: give a whole number of 1 or more",
        )
        require(
            random_state_seed is None or (is_whole(random_state_seed) and random_state_seed >= 0),
            f"random_state_seed={random_state_seed!r}: give a whole number of 0 or more",
        )
        require(is_number(gamma) and 0 < gamma < math.inf, f"gamma={gamma!r}: give a number above 0")
        self._space = space
        self._form: Form | None = None if space is None else form_of(space, self._load())
        self._n_initial_points = int(n_initial_points)
        self._random_state_seed = random_state_seed
        self._gamma = float(gamma)
        self._evaluated: list[tuple[dict[str, Any], float, bool]] = []
        self._to_run: list[tuple[Values, bool]] = []
        self._domain: Any = None
        """All labels, as hyperopt has them."""
        self._documents: dict[str, dict[str, Any]] = {}
        """Of hyperopt's, by trial; in the order in which they were suggested."""
        self._next_document = 0
        self._number = 0
        self._redraws = (-1, 0)
        """Of which suggestion how many tries were rejected."""
        self._drawn = True
        self._left_out: set[str] = set()
        """Trials of before a change of the space, which are none of the new one's."""
        self._last: dict[str, float] = {}
        """By trial that has not ended: the metric, as reported last."""

    @staticmethod
    def _load() -> Any:
        return load("hyperopt", "searches by HyperOptSearch", "hyperopt")

    @property
    def arguments(self) -> dict[str, Any]:
        given: dict[str, Any] = {
            "space": self._space,
            "metric": self.metric,
            "mode": self.mode,
            "points_to_evaluate": self._points,
            "n_initial_points": self._n_initial_points,
            "random_state_seed": self._random_state_seed,
            "gamma": self._gamma,
        }
        # Points told by add_evaluated_point no file holds: a restore then asks for the searcher.
        return {**given, "evaluated": self._evaluated} if self._evaluated else given

    def __deepcopy__(self, memo: dict[int, Any]) -> HyperOptSearch:
        twin = copy.copy(self)
        memo[id(self)] = twin
        for shared in (self._space, self._form, self._domain):  # expressions are told by their identity
            memo[id(shared)] = shared
        vars(twin).update({name: copy.deepcopy(value, memo) for name, value in vars(self).items()})
        return twin

    # --- what is searched -------------------------------------------------------------------------

    def begin(
        self, space: Space, *, metric: str | None, mode: str | None, num_samples: int, seed: int
    ) -> None:
        super().begin(space, metric=metric, mode=mode, num_samples=num_samples, seed=seed)
        require(
            self.metric is not None and self.mode is not None,
            "HyperOptSearch needs to know what to optimise: give metric and mode, in the TuneConfig or here",
        )
        hyperopt = self._load()
        if self._space is None:
            self._form = Declared(space, hyperopt.hp)
        form = self._the_form()
        self._base = seed if self._random_state_seed is None else self._random_state_seed
        # TPE looks at each label by itself, so a space without its conditions gives the same model.
        self._domain = hyperopt.Domain(_no_objective, dict(form.nodes)) if form.nodes else None
        self._to_run = [form.fixed(point) for point in self._points]
        for number, (point, value, error) in enumerate(self._evaluated):
            values = form.values(point)
            if values is None:
                raise ConfigError(
                    f"the evaluated point {point!r} is no configuration of the search space: give every "
                    "parameter, with a value that it may have"
                )
            self._note(f"evaluated {number}", values)
            self._tell(f"evaluated {number}", None if error else value)

    def _the_form(self) -> Form:
        if self._form is None:
            raise ConfigError("HyperOptSearch has no search space yet: hand it to a Tuner, in a TuneConfig")
        return self._form

    # --- suggestions ------------------------------------------------------------------------------

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        form, n = self._the_form(), self._number
        redraw = self._redraws[1] if self._redraws[0] == n else 0
        fixed, self._drawn = self._to_run[n] if n < len(self._to_run) else ({}, True)
        values: Values = {}
        if form.nodes:
            values = {**self._suggested(suggestion_words(self._base, n, redraw, 1)[0]), **fixed}
        config, active = form.configuration(values, suggestion_generator(self._base, n, redraw))
        self._note(trial_id, active)
        self._number += 1
        return config

    def _suggested(self, seed: int) -> Values:
        """A value for every label, by hyperopt."""
        hyperopt = self._load()
        trials = hyperopt.base.trials_from_docs(list(self._documents.values()), validate=False)
        (document,) = hyperopt.tpe.suggest(
            [self._next_document],
            self._domain,
            trials,
            seed % 2**31,
            n_startup_jobs=self._n_initial_points,
            gamma=self._gamma,
            verbose=False,
        )
        return {label: value[0] for label, value in document["misc"]["vals"].items()}

    def _note(self, trial_id: str, active: Values) -> None:
        number, self._next_document = self._next_document, self._next_document + 1
        labels = self._the_form().nodes
        self._documents[trial_id] = {
            "state": 1,
            "tid": number,
            "spec": None,
            "result": {"status": "running"},
            "misc": {
                "tid": number,
                "cmd": None,
                "workdir": None,
                "idxs": {label: [number] if label in active else [] for label in labels},
                "vals": {label: [active[label]] if label in active else [] for label in labels},
            },
            "exp_key": None,
            "owner": None,
            "version": 0,
            "book_time": None,
            "refresh_time": None,
        }

    def is_drawn(self, trial_id: str) -> bool:
        return self._drawn

    def on_rejected(self, trial_id: str, result: dict[str, Any] | None) -> None:
        # The model would come to the same again: it is left as it was, and draws with another seed.
        del self._documents[trial_id]
        self._next_document -= 1
        self._number -= 1
        self._redraws = (self._number, self._redraws[1] + 1 if self._redraws[0] == self._number else 1)

    def alternatives(self, trial_id: str) -> Iterator[dict[str, Any]]:
        space = self._the_form().space
        if space is None:
            return iter(())
        return alternatives(space, suggestion_generator(self._base, self._number, self._redraws[1]))

    def take(self, trial_id: str, config: dict[str, Any]) -> bool:
        values = self._the_form().values(config)
        if values is not None:
            self._note(trial_id, values)
            self._number += 1
        return values is not None

    def replay(
        self, trial_id: str, config: dict[str, Any], *, same_space: bool = True
    ) -> dict[str, Any] | None:
        if self.take(trial_id, config):
            return config
        if same_space:
            return None
        self._left_out.add(trial_id)  # it says nothing of the new space
        self._number += 1
        return config

    # --- results ----------------------------------------------------------------------------------

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        value = lookup(result, self.metric or "")
        if trial_id not in self._left_out and is_number(value):
            self._last[trial_id] = float(value)

    def on_pause(self, trial_id: str) -> None:
        if trial_id in self._last:
            self._tell(trial_id, self._last[trial_id])

    def on_unpause(self, trial_id: str) -> None:
        if trial_id in self._last:
            self._runs(trial_id)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        if trial_id in self._left_out:
            return
        self._last.pop(trial_id, None)
        value = lookup(result or {}, self.metric or "")
        self._tell(trial_id, float(value) if not error and is_number(value) else None)

    def _tell(self, trial_id: str, value: float | None) -> None:
        document = self._documents[trial_id]
        if value is None:
            document["state"], document["result"] = 3, {"status": "fail"}  # which hyperopt leaves out
        elif not math.isfinite(value):
            document["state"], document["result"] = 2, {"status": "fail"}  # worse than all
        else:
            loss = value if self.mode == "min" else -value
            document["state"], document["result"] = 2, {"status": "ok", "loss": loss}

    def _runs(self, trial_id: str) -> None:
        document = self._documents[trial_id]
        document["state"], document["result"] = 1, {"status": "running"}

    # --- what is known from elsewhere -------------------------------------------------------------

    def add_evaluated_point(
        self,
        parameters: dict[str, Any],
        value: float,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: list[float] | None = None,
    ) -> None:
        require(
            error or isinstance(value, numbers.Real),
            f"add_evaluated_point({parameters!r}, {value!r}): give the value of the metric, a number",
        )
        encode_config(parameters)
        self._evaluated.append((dict(parameters), float(value) if not error else math.nan, error))


def _no_objective(values: Any) -> float:
    """For hyperopt's loop over trials, which is not used."""
    del values
    return 0.0
