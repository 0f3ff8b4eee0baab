"""`trainkit run`: scripts for torchrun, by its flags and those of `accelerate launch`."""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import sys
from subprocess import Popen

import psutil
import pytest

from tests.cli.test_cli import ended
from tests.conftest import eventually
from tests.runtime.local.programs import Programs
from trainkit.cli.main import main
from trainkit.errors import ConfigError
from trainkit.plugins.launch.command import Run
from trainkit.plugins.launch.flags import options_of
from trainkit.train.torch import ScriptOptions

DDP = """
    import os
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    def main():
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        assert rank == int(os.environ["LOCAL_RANK"])
        torch.manual_seed(7)
        inputs = torch.randn(256, 12)
        data = TensorDataset(inputs, inputs.square().sum(1, keepdim=True))
        model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 1)))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        sampler = DistributedSampler(data, seed=3)
        loader = DataLoader(data, batch_size=16, sampler=sampler)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            total = 0.0
            for features, targets in loader:
                loss = nn.functional.mse_loss(model(features), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
            if rank == 0:
                print(epoch, total.hex(), flush=True)

    if __name__ == "__main__":
        main()
        # At once: torch's threads of a group that is gone may abort a process that ends in order.
        os._exit(0)
"""

RANK = """
    import os, signal, sys, time
    import torch
    import torch.distributed as dist

    case = sys.argv[1]
    rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo")
    numbers = torch.ones(1) * (rank + 1)
    dist.all_reduce(numbers)

    def say(words):
        sys.stdout.write(f"{words}\\n")  # at once: two ranks write
        sys.stdout.flush()

    ready = f"ready {os.getpid()} {int(numbers)} {restarts}"
    if case == "waits":
        try:
            say(ready)
            while True:
                time.sleep(0.05)
        finally:
            time.sleep(0.5 * rank)
            say(f"cleaned {rank}")
    say(ready)
    if case in ("raises", "exits", "exits at once", "is killed"):
        dist.all_reduce(numbers)  # the other has said so too, before it is ended
    if case == "raises" and rank == 1:
        raise LookupError("cursed")
    if case == "exits" and rank == 1:
        sys.exit(3)
    if case == "exits at once" and rank == 1:
        os._exit(3)  # torch's threads may abort a Python that ends in order
    if case == "is killed" and rank == 1 and not restarts:
        os.kill(os.getpid(), signal.SIGKILL)
    if case == "leaves" and rank == 1:
        sys.exit()
    if case == "ends at once":
        os._exit(0)
    if case in ("raises", "exits", "exits at once", "leaves", "is killed"):
        dist.all_reduce(numbers)
"""

PLACE = """
    import os, sys
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Squares(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return index**2

    if __name__ == "__main__":
        print(sys.argv[1:], __name__, os.path.basename(__file__), os.path.isabs(__file__), flush=True)
        print(sys.path[0] == os.path.dirname(__file__), os.getcwd() == sys.path[0], flush=True)
        for method in ("fork", "spawn"):
            batches = DataLoader(Squares(), 3, num_workers=2, multiprocessing_context=method)
            print(method, [batch.tolist() for batch in batches], flush=True)
"""

RANKS = ("-m", "trainkit", "run", "--workers", "2")


@pytest.fixture(autouse=True)
def whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks write to one pipe: without a buffer the parts of their lines would mix."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


def run(
    programs: Programs, script: str, *arguments: str, flags: tuple[str, ...] = ()
) -> tuple[int, str, str]:
    """Return the exit code of a script on two ranks, what it prints, and what it and the launcher tell."""
    program = programs.begin(script, *arguments, flags=(*RANKS, *flags))
    out, err = program.communicate(timeout=300)
    return program.returncode, out, err


def ready(program: Popen[str], count: int = 2) -> list[int]:
    """Return the pids of so many ranks, once they have met."""
    assert program.stdout is not None
    lines = [program.stdout.readline().split() for _ in range(count)]
    assert all(line[:1] == ["ready"] for line in lines), lines
    return [int(line[1]) for line in lines]


