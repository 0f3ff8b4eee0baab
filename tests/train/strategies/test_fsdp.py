"""Sharded training: it computes what a plain loop computes, and each worker holds its part only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.train.operators import Digits, OwnSeeds, digits, gang_losses, plain_loop
from trainkit.errors import ConfigError
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator
from trainkit.train.strategies.blocks import chosen_blocks
from trainkit.train.strategies.fsdp import FSDP

pytestmark = pytest.mark.usefixtures("runtime")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Tanh())
        self.out = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.out(self.inner(x))


class Tower(nn.Module):
    """As transformers are built: something before, a stack of equal blocks, something after."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.last = nn.Linear(width, 10)
        self.last.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)

    def spread_out(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x))


def parts(config: dict[str, Any]) -> tuple[nn.Module, Any, DataLoader[Any], DataLoader[Any]]:
    torch.manual_seed(0)
    dtype = config.get("dtype", torch.float64)
    model = Tower().to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    data = digits(config.get("samples", 481), dtype)
    size = config.get(BATCH_SIZE, 24)
    return model, optimizer, DataLoader(data, size, shuffle=True), DataLoader(data, 20)


class Stack(Digits):
    """Digits through a `Tower`."""

    def setup(self, config: dict[str, Any]) -> None:
        model, optimizer, train, validation = parts(config)
        self.register(models=model, optimizers=optimizer, criterion=nn.CrossEntropyLoss())
        self.register_data(train_loader=train, validation_loader=validation)
        self.steps: list[tuple[float, int]] = []


def plain(config: dict[str, Any], steps: int, max_norm: float | None = None) -> tuple[list[float], float]:
    """Losses of a plain loop, and the validation loss after it."""
    model, optimizer, loader, validation = parts(config)
    criterion = nn.functional.cross_entropy
    losses = plain_loop(model, optimizer, criterion, loader, steps, max_norm=max_norm)
    with torch.no_grad():
        total = sum(float(nn.functional.cross_entropy(model(x), y)) * len(y) for x, y in validation)
    return losses, total / len(validation.dataset)  # type: ignore[arg-type]


def trainer(operator: type[TrainingOperator] = Stack, **options: Any) -> TorchTrainer:
    given = {"num_workers": 2, "strategy": FSDP(), "use_gpu": False, **options}
    return TorchTrainer(training_operator_cls=operator, **given)


def held_bytes(operator: TrainingOperator) -> int:
    """Of parameters and of the optimizer's state, in this worker."""
    tensors = list(operator.model.parameters())
    for state in operator.optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    locals_ = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    return sum(t.untyped_storage().nbytes() for t in locals_)


@pytest.mark.slow
def test_uneven_data_follow_the_plain_loop() -> None:
    # 481 is one more than a multiple of 48 and of 40: in the last step one worker has no sample, neither in
    # training nor in validation, where the others would wait for it.
    expected, val_loss = plain({BATCH_SIZE: 48}, 21)
    with trainer(config={BATCH_SIZE: 48}) as gang:
        assert gang.train(num_steps=21)["num_samples"] == 481 + 10 * 48
        assert gang.validate()["val_loss"] == pytest.approx(val_loss, abs=1e-6)
        assert gang.validate()["num_samples"] == 481
        steps = gang.apply_all_operators(lambda operator: operator.steps)
    del steps[1][10]  # it only stood in
    steps[1].insert(10, (0.0, 0))
    losses = [
        sum(loss * count for loss, count in step) / sum(count for _, count in step)
        for step in zip(*steps, strict=True)
    ]
    assert losses == pytest.approx(expected, abs=1e-9)


class OwnShares(Stack):
    """The user deals the samples out; worker 0 has more."""

    def register_data(self, *, train_loader: Any = None, validation_loader: Any = None) -> None:
        data = validation_loader.dataset
        mine = TensorDataset(*(data[:70] if self.world_rank == 0 else data[70:100]))
        super().register_data(train_loader=train_loader, validation_loader=DataLoader(mine, 20))


def test_workers_with_data_of_their_own_wait_for_each_other() -> None:
    with trainer(OwnShares, add_dist_sampler=False, strategy="single", num_workers=1) as gang:
        first = gang.validate()
    with trainer(OwnShares, add_dist_sampler=False) as gang:
        each = gang.validate(reduce_results=False)
        gang.train(num_steps=1)
    assert [result["num_samples"] for result in each] == [70, 30]
    assert each[0]["val_loss"] == pytest.approx(first["val_loss"], abs=1e-9)


