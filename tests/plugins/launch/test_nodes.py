"""`trainkit run --nnodes`: over SSH, in a job of a real Slurm, and started by hand on each machine."""

from __future__ import annotations

import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from tests.cli.test_cli import ended
from tests.conftest import eventually
from tests.plugins.cluster.ground import Hosts, reason_to_skip
from tests.plugins.launch.test_run import DDP, RANK, ready, run
from tests.plugins.slurm.ground import Slurm, missing
from tests.runtime.local.programs import Programs
from trainkit.errors import ConfigError
from trainkit.plugins.launch.agent import hello_of, interface_of, is_loopback, network_variables
from trainkit.plugins.launch.links import SocketLink, key_of

needs_ssh = pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip() or "needs SSH")
needs_slurm = pytest.mark.skipif(bool(missing()), reason=missing() or "needs Slurm")

LOSSES = DDP.replace('        assert rank == int(os.environ["LOCAL_RANK"])\n', "")
ONE_EACH = ("-m", "trainkit", "run", "--workers", "1")

SIGNALS = """
    import os, signal, sys, time
    import torch
    import torch.distributed as dist

    got = []

    def note(number, frame):
        got.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, note)
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    sys.stdout.write(f"ready {os.getpid()}\\n")
    sys.stdout.flush()
    while not got:
        time.sleep(0.01)
    time.sleep(1.5)  # a signal that comes twice is seen
    sys.stdout.write(f"rank {os.environ['RANK']} got {got}\\n")
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    with Hosts(tmp_path / "hosts") as hosts:
        monkeypatch.setenv("PATH", hosts.environment()["PATH"])
        yield hosts


@needs_ssh
@pytest.mark.slow
def test_losses_on_two_hosts_are_those_of_one(programs: Programs, hosts: Hosts) -> None:
    code, losses, err = run(programs, LOSSES)
    assert (code, len(losses.splitlines())) == (0, 2), err
    program = programs.begin(LOSSES, flags=(*ONE_EACH, "--hosts", "h1,h2"))
    assert (*program.communicate(timeout=300), program.returncode) == (losses, "", 0)
    assert programs.nothing_is_left()


VARIABLES = """
    import os, sys
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK".split()
    sys.stdout.write(" ".join(os.environ[name] for name in names) + "\\n")
    sys.stdout.flush()
