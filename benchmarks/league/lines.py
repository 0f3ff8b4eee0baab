"""Questions and answers between two processes, each a line of JSON on a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.interleaved import environment


class Asked:
    """A process that answers questions.

    Args:
        command: command of the process; its stderr is this process's.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process = subprocess.Popen(
            command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **question: Any) -> Any:
        """Return the answer to a question.

        Raises:
            RuntimeError: the process could not answer, or has ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._command} ended with code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self._command}: {answer['error']}")
        return answer["value"]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def answer(handlers: Mapping[str, Callable[..., Any]]) -> None:
    """Answer each question of the input by the handler that its key "do" names, until the input ends.

    What libraries print to stdout goes to stderr.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            found: dict[str, Any] = {"value": handlers[question.pop("do")](**question)}
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), file=out, flush=True)
