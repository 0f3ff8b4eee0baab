"""Command `trainkit run`: start a script on several ranks, with flags of torchrun and `accelerate launch`."""

from __future__ import annotations

import argparse

from trainkit.cli import HELP, Command
from trainkit.plugins.launch.flags import add_flags, machines_of, options_of, streams_of
from trainkit.registry import loaded
from trainkit.runtime.local.system import boot
from trainkit.train import torch


class Run(Command):
    """Command `trainkit run`."""

    help = HELP["run"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = "trainkit run [flags] script.py [arguments]"
        parser.allow_abbrev = False
        add_flags(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.as_node or arguments.hosts or machines_of(arguments.nnodes)[1] > 1:
            # Ranks on one machine start sooner without this module.
            return int(loaded("trainkit.launchers", "nodes")(arguments))
        with boot.begun():  # the session starts in the background while this block loads the launcher's code
            options = options_of(arguments)
            return torch.Launcher(options, streams_of(arguments, options)).run()
