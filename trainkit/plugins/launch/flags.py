"""Flags of `trainkit run`, with the names of torchrun and `accelerate launch`, and what they mean."""

from __future__ import annotations

import argparse
import functools
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from trainkit.errors import ConfigError
from trainkit.train import torch

if TYPE_CHECKING:
    from trainkit.train.torch import RankStreams, ScriptOptions

_ENGINES = "DeepSpeed, Megatron-LM and XLA have launchers of their own: use those"
_REFUSED = {
    "config-file": "pass the file's settings as flags, such as --num-processes 2 --mixed-precision bf16",
    "use-deepspeed": _ENGINES,
    "use-megatron-lm": _ENGINES,
    "tpu": _ENGINES,
    "mpirun-hostfile": "pass the file as --hosts FILE",
    "signals-to-handle": "SIGINT and SIGTERM reach the ranks; other signals end the launcher and all ranks",
    "numa-binding": "start `trainkit run` under numactl, which binds all ranks",
}
"""Maps flags of torchrun and `accelerate launch` that are not supported to the reason or an alternative."""

_NO_EFFECT = ("monitor-interval", "start-method", "rdzv-backend")
"""Flags of torchrun that take a value, and that have no effect."""
_NO_EFFECT_SWITCHES = ("run-path", "same-network", "quiet")

_ACCELERATE = {
    "mixed-precision": "ACCELERATE_MIXED_PRECISION",
    "gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "dynamo-backend": "ACCELERATE_DYNAMO_BACKEND",
    "dynamo-mode": "ACCELERATE_DYNAMO_MODE",
    "gpu-ids": "CUDA_VISIBLE_DEVICES",
    "num-cpu-threads-per-process": "OMP_NUM_THREADS",
}
"""Maps flags of `accelerate launch` that take a value to the environment variables that they set."""

_ACCELERATE_SWITCHES = {
    "cpu": "ACCELERATE_USE_CPU",
    "use-cpu": "ACCELERATE_USE_CPU",
    "debug": "ACCELERATE_DEBUG_MODE",
    "dynamo-use-fullgraph": "ACCELERATE_DYNAMO_USE_FULLGRAPH",
    "dynamo-use-dynamic": "ACCELERATE_DYNAMO_USE_DYNAMIC",
    "enable-cpu-affinity": "ACCELERATE_CPU_AFFINITY",
    "use-fsdp": "ACCELERATE_USE_FSDP",
}

_FSDP = {
    "version": "1",
    "sharding-strategy": "FULL_SHARD",
    "reshard-after-forward": "true",
    "offload-params": "false",
    "min-num-params": "100000000",
    "auto-wrap-policy": None,
    "transformer-layer-cls-to-wrap": None,
    "backward-prefetch": None,
    "state-dict-type": None,
    "forward-prefetch": "false",
    "use-orig-params": "true",
    "cpu-ram-efficient-loading": "true",
    "sync-module-states": "true",
    "activation-checkpointing": "false",
}
"""Maps each flag `--fsdp-...` of `accelerate launch`, which sets a variable FSDP_..., to its default."""

