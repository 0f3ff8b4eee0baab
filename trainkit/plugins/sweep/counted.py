"""Reports of a program that continues after a kill: the earlier reports are kept."""

from __future__ import annotations

import json
from pathlib import Path

from trainkit.errors import TuneError
from trainkit.plugins.sweep.sources import Report


class CountedReports:
    """File of a trial's reports, each with a counter such as the epoch.

    A trial that runs again begins without reports. If its program continues at epoch 4, the reports of the
    first three epochs are made again before the new report, so that the trial has each epoch once.

    Args:
        path: the file, with one report as JSON in each line.
        counter: name of the reported value that grows from report to report.
    """

    def __init__(self, path: Path, counter: str) -> None:
        self._path, self._counter = path, counter
        lines = (
            path.read_text().split("\n")[:-1] if path.exists() else []
        )  # a kill may have cut the last line
        self._earlier = [json.loads(line) for line in lines]
        self._has_begun = False

    def with_earlier(self, report: Report) -> list[Report]:
        """Store a report, and return it after the earlier reports that it continues.

        Raises:
            TuneError: the report lacks the counter.
        """
        count = report.get(self._counter)
        if not isinstance(count, (int, float)):
            raise TuneError(
                f"the report {dict(report)} lacks the counter {self._counter!r}: write the counter's number "
                "beside the metric, or remove `counter` from the sweep file"
            )
        reports = [report]
        if not self._has_begun:
            reports = [*(each for each in self._earlier if each[self._counter] < count), report]
            self._has_begun = True
            new = self._path.with_suffix(".new")
            new.write_text("".join(f"{json.dumps(each)}\n" for each in reports))
            new.replace(self._path)
        else:
            with self._path.open("a") as file:
                file.write(f"{json.dumps(report)}\n")
        return reports
