"""Cost of the trainer on GPUs: `python -m benchmarks.gpu`.

ResNet-50 in bf16 with channels_last trains in a plain loop and in the trainer with the same settings: speed
and memory on one GPU; on two, DDP compared with torchrun, and the steps of other strategies. Prints a table,
and its rows as one line of JSON. A row for which this machine lacks devices says so. `--device cpu --small`
runs everything without GPUs on a small network, to show that it works; these figures mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

import trainkit
from benchmarks.gpu.job import (
    SMALL,
    Images,
    Sizes,
    make_loader,
    make_model,
    make_optimizer,
    peak_bytes,
    plain_steps,
)
from benchmarks.interleaved import LAUNCHER, Served, in_turn, timed
from benchmarks.rows import Report, Row, apart, parser
from trainkit.plugins.pipeline.pipeline import Pipeline
from trainkit.train import BATCH_SIZE, TorchTrainer
from trainkit.train.strategies.layers import Layers


class Bench:
    """All measurements.

    Args:
        device: "cuda" or "cpu".
        report: report that receives the rows.
        small: True: sizes that only show that the benchmark runs.
    """

    def __init__(self, device: str, report: Report, *, small: bool) -> None:
        self.report = report
        self.device = torch.device(device)
        self.sizes = SMALL if small else Sizes()
        self.small = small
        # The CPU has no number of devices, so all rows run there.
        self.devices = torch.cuda.device_count() if device == "cuda" else 2

    @contextmanager
    def trainer(
        self, workers: int, strategy: Any = "auto", model_ways: int = 1, **options: Any
    ) -> Iterator[Any]:
        """Yield a trainer with the settings of the plain loop."""
        ways = workers // model_ways
        with TorchTrainer(
            training_operator_cls=Images,
            config={"sizes": self.sizes, "data_ways": ways, BATCH_SIZE: self.sizes.batch * ways},
            num_workers=workers,
            strategy=strategy,
            use_gpu=self.device.type == "cuda",
            precision="bf16",
            **{"channels_last": True, **options},
        ) as trainer:
            yield trainer

    def block(self, trainer: Any) -> float:
        """Return the seconds of a block of steps."""
        return timed(lambda: trainer.train(num_steps=self.sizes.steps, max_retries=0))

    def one_device(self) -> None:
        """Measure speed and peak memory, compared with the plain loop."""
        sizes, device = self.sizes, self.device
        model = make_model(sizes).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer, loader = make_optimizer(model, sizes), make_loader(sizes, sizes.batch)
        plain = lambda: plain_steps(model, optimizer, loader, device, sizes.steps)  # noqa: E731
        with self.trainer(1) as trainer:
            blocks = in_turn((lambda: self.block(trainer), plain), sizes.blocks, warm_up=1)
            ours_peak = trainer.apply_all_operators(peak_bytes)[0] if device.type == "cuda" else None
        self.held("one device: a step", blocks)
        name = "one device: high-water mark of memory"
        if ours_peak is None:
            self.report.skip(name, "the CPU has none that torch counts")
            return
        plain_peak = torch.cuda.max_memory_allocated(device)
        row = Row(name, "MB")
        self.report.add(row.measured([ours_peak / 1e6], [plain_peak / 1e6]))

    def ddp(self) -> None:
        """Measure two workers, compared with torchrun."""
        command = [*LAUNCHER, "-m", "benchmarks.gpu.torchrun", self.device.type]
        with Served([*command, "--small"] if self.small else command) as theirs, self.trainer(2) as trainer:
            sides = (lambda: self.block(trainer), lambda: theirs.steps(self.sizes.steps))
            blocks = in_turn(sides, self.sizes.blocks, warm_up=1)
        self.held("two workers, DDP (torchrun): a step", blocks)

    def held(self, name: str, blocks: list[list[float]]) -> None:
        """Report the seconds of blocks of steps of both sides."""
        sides = ([took * 1e3 / self.sizes.steps for took in side] for side in blocks)
        self.report.add(Row(name, "ms").measured(*sides))

    def spread(self, work: str, workers: int, **options: Any) -> None:
        """Measure a step with a different strategy; no plain loop exists for comparison."""
        with self.trainer(workers, **options) as trainer:
            (blocks,) = in_turn((lambda: self.block(trainer),), self.sizes.blocks, warm_up=1)
            peaks = trainer.apply_all_operators(peak_bytes) if self.device.type == "cuda" else None
        took = [each * 1e3 / self.sizes.steps for each in blocks]
        self.report.add(replace(Row(work, "ms").measured(took), itself=apart(took)))
        if peaks is not None:
            row = Row(f"{work}: memory of the fullest device", "MB")
            self.report.add(row.measured([max(peaks) / 1e6]))

    def run(self) -> None:
        """Measure all rows."""
        # With more microbatches, batch norm would see only one value in each.
        pipeline = Pipeline(split=["layer3"], microbatches=2 if self.small else None)
        layers = Layers(devices=["cpu", "cpu"] if self.device.type == "cpu" else None)
        on_both = {} if self.device.type == "cpu" else {"gpus_per_worker": 2}
        rows: list[tuple[str, int, Callable[[str], None]]] = [
            ("one device: a step", 1, lambda _: self.one_device()),
            ("two workers, DDP (torchrun): a step", 2, lambda _: self.ddp()),
            (
                "two workers, FSDP2: a step",
                2,
                lambda work: self.spread(work, 2, strategy="fsdp", channels_last=False),
            ),
            (
                "two workers, pipeline of two stages: a step",
                2,
                lambda work: self.spread(work, 2, strategy=pipeline, model_ways=2),
            ),
            (
                "one worker, layers on two devices: a step",
                2,
                lambda work: self.spread(work, 1, strategy=layers, **on_both),
            ),
        ]
        for work, needed, measure in rows:
            if needed > self.devices:
                self.report.skip(work, f"needs {needed} CUDA devices; this machine has {self.devices}")
            else:
                measure(work)


def main() -> None:
    """Measure and print the rows."""
    arguments = parser(__doc__)
    arguments.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="%(default)s")
    given = arguments.parse_args()
    # Workers are forked from a process that has loaded torch, but not CUDA.
    trainkit.init(num_cpus=4 if given.device == "cpu" else None, preload=["torch"])
    try:
        with Report("gpu", "plain", small=given.small) as report:
            Bench(given.device, report, small=given.small).run()
    finally:
        trainkit.shutdown()


if __name__ == "__main__":
    main()