@pytest.mark.slow
def test_a_script_for_torchrun_computes_the_same_numbers(programs: Programs) -> None:
    theirs = programs.begin(DDP, flags=("-m", "torch.distributed.run", "--nproc-per-node", "2"))
    losses, told = theirs.communicate(timeout=300)
    assert theirs.returncode == 0, told
    assert len(losses.splitlines()) == 2
    assert run(programs, DDP) == (0, losses, "")
    assert run(programs, DDP, flags=("--fresh", "--standalone"))[:2] == (0, losses)


def test_only_the_traceback_of_the_rank_that_failed_first_is_shown(programs: Programs) -> None:
    code, out, err = run(programs, RANK, "raises")
    assert code == 1
    assert out.count("ready") == 2
    event, *trace = err.splitlines()
    assert re.fullmatch(
        r"trainkit: rank 1 of 2 \(pid \d+\) raised LookupError; the other ranks were ended", event
    )
    assert trace[0] == "Traceback (most recent call last):"
    assert trace[-1] == "LookupError: cursed"
    assert err.count("Traceback") == 1
    assert len(trace) < 6, "frames of trainkit's own are none of the script's"
    assert programs.nothing_is_left()


@pytest.mark.parametrize(
    ("case", "flags", "code", "told"),
    [
        (
            "exits at once",
            ("--fresh",),
            3,
            "rank 1 of 2 .* ended with exit code 3; the other ranks were ended\n",
        ),
        (
            "is killed",
            ("--fresh",),
            137,
            "rank 1 of 2 .* was killed by SIGKILL; the other ranks were ended\n",
        ),
        ("ends at once", (), 0, None),
        (
            "leaves",
            (),
            1,
            "a rank lost the others, and no rank has failed: they ended early or never connected\nTraceback",
        ),
    ],
)
def test_exit_codes_are_kept(
    programs: Programs, case: str, flags: tuple[str, ...], code: int, told: str | None
) -> None:
    found, out, err = run(programs, RANK, case, flags=flags)
    assert (found, out.count("ready")) == (code, 2), err
    assert not err if told is None else re.search(f"trainkit: {told}", err), err


ENDS = """
    import dataclasses, os, signal, sys, threading

    @dataclasses.dataclass
    class Point:
        x: int = 0

    assert dataclasses.fields(Point)[0].type is int, "it has no future import"
    case = sys.argv[1]
    threading._register_atexit(os.write, 1, b"ended once\\n")
    if case == "negative":
        sys.exit(-1)
    if case == "full":
        sys.stdout = open("/dev/full", "w")
        print("lost")
    if case == "surrogate":
        raise ValueError("no file " + os.fsdecode(b"\\xff"))

    def hook(kind, error, trace):
        raise RuntimeError("broken hook")

    if case.startswith("hook"):
        sys.excepthook = hook
        raise KeyError("real")
"""


@pytest.mark.parametrize(
    ("case", "code", "told"),
    [
        ("negative", 255, r"trainkit: rank 0 of 1 .* ended with exit code 255\n"),
        ("full", 120, r"Traceback (?s:.*)No space left on device\ntrainkit: .* ended with exit code 120\n"),
        ("surrogate", 1, r"trainkit: (?s:.*)\nValueError: no file \\udcff\n"),
        (
            "hook raises",
            1,
            r"trainkit: .* raised KeyError\nError in sys.excepthook:\nTraceback (?s:.*)\n"
            r"RuntimeError: broken hook\n\nOriginal exception was:\nTraceback (?s:.*)\nKeyError: 'real'\n",
        ),
    ],
)
def test_a_script_ends_as_python_ends_it(programs: Programs, case: str, code: int, told: str) -> None:
    found, out, err = run(programs, ENDS, case, flags=("--workers", "1"))
    assert found == code, err
    assert re.fullmatch(told, err), err
    assert out == "ended once\n"


