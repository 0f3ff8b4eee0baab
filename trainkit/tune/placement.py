"""What a trial needs of the machine, and the trainable with its requests and parameters bound to it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainkit.errors import ConfigError, message_of
from trainkit.resources import QUANTUM, normalize, total
from trainkit.runtime import api
from trainkit.runtime.placement_group import PlacementGroup
from trainkit.tune.domains.leaves import name_of
from trainkit.tune.registry import get_trainable_cls


@dataclass(frozen=True)
class PlacementGroupFactory:
    """What each trial reserves: bundles of resources, all of them or none.

    The trial's own process takes the first bundle, which may be empty. Tasks and actors that it starts take
    the others; `trainkit.get_current_placement_group()` chooses one for each.

    Args:
        bundles: such as [{}, {"CPU": 1}, {"CPU": 1}].
        strategy: "PACK", "SPREAD" or "STRICT_PACK": all bundles lie on the one machine. "STRICT_SPREAD",
            a machine for each, is refused where there is more than one.

    Raises:
        ConfigError: the bundles or the strategy can't be met.
    """

    bundles: Sequence[Mapping[str, float]]
    strategy: str = "PACK"
    head: dict[str, float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.bundles, Mapping) or not self.bundles:
            raise ConfigError(f"PlacementGroupFactory({self.bundles!r}): give a list of bundles")
        if self.strategy not in ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"):
            raise ConfigError(
                f"strategy={self.strategy!r} is none of PACK, SPREAD, STRICT_PACK, STRICT_SPREAD"
            )
        bundles = tuple(
            normalize(bundle, what=f"bundle {place} of a trial") for place, bundle in enumerate(self.bundles)
        )
        if self.strategy == "STRICT_SPREAD" and sum(map(bool, bundles)) > 1:
            raise ConfigError(
                f"strategy='STRICT_SPREAD' asks for {sum(map(bool, bundles))} machines, a bundle on each, "
                "and trials run on one: give 'SPREAD' or 'PACK'"
            )
        object.__setattr__(self, "bundles", bundles)
        object.__setattr__(self, "head", bundles[0])

    @property
    def group(self) -> list[dict[str, float]]:
        """The bundles that reserve something; none or one of them needs no placement group."""
        return [dict(bundle) for bundle in self.bundles if bundle]

    @property
    def required_resources(self) -> dict[str, float]:
        """Sum of all bundles, by resource name."""
        return total(self.bundles)

    @functools.cached_property
    def units(self) -> Mapping[str, int]:
        """The same in whole ten-thousandths, for sums that are exact."""
        return {name: round(amount * QUANTUM) for name, amount in self.required_resources.items()}

    @property
    def head_bundle_is_empty(self) -> bool:
        """True if the trial's own process takes nothing."""
        return not self.head

    @property
    def head_cpus(self) -> float:
        """CPUs of the trial's own process."""
        return self.head.get("CPU", 0.0)

    def to_placement_group(self) -> PlacementGroup:
        """Reserve the bundles here and now, outside any trial; give them back by `remove_placement_group`."""
        return api.placement_group(self.group, self.strategy)

    def __hash__(self) -> int:
        return hash((tuple(tuple(sorted(bundle.items())) for bundle in self.bundles), self.strategy))


DEFAULT_REQUEST = PlacementGroupFactory([{"CPU": 1}])


class TrialResources(dict[str, float]):
    """What a trial reserves, by resource name; with the attributes of Ray's, which is no dictionary.

    Args:
        request: of the trial.
    """

    def __init__(self, request: PlacementGroupFactory) -> None:
        super().__init__(request.required_resources)
        self.bundles = [dict(bundle) for bundle in request.bundles]
        self.strategy = request.strategy
        self.head_cpus = request.head_cpus

    @property
    def required_resources(self) -> dict[str, float]:
        """The same, as a plain dictionary."""
        return dict(self)


