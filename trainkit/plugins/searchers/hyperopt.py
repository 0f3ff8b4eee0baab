"""Searcher that uses hyperopt's tree of Parzen estimators (TPE), with tune's domains or hyperopt's own
spaces.

hyperopt's TPE makes a separate model for each parameter (label), from the trials in which the parameter was
active. Therefore, each suggestion has a value for every label, and the search space decides which labels are
active. Conditions of any kind work without extra cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from trainkit.errors import ConfigError
from trainkit.tune.core.checks import load, require_number, require_whole
from trainkit.tune.core.seeds import suggestion_generator, suggestion_words
from trainkit.tune.search.encoded_space import Declared, Form
from trainkit.tune.search.model_based import LastReportSearcher
from trainkit.tune.space.configurations import nested
from trainkit.tune.space.domains import Domain, Normal
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.serialization import holds_opaque
from trainkit.tune.space.transforms import AnyCode, ChoiceCode, StepCode, code_of

if TYPE_CHECKING:
    from numpy.random import Generator


def _expression(hp: Any, name: str, domain: Domain, code: AnyCode) -> Any:
    if isinstance(domain, Normal):
        return hp.normal(name, domain.mean, domain.sd)
    if isinstance(code, ChoiceCode):
        return hp.choice(name, list(range(len(code.categories))))
    if isinstance(code, StepCode):
        return (
            hp.qloguniform(name, *map(math.log, code.ends), 1)
            if code.log
            else hp.quniform(name, *code.ends, 1)
        )
    return hp.loguniform(name, *map(math.log, code.ends)) if code.log else hp.uniform(name, *code.ends)


DRAWS = 2000
"""Number of random configurations to draw when suggestions repeat; this number is enough to find each of 200
configurations.
"""

Values = dict[str, Any]
"""Numbers that hyperopt uses for a trial, by label."""


class Expression:
    """hyperopt's form of search space: dictionaries and lists with `hp.choice` and similar expressions."""

    space: Space | None = None

    def __init__(self, space: Any, pyll: Any) -> None:
        self._pyll = pyll
        self._root = pyll.as_apply(space)
        if self._root.name != "dict" and not _leads_to_dictionaries(self._root):
            raise ConfigError(
                "space: a configuration is a dictionary, so give HyperOptSearch a dictionary, or an "
                "hp.choice of dictionaries"
            )
        self.nodes: dict[str, Any] = {}
        for node in pyll.dfs(self._root):
            if node.name == "hyperopt_param":
                label = node.arg["label"].obj
                if self.nodes.setdefault(label, node) is not node:
                    raise ConfigError(
                        f"space has two parameters with the label {label!r}: give each parameter its "
                        "own label"
                    )
        if not self.nodes:
            raise ConfigError("space has no hyperopt parameter, such as hp.uniform('lr', 0, 1)")

    def configuration(self, values: Values, rng: Generator) -> tuple[dict[str, Any], Values]:
        memo = {node: values[label] for label, node in self.nodes.items()}
        config = self._pyll.rec_eval(self._root, memo=memo, print_node_on_error=False)
        active: Values = {}
        self._collect(self._root, values, active)
        return _plain(config), active

    def _collect(self, node: Any, values: Values, active: Values) -> None:
        if node.name == "hyperopt_param":
            label = node.arg["label"].obj
            active[label] = values[label]
        elif node.name == "switch":
            place, *options = node.pos_args
            self._collect(place, values, active)
            if place.name == "hyperopt_param":
                options = [options[int(values[place.arg["label"].obj])]]
            for option in options:
                self._collect(option, values, active)
        else:
            for each in node.inputs():
                self._collect(each, values, active)

    def fixed(self, point: Mapping[str, Any]) -> tuple[Values, bool]:
        found = _found(self._root, nested(point), partial=True)
        if found is None:
            raise ConfigError(
                f"points_to_evaluate has {dict(point)!r}, which is not in HyperOptSearch's space: "
                "give the values of the configuration, not their indices in a choice"
            )
        active: Values = {}
        try:
            self._collect(self._root, found, active)
        except KeyError:
            return found, True
        return found, False

    def others(self, rng: Generator) -> Iterator[tuple[dict[str, Any], Values]]:
        for _ in range(DRAWS):
            values = {label: self._pyll.stochastic.sample(node, rng) for label, node in self.nodes.items()}
            yield self.configuration(values, rng)

    def known_by(self, config: Mapping[str, Any], *, exactly: bool = False) -> Values | None:
        return None if holds_opaque(config) else _found(self._root, config, partial=False)


