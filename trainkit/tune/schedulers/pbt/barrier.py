"""Where all members of a population wait for the last one, to be judged together."""

from __future__ import annotations

from collections.abc import Iterator

from trainkit.tune.schedulers.pbt.population import Member, Population


class Barrier:
    """See the module.

    Args:
        members: the population; those that have ended are not waited for.

    Attributes:
        target: after how many intervals it stands.
    """

    def __init__(self, members: Population) -> None:
        self._members = members
        self._arrived: dict[str, None] = {}
        self.target = members.first

    def __contains__(self, trial_id: str) -> bool:
        """Whether a member waits here."""
        return trial_id in self._arrived

    def __len__(self) -> int:
        """How many wait here."""
        return len(self._arrived)

    def arrive(self, member: Member) -> None:
        """A member waits from now on."""
        self._arrived[member.trial_id] = None

    def leave(self, member: Member) -> None:
        """A member has ended, wherever it was."""
        self._arrived.pop(member.trial_id, None)

    def take_back(self, member: Member) -> None:
        """A member that had ended goes on: nobody waits for it where it has been judged before."""
        if not self._arrived:
            self.target = max(self.target, member.intervals + 1)

    @property
    def all_came(self) -> bool:
        """Whether all that have not ended wait here, and at least one does."""
        return bool(self._arrived) and all(each.trial_id in self._arrived for each in self._members.active())

    def open(self) -> Iterator[Member]:
        """Let all go that wait, in the order of the population; nothing may depend on who came when."""
        waited, self._arrived = self._arrived, {}
        # Past the one that has come furthest: a long report must not leave the others behind for good.
        self.target = max(self._members[trial_id].intervals for trial_id in waited) + 1
        return (member for trial_id, member in self._members.by_id.items() if trial_id in waited)