def test_accelerate_that_takes_each_rank_for_the_only_one_is_warned_of(programs: Programs) -> None:
    script = """
        import sys
        from accelerate import Accelerator
        state = (Accelerator().num_processes, Accelerator().num_processes)
        sys.stdout.write(f"{state}\\n")
        sys.stdout.flush()
        if state == (2, 2):
            Accelerator().end_training()
    """
    code, out, err = run(programs, script)
    assert (code, out.splitlines()) == (0, ["(1, 1)"] * 2)
    assert err.startswith("trainkit: Accelerate counts 1 process, but there are 2 ranks, so each rank trains")
    assert err.count("\n") == 1 and "Accelerator(cpu=True)" in err
    script = script.replace("Accelerator()", "Accelerator(cpu=True)")
    assert run(programs, script) == (0, "(2, 2)\n" * 2, "")


def test_all_ranks_are_started_again_after_a_failure(programs: Programs) -> None:
    code, out, err = run(programs, RANK, "is killed", flags=("--max-restarts", "1"))
    assert code == 0, err
    ranks = [line.split()[2:] for line in out.splitlines()]
    assert ranks == [["3", "0"], ["3", "0"], ["3", "1"], ["3", "1"]]
    assert "was killed by SIGKILL" in err
    assert err.endswith("trainkit: restarting all ranks, restart 1 of 1\n")


@pytest.mark.parametrize(("number", "flags"), [(signal.SIGINT, ()), (signal.SIGTERM, ("--fresh",))])
def test_a_signal_reaches_all_ranks(
    programs: Programs, number: signal.Signals, flags: tuple[str, ...]
) -> None:
    program = programs.begin(RANK, "waits", flags=(*RANKS, *flags))
    pids = ready(program)
    program.send_signal(number)
    out, err = program.communicate(timeout=120)
    assert program.returncode == 128 + number
    assert f"trainkit: {number.name} is sent to all ranks, " in err
    # SIGTERM ends a program that has no handler of its own as it is.
    assert sorted(out.splitlines()) == (["cleaned 0", "cleaned 1"] if number == signal.SIGINT else [])
    assert ended(pids)
    assert programs.nothing_is_left()


def test_ranks_that_do_not_end_are_killed(programs: Programs) -> None:
    stubborn = RANK.replace(
        "import torch\n", "signal.signal(signal.SIGINT, signal.SIG_IGN)\n    import torch\n"
    )
    program = programs.begin(stubborn, "waits", flags=(*RANKS, "--shutdown-timeout", "0.1"))
    pids = ready(program)
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=120)
    assert program.returncode == 130
    told = [f"trainkit: rank {rank} did not end in time, and is killed" for rank in (0, 1)]
    assert {*told} <= {*err.splitlines()}
    assert ended(pids)


def test_nothing_stays_of_a_launcher_that_is_killed(programs: Programs) -> None:
    for flags in ((), ("--fresh",)):
        program = programs.begin(RANK, "waits", flags=(*RANKS, *flags))
        pids = ready(program)
        program.kill()
        program.communicate(timeout=120)
        assert ended(pids)
        assert eventually(programs.nothing_is_left)


def test_ranks_end_with_the_process_that_supervises_them(programs: Programs) -> None:
    program = programs.begin(RANK, "waits", flags=RANKS)
    pids = ready(program)
    (node,) = psutil.Process(program.pid).children()
    node.kill()
    _, err = program.communicate(timeout=120)
    assert program.returncode == 1
    assert "the process that supervises the workers ended (killed by signal 9)" in err
    assert ended(pids)


def test_a_script_is_a_program_of_its_own(programs: Programs) -> None:
    code, out, err = run(programs, PLACE, "--lr", "0.1", "-m")
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == sorted(
        [
            "['--lr', '0.1', '-m'] __main__ program1.py True",
            "True True",
            "fork [[0, 1, 4], [9, 16, 25]]",
            "spawn [[0, 1, 4], [9, 16, 25]]",
        ]
        * 2
    )