_FSDP_SPELLED = {"transformer-layer-cls-to-wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP"}
_FSDP_TEXTS = {
    "sharding-strategy",
    "auto-wrap-policy",
    "backward-prefetch",
    "state-dict-type",
    *_FSDP_SPELLED,
}
"""Flags whose values keep their case; other values are numbers, true and false, in lower case."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `trainkit run`."""
    parser.add_argument("script", help="path of the script, or the name of a module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    _add_own(parser.add_argument_group("ranks"))
    _add_torchrun(parser.add_argument_group("flags of torchrun"))
    told = f"--use-fsdp allows --fsdp-... with these endings: {', '.join(_FSDP)}"
    _add_accelerate(parser.add_argument_group("flags of accelerate launch", told))
    refused = parser.add_argument_group("not there")
    for name, reason in _REFUSED.items():
        _add(refused, name, nargs="?", action=_Refused, help=argparse.SUPPRESS, const=reason)


def streams_of(arguments: argparse.Namespace, options: ScriptOptions) -> RankStreams:
    """Return the destinations of the ranks' output, as given by the flags."""
    return torch.RankStreams(
        log_dir=arguments.log_dir,
        run_id=str(options.variables["TORCHELASTIC_RUN_ID"]),
        redirects=arguments.redirects,
        tee=arguments.tee,
        shown=_ranks(arguments.local_ranks_filter),
        role=arguments.role,
    )


def _add(group: Any, name: str, *short: str, pet: bool = True, **settings: Any) -> None:
    """Add a flag, spelled with dashes or underscores; with `pet`, its default is the variable PET_..."""
    if pet and (given := os.environ.get(_pet(name))) is not None:
        settings["default"] = given not in ("", "0") if "action" in settings else given
    spellings = [f"--{name}"] if "-" not in name else [f"--{name}", f"--{name.replace('-', '_')}"]
    group.add_argument(*short, *spellings, dest=settings.pop("dest", name.replace("-", "_")), **settings)


def _pet(name: str) -> str:
    return f"PET_{name.replace('-', '_').upper()}"


def _add_own(group: Any) -> None:
    number = os.environ.get("PET_NPROC_PER_NODE")
    texts = {
        "workers": "number of ranks, or gpu, cpu or auto (default: 1)",
        "nproc-per-node": "same as --workers, on each machine",
    }
    for name, text in texts.items():
        _add(group, name, dest="workers", default=number, metavar="N", help=text)
    _add(group, "num-processes", pet=False, metavar="N", help="number of ranks on all machines together")
    _add(
        group, "cpus-per-worker", type=float, metavar="N",
        help="CPUs of a rank, and threads of its libraries (default: 1, or all CPUs for a single rank)",
    )  # fmt: skip
    _add(
        group, "gpus-per-worker", type=float, default=0.0, metavar="N",
        help="show each rank only this many GPUs, with LOCAL_RANK 0 (default: all GPUs, like torchrun)",
    )  # fmt: skip
    _add(
        group, "max-restarts", type=int, default=0, metavar="N",
        help="maximum number of restarts of all ranks after failures (default: 0)",
    )  # fmt: skip
    _add(group, "module", "-m", action="store_true", help="run a module, as python -m does")
    _add(group, "fresh", action="store_true", help="start a new Python for each rank, without a fork")
    _add(group, "no-python", action="store_true", help="run the script as a program, without Python")
    _add(
        group, "shutdown-timeout", type=float, default=30.0, metavar="S",
        help="seconds for the ranks to end after Ctrl-C or SIGTERM (default: 30)",
    )  # fmt: skip


def _add_torchrun(group: Any) -> None:
    _add(group, "nnodes", default="1", metavar="N", help="number of machines, or MIN:MAX (default: 1)")
    _add(group, "hosts", metavar="HOSTS", help="start the ranks by SSH on host1,host2, or on a file's hosts")
    _add(group, "node-rank", type=int, metavar="K", help="index of this machine, if started on each machine")
    _add(group, "as-node", action="store_true", pet=False, help=argparse.SUPPRESS)
    _add(group, "standalone", action="store_true", help="meet at a free port, with a new run id")
    for name in ("master-addr", "main-process-ip"):
        _add(group, name, dest="master_addr", help="address where the ranks meet (default: 127.0.0.1)")
    meets = "port to meet at (default: a free port)"
    for name in ("master-port", "main-process-port"):
        _add(group, name, dest="master_port", type=int, metavar="PORT", help=meets)
    _add(group, "rdzv-endpoint", default="", metavar="HOST:PORT", help="address and port in one")
    timeouts = "join_timeout and last_call_timeout, in seconds"
    _add(group, "rdzv-conf", default="", metavar="K=V,...", help=timeouts)
    _add(group, "local-addr", default="", metavar="ADDRESS", help="address of this machine for the others")
    _add(group, "rdzv-id", default="none", metavar="ID", help="TORCHELASTIC_RUN_ID")
    _add(group, "role", default="default", help="ROLE_NAME")
    _add(group, "virtual-local-rank", action="store_true", help="same as --gpus-per-worker 1")
    _add(group, "log-dir", metavar="DIR", help="folder for the files of --redirects and --tee")
    _add(
        group, "redirects", "-r", default="0", metavar="STREAMS",
        help="write output to files: 1 stdout, 2 stderr, 3 both; or by rank, such as 0:1,1:3",
    )  # fmt: skip
    _add(group, "tee", "-t", default="0", metavar="STREAMS", help="write to files, and here with the rank")
    _add(group, "local-ranks-filter", default="", metavar="RANKS", help="only show these ranks' output")
    for name in _NO_EFFECT:
        _add(group, name, help="has no effect")
    for name in _NO_EFFECT_SWITCHES:
        _add(group, name, action="store_true", help="has no effect")


def _add_accelerate(group: Any) -> None:
    add = functools.partial(_add, group, pet=False)
    add("num-machines", dest="nnodes", metavar="N", help="number of machines")
    add("machine-rank", dest="node_rank", type=int, metavar="K", help="index of this machine")
    add("multi-gpu", action="store_true", help="one rank per GPU, if no number is given")
    for name, variable in _ACCELERATE.items():
        choices = ("no", "fp16", "bf16", "fp8") if name == "mixed-precision" else None
        add(name, choices=choices, metavar=None if choices else "VALUE", help=variable)
    for name, variable in _ACCELERATE_SWITCHES.items():
        add(name, action="store_true", help=variable)
    for name in _FSDP:
        add(f"fsdp-{name}", help=argparse.SUPPRESS)


class _Refused(argparse.Action):
    """Action that refuses a flag that is not supported."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> NoReturn:
        parser.error(f"{option_string}: {self.const}")


def options_of(arguments: argparse.Namespace) -> ScriptOptions:
    """Return the options of the script and its ranks, as given by the flags.

    Raises:
        ConfigError: the flags contradict each other, or a flag is not supported.
    """
    for name, reason in _REFUSED.items():
        # The parser already refuses this flag, so the value comes from an environment variable.
        if getattr(arguments, name.replace("-", "_")):
            raise ConfigError(f"{_pet(name)}: {reason}")
    nodes = machines_of(arguments.nnodes)[1]
    if not 0 <= (arguments.node_rank or 0) < nodes:
        raise ConfigError(f"--node-rank {arguments.node_rank} must be an index of --nnodes {nodes} machines")
    if arguments.num_processes and nodes > 1:
        arguments.workers = _share(arguments.num_processes, nodes)
    if arguments.no_python and arguments.module:
        raise ConfigError("--no-python runs a program, and -m a module: give one of them")
    if not (arguments.module or arguments.no_python) and not os.path.exists(arguments.script):
        raise ConfigError(f"there is no script {arguments.script!r}; -m runs a module by its name")
    gpus = arguments.gpus_per_worker or float(arguments.virtual_local_rank)
    address, port = meeting_place(arguments)
    return torch.ScriptOptions.of(
        [arguments.script, *arguments.arguments],
        kind="module" if arguments.module else "program" if arguments.no_python else "script",
        fresh=arguments.fresh,
        workers=arguments.workers or arguments.num_processes or ("gpu" if arguments.multi_gpu else "1"),
        cpus=arguments.cpus_per_worker,
        gpus=gpus,
        variables=variables_of(arguments, gpus, os.environ),
        address=address,
        port=port,
        max_restarts=arguments.max_restarts,
        shutdown_s=arguments.shutdown_timeout,
        search_path=tuple(sys.path if sys.flags.safe_path else sys.path[1:]),
    )


def meeting_place(arguments: argparse.Namespace) -> tuple[str, int]:
    """Return the address and the port (0: any) that the flags name."""
    host, _, port = arguments.rdzv_endpoint.rpartition(":") if not arguments.standalone else ("", "", "")
    if port and not port.isdecimal():
        host, port = arguments.rdzv_endpoint, ""
    address = arguments.master_addr or host.strip("[]") or "127.0.0.1"
    return address, arguments.master_port or int(port or 0)


def machines_of(text: str) -> tuple[int, int]:
    """Return the least and the largest number of machines that `--nnodes` allows."""
    least, _, most = text.partition(":")
    if not (least.isdecimal() and (most or least).isdecimal() and 1 <= int(least) <= int(most or least)):
        raise ConfigError(f"--nnodes must be a number of machines, or MIN:MAX, not {text}")
    return int(least), int(most or least)


def _share(ranks: str, nodes: int) -> str:
    if not ranks.isdecimal() or int(ranks) % nodes:
        raise ConfigError(f"--num-processes {ranks} can't be divided among {nodes} machines: pass --workers")
    return str(int(ranks) // nodes)


def variables_of(
    arguments: argparse.Namespace, gpus: float, inherited: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the environment variables that the flags set for all ranks; None removes a variable.

    Args:
        arguments: parsed flags.
        gpus: number of GPUs of each rank; 0 means that a rank sees all GPUs of this program.
        inherited: environment variables of this program; they override the defaults of this function.
    """
    run_id = secrets.token_hex(16) if arguments.standalone else arguments.rdzv_id
    found: dict[str, str | None] = {"ROLE_NAME": arguments.role, "TORCHELASTIC_RUN_ID": run_id}
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    if machines_of(arguments.nnodes)[1] == 1:
        # Ranks on one machine must not be reachable over the network, so they use the loopback interface.
        defaults |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "lo")
    found |= {name: value for name, value in defaults.items() if name not in inherited}
    if not gpus:
        found["CUDA_VISIBLE_DEVICES"] = inherited.get("CUDA_VISIBLE_DEVICES")
    given = vars(arguments)
    for name, variable in _ACCELERATE.items():
        value = given[name.replace("-", "_")]
        if value is not None and not (name == "gpu-ids" and value == "all"):
            found[variable] = value.upper() if name == "dynamo-backend" else value
    for name, variable in _ACCELERATE_SWITCHES.items():
        if given[name.replace("-", "_")]:
            found[variable] = "1" if name == "enable-cpu-affinity" else "true"
    fsdp = {name: given[f"fsdp_{name.replace('-', '_')}"] for name in _FSDP}
    if not arguments.use_fsdp and (alone := [name for name, value in fsdp.items() if value is not None]):
        raise ConfigError(f"--fsdp-{alone[0]} has no effect without --use-fsdp")
    if arguments.use_fsdp:
        for name, default in _FSDP.items():
            value = default if fsdp[name] is None else fsdp[name]
            if value is not None:
                variable = _FSDP_SPELLED.get(name, f"FSDP_{name.replace('-', '_').upper()}")
                found[variable] = value if name in _FSDP_TEXTS else value.lower()
    return found


def _ranks(text: str) -> frozenset[int] | None:
    if not text:
        return None
    if not all(part.isdecimal() for part in text.split(",")):
        raise ConfigError(f"--local-ranks-filter must be ranks, such as 0,2, not {text}")
    return frozenset(map(int, text.split(",")))
