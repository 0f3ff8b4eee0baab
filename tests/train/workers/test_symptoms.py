"""What the errors of workers that lost each other tell."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from trainkit.train.distributed.failure_cause import lost_loader, lost_peer


@pytest.mark.parametrize(
    ("error", "symptom"),
    [
        (
            RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"),
            True,
        ),
        (RuntimeError("Timed out waiting 3000ms for recv operation to complete"), True),
        (dist.DistBackendError("NCCL communicator was aborted"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (RuntimeError("[gloo/transport/tcp/pair.cc:9] Application timeout caused pair closure"), True),
        (RuntimeError("Application timeout caused pair closure"), True),
        (
            RuntimeError("[/src/third_party/gloo/gloo/transport/tcp/pair.cc:5] Read error [::1]:7: reset"),
            True,
        ),
        (RuntimeError("Gloo connectFullMesh failed with timeout"), True),
        (RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:77, unhandled system error"), True),
        (RuntimeError("no images in the igloo data set"), False),
        (RuntimeError("the gloo of the mould [part 3] is dry"), False),
        (RuntimeError("timed out waiting for the feature server"), False),
        (RuntimeError("download: connection reset by peer"), False),
        (ValueError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"), False),
    ],
    ids=repr,
)
def test_symptoms_of_anothers_failure_are_told_from_causes(error: Exception, symptom: bool) -> None:
    assert lost_peer(error) is symptom


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("DataLoader worker (pid 31) is killed by signal: Killed. ", True),
        ("DataLoader worker (pid 31) exited unexpectedly with exit code 1. Details are lost", True),
        ("DataLoader worker (pid(s) 31, 32) exited unexpectedly", True),
        ("Caught RuntimeError in DataLoader worker process 0.", False),
        ("DataLoader timed out after 5 seconds", False),
    ],
)
def test_a_dead_loader_process_is_told_from_an_error_in_it(text: str, lost: bool) -> None:
    assert lost_loader(RuntimeError(text)) is lost
