"""Searcher on hyperopt's tree-structured Parzen estimator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from trainkit.tune.core.checks import is_number, is_whole, load, require
from trainkit.tune.core.seeds import suggestion_generator, suggestion_words
from trainkit.tune.search.hyperopt.spaces import HyperOptForm, Values, form_of
from trainkit.tune.search.modelled import LastReportSearcher


class HyperOptSearch(LastReportSearcher[HyperOptForm]):
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

    _shared: ClassVar = ("_space", "_form", "_domain")

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
        require(
            is_whole(n_initial_points) and n_initial_points >= 1,
            f"n_initial_points={n_initial_points!r}: give a whole number of 1 or more",
        )
        require(is_number(gamma) and 0 < gamma < math.inf, f"gamma={gamma!r}: give a number above 0")
        super().__init__(space, metric, mode, points_to_evaluate, random_state_seed, "random_state_seed")
        self._n_initial_points = int(n_initial_points)
        self._gamma = float(gamma)
        self._domain: Any = None
        """All labels, as hyperopt has them."""
        self._documents: dict[str, dict[str, Any]] = {}
        """Of hyperopt's, by trial; in the order in which they were suggested."""
        self._next_document = 0

    @staticmethod
    def _load() -> Any:
        return load("hyperopt", "searches by HyperOptSearch", "hyperopt")

    @property
    def arguments(self) -> dict[str, Any]:
        own = {"n_initial_points": self._n_initial_points, "gamma": self._gamma}
        return {**super().arguments, **own}

    def _form_of(self, space: Any, *, own: bool) -> HyperOptForm:
        return form_of(space, self._load(), own=own)

    def _begin_model(self, form: HyperOptForm) -> None:
        # TPE looks at each label by itself, so a space without its conditions gives the same model.
        self._domain = self._load().Domain(_no_objective, dict(form.nodes)) if form.nodes else None

    # --- suggestions ------------------------------------------------------------------------------

    def _suggested(self, trial_id: str, fixed: Values | None) -> dict[str, Any]:
        place = self._base, self._number, self._redraws
        values: Values = {}
        if self.form.nodes:
            values = {**self._asked(suggestion_words(*place, 1)[0]), **(fixed or {})}
        config, active = self.form.configuration(values, suggestion_generator(*place))
        self._note(trial_id, active)
        return config

    def _asked(self, seed: int) -> Values:
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

    def _note(self, trial_id: str, known: Values) -> None:
        number, self._next_document = self._next_document, self._next_document + 1
        labels = self.form.nodes
        self._documents[trial_id] = {
            "state": 1,
            "tid": number,
            "spec": None,
            "result": {"status": "running"},
            "misc": {
                "tid": number,
                "cmd": None,
                "workdir": None,
                "idxs": {label: [number] if label in known else [] for label in labels},
                "vals": {label: [known[label]] if label in known else [] for label in labels},
            },
            "exp_key": None,
            "owner": None,
            "version": 0,
            "book_time": None,
            "refresh_time": None,
        }

    def _forget(self, trial_id: str, result: dict[str, Any] | None) -> None:
        # The model would come to the same again: it is left as it was, and draws with another seed.
        del self._documents[trial_id]
        self._next_document -= 1

    # --- results ----------------------------------------------------------------------------------

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


def _no_objective(values: Any) -> float:
    """For hyperopt's loop over trials, which is not used."""
    del values
    return 0.0
