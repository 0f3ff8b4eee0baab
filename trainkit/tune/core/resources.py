"""Resource requests of trials."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trainkit import runtime
from trainkit.errors import ConfigError, TuneArgumentError, message_of
from trainkit.resources import QUANTUM, normalize, total
from trainkit.tune.core.checks import named_settings, require, require_one_of, require_whole
from trainkit.tune.core.metrics import name_of
from trainkit.tune.core.trainables import get_trainable_cls

if TYPE_CHECKING:
    from trainkit.runtime.scheduling import PlacementGroup


@dataclass(frozen=True)
class PlacementGroupFactory:
    """Resource request of a trial: bundles that are reserved together or not at all.

    The trial's own process takes the first bundle, which may be empty. Tasks and actors that this process
    starts take the other bundles; `trainkit.get_current_placement_group()` selects a bundle for each task or
    actor.

    Args:
        bundles: list such as [{}, {"CPU": 1}, {"CPU": 1}].
        strategy: "PACK", "SPREAD" or "STRICT_PACK", which all place the bundles on the single machine.
            "STRICT_SPREAD" needs a machine for each bundle, so only one bundle may be non-empty.

    Raises:
        ConfigError: the bundles or the strategy can't be satisfied.
    """

    bundles: Sequence[Mapping[str, float]]
    strategy: str = "PACK"
    head: dict[str, float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.bundles, Mapping) or not self.bundles:
            raise TuneArgumentError(f"PlacementGroupFactory({self.bundles!r}): give a list of bundles")
        require_one_of("strategy", self.strategy, ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"))
        bundles = tuple(
            normalize(bundle, what=f"bundle {place} of a trial") for place, bundle in enumerate(self.bundles)
        )
        if self.strategy == "STRICT_SPREAD" and sum(map(bool, bundles)) > 1:
            raise TuneArgumentError(
                f"strategy='STRICT_SPREAD' needs {sum(map(bool, bundles))} machines, one for each bundle, "
                "but trials run on one machine: give 'SPREAD' or 'PACK'"
            )
        object.__setattr__(self, "bundles", bundles)
        object.__setattr__(self, "head", bundles[0])

    @property
    def group(self) -> list[dict[str, float]]:
        """The bundles that are not empty; a placement group is needed only for two or more such bundles."""
        return [dict(bundle) for bundle in self.bundles if bundle]

    @property
    def required_resources(self) -> dict[str, float]:
        """Sum of all bundles, by resource name."""
        return total(self.bundles)

    @functools.cached_property
    def units(self) -> Mapping[str, int]:
        """The requested amounts in whole ten-thousandths, because sums of whole numbers are exact."""
        return {name: round(amount * QUANTUM) for name, amount in self.required_resources.items()}

    @property
    def head_cpus(self) -> float:
        """Number of CPUs of the trial's own process."""
        return self.head.get("CPU", 0.0)

    def to_placement_group(self) -> PlacementGroup:
        """Reserve the bundles outside any trial; `remove_placement_group` releases them."""
        return runtime.placement_group(self.group, self.strategy)

    def __hash__(self) -> int:
        return hash((tuple(tuple(sorted(bundle.items())) for bundle in self.bundles), self.strategy))


DEFAULT_REQUEST = PlacementGroupFactory([{"CPU": 1}])


class TrialResources(dict[str, float]):
    """Resources of a trial by name, with the attributes of Ray's class, which is not a dictionary.

    Args:
        request: resource request of the trial.
    """

    def __init__(self, request: PlacementGroupFactory) -> None:
        super().__init__(request.required_resources)
        self.bundles = [dict(bundle) for bundle in request.bundles]
        self.strategy = request.strategy
        self.head_cpus = request.head_cpus

    @property
    def required_resources(self) -> dict[str, float]:
        """Amounts of the resources by name, as a plain dictionary."""
        return dict(self)