def _leads_to_dictionaries(node: Any) -> bool:
    return node.name == "switch" and all(
        each.name == "dict" or _leads_to_dictionaries(each) for each in node.pos_args[1:]
    )


def _found(node: Any, value: Any, *, partial: bool) -> Values | None:
    """Return numbers for the labels below `node` that produce `value`; None if no numbers produce it.

    Args:
        node: node of hyperopt's expression.
        value: value that the configuration has at this node.
        partial: True: a dictionary in `value` may lack keys. False: a dictionary in `value` may have
            additional keys, which are constants of `param_space`.
    """
    match node.name:
        case "hyperopt_param":
            numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
            return {node.arg["label"].obj: value} if numeric else None
        case "literal":
            return {} if type(node.obj) is type(value) and node.obj == value else None
        case "float" | "int":
            return _found(node.pos_args[0], value, partial=partial)
        case "switch" if node.pos_args[0].name == "hyperopt_param":
            label = node.pos_args[0].arg["label"].obj
            options = list(enumerate(node.pos_args[1:]))
            # The option with the most keys comes first, because it is the most specific match.
            if not partial:
                options.sort(key=lambda option: -len(option[1].named_args))
            for place, option in options:
                found = _found(option, value, partial=partial)
                if found is not None:
                    return {label: place, **found}
            return None
        case "dict":
            named = dict(node.named_args)
            if not isinstance(value, Mapping) or not (
                value.keys() <= named.keys() if partial else value.keys() >= named.keys()
            ):
                return None
            keys = value if partial else named
            return _all(lambda key: _found(named[key], value[key], partial=partial), keys)
        case "pos_args":
            if not isinstance(value, (list, tuple)) or len(value) != len(node.pos_args):
                return None
            places = range(len(value))
            return _all(lambda place: _found(node.pos_args[place], value[place], partial=partial), places)
    return None


def _all(find: Callable[[Any], Values | None], keys: Any) -> Values | None:
    found: Values = {}
    for key in keys:
        part = find(key)
        if part is None:
            return None
        found |= part
    return found


