"""Validation and description of resource requests, such as {"CPU": 1, "GPU": 0.5, "disk": 2}."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping

from trainkit.errors import ArgumentTypeError, ConfigError, InfeasibleError, did_you_mean

Bundle = Mapping[str, float]
"""Amounts by resource name. "CPU" and "GPU" are upper case; custom names are kept unchanged."""

_CANONICAL = {"cpu": "CPU", "gpu": "GPU"}

QUANTUM = 10_000
"""Number of units in a resource amount of 1. Sums are made in units, so that ten times 0.1 is exactly 1."""


def checked_names(request: Mapping[str, float] | None, *, what: str = "resource request") -> Bundle:
    """Return `request`, or {} for None. Raise ArgumentTypeError unless `request` maps names to values."""
    if request is None:
        return {}
    if not isinstance(request, Mapping) or not all(isinstance(name, str) for name in request):
        raise ArgumentTypeError(f"{what} must be amounts by name, such as {{'CPU': 1}}, not {request!r}")
    return request


def normalize(request: Mapping[str, float], *, what: str = "resource request") -> dict[str, float]:
    """Return `request` with canonical names and without zero amounts.

    Raises:
        ConfigError: an amount is negative, not a number, or a fraction of more than one GPU.
    """
    amounts: dict[str, float] = {}
    for name, amount in checked_names(request, what=what).items():
        if isinstance(amount, bool) or not isinstance(amount, (int, float)):
            raise ArgumentTypeError(f"{what}: {name} must be a number such as 1 or 0.5, not {amount!r}")
        if not math.isfinite(amount):
            raise ConfigError(f"{what}: {name} must be a finite number such as 1 or 0.5, not {amount!r}")
        if amount < 0:
            raise ConfigError(f"{what}: {name}={amount} is negative; give 0 or more")
        key = _CANONICAL.get(name.lower(), name)
        if key in amounts:
            raise ConfigError(f"{what}: {key} is given twice, as {sorted(request)}")
        if key == "GPU" and amount > 1 and amount != int(amount):
            raise ConfigError(f"{what}: GPU must be whole GPUs, or a fraction of one GPU, not {amount}")
        if round(amount * QUANTUM) > 0:
            amounts[key] = amount
    return amounts


def total(bundles: Iterable[Bundle]) -> dict[str, float]:
    """Return the total amount of each resource in all bundles, by resource name."""
    units: dict[str, int] = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            units[name] = units.get(name, 0) + round(amount * QUANTUM)
    return {name: count / QUANTUM for name, count in units.items()}


def describe(bundle: Bundle) -> str:
    """Return the resources as text, such as '2 CPU, 1 GPU, 512 MiB memory', or 'nothing'."""
    return ", ".join(f"{_amount(name, bundle)} {name}" for name in sorted(bundle)) or "nothing"


def describe_use(used: Bundle, existing: Bundle) -> str:
    """Return text such as '2 of 4 CPU, 0 of 1 GPU'.

    Resources other than CPUs and GPUs appear only if they are in use.
    """
    names = [name for name in sorted({**existing, **used}) if used.get(name) or name in ("CPU", "GPU")]
    return (
        ", ".join(f"{_amount(name, used)} of {_amount(name, existing)} {name}" for name in names) or "nothing"
    )


def _amount(name: str, bundle: Bundle) -> str:
    amount = bundle.get(name, 0)
    return describe_bytes(amount) if name == "memory" else f"{amount:g}"


def describe_bytes(count: float) -> str:
    """Return a number of bytes as text, such as '512 MiB' or '1.5 GiB'."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def require_feasible(
    bundles: Iterable[Bundle],
    existing: Bundle,
    *,
    what: str,
    has: str = "this machine has",
    more: str = "declare more in trainkit.init()",
) -> None:
    """Raise InfeasibleError if `bundles` together exceed all existing resources.

    Args:
        bundles: requested amounts.
        existing: existing amounts.
        what: description of the requester, for the message.
        has: text that names the owner of the existing resources, such as "this machine has".
        more: text that says how to get more resources.
    """
    asked = total(bundles)
    short = sorted(name for name, amount in asked.items() if amount > existing.get(name, 0))
    if short:
        hints = [did_you_mean(name, {"CPU", "GPU", "memory", *existing} - {name}) for name in short]
        raise InfeasibleError(
            f"{what} asks for {describe(asked)}, but {has} {describe(existing)}: "
            f"not enough {', '.join(short)}. Ask for less, or {more}.{''.join(hints)}"
        )


def file_system(mounts: str, device: int) -> str:
    """Return the type, such as "ext4", of the mounted file system with this device number; "" without one.

    For some file systems, such as Btrfs, the device number of a file differs from the device number of the
    mount.

    Args:
        mounts: text of /proc/self/mountinfo.
        device: device number.
    """
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2:3] == [wanted]:
            return right.split()[0]
    return ""
