"""What the trainer costs on GPUs: `python -m benchmarks.gpu`.

ResNet-50 in bf16 with channels_last, by a plain loop and by the trainer with the same settings: speed and
memory on one GPU; on two, DDP against torchrun, and what the other strategies take. One table; a row that
this machine has not the devices for says so. `--device cpu --small` runs all of it without GPUs, on a small
network, to show that it works: those figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from trainkit.train import BATCH_SIZE, TorchTrainer
from trainkit.train.strategies.layers import Layers
from trainkit.train.strategies.pipeline import Pipeline


class Bench:
    """The measurements, and the table of what they gave.

    Args:
        device: "cuda" or "cpu".
        small: sizes that only show that it runs.
    """

    def __init__(self, device: str, *, small: bool) -> None:
        self.device = torch.device(device)
        self.sizes = SMALL if small else Sizes()
        self.small = small
        # On the CPU, which has no number of devices, all rows run.
        self.devices = torch.cuda.device_count() if device == "cuda" else 2
        self.found: dict[str, Any] = {"benchmark": "gpu", "device": self.name, **vars(self.sizes)}

    @property
    def name(self) -> str:
        """Of the device."""
        return torch.cuda.get_device_name() if self.device.type == "cuda" and self.devices else "cpu"

    @contextmanager
    def trainer(
        self, workers: int, strategy: Any = "auto", model_ways: int = 1, **options: Any
    ) -> Iterator[Any]:
        """A trainer with the settings of the plain loop."""
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
        """Seconds of a block of steps."""
        return timed(lambda: trainer.train(num_steps=self.sizes.steps, max_retries=0))

    def one_device(self) -> None:
        """Speed, and the high-water mark of memory, against the plain loop."""
        sizes, device = self.sizes, self.device
        model = make_model(sizes).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer, loader = make_optimizer(model), make_loader(sizes, sizes.batch)
        plain = lambda: plain_steps(model, optimizer, loader, device, sizes.steps)  # noqa: E731
        with self.trainer(1) as trainer:
            blocks = in_turn((plain, lambda: self.block(trainer), plain), sizes.blocks, warm_up=1)
            ours_peak = trainer.apply_all_operators(peak_bytes)[0] if device.type == "cuda" else None
        times = [statistics.median(block) / sizes.steps for block in blocks]
        self.row("one device: a step, speed", times[0], times[1], ">= 0.98")
        self.row("  the plain loop against itself", times[0], times[2], "")
        if ours_peak is None:
            self.skip("one device: high-water mark of memory", "the CPU has none that torch counts")
            return
        plain_peak = torch.cuda.max_memory_allocated(device)
        self.found["memory_of_plain"] = ours_peak / plain_peak
        gib = [f"{peak / 2**30:.3f} GiB" for peak in (plain_peak, ours_peak)]
        self.line("one device: high-water mark of memory", *gib, f"{ours_peak / plain_peak:.3f}", "<= 1.02")

    def ddp(self) -> None:
        """Two workers against torchrun."""
        command = [*LAUNCHER, "-m", "benchmarks.gpu.torchrun", self.device.type]
        with Served([*command, "--small"] if self.small else command) as theirs, self.trainer(2) as trainer:
            sides = (lambda: theirs.steps(self.sizes.steps), lambda: self.block(trainer))
            blocks = in_turn(sides, self.sizes.blocks, warm_up=1)
        times = [statistics.median(block) / self.sizes.steps for block in blocks]
        self.row("two workers, DDP (plain: torchrun): a step, speed", times[0], times[1], ">= 0.98")

    def spread(self, work: str, workers: int, **options: Any) -> None:
        """What a step takes with another strategy; there is no plain loop to compare with."""
        with self.trainer(workers, **options) as trainer:
            (blocks,) = in_turn((lambda: self.block(trainer),), self.sizes.blocks, warm_up=1)
            peaks = trainer.apply_all_operators(peak_bytes) if self.device.type == "cuda" else None
        took = statistics.median(blocks) / self.sizes.steps
        self.found[work] = took
        memory = "" if peaks is None else f"{max(peaks) / 2**30:.2f} GiB on the fullest device"
        self.line(work, "", _ms(took), "", memory)

    def row(self, work: str, plain: float, ours: float, aim: str) -> None:
        """A comparison of seconds, as speed."""
        self.found[work.strip()] = plain / ours
        self.line(work, _ms(plain), _ms(ours), f"{plain / ours:.3f}", aim)

    def skip(self, work: str, reason: str) -> None:
        """A row that this machine can't measure."""
        self.found.setdefault("skipped", {})[work] = reason
        self.line(work, f"skipped: {reason}", "", "", "")

    def line(self, work: str, plain: str, ours: str, ratio: str, aim: str) -> None:
        """Print a line of the table."""
        print(f"{work:<54}{plain:>14}{ours:>14}{ratio:>8}  {aim}", flush=True)

    def run(self) -> None:
        """All rows."""
        self.line("work", "plain", "trainkit", "ratio", "aim")
        # More microbatches than that would leave batch norm one value each.
        pipeline = Pipeline(split=["layer3"], microbatches=2 if self.small else None)
        layers = Layers(devices=["cpu", "cpu"] if self.device.type == "cpu" else None)
        on_both = {} if self.device.type == "cpu" else {"gpus_per_worker": 2}
        rows: list[tuple[str, int, Callable[[str], None]]] = [
            ("one device: a step, speed", 1, lambda _: self.one_device()),
            ("two workers, DDP: a step, speed", 2, lambda _: self.ddp()),
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
                self.skip(work, f"needs {needed} CUDA devices; this machine has {self.devices}")
            else:
                measure(work)
        print(json.dumps({name: _rounded(value) for name, value in self.found.items()}))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _rounded(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="%(default)s")
    parser.add_argument(
        "--small", action="store_true", help="a small network and few steps: only shows that it runs"
    )
    args = parser.parse_args()
    # Workers come from a process that has loaded torch, but no CUDA.
    trainkit.init(num_cpus=4 if args.device == "cpu" else None, preload=["torch"])
    try:
        Bench(args.device, small=args.small).run()
    finally:
        trainkit.shutdown()


if __name__ == "__main__":
    main()