def as_request(resources: Any) -> PlacementGroupFactory:
    """Convert any supported form of a resource request.

    Raises:
        ConfigError: `resources` has an unsupported form.
    """
    if isinstance(resources, PlacementGroupFactory):
        return resources
    if hasattr(resources, "as_placement_group_factory"):
        request: PlacementGroupFactory = resources.as_placement_group_factory()
        return request
    if isinstance(resources, Mapping):
        if extra := sorted(set(resources) & {"extra_cpu", "extra_gpu", "extra_memory"}):
            raise TuneArgumentError(
                f"resources={dict(resources)!r}: {extra[0]} was for processes that a trial starts; give "
                "tune.PlacementGroupFactory([{'CPU': 1}, {'CPU': 1}]), with one bundle for each process"
            )
        plain = dict(resources)
        custom = plain.pop("custom_resources", None) or {}
        return PlacementGroupFactory([{**plain, **custom}])
    raise TuneArgumentError(
        f"resources={resources!r}: give a dictionary such as {{'cpu': 2}}, a PlacementGroupFactory, "
        "a ScalingConfig, or a function of the configuration that returns one of them"
    )


@dataclass(frozen=True)
class Bound:
    """Trainable with its resource request and the parameters that every trial receives.

    Attributes:
        trainable: the user's function or class.
        resources: argument of `with_resources`; None: the trainable's own request, or 1 CPU.
        parameters: arguments of `with_parameters`, by name.
        label: name under which the trainable is registered; '' without a registration.
        start_from: path of a checkpoint that every trial starts from, or None.
        ahead: number of trials to submit for each trial that can run, for a `SerializedTrainable`, whose
            steps are tasks; None: each trial is a process.
        parts: number of parallel tasks that compute one step of a trial.
        here: True: all steps run one after another in the calling process, without a session of the runtime.
    """

    trainable: Any
    resources: Any = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""
    start_from: str | None = None
    ahead: int | None = None
    parts: int = 1
    here: bool = False

    @classmethod
    def of(cls, trainable: Any) -> Bound:
        """Return `trainable` as a Bound; a string is looked up as a registered name.

        Raises:
            ConfigError: no trainable is registered under the name.
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
        """Name for folders and tables: the registered name, or else the name of the function or class."""
        if self.label:
            return self.label
        inner = self.trainable
        while hasattr(inner, "func"):  # a functools.partial may contain another
            inner = inner.func
        return str(getattr(inner, "__name__", type(inner).__name__))

    def request(self, config: dict[str, Any]) -> PlacementGroupFactory:
        """Return the resource request of a trial with this configuration.

        Raises:
            ConfigError: the request has an unsupported form, or the function that returns the request raised.
        """
        resources = self.resources
        if resources is None:
            resources = getattr(self.trainable, "default_resource_request", None)
        if callable(resources):
            try:
                resources = resources(config)
            except ConfigError:
                raise  # the message of a ConfigError already says what to do
            except Exception as error:
                raise TuneArgumentError(
                    f"the resources of a trial of {self.name} are unknown: {name_of(resources)} raised "
                    f"{type(error).__name__}: {message_of(error)}, for the configuration {config!r}"
                ) from error
        return DEFAULT_REQUEST if resources is None else as_request(resources)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the user's function with the bound parameters."""
        return self.trainable(*args, **self.parameters, **kwargs)


def with_resources(trainable: Any, resources: Any) -> Bound:
    """Return `trainable` with a resource request for each of its trials.

    Args:
        trainable: a function, a `Trainable` class, or a registered name.
        resources: a dictionary such as {"cpu": 2, "gpu": 0.5}, a `PlacementGroupFactory`, a
            `ScalingConfig`, or a function of the configuration that returns one of them.

    Raises:
        ConfigError: `resources` has an unsupported form.
    """
    if not callable(resources):
        as_request(resources)
    return replace(Bound.of(trainable), resources=resources)


def with_parameters(trainable: Any, **parameters: Any) -> Bound:
    """Return `trainable` with keyword arguments that every trial receives with its configuration.

    Each value is put into the object store once, so that large data is not sent with every trial. A function
    is called as `fn(config, **parameters)`, and the `setup` of a class as `setup(config, **parameters)`.
    """
    bound = Bound.of(trainable)
    return replace(bound, parameters={**bound.parameters, **parameters})