def in_copies(**arguments: Any) -> dict[str, Any]:
    """Return strategy and number of workers for two copies of a model."""
    return {"strategy": FSDP(replicas=2, **arguments), "num_workers": 4, "num_cpus_per_worker": 0.5}


@pytest.mark.slow
def test_clipping_and_accumulation_follow_the_plain_loop() -> None:
    config = {BATCH_SIZE: 24, "samples": 480}
    expected, val_loss = plain({**config, BATCH_SIZE: 48}, 20, max_norm=0.5)
    options = {"grad_accumulation_steps": 2, "max_grad_norm": 0.5}
    choice = in_copies(cpu_offload=True, shard_blocks=lambda name, module: isinstance(module, Block))
    with trainer(config=config, **choice, **options) as gang:
        gang.train(num_steps=40)
        losses = gang_losses(gang)
        pairs = [(one + other) / 2 for one, other in zip(losses[::2], losses[1::2], strict=True)]
        assert pairs == pytest.approx(expected, abs=1e-9)
        assert gang.validate()["val_loss"] == pytest.approx(val_loss, abs=1e-6)


@pytest.mark.slow
def test_each_worker_holds_its_part() -> None:
    held = {}
    choices = {"ddp": {"strategy": "ddp"}, "fsdp": {"strategy": "fsdp"}, "copies": in_copies()}
    for name, choice in choices.items():
        with trainer(config={BATCH_SIZE: 48}, **choice) as gang:
            gang.train(num_steps=1)
            gang.validate()
            held[name] = gang.apply_all_operators(held_bytes)
            if name == "fsdp":
                model, weights = gang.get_model(), gang.state_dict()["models"][0]
    for rank in range(2):
        assert held["fsdp"][rank] <= 0.6 * held["ddp"][rank]
    # Each copy is spread over two of the four workers.
    assert held["copies"] == held["fsdp"] * 2
    assert type(model) is Tower, "the user's own class, not a sharded one"
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_several_models_and_buffers_are_as_with_ddp() -> None:
    states = []
    for strategy in ("fsdp", "ddp"):
        torch.manual_seed(0)
        with trainer(OwnSeeds, strategy=strategy) as gang:
            for _ in range(2):
                gang.train()
                gang.validate()
            states.append(gang.state_dict()["models"])
    for one, other in zip(*states, strict=True):
        for name, value in one.items():
            assert torch.allclose(value, other[name], atol=1e-6), name


class Overflowing(Stack):
    """Worker 1's loss is infinite in the second step."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        features, target = batch
        with self.autocast():
            loss = self.criterion(self.model(features), target)
        if batch_info["global_step"] == 1 and self.world_rank == 1:
            loss = loss * float("inf")
        self.backward(loss)
        self.optimizer_step()
        return {"train_loss": loss.detach(), "num_samples": len(target)}


@pytest.mark.slow
def test_half_precision_leaves_out_a_step_that_overflows_anywhere() -> None:
    config = {BATCH_SIZE: 48, "dtype": torch.float32}
    weights = []
    options = {"precision": "fp16", "max_grad_norm": 1.0, **in_copies()}
    with trainer(Overflowing, config=config, **options) as gang:
        for _ in range(3):
            gang.train(num_steps=1)
            weights.append(gang.state_dict()["models"][0]["last.bias"])
    assert not torch.equal(weights[0], torch.zeros(10))
    assert torch.equal(weights[0], weights[1]), "no worker took the step"
    assert not torch.equal(weights[1], weights[2])
    assert torch.isfinite(weights[2]).all()
    expected, val_loss = plain(config, 10)
    with trainer(config=config, precision="bf16") as gang:
        gang.train(num_steps=10)
        assert gang_losses(gang) == pytest.approx(expected, abs=0.05)
        assert gang.validate()["val_loss"] == pytest.approx(val_loss, abs=0.05)


@pytest.mark.slow
def test_compiled_blocks_follow_the_plain_loop() -> None:
    expected, _ = plain({BATCH_SIZE: 48}, 5)
    with trainer(config={BATCH_SIZE: 48}, compile=True) as gang:
        gang.train(num_steps=5)
        assert gang_losses(gang) == pytest.approx(expected, abs=1e-9)
        graphs = gang.apply_all_workers(
            lambda: torch._dynamo.utils.counters["stats"]["unique_graphs"]  # type: ignore[attr-defined]
        )
    assert min(graphs) >= 1


@pytest.mark.gpu
@pytest.mark.parametrize("offload", [False, True])
def test_on_a_gpu_it_follows_the_plain_loop(offload: bool) -> None:
    if (found := torch.cuda.device_count()) < 1:
        pytest.skip(f"needs a CUDA device; this machine has {found}")
    workers = min(2, found)
    _, val_loss = plain({BATCH_SIZE: 48}, 20)
    choice = FSDP(cpu_offload=offload)
    with trainer(num_workers=workers, strategy=choice, use_gpu=True, config={BATCH_SIZE: 48}) as gang:
        gang.train(num_steps=20)
        assert gang.validate()["val_loss"] == pytest.approx(val_loss, abs=1e-6)
        kinds = gang.apply_all_operators(lambda operator: next(operator.model.parameters()).device.type)
        assert kinds == ["cpu" if offload else "cuda"] * workers


# -- which blocks ------------------------------------------------------------------------------


class Tied(nn.Module):
    """A transformer whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.output = nn.Sequential(
            nn.Sequential(nn.Linear(8, 10, bias=False)), nn.Sequential(nn.Linear(10, 10))
        )
        self.output[0][0].weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output(self.encoder(self.embedding(tokens))).mean(1)