def as_request(resources: Any) -> PlacementGroupFactory:
    """Return one form for all the ways to ask.

    Raises:
        ConfigError: `resources` is none of the known forms.
    """
    if isinstance(resources, PlacementGroupFactory):
        return resources
    if hasattr(resources, "as_placement_group_factory"):
        request: PlacementGroupFactory = resources.as_placement_group_factory()
        return request
    if isinstance(resources, Mapping):
        if extra := sorted(set(resources) & {"extra_cpu", "extra_gpu", "extra_memory"}):
            raise ConfigError(
                f"resources={dict(resources)!r}: {extra[0]} was for processes that a trial starts; give "
                "tune.PlacementGroupFactory([{'CPU': 1}, {'CPU': 1}]), a bundle for the trial, one for each"
            )
        plain = dict(resources)
        custom = plain.pop("custom_resources", None) or {}
        return PlacementGroupFactory([{**plain, **custom}])
    raise ConfigError(
        f"resources={resources!r}: give a dictionary such as {{'cpu': 2}}, a PlacementGroupFactory, "
        "a ScalingConfig, or a function of the configuration that returns one of them"
    )


@dataclass(frozen=True)
class Bound:
    """A trainable together with what it asks for and the parameters that every trial gets.

    Attributes:
        trainable: the user's function or class.
        resources: as `with_resources` was given; None: what the trainable says itself, or 1 CPU.
        parameters: as `with_parameters` was given, by name.
        label: the name that it was registered under; '' if it wasn't.
        start_from: path of a checkpoint that every trial begins with; None: none.
        ahead: steps are tasks, as the trainable is a `PortableTrainable`, and so many trials are under way
            for each that fits; None: each trial is a process of its own.
    """

    trainable: Any
    resources: Any = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    start_from: str | None = None
    ahead: int | None = None

    @classmethod
    def of(cls, trainable: Any) -> Bound:
        """Return `trainable` itself if it is bound already; one that is named is looked up.

        Raises:
            ConfigError: nothing is registered under that name.
        """
        if isinstance(trainable, str):
            return replace(cls.of(get_trainable_cls(trainable)), label=trainable)
        if isinstance(trainable, functools.partial) and isinstance(trainable.func, Bound):
            bound, given = trainable.func, trainable.keywords
            parameters = {name: value for name, value in bound.parameters.items() if name not in given}
            inner = functools.partial(bound.trainable, *trainable.args, **given)
            return replace(bound, trainable=inner, parameters=parameters)
        return trainable if isinstance(trainable, Bound) else cls(trainable)

    @property
    def name(self) -> str:
        """For folders and tables: the registered name, or that of the function or class underneath."""
        if self.label:
            return self.label
        inner = self.trainable
        while hasattr(inner, "func"):  # functools.partial
            inner = inner.func
        return str(getattr(inner, "__name__", type(inner).__name__))

    def request(self, config: dict[str, Any]) -> PlacementGroupFactory:
        """What a trial with this configuration reserves.

        Raises:
            ConfigError: what was asked for has no known form, or the function that says it raised.
        """
        resources = self.resources
        if resources is None:
            resources = getattr(self.trainable, "default_resource_request", None)
        if callable(resources):
            try:
                resources = resources(config)
            except Exception as error:
                raise ConfigError(
                    f"what a trial of {self.name} reserves is not known: {name_of(resources)} raised "
                    f"{type(error).__name__}: {message_of(error)}, for the configuration {config!r}"
                ) from error
        return DEFAULT_REQUEST if resources is None else as_request(resources)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the user's function here, with the bound parameters."""
        return self.trainable(*args, **self.parameters, **kwargs)


def with_resources(trainable: Any, resources: Any) -> Bound:
    """Return `trainable` with what each of its trials reserves.

    Args:
        trainable: a function or a `Trainable` class, or the name that one was registered under.
        resources: a dictionary such as {"cpu": 2, "gpu": 0.5}, a `PlacementGroupFactory`, a
            `ScalingConfig`, or a function of the configuration that returns one of them.

    Raises:
        ConfigError: `resources` has none of these forms.
    """
    if not callable(resources):
        as_request(resources)
    return replace(Bound.of(trainable), resources=resources)


def with_parameters(trainable: Any, **parameters: Any) -> Bound:
    """Return `trainable` with keyword arguments that every trial gets beside its configuration.

    Each value is put into the object store once, so that large data isn't sent with every trial.
    A function receives them as `fn(config, **parameters)`, a class as `setup(config, **parameters)`.
    """
    bound = Bound.of(trainable)
    return replace(bound, parameters={**bound.parameters, **parameters})