@named_settings
@dataclass(frozen=True)
class ScalingConfig:
    """Resource request of a trial that starts `num_workers` processes.

    As in Ray, the trial's own process takes none of these resources. The resources are for the tasks, actors
    or trainers that the process starts. For a function that computes in its own process, use a request such
    as {"cpu": 2, "gpu": 1} in place of this class.

    Args:
        trainer_resources: resources of the workers' coordinator, which shares a bundle with the first worker;
            None: 1 CPU, or nothing for a function trainer, because it only waits for its workers.
        num_workers: number of workers.
        use_gpu: True: each worker uses one GPU.
        resources_per_worker: dictionary such as {"CPU": 2, "GPU": 0.5}; None: 1 CPU, or 1 GPU with `use_gpu`.
        placement_strategy: strategy of `PlacementGroupFactory`.
        accelerator_type: must be None, as the single machine offers no choice; exists for Ray's signature
            only.

    Raises:
        ConfigError: a value is out of range, or two values contradict each other.
    """

    trainer_resources: Mapping[str, float] | None = None
    num_workers: int = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    placement_strategy: str = "PACK"
    accelerator_type: str | None = None

    def __post_init__(self) -> None:
        require_whole(
            "num_workers",
            self.num_workers,
            0,
            "a number of workers; it is searched by "
            "param_space={'scaling_config': {'num_workers': tune.grid_search([1, 2])}}",
        )
        require(
            self.accelerator_type is None,
            f"accelerator_type={self.accelerator_type!r}: machines aren't chosen by accelerators here; "
            "declare a resource by trainkit.init(resources={'A100': 1}) and name it in resources_per_worker",
        )
        gpus = normalize(self.resources_per_worker or {}, what="resources_per_worker").get("GPU", 0)
        asked = self.resources_per_worker is not None and any(
            name.lower() == "gpu" for name in self.resources_per_worker
        )
        require(self.use_gpu or gpus == 0, f"resources_per_worker has GPU={gpus:g}, but use_gpu is False")
        require(
            not (self.use_gpu and asked and gpus == 0), "use_gpu is True, but resources_per_worker has GPU=0"
        )

    @property
    def _worker(self) -> dict[str, float]:
        if self.resources_per_worker is None:
            return {"GPU": 1} if self.use_gpu else {"CPU": 1}
        worker = normalize(self.resources_per_worker, what="resources_per_worker")
        return {"GPU": 1, **worker} if self.use_gpu else worker

    @property
    def _trainer(self) -> dict[str, float]:
        if self.trainer_resources is None:
            return {"CPU": 1}
        return normalize(self.trainer_resources, what="trainer_resources")

    @property
    def num_cpus_per_worker(self) -> float:
        """CPUs of each worker."""
        return self._worker.get("CPU", 0)

    @property
    def num_gpus_per_worker(self) -> float:
        """GPUs of each worker."""
        return self._worker.get("GPU", 0)

    @property
    def additional_resources_per_worker(self) -> dict[str, float]:
        """Resources of each worker by name, without CPUs and GPUs."""
        return {name: amount for name, amount in self._worker.items() if name not in ("CPU", "GPU")}

    @property
    def total_resources(self) -> dict[str, float]:
        """Resources of all workers, and `trainer_resources` if given, by resource name."""
        trainer = self._trainer if self.trainer_resources is not None else {}
        return total([trainer, *[self._worker] * self.num_workers])

    def as_placement_group_factory(self) -> PlacementGroupFactory:
        """Return the request with its bundles: {} for the trial's process, then the coordinator with the
        first worker, then the other workers.
        """
        first = total([self._trainer, *[self._worker] * min(self.num_workers, 1)])
        rest = [self._worker] * max(self.num_workers - 1, 0)
        return PlacementGroupFactory([{}, first, *rest], self.placement_strategy)
