"""A reserved list of resource bundles: what a gang of workers starts in, all or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.errors import ConfigError, InfeasibleError
from trainkit.resources import Bundle, describe, normalize, require_feasible
from trainkit.runtime.current import engine
from trainkit.runtime.ids import PlacementGroupID
from trainkit.runtime.placement import Ledger
from trainkit.runtime.specs import ObjectRef


class PlacementGroup:
    """Bundles of one reservation; made by `placement_group`, given to `.options(placement_group=)`.

    Attributes:
        id: names the reservation within the session; groups with the same id are equal.
        bundle_specs: the bundles asked for, in order.
        strategy: how they are spread over nodes; None where that is not known, as on one machine it makes
            no difference to a group that could be reserved.
        name: by which `get_placement_group` finds it; "" for none.
    """

    def __init__(
        self, group_id: int, bundles: Sequence[Bundle], *, strategy: str | None = None, name: str = ""
    ) -> None:
        self.id = PlacementGroupID(group_id)
        self.strategy = strategy
        self.name = name
        self.bundle_specs: list[dict[str, float]] = [dict(bundle) for bundle in bundles]

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """True once all bundles are reserved; False if `timeout_seconds` passed before."""
        return engine().await_group(self.id, timeout_seconds)

    def ready(self) -> ObjectRef[Any]:
        """A reference for `get` and `wait` that is done once all bundles are reserved."""
        return engine().group_ref(self.id)

    def require_room(self, request: Bundle, index: int) -> None:
        """Raise InfeasibleError if no bundle, or not that of `index`, could ever hold `request`."""
        bundles = self.bundle_specs if index < 0 else [self.bundle_specs[index]]
        if not any(
            all(amount <= bundle.get(name, 0) for name, amount in request.items()) for bundle in bundles
        ):
            where = "no bundle" if index < 0 else f"bundle {index} not"
            raise InfeasibleError(
                f"a request for {describe(request)} can never be met in this placement group: {where} large "
                f"enough among {self.bundle_specs}"
            )

    @property
    def bundle_count(self) -> int:
        """How many bundles the group has."""
        return len(self.bundle_specs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"PlacementGroup({self.id.hex()}, {self.bundle_specs})"


STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def find(name: str) -> PlacementGroup:
    """The group of that name; see `trainkit.get_placement_group`."""
    return PlacementGroup(*engine().find_group(name), name=name)


def reserve(
    bundles: Sequence[Mapping[str, float]], strategy: str, name: str, lifetime: str | None
) -> PlacementGroup:
    """Ask the running engine for `bundles`; see `trainkit.placement_group`."""
    if strategy not in STRATEGIES:
        raise ConfigError(f"strategy={strategy!r}; there are {', '.join(STRATEGIES)}")
    if lifetime not in (None, "detached"):
        raise ConfigError(f"lifetime={lifetime!r}; there are None and 'detached'")
    if not bundles:
        raise ConfigError("placement_group([]): give at least one bundle, such as {'CPU': 1}")
    checked = [normalize(bundle, what=f"bundle {index}") for index, bundle in enumerate(bundles)]
    totals = engine().cluster_resources()
    require_feasible(checked, totals, what="the placement group")
    if Ledger.of_machine(totals).take_all(checked) is None:
        raise InfeasibleError(
            f"the placement group's bundles {checked} cannot be placed together on {describe(totals)}: a "
            "fraction of a GPU must lie on one"
        )
    group_id = engine().reserve(checked, strategy, name, lifetime == "detached")
    return PlacementGroup(group_id, checked, strategy=strategy, name=name)