def test_blocks_are_those_of_stacks_unless_they_share_a_parameter() -> None:
    model = Tied()
    found = list(chosen_blocks(model, None))
    assert found == [*model.encoder.layers, model.output[1]]
    assert chosen_blocks(model, [nn.TransformerEncoderLayer]) == list(model.encoder.layers)[::-1]
    named = chosen_blocks(model, lambda name, module: name.endswith("layers.1"))
    assert named == [model.encoder.layers[1]]
    assert chosen_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), None) == []
    for wrong, text in (
        ([nn.Conv2d], "matches no module of Tied"),
        ([nn.Embedding], "shares the parameter weight with other parts"),
        (lambda name, module: name == "encoder.layers", "is a list of modules"),
        (["Block"], "takes module classes"),
    ):
        with pytest.raises(ConfigError, match=text):
            chosen_blocks(model, wrong)


class Tokens(Digits):
    """A transformer over the pixels."""

    def setup(self, config: dict[str, Any]) -> None:
        torch.manual_seed(0)
        model = Tied().double()
        data = digits(20, torch.float64)
        tokens = TensorDataset((data.tensors[0][:, :6] * 9).long(), data.tensors[1])
        self.register(
            models=model,
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
            criterion=nn.CrossEntropyLoss(),
        )
        size = config[BATCH_SIZE]
        self.register_data(train_loader=DataLoader(tokens, size), validation_loader=DataLoader(tokens, 4))
        self.steps = []


@pytest.mark.slow
def test_a_transformer_with_tied_weights_trains_and_comes_back_whole() -> None:
    results = {}
    for name, workers in (("single", 1), ("fsdp", 2)):
        with trainer(Tokens, strategy=name, num_workers=workers, config={BATCH_SIZE: 8}) as gang:
            gang.train(num_steps=4)
            results[name] = gang.validate()["val_loss"]
            model = gang.get_model()
    assert isinstance(model, Tied)
    assert model.output[0][0].weight is model.embedding.weight
    assert results["fsdp"] == pytest.approx(results["single"], abs=1e-9)


class AnotherMethod(Stack):
    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        features, target = batch
        return {"spread": self.model.spread_out(features).abs().mean(), "num_samples": len(target)}


def test_other_methods_of_the_model_find_it_whole() -> None:
    results = []
    for choice, workers in (("single", 1), (FSDP(forward_methods=("spread_out",)), 2)):
        with trainer(AnotherMethod, strategy=choice, num_workers=workers) as gang:
            results.append(gang.validate()["spread"])
    assert results[0] == pytest.approx(results[1], abs=1e-9)


class Odd(Digits):
    """What can't be sharded."""

    def setup(self, config: dict[str, Any]) -> None:
        model = nn.Linear(4, 4)
        if config["what"] == "scalar":
            model.temperature = nn.Parameter(torch.tensor(1.0))
        if config["what"] == "meta":
            model = model.to("meta")
        self.register(
            models=model,
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
            criterion=nn.CrossEntropyLoss(),
            ddp_args={"bucket_cap_mb": 1} if config["what"] == "ddp_args" else None,
        )


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("scalar", "temperature is a single number.*shape"),
        ("meta", "has no values"),
        ("ddp_args", "ddp_args are only for DistributedDataParallel"),
    ],
)
def test_what_cannot_be_sharded_is_refused(what: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        trainer(Odd, num_workers=1, config={"what": what})
