"""Machines and commands on them: over three sshd on this machine."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import eventually, printed
from tests.plugins.cluster.ground import Hosts, reason_to_skip
from tests.plugins.cluster.started import start
from trainkit.errors import ConfigError
from trainkit.plugins.cluster import commands
from trainkit.plugins.cluster.commands import RemoteError, carried
from trainkit.plugins.cluster.machines import Machine, Machines, cpus_of, nodes_of

needs_ssh = pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip() or "needs SSH")


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    with Hosts(tmp_path / "hosts") as hosts:
        monkeypatch.setenv("PATH", hosts.environment()["PATH"])
        yield hosts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("gpu[08-10,12],login", ["gpu08", "gpu09", "gpu10", "gpu12", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a[1]-ib,b", ["a1-ib", "b"]),
    ],
)
def test_nodes_are_read_as_slurm_writes_them(text: str, names: list[str]) -> None:
    assert nodes_of(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n[a-b]", "n1,,n2"])
def test_a_list_that_slurm_would_not_write_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a list of nodes: give names such as"):
        nodes_of(text)


def test_cpus_of_each_node_are_read() -> None:
    assert cpus_of("72(x2),36") == [72, 72, 36]
    assert cpus_of("") == []


def test_the_nodes_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonesuch")  # no scontrol
    job = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "4,2"}
    found = Machines.allocated(job | {"SLURM_GPUS_ON_NODE": "1"})
    assert found == Machines(
        (Machine("n1", "slurm", cpus=4, gpus=1), Machine("n2", "slurm", cpus=2, gpus=1)), "7"
    )
    assert Machines.allocated({}) is None
    assert found is not None and [machine.name for machine in found[1:]] == ["n2"]


def test_hosts_for_ssh(tmp_path: Path) -> None:
    found = [Machine("a"), Machine("b", user="kim", port=22), Machine("fe80::1", port=7)]
    assert list(Machines.named("ssh://a,kim@b:22,[fe80::1]:7")) == found
    path = tmp_path / "hosts"
    path.write_text("# ours\na slots=4\n\nkim@b # fast\n")
    assert list(Machines.named(str(path))) == [Machine("a", cpus=4), Machine("b", user="kim")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "names no host"),
        ("a,a", "names a host twice"),
        ("-oProxyCommand=x", "is not a host"),
        ("a@-x", "is not a host"),
        ("-l@a", "is not a host"),
        ("a b", "is not a host"),
        ("a:x", "is not a host"),
    ],
)
def test_what_is_no_host_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Machines.named(text)


def test_variables_of_this_machine_stay_here() -> None:
    variables = dict.fromkeys(["PYTHONPATH", "NCCL_DEBUG", "HOME", "DISPLAY", "TRAINKIT_SESSION_MARK"], "x")
    assert carried(variables) == {"PYTHONPATH": "x", "NCCL_DEBUG": "x"}


@needs_ssh
def test_a_command_runs_on_each_host(
    hosts: Hosts, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINKIT_NAMESPACE", "it's mine")
    shell = 'echo "$SECRET $TRAINKIT_NAMESPACE $0"; pwd; echo oh >&2'
    secret = {"SECRET": 'a "b" $c'}
    with start(
        Machines.named("h1,h2"), ["sh", "-c", shell, "it's $0"], environment=secret, folder=tmp_path
    ) as each:
        each.wait()
    out, err = capfd.readouterr()
    expected = [
        f"[{name}] {line}" for name in ("h1", "h2") for line in ("a \"b\" $c it's mine it's $0", tmp_path)
    ]
    assert sorted(out.splitlines()) == sorted(map(str, expected))
    assert sorted(err.splitlines()) == ["[h1] oh", "[h2] oh"]


@needs_ssh
def test_words_of_a_shell_are_no_output(hosts: Hosts, capfd: pytest.CaptureFixture[str]) -> None:
    hosts.change("h2", """ForceCommand sh -c 'echo Welcome; eval "$SSH_ORIGINAL_COMMAND"'""")
    with start(Machines.named("h1,h2"), ["echo", "done"]) as each:
        each.wait()
    assert sorted(capfd.readouterr().out.splitlines()) == ["[h1] done", "[h2] done"]
    hosts.change("h3", "ForceCommand echo This account is closed; exit 1")
    with (
        start(Machines.named("h3"), ["true"]) as each,
        pytest.raises(RemoteError, match=r"h3 can't be reached: This account is closed"),
    ):
        each.wait()


@needs_ssh
def test_progress_bars_and_long_lines_are_shown_at_once(
    hosts: Hosts, capfd: pytest.CaptureFixture[str]
) -> None:
    shell = r"printf '\r 50%%'; head -c 200000 /dev/zero | tr '\0' x >&2; read end"

    def are_shown() -> bool:
        out, err = printed(capfd)
        return out == "\r 50%" and len(err) >= 200_000 - (1 << 17)

    with start(Machines.named("h1"), ["sh", "-c", shell], prefix=False):
        assert eventually(are_shown)


@needs_ssh
def test_a_host_ends_its_command_when_the_network_is_cut(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "SILENCE_S", 2.0)

    def words(process: psutil.Process) -> str:
        return " ".join(process.info["cmdline"] or [])

    with start(Machines.named("h1"), ["sleep", "731"]) as each:
        assert eventually(lambda: any(words(process) == "sleep 731" for process in _processes()))
        (ssh,) = [process for process in psutil.Process().children() if process.name() == "ssh"]
        assert not eventually(each.failures, 4), "the command runs as long as this program lives"
        ssh.suspend()  # it passes nothing on, and closes nothing
        assert eventually(lambda: not any(words(process) == "sleep 731" for process in _processes()), 60)
        assert eventually(each.failures, 60)
        assert "the connection to h1 was lost: it has not answered for 2 s" in str(each.failures()[0])


@needs_ssh
def test_secrets_are_in_no_command_line(hosts: Hosts, tmp_path: Path) -> None:
    with start(Machines.named("h1"), ["sleep", "600"], environment={"SECRET": "xyzzy42"}) as each:
        assert eventually(lambda: any(p.info["cmdline"] == ["sleep", "600"] for p in _processes()))
        assert not [p for p in _processes() if "xyzzy42" in " ".join(p.info["cmdline"] or [])]
    assert not each.failures()[1:]


def _processes() -> list[psutil.Process]:
    return list(psutil.process_iter(["cmdline"]))


@needs_ssh
def test_failures_name_the_host(hosts: Hosts) -> None:
    with (
        start(Machines.named("h1,h2"), ["sh", "-c", "exit 3"]) as each,
        pytest.raises(RemoteError, match=r"the command on h[12] ended with exit code 3") as caught,
    ):
        each.wait()
    assert caught.value.code == 3
    with (
        start(Machines.named("h1"), ["nonesuch"]) as each,
        pytest.raises(RemoteError, match=r"the command can't start on h1: .*No such file .*'nonesuch'"),
    ):
        each.wait()
    hosts.end("h2")
    with (
        start(Machines.named("h1,h2"), ["sleep", "600"]) as each,
        pytest.raises(
            RemoteError, match=r"h2 can't be reached: ssh: .*Connection refused.*`ssh h2 true` must"
        ),
    ):
        each.wait()
    with (
        start(Machines.named("h1"), ["true"], python="/nonesuch/python") as each,
        pytest.raises(RemoteError, match=r"h1 can't be reached: .*/nonesuch/python"),
    ):
        each.wait()
    with (
        start(Machines.named("h1"), ["sh", "-c", "kill -36 $$"]) as each,
        pytest.raises(RemoteError, match=r"the command on h1 was killed by signal 36"),
    ):
        each.wait()


LEAVES = """
    import os, sys, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
    os.wait()
    print(os.getpid(), flush=True)
    time.sleep(600 * (sys.argv[1] == "waits"))