def test_a_module_and_a_program_run_too(programs: Programs) -> None:
    package = programs.folder / "job"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(
        "import os, sys; from . import __name__ as found\n"
        # In one piece, as the other rank writes to the same pipe.
        "told = (__name__, __spec__.name, found, sys.argv[1:], os.environ['ROLE_RANK'])\n"
        "sys.stdout.write(' '.join(map(str, told)) + '\\n')\n"
    )
    told = ["__main__ job.train job ['-x'] 0", "__main__ job.train job ['-x'] 1"]
    for flags in ([], ["--fresh"]):
        out = programs.command("run", "--nproc_per_node=2", *flags, "-m", "job.train", "-x")
        assert sorted(out.splitlines()) == told
    shell = 'echo "$RANK of $WORLD_SIZE at $MASTER_ADDR"'
    out = programs.command("run", "--num_processes", "2", "--no-python", "sh", "-c", shell)
    assert sorted(out.splitlines()) == ["0 of 2 at 127.0.0.1", "1 of 2 at 127.0.0.1"]


def test_output_is_kept_in_files(programs: Programs) -> None:
    shell = "echo out; echo err >&2"
    flags = ["--tee", "0:3", "-r", "1:2", "--log-dir", "logs", "--rdzv-id", "a", "--local-ranks-filter", "0"]
    out = programs.command("run", "--workers", "2", *flags, "--no-python", "sh", "-c", shell)
    assert sorted(out.splitlines()) == ["[default0]:err", "[default0]:out"]
    folder = programs.folder / "logs" / "a" / "attempt_0"
    kept = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.log")}
    assert kept == {"0/stdout.log": "out\n", "0/stderr.log": "err\n", "1/stderr.log": "err\n"}


def test_a_port_that_is_taken_is_told(programs: Programs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        told = programs.command("run", "--master-port", str(port), "--no-python", "true", code=1)
    assert told.startswith(f"trainkit: the ranks can't meet at 127.0.0.1:{port} ([Errno 98]")
    assert told.count("\n") == 1
    code = "import socket; socket.create_server(('127.0.0.1', int(__import__('os').environ['MASTER_PORT'])))"
    told = programs.command("run", "--no-python", sys.executable, "-c", code, code=1)
    assert "Address already in use" in told, "the free port is held until the ranks meet"


def test_the_launcher_does_without_torch(programs: Programs) -> None:
    (programs.folder / "nothing.py").touch()
    program = programs.begin(
        """
        import sys
        from trainkit.cli.main import main
        print(main(["run", "nothing.py"]), "torch" in sys.modules)
        """
    )
    assert program.communicate(timeout=120) == ("0 False\n", "")


# -- flags ------------------------------------------------------------------------------------


def options(*words: str) -> ScriptOptions:
    parser = argparse.ArgumentParser()
    Run().add_arguments(parser)
    return options_of(parser.parse_args([*words, "--no-python", "train", "--lr", "1"]))


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("", {"num_workers": 1, "command": ("train", "--lr", "1"), "port": 0, "max_restarts": 0}),
        ("--nproc-per-node 3 --max_restarts=2", {"num_workers": 3, "bundle": {"CPU": 1.0, "GPU": 0.0}}),
        ("--workers 2 --cpus-per-worker 4", {"num_workers": 2, "bundle": {"CPU": 4.0, "GPU": 0.0}}),
        ("--nproc_per_node cpu", {"num_workers": len(os.sched_getaffinity(0))}),
        ("--workers 2 --virtual-local-rank", {"bundle": {"CPU": 1.0, "GPU": 1.0}, "sees_own_gpus": True}),
        ("--master_addr ::1 --master-port 7", {"address": "::1", "port": 7}),
        (
            "--rdzv-endpoint localhost:8 --rdzv-backend c10d --rdzv_conf a=b",
            {"address": "localhost", "port": 8},
        ),
        ("--shutdown-timeout 5 --monitor-interval 1 --start-method spawn", {"shutdown_s": 5.0}),
    ],
)
def test_flags(flags: str, found: dict[str, object]) -> None:
    asked = options(*flags.split())
    assert {name: getattr(asked, name) for name in found} == found


