"""Names of actors by namespace, each given to one actor at a time."""

from __future__ import annotations

from collections.abc import Sequence


class NameTable:
    """Table of names and their bearers; a bearer has one name at most."""

    def __init__(self) -> None:
        self._bearers: dict[tuple[str, str], int] = {}
        self._names: dict[int, tuple[str, str]] = {}

    def give(self, namespace: str, name: str, bearer: int) -> None:
        """Call `bearer` by `name`.

        Raises:
            ValueError: the name is taken, or `bearer` has one already.
        """
        key = (namespace, name)
        if key in self._bearers or bearer in self._names:
            raise ValueError(f"{name!r} in {namespace!r} is taken, or {bearer} has a name already")
        self._bearers[key] = bearer
        self._names[bearer] = key

    def bearer(self, namespace: str, name: str) -> int | None:
        """Return the holder of a name, or None."""
        return self._bearers.get((namespace, name))

    def release(self, bearer: int) -> None:
        """Let the name of `bearer` go, if it has one."""
        key = self._names.pop(bearer, None)
        if key is not None:
            del self._bearers[key]

    def known(self, namespace: str) -> list[str]:
        """Return all names given in a namespace, sorted."""
        return sorted(name for space, name in self._bearers if space == namespace)


def nearest(name: str, known: Sequence[str]) -> str | None:
    """Return the one of `known` that `name` was probably meant to be; None if none is like it."""
    import difflib  # only for an error's message

    found = difflib.get_close_matches(name, known, n=1)
    return found[0] if found else None


def taken_message(name: str, namespace: str, holder: str) -> str:
    """Return the message for a request for a name that `holder` has."""
    return (
        f"the name {name!r} is taken in the namespace {namespace!r} by {holder}; choose another name or "
        "namespace, end that actor with trainkit.kill(trainkit.get_actor(...)), or pass get_if_exists=True "
        "to get its handle"
    )