"""


@needs_ssh
@pytest.mark.parametrize("end", ["ends", "stopped", "killed"])
def test_nothing_is_left_on_a_host(hosts: Hosts, tmp_path: Path, end: str) -> None:
    script = tmp_path / "leaves.py"
    script.write_text(textwrap.dedent(LEAVES))
    program = textwrap.dedent(
        f"""
        import sys
        from tests.plugins.cluster.started import start
        from trainkit.plugins.cluster.machines import Machines
        command = [sys.executable, {str(script)!r}, {"ends" if end == "ends" else "waits"!r}]
        with start(Machines.named("h1,h2"), command, prefix=False) as each:
            each.wait() if {end != "stopped"} else sys.stdin.read()
        """
    )
    running = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert running.stdin is not None and running.stdout is not None
    assert [running.stdout.readline().strip().isdecimal() for _ in range(2)] == [True, True]
    if end == "killed":
        running.kill()
    running.stdin.close()
    running.stdout.read()
    assert running.wait(60) == (-signal.SIGKILL if end == "killed" else 0)
    assert eventually(lambda: not [p for p in _processes() if str(script) in (p.info["cmdline"] or [])])


@needs_ssh
def test_signals_reach_the_command(hosts: Hosts, capfd: pytest.CaptureFixture[str]) -> None:
    shell = "trap 'echo got; exit 0' USR1; echo ready; while :; do sleep 0.05; done"
    with start(Machines.named("h1,h2"), ["sh", "-c", shell]) as each:
        assert eventually(lambda: printed(capfd)[0].count("ready") == 2)
        each.send_signal(signal.SIGUSR1)
        each.wait()
    assert sorted(printed(capfd)[0].splitlines()) == ["[h1] got", "[h1] ready", "[h2] got", "[h2] ready"]


@needs_ssh
def test_a_host_that_is_lost_is_named(hosts: Hosts, capfd: pytest.CaptureFixture[str]) -> None:
    with start(Machines.named("h1,h2,h3"), ["sh", "-c", "echo ready; sleep 600"]) as each:
        assert eventually(lambda: printed(capfd)[0].count("ready") == 3)
        hosts.end("h2")
        with pytest.raises(RemoteError, match="the connection to h2 was lost: "):
            each.wait()