def test_flags_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NPROC_PER_NODE": "3", "RDZV_ID": "a", "STANDALONE": "0", "NNODES": "2"}.items():
        monkeypatch.setenv(f"PET_{name}", value)
    asked = options("--nnodes", "1")
    assert (asked.num_workers, asked.variables["TORCHELASTIC_RUN_ID"]) == (3, "a")
    assert options("--nnodes", "1", "--workers", "2").num_workers == 2
    assert "GLOO_SOCKET_IFNAME" not in options().variables, "two machines"
    monkeypatch.setenv("PET_SIGNALS_TO_HANDLE", "SIGUSR1")
    with pytest.raises(ConfigError, match="PET_SIGNALS_TO_HANDLE: SIGINT and SIGTERM reach the ranks"):
        options()
    monkeypatch.delenv("PET_SIGNALS_TO_HANDLE")
    monkeypatch.setenv("PET_MIXED_PRECISION", "fp1")  # no flag of torchrun's
    assert "ACCELERATE_MIXED_PRECISION" not in options("--nnodes", "1").variables


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("--rdzv-id a --role trainer", {"TORCHELASTIC_RUN_ID": "a", "ROLE_NAME": "trainer"}),
        (
            "--mixed_precision bf16 --cpu",
            {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_CPU": "true"},
        ),
        ("--dynamo-backend inductor", {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}),
        (
            "--gpu_ids 1,2 --num_cpu_threads_per_process 4",
            {"CUDA_VISIBLE_DEVICES": "1,2", "OMP_NUM_THREADS": "4"},
        ),
        ("--gpu_ids all", {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES")}),
        (
            "--use_fsdp --fsdp_version 2 --fsdp_offload_params True "
            "--fsdp_transformer_layer_cls_to_wrap Block --same_network",
            {
                "ACCELERATE_USE_FSDP": "true",
                "FSDP_VERSION": "2",
                "FSDP_OFFLOAD_PARAMS": "true",
                "FSDP_TRANSFORMER_CLS_TO_WRAP": "Block",
                "FSDP_SHARDING_STRATEGY": "FULL_SHARD",
                "FSDP_USE_ORIG_PARAMS": "true",
            },
        ),
    ],
)
def test_flags_become_environment_variables(flags: str, found: dict[str, str | None]) -> None:
    variables = options(*flags.split()).variables
    assert {name: variables[name] for name in found} == found
    assert ("FSDP_VERSION" in variables) == ("FSDP_VERSION" in found)
    assert "ACCELERATE_USE_CPU" not in variables or "--cpu" in flags


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--nnodes 2:1", "--nnodes must be a number of machines, or MIN:MAX, not 2:1"),
        ("--nnodes 2 --num-processes 3", "can't be divided among 2 machines: pass --workers"),
        ("--node-rank 1", "--node-rank 1"),
        ("--workers 0", "--workers must be a number of 1 or more"),
        ("--max-restarts -1", "must be 0 or more, not 0, -1 and 30"),
        ("--cpus-per-worker 0", "the CPUs of a rank must be more than 0, not 0;"),
        ("--fsdp-version 2", "--fsdp-version has no effect without --use-fsdp"),
        ("-m", "give one of them"),
    ],
)
def test_what_can_not_be_is_refused_with_a_reason(flags: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        options(*flags.split())


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            "--use_deepspeed train.py",
            "--use_deepspeed: DeepSpeed, Megatron-LM and XLA have launchers of their own",
        ),
        ("--config_file a.yaml train.py", "--config_file: pass the file's settings as flags"),
        ("--numa-binding node train.py", "--numa-binding: start `trainkit run` under numactl"),
        ("--logs-specs mine train.py", "unrecognized arguments: --logs-specs"),
        ("--workers 2", "the following arguments are required: script"),
    ],
)
def test_flags_that_are_not_there_are_named(
    words: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", *words.split()])
    assert caught.value.code == 2
    assert reason in capsys.readouterr().err


def test_a_script_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "nowhere.py"]) == 1
    assert capsys.readouterr().err == (
        "trainkit: there is no script 'nowhere.py'; -m runs a module by its name\n"
    )
