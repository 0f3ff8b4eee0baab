"""The decision about a call that raised: made again, or failed."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence

from trainkit.errors import ObjectLostError, TaskError
from trainkit.runtime.failures import unpack_failure
from trainkit.runtime.local.frames import FAILURE, Frame
from trainkit.runtime.local.objects import opened
from trainkit.runtime.local.refs import LOST, LocalRef, Peer
from trainkit.runtime.serialize import Packed

Verdict = Callable[[TaskError], bool]


def decide(peer: Peer, failure: Packed, refs: Sequence[LocalRef], made_again: Verdict) -> None:
    """Give `refs` the failure of their call, unless `made_again` makes the call again for its error.

    In a thread of its own: to rebuild the error runs the user's code, which may wait for others, and
    the caller of this reads `peer`. Until it is decided no connection owes `refs`.
    """
    waiting = {ref.id: peer.pending.pop(ref.id) for ref in refs if ref.id in peer.pending}
    for ref in refs:
        ref.attach(None)

    def work() -> None:
        try:
            if made_again(unpack_failure(opened(failure))):
                return
        except BaseException as error:  # the user's code may even try to end the process
            _fail(peer, refs, error)
            return
        peer.forget([ref.id for ref in refs])
        peer.pending.update(waiting)
        for ref_id in waiting:
            Peer.on_frame(peer, Frame(FAILURE, ref_id, failure))

    try:
        threading.Thread(target=work, name="trainkit-retry", daemon=True).start()
    except RuntimeError as error:  # the machine has no thread left
        _fail(peer, refs, error)


def _fail(peer: Peer, refs: Sequence[LocalRef], error: BaseException) -> None:
    peer.forget([ref.id for ref in refs])
    reason = f"a call raised, and could not be made again as retry_exceptions asks: {error!r}"
    for ref in refs:
        if not ref.done():
            ref.complete(LOST, functools.partial(ObjectLostError, reason))