"""


@needs_ssh
def test_each_rank_knows_its_place(programs: Programs, hosts: Hosts) -> None:
    flags = ("-m", "trainkit", "run", "--nnodes", "2", "--hosts", "h1,h2,h3", "--num-processes", "4")
    program = programs.begin(VARIABLES, flags=flags)
    out, err = program.communicate(timeout=300)
    assert (program.returncode, err) == (0, "")
    rows = ["0 4 0 2 0 2 0", "1 4 1 2 0 2 1", "2 4 0 2 1 2 2", "3 4 1 2 1 2 3"]
    assert sorted(out.splitlines()) == rows


@needs_ssh
@pytest.mark.parametrize(
    ("case", "code", "told"),
    [
        ("raises", 1, r"rank 1 of 2 on h2 \(pid \d+\) raised LookupError; the other ranks were ended\n"),
        ("exits at once", 3, r"rank 1 of 2 on h2 .* ended with exit code 3; the other ranks were ended\n"),
        ("is killed", 137, r"rank 1 of 2 on h2 .* was killed by SIGKILL; the other ranks were ended\n"),
        ("ends at once", 0, None),
    ],
)
def test_the_first_failure_is_shown_once(
    programs: Programs, hosts: Hosts, case: str, code: int, told: str | None
) -> None:
    program = programs.begin(RANK, case, flags=(*ONE_EACH, "--hosts", "h1,h2"))
    out, err = program.communicate(timeout=300)
    assert (program.returncode, out.count("ready")) == (code, 2), err
    assert not err if told is None else re.match(f"trainkit: {told}", err), err
    assert err.count("trainkit: ") == (told is not None)
    assert err.count("Traceback") == (case == "raises")
    assert programs.nothing_is_left()


@needs_ssh
def test_a_host_that_can_not_run_it_is_named(programs: Programs, hosts: Hosts) -> None:
    hosts.end("h2")
    program = programs.begin(RANK, flags=(*ONE_EACH, "--hosts", "h1,h2"))
    _, err = program.communicate(timeout=300)
    assert program.returncode == 1
    assert re.fullmatch(
        r"trainkit: h2 can't be reached: ssh: .*Connection refused.*; 1 of 2 machines are ready\n", err
    )
    told = programs.command("run", "--hosts", "h1", "nonesuch.py", code=1)
    assert told == (
        "trainkit: h1: there is no script 'nonesuch.py'; -m runs a module by its name; 0 of 1 machines are "
        "ready\n"
    )
    assert programs.nothing_is_left()


@needs_ssh
@pytest.mark.slow
def test_a_host_that_never_answers_is_named(programs: Programs, hosts: Hosts) -> None:
    hosts.change("h2", "ForceCommand sleep 600")
    flags = (*ONE_EACH, "--hosts", "h1,h2", "--rdzv-conf")
    program = programs.begin(VARIABLES, flags=(*flags, "join_timeout=25"))
    assert (program.communicate(timeout=300), program.returncode) == (
        (
            "",
            "trainkit: waiting for h2: 1 of 2 machines are ready\n"
            "trainkit: h2 did not answer in time; 1 of 2 machines are ready\n",
        ),
        1,
    )
    program = programs.begin(VARIABLES, flags=(*flags, "last_call_timeout=1", "--nnodes", "1:2"))
    out, err = program.communicate(timeout=300)
    assert (out, err, program.returncode) == ("0 1 0 1 0 1 0\n", "trainkit: h2 did not answer in time\n", 0)
    assert programs.nothing_is_left()


@needs_ssh
def test_ranks_start_again_on_the_hosts_that_are_left(programs: Programs, hosts: Hosts) -> None:
    flags = (*ONE_EACH, "--hosts", "h1,h2,h3", "--nnodes", "2:3", "--max-restarts", "1")
    program = programs.begin(SIGNALS, flags=flags)
    first = ready(program, 3)
    hosts.end("h2")
    second = ready(program)
    assert ended(first)
    assert not {*first} & {*second}
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=300)
    assert program.returncode == 130
    assert sorted(out.splitlines()) == ["rank 0 got [2]", "rank 1 got [2]"]
    assert "trainkit: the connection to h2 was lost: " in err
    assert "trainkit: restarting all ranks, restart 1 of 1\n" in err
    assert eventually(lambda: not programs.processes())  # a machine that dies leaves its folders


@needs_ssh
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_reaches_each_rank_once(
    programs: Programs, hosts: Hosts, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINKIT_PREEMPT_SIGNALS", "USR1")
    program = programs.begin(SIGNALS, flags=(*ONE_EACH, "--hosts", "h1,h2"))
    ready(program)
    program.send_signal(number)
    out, err = program.communicate(timeout=300)
    assert program.returncode == 128 + number
    assert sorted(out.splitlines()) == [f"rank {rank} got [{int(number)}]" for rank in (0, 1)]
    assert err.startswith(f"trainkit: {number.name} is sent to all ranks, which have 30 s to end")
    assert programs.nothing_is_left()


@needs_ssh
def test_nothing_is_left_of_a_leader_that_is_killed(programs: Programs, hosts: Hosts) -> None:
    program = programs.begin(SIGNALS, flags=(*ONE_EACH, "--hosts", "h1,h2"))
    pids = ready(program)
    program.kill()
    program.communicate(timeout=300)
    assert ended(pids)
    assert eventually(programs.nothing_is_left)


@needs_ssh
def test_ranks_end_cleanly_when_nobody_reads_their_output(programs: Programs, hosts: Hosts) -> None:
    talks = SIGNALS.replace("    while not got:\n", "    while not got:\n        print('.', flush=True)\n")
    saves = talks.replace(
        "    os._exit(0)", "    open('saved' + os.environ['RANK'], 'x').close()\n    os._exit(0)"
    )
    program = programs.begin(saves, flags=(*ONE_EACH, "--hosts", "h1,h2"))
    assert program.stdout is not None and program.stderr is not None
    assert eventually(lambda: "ready" in program.stdout.readline())
    program.stdout.close()
    err = program.stderr.read()
    assert program.wait(300) == 128 + signal.SIGPIPE
    assert err.startswith("trainkit: SIGTERM is sent to all ranks, which have 30 s to end")
    assert sorted(path.name for path in programs.folder.glob("saved*")) == ["saved0", "saved1"]
    assert programs.nothing_is_left()


# -- started by hand --------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def by_hand(programs: Programs, script: str, *arguments: str, port: int) -> list[Popen[str]]:
    """Start the launchers of two machines, with two ranks and one rank."""
    flags = ("-m", "trainkit", "run", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-id", "job1")
    return [
        programs.begin(
            script,
            *arguments,
            flags=(*flags, "--rdzv-endpoint", f"127.0.0.1:{port}", "--node-rank", rank, "--workers", ranks),
        )
        for rank, ranks in (("1", "1"), ("0", "2"))
    ]


def test_launchers_started_by_hand_meet(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(programs.folder / "config"))
    second, first = by_hand(programs, VARIABLES, port=free_port())
    assert (*second.communicate(timeout=300), second.returncode) == ("2 3 0 1 1 2 2\n", "", 0)
    out, err = first.communicate(timeout=300)
    assert (sorted(out.splitlines()), err, first.returncode) == (["0 3 0 2 0 2 0", "1 3 1 2 0 2 1"], "", 0)
    secret = programs.folder / "config" / "trainkit" / "run-secret"
    assert secret.stat().st_mode & 0o777 == 0o600


def test_each_launcher_tells_of_the_failure(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(programs.folder / "config"))
    for program in by_hand(programs, RANK, "raises", port=free_port()):
        out, err = program.communicate(timeout=300)
        assert program.returncode == 1, (out, err)
        assert re.match(r"trainkit: rank 1 of 3 on \S+ \(pid \d+\) raised LookupError; the other", err), err
        assert err.count("Traceback") == 1
    assert programs.nothing_is_left()


def test_a_launcher_without_its_leader_says_so(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(programs.folder / "config"))
    second, first = by_hand(programs, SIGNALS, port=free_port())
    pids = [*ready(first, 2), *ready(second, 1)]
    first.kill()
    first.communicate(timeout=300)
    lost = "trainkit: the connection to the launcher that leads the run was lost; the ranks were ended\n"
    assert (*second.communicate(timeout=300), second.returncode) == ("", lost, 1)
    assert ended(pids)
    assert eventually(programs.nothing_is_left)


def test_machines_with_a_wrong_rank_are_refused(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(programs.folder / "config"))
    place = ("--nnodes", "3", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--node-rank")
    flags = ("-m", "trainkit", "run", *place)
    good = [programs.begin(VARIABLES, flags=(*flags, "0"))]
    for rank in ("3", "-1"):
        wrong = programs.begin(VARIABLES, flags=(*flags, rank))
        _, err = wrong.communicate(timeout=300)
        assert wrong.returncode == 1
        assert err.endswith(f"trainkit: --node-rank {rank} must be an index of --nnodes 3 machines\n")
    both = [programs.begin(VARIABLES, flags=(*flags, "1")) for _ in range(2)]
    assert eventually(lambda: any(program.poll() is not None for program in both))
    (twin,) = [program for program in both if program.poll() is not None]
    _, err = twin.communicate(timeout=300)
    assert twin.returncode == 1
    assert err.endswith("trainkit: another launcher has --node-rank 1: give each machine its own\n")
    good += [*(program for program in both if program is not twin)]
    good.append(programs.begin(VARIABLES, flags=(*flags, "2")))
    rows = [program.communicate(timeout=300)[0] for program in good]
    assert rows == ["0 3 0 1 0 3 0\n", "1 3 0 1 1 3 1\n", "2 3 0 1 2 3 2\n"]


def test_a_name_that_means_loopback_here_is_open_to_others(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Debian maps the name of a machine to 127.0.1.1 on this machine, and the others know its address.
    name = socket.gethostname()
    others = [each for each in hello_of("")["addresses"] if not is_loopback(each)]
    if not is_loopback(socket.gethostbyname(name)) or not others:
        pytest.skip("the name of this machine has no loopback address")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(programs.folder / "config"))
    port = free_port()
    flags = ("-m", "trainkit", "run", "--nnodes", "2", "--node-rank")
    first = programs.begin(VARIABLES, flags=(*flags, "0", "--rdzv-endpoint", f"{name}:{port}"))

    def connects() -> bool:
        with socket.socket() as asking:
            return asking.connect_ex((others[0], port)) == 0

    assert eventually(connects)
    second = programs.begin(VARIABLES, flags=(*flags, "1", "--rdzv-endpoint", f"{name}:{port}"))
    assert second.communicate(timeout=300) == ("1 2 0 1 1 2 1\n", "")
    assert first.communicate(timeout=300) == ("0 2 0 1 0 2 0\n", "")


def test_a_stranger_can_not_join(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(programs.folder / "config"))
    port = free_port()
    flags = ("-m", "trainkit", "run", "--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}")
    first = programs.begin(VARIABLES, flags=(*flags, "--node-rank", "0"))

    def connects() -> bool:
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", port)) == 0

    assert eventually(connects)
    with socket.create_connection(("127.0.0.1", port)) as silent:
        with pytest.raises(ConfigError, match="have different keys"):
            SocketLink(socket.create_connection(("127.0.0.1", port)), b"guessed", leads=False)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(programs.folder / "other"))
        other = programs.begin(VARIABLES, flags=(*flags, "--node-rank", "1"))
        _, err = other.communicate(timeout=300)
        assert other.returncode == 1
        assert "have different keys" in err and "must be the same on all machines" in err
        monkeypatch.setenv("XDG_CONFIG_HOME", str(programs.folder / "config"))
        second = programs.begin(VARIABLES, flags=(*flags, "--node-rank", "1"))
        assert second.communicate(timeout=300) == ("1 2 0 1 1 2 1\n", "")
        silent.close()
    assert first.communicate(timeout=300) == ("0 2 0 1 0 2 0\n", "")


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert key_of("a", "h:1") == key_of("a", "h:1") != key_of("b", "h:1")
    (tmp_path / "trainkit" / "run-secret").chmod(0o644)
    with pytest.raises(ConfigError, match=r"other users can read .*run-secret, which is secret"):
        key_of("a", "h:1")


def test_ranks_choose_the_network_of_their_machine() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.77") == ""
    assert network_variables("127.0.0.1", [])["GLOO_SOCKET_IFNAME"] == "lo"
    assert network_variables("192.0.2.1", ["127.0.1.1"]) == {}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--nnodes", "2"], "--nnodes 2: say which machines: pass --hosts host1,host2"),
        (["--nnodes", "3:2"], "--nnodes must be a number of machines, or MIN:MAX, not 3:2"),
        (["--nnodes", "3", "--hosts", "a,b"], "--nnodes 3 needs more machines than a, b"),
    ],
)
def test_machines_that_can_not_be_are_refused(programs: Programs, flags: list[str], told: str) -> None:
    assert told in programs.command("run", *flags, "--no-python", "true", code=1)


# -- Slurm ------------------------------------------------------------------------------------


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    with Slurm(tmp_path / "slurm", nodes=3) as slurm:
        yield slurm


def submitted(
    slurm: Slurm, programs: Programs, script: str, *flags: str, options: tuple[str, ...] = ()
) -> str:
    """Submit a batch script that runs a script on two nodes; return the job's id."""
    path = programs.folder / "script.py"
    path.write_text(re.sub("^    ", "", script, flags=re.MULTILINE))
    command = " ".join([sys.executable, *ONE_EACH, "--nnodes", *flags, str(path)])
    slurm.env |= {**programs.environment(), "PATH": slurm.env["PATH"], "SLURM_CONF": str(slurm.conf)}
    return slurm.run(
        "sbatch", "--parsable", "--ntasks-per-node=1", "--mem-per-cpu=1300", *options,
        "-o", programs.folder / "out", "--wrap", command, cwd=programs.folder,
    )  # fmt: skip