def _plain(value: Any) -> Any:
    """Replace tuples in `value` by lists, and NumPy's numbers by Python's, as configurations need."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 else value


class HyperOptForm(Form, Protocol):
    """Search space of HyperOptSearch: tune's domains or a hyperopt expression.

    Attributes:
        nodes: hyperopt's expression of each parameter, by label.
    """

    nodes: dict[str, Any]

    def configuration(self, values: Values, rng: Generator) -> tuple[dict[str, Any], Values]:
        """Return the configuration that these values produce, and the values of its active labels."""


class HyperOptDomains(Declared[AnyCode]):
    """Search space of domains such as `tune.uniform(0, 1)`, which may have conditions."""

    def __init__(self, space: Space, hp: Any, *, own: bool = False) -> None:
        name = "HyperOptSearch"
        super().__init__(space, partial(code_of, searcher=name), searcher=name, own=own)
        self.nodes = {
            each.name: _expression(hp, each.name, each.domain, self.codes[each.name])
            for each in space.parameters
        }

    def configuration(self, values: Values, rng: Generator) -> tuple[dict[str, Any], Values]:
        active: Values = {}

        def ask(name: str, domain: Domain) -> Any:
            value = self.codes[name].decode(float(values[name]))
            # The encoding is computed from the configuration, because a restored search also computes it from
            # the configuration.
            active[name] = self.codes[name].encode(value)
            return value

        return self.declared.walk(ask, rng), active


def form_of(space: Any, hyperopt: Any, *, own: bool) -> HyperOptForm:
    """Convert the user's `space` to the form that HyperOptSearch needs.

    Raises:
        ConfigError: `space` is neither tune's domains nor a hyperopt space.
    """
    pyll = hyperopt.pyll
    if isinstance(space, Space):
        return HyperOptDomains(space, hyperopt.hp)
    if isinstance(space, pyll.Apply):
        return Expression(space, pyll)
    if isinstance(space, Mapping) and space:
        if _holds_apply(space, pyll):
            return Expression(dict(space), pyll)
        return HyperOptDomains(Space.of(space), hyperopt.hp, own=own)
    raise ConfigError(
        f"space={space!r}: give domains, or a space of hyperopt's such as {{'x': hp.uniform(...)}}"
    )


def _holds_apply(value: Any, pyll: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_apply(each, pyll) for each in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_apply(each, pyll) for each in value)
    return isinstance(value, pyll.Apply)


class HyperOptSearch(LastReportSearcher[HyperOptForm]):
    """Search by hyperopt's TPE: J. Bergstra et al., "Algorithms for Hyper-Parameter Optimization" (NeurIPS
    2011), section 4.

    Suggestion number n uses a random generator made from the seed and n. For the model, a running trial, and
    a trial whose last report is NaN or infinite, is worse than all other trials. Failed trials are ignored.
    If a scheduler stops or pauses a trial, its last report is its result.

    Args:
        space: domains as in `param_space`, or a hyperopt space with `hp.choice` and similar expressions.
            None: `param_space`. If `space` is given, `param_space` may contain only constants, which are
            added to every configuration.
        metric: name of the reported value to optimise; None: the metric of the TuneConfig.
        mode: "min" or "max"; None: the mode of the TuneConfig.
        points_to_evaluate: complete or partial configurations to try first; they count towards `num_samples`.
        n_initial_points: number of random trials before the model makes its first suggestion.
        random_state_seed: seed of the random numbers; None: the seed of the TuneConfig.
        gamma: factor for the number of trials that count as good: the best ceil(gamma * sqrt(n)) of n trials,
            at most 25.

    Raises:
        MissingDependencyError: hyperopt is not installed.
        ConfigError: an argument is invalid.
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
        require_whole("n_initial_points", n_initial_points, 1)
        require_number("gamma", gamma, "a number above 0", above=0)
        super().__init__(space, metric, mode, points_to_evaluate, random_state_seed, "random_state_seed")
        self._n_initial_points = int(n_initial_points)
        self._gamma = float(gamma)
        self._domain: Any = None
        """hyperopt's `Domain` object with all labels; None if the space has no parameters."""
        self._documents: dict[str, dict[str, Any]] = {}
        """hyperopt's record of each trial, by trial id, in the order of suggestion."""
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
        # TPE models each label separately, so conditions can be left out without changing the model.
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
        # As the trials have not changed, only a new seed makes hyperopt suggest a different configuration.
        del self._documents[trial_id]
        self._next_document -= 1

    # --- results ----------------------------------------------------------------------------------

    def _tell(self, trial_id: str, value: float | None) -> None:
        document = self._documents[trial_id]
        if value is None:
            # The state is 3, because hyperopt ignores trials in this state.
            document["state"], document["result"] = 3, {"status": "fail"}
        elif not math.isfinite(value):
            # hyperopt treats a trial with this result as worse than all other trials.
            document["state"], document["result"] = 2, {"status": "fail"}
        else:
            loss = value if self.mode == "min" else -value
            document["state"], document["result"] = 2, {"status": "ok", "loss": loss}

    def _runs(self, trial_id: str) -> None:
        document = self._documents[trial_id]
        document["state"], document["result"] = 1, {"status": "running"}


def _no_objective(values: Any) -> float:
    """Return 0. hyperopt requires an objective function, but this searcher never lets hyperopt call it."""
    return 0.0
