"""What part a batch has in an optimizer's step: the weight of its loss, and whether the step ends with it.

A step's gradient is the mean over all its samples, however they are dealt out among workers and however many
batches are accumulated, so each batch weighs what its share of the samples is.
"""

from __future__ import annotations

from dataclasses import dataclass


def share(samples: int, rank: int, world_size: int) -> int:
    """How many of a global batch of `samples` worker `rank` is dealt."""
    return max(0, -(-(samples - rank) // world_size))


@dataclass(frozen=True)
class Turn:
    """One batch's part in an optimizer's step.

    Attributes:
        weight: factor for this worker's mean loss where gradients are averaged over workers; 0 if its
            samples are counted by another worker.
        own_weight: the same where they are not.
        closes: the step ends with this batch.
        correction: factor for the gradients at the end, where weights had to be given before it was known
            how many batches there are.
    """

    weight: float = 1.0
    own_weight: float = 1.0
    closes: bool = True
    correction: float = 1.0


WHOLE = Turn()
"""A batch that is a step by itself, and counts in full."""


@dataclass(frozen=True)
class Pass:
    """The sizes of the batches of one pass over the data.

    Attributes:
        samples: of the pass, over all workers.
        batch_size: of a full batch, over all workers.
        drop_last: a last batch that is not full is left out.
    """

    samples: int
    batch_size: int
    drop_last: bool

    @property
    def steps(self) -> int:
        """Batches of the pass."""
        full, rest = divmod(self.samples, self.batch_size)
        return full + (1 if rest and not self.drop_last else 0)

    def size(self, index: int) -> int:
        """Samples of batch `index`, counted on where the data starts again."""
        first = index % self.steps * self.batch_size
        return min(self.batch_size, self.samples - first)


class KnownTurns:
    """The turns of one call's batches, where their sizes are known beforehand; most of them are alike.

    Args:
        sizes: of the batches of a pass, over all workers.
        total: batches of the call.
        every: batches of a step.
        rank: this worker's.
        world_size: workers among whom the samples are dealt.
    """

    def __init__(self, sizes: Pass, total: int, *, every: int, rank: int, world_size: int) -> None:
        self._sizes = sizes
        self._total = total
        self._every = every
        self._steps = sizes.steps
        self._place = {"every": every, "rank": rank, "world_size": world_size}
        full = Pass(every * sizes.batch_size, sizes.batch_size, drop_last=False)
        self._of_full = [known_turn(index, every, full, **self._place) for index in range(every)]

    def __call__(self, index: int) -> Turn:
        """The turn of batch `index`, from 0 since the call began."""
        # A loop of the user's own may go over them once more, or over batches of its own: as if called again.
        index %= self._total
        position = index % self._every
        start = index - position
        # A pass's last batch, which may be small, is not in this step, and neither is the call's end.
        if start % self._steps + self._every < self._steps and start + self._every <= self._total:
            return self._of_full[position]
        return known_turn(index, self._total, self._sizes, **self._place)


def known_turn(index: int, total: int, sizes: Pass, *, every: int, rank: int, world_size: int) -> Turn:
    """The turn of batch `index` of `total`, where the sizes of all batches are known beforehand.

    Args:
        index: from 0, since the call began.
        total: batches of the call.
        sizes: of the batches, over all workers.
        every: batches of a step.
        rank: this worker's.
        world_size: workers among whom the samples are dealt.
    """
    start = index - index % every
    group = range(start, min(start + every, total))
    dealt = [share(sizes.size(step), rank, world_size) for step in group]
    own = dealt[index - start]
    return Turn(
        weight=own * world_size / sum(map(sizes.size, group)),
        own_weight=own / sum(dealt) if sum(dealt) else 0.0,
        closes=index == group[-1] or (index + 1) % every == 0,
    )


def unknown_turn(index: int, *, every: int, last: bool) -> Turn:
    """The turn of batch `index`, where only running the loader tells how many there are, and how large."""
    held = index % every + 1
    closes = last or held == every
    return Turn(1 / every, 1 / every, closes, every / held if closes else 1.0)