def lines(programs: Programs, word: str) -> list[str]:
    path = programs.folder / "out"
    return [line for line in path.read_text().splitlines() if word in line] if path.exists() else []


@needs_slurm
@pytest.mark.slow
def test_losses_in_a_job_of_two_nodes_are_those_of_one(programs: Programs, slurm: Slurm) -> None:
    code, losses, err = run(programs, LOSSES)
    assert code == 0, err
    job = submitted(slurm, programs, LOSSES, "2", options=("-N", "2"))
    slurm.wait_for(job, "COMPLETED", seconds=300)
    assert (programs.folder / "out").read_text() == losses
    assert programs.nothing_is_left()


@needs_slurm
@pytest.mark.slow
def test_a_cancelled_job_sends_each_rank_one_signal(programs: Programs, slurm: Slurm) -> None:
    job = submitted(slurm, programs, SIGNALS, "2", options=("-N", "2"))
    slurm.wait(lambda: len(lines(programs, "ready")) == 2, "the ranks have met", 120)
    slurm.run("scancel", job)
    slurm.wait_for(job, "CANCELLED", seconds=300)
    slurm.wait(lambda: len(lines(programs, "got")) == 2, "the ranks have ended")
    assert sorted(lines(programs, "got")) == ["rank 0 got [15]", "rank 1 got [15]"]
    assert programs.nothing_is_left()


@needs_slurm
@pytest.mark.slow
def test_ranks_go_on_without_a_node_that_dies(programs: Programs, slurm: Slurm) -> None:
    options = ("-N", "3", "--no-kill")
    job = submitted(slurm, programs, SIGNALS, "2:3", "--max-restarts", "1", options=options)
    slurm.wait(lambda: len(lines(programs, "ready")) == 3, "the ranks have met", 300)
    slurm.kill_node("n3")
    slurm.mark_down("n3")
    slurm.wait(lambda: len(lines(programs, "ready")) == 5, "two ranks have met again", 300)
    assert lines(programs, "the connection to n3 was lost")
    slurm.run("scancel", job)
    slurm.wait(lambda: len(lines(programs, "got")) == 2, "the ranks have ended")
    slurm.wait(lambda: not programs.processes(), "nothing is left")
