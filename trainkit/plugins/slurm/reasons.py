"""Slurm's states and reasons in plain words."""

from __future__ import annotations

from collections.abc import Mapping

Fields = Mapping[str, str]

_WAITS = {
    "Resources": "waits until enough nodes are free",
    "Priority": "waits behind jobs with a higher priority",
    "None": "waits until Slurm looks at it",
    "Dependency": "waits for another job, as its option dependency says",
    "DependencyNeverSatisfied": "never starts: the job of its option dependency has ended otherwise",
    "BeginTime": "waits for its time to begin; Slurm submits a job again with a delay of up to two minutes",
    "JobArrayTaskLimit": "waits until another task of its array ends",
    "JobHoldMaxRequeue": "is held, since it could not start several times: `scontrol release JOB`",
    "launch failed requeued held": "is held, since it could not start: `scontrol release JOB`",
    "JobHeldUser": "is held: `scontrol release JOB` lets it start",
    "JobHeldAdmin": "is held by an administrator",
    "PartitionTimeLimit": "never starts: its --time is above the limit of the partition (`sinfo -o '%P %l'`)",
    "PartitionNodeLimit": "never starts: its --nodes are more than the partition allows",
    "PartitionDown": "waits: the partition is down",
    "ReqNodeNotAvail": "waits for nodes that are down or reserved",
    "BadConstraints": "never starts: no node has what the job asks for",
    "AssociationTimeLimit": "never starts: its --time is above the limit of your account",
}
"""Causes for which a pending job waits, by Slurm's reason."""

_ENDS = {
    "COMPLETED": "has ended with exit code 0",
    "TIMEOUT": "was ended at its time limit{limit}: the program did not end in time after the notice: "
    "give a larger --time or --signal-before",
    "OUT_OF_MEMORY": "was ended because it used more memory than it had: give a larger --mem",
    "NODE_FAIL": "has lost its node",
    "BOOT_FAIL": "has lost its node, which did not start",
    "PREEMPTED": "was ended in favour of another job",
    "DEADLINE": "was ended at its deadline",
    "CANCELLED": "was cancelled{by}",
    "COMPLETING": "is ending",
    "SUSPENDED": "is suspended",
    "CONFIGURING": "waits until its nodes are ready",
    "REQUEUE_HOLD": "is held: `scontrol release JOB` lets it start",
    "UNKNOWN": "is not known to Slurm, and has left no record of its end",
}
"""Ends of a job, by Slurm's state."""

_OVER = {"COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "DEADLINE"}
_OVER |= {"CANCELLED", "REVOKED", "UNKNOWN"}


def state_words(fields: Fields) -> str:
    """Return the state of a job in words.

    Args:
        fields: what Slurm says: JobState, and where known Reason, NodeList, TimeLimit, EndTime, ExitCode,
            Attempts, CancelledBy.
    """
    state, reason = fields.get("JobState", "UNKNOWN"), fields.get("Reason", "None")
    attempts = int(fields.get("Attempts", "0"))
    times = f" (attempt {attempts})" if attempts > 1 else ""
    if state == "PENDING":
        known = _WAITS.get(reason.removeprefix("(").split(",")[0])
        if known is None and ("Limit" in reason or "Max" in reason):
            known = f"waits for a limit of your account or partition ({reason})"
        return (known or f"waits ({reason})") + (f" (after attempt {attempts})" if attempts else "")
    if state == "RUNNING":
        end = fields.get("EndTime", "NONE").replace("T", " ")
        limited = end[:1].isdigit() and not fields.get("TimeLimit", "").startswith(("UNLIMITED", "365-"))
        until = f" until {end}" if limited else ""
        return f"runs on {fields.get('NodeList') or 'its nodes'}{until}{times}"
    if state == "FAILED":
        code, _, number = fields.get("ExitCode", "?:0").partition(":")
        how = f"signal {number}" if number not in ("", "0") else f"exit code {code}"
        if number == "53":
            how = "Slurm's code 53: its node could not write to the job's folder"
        return f"has failed with {how}{times}"
    words = _ENDS.get(state, f"is in the state {state}")
    by = f" by {fields['CancelledBy']}" if fields.get("CancelledBy") else ""
    limit = f" of {fields['TimeLimit']}" if fields.get("TimeLimit") else ""
    return words.format(by=by, limit=limit) + times


def is_over(fields: Fields) -> bool:
    """Return True if a job has ended for good."""
    return fields["JobState"] in _OVER


def corrected(fields: Fields, output: str) -> dict[str, str]:
    """Return the fields of a job that failed, with the state that its output tells.

    Args:
        fields: what Slurm says.
        output: end of the job's output, where Slurm's daemons write too.
    """
    memory = "exceeded memory limit" in output or "oom-kill" in output or "oom_kill" in output
    return {**fields, **({"JobState": "OUT_OF_MEMORY"} if memory else {})}
