"""Client of `ray.tune.web_server`, based on the REST API of the dashboard."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from trainkit.errors import ConfigError, TuneError
from trainkit.tune.space.configurations import nested

_TIMEOUT_S = 60.0
_PAGE = 1000

Info = dict[str, Any]


class TuneClient:
    """Client of one experiment with Ray's methods, for a `TuneServer` or a `trainkit dashboard`.

    Answers have Ray's form, {"trial": info} or {"trials": [info, ...]}. An info has `id`, `trainable_name`,
    `config`, `status` and `result`, the last report or None. `trainkit.client.Experiment` needs no server.

    Args:
        tune_address: host of the server, such as "localhost", or the complete printed address.
        port_forward: port of the server, or of a tunnel to it; None means the port in the address.
        token: access token; None means the token in `tune_address`.
        experiment: name of the experiment; None means the only one of the server.

    Raises:
        ConfigError: the port or the token is missing.
        TuneError: no server answers, it refuses, or it does not know the experiment.
    """

    def __init__(
        self,
        tune_address: str,
        port_forward: int | None = None,
        *,
        token: str | None = None,
        experiment: str | None = None,
    ) -> None:
        parts = urlsplit(tune_address if "//" in tune_address else f"//{tune_address}")
        port = parts.port if port_forward is None else port_forward
        given = parse_qs(parts.query).get("token", [""])[0] if token is None else token
        if not (parts.hostname and port and given):
            raise ConfigError(
                f"TuneClient({tune_address!r}, {port_forward!r}) lacks a host, a port or a token: give the "
                "address that `trainkit dashboard` prints, or TuneServer(...).address"
            )
        self._host, self._port, self._token = parts.hostname, int(port), given
        self._name = self._only() if experiment is None else experiment
        settings = self._ask("GET", "")["settings"]
        self._trainable = str(settings["trainable"])

    @property
    def server_address(self) -> str:
        """Host of the server."""
        return self._host

    @property
    def server_port(self) -> int:
        """Port of the server."""
        return self._port

    def get_all_trials(self, timeout: float | None = None) -> dict[str, list[Info]]:
        """Return {"trials": [info, ...]}, in the order in which the trials were suggested.

        Args:
            timeout: seconds for each request; None means 60.

        Raises:
            TuneError: no server answers, or it refuses.
        """
        found: list[Info] = []
        while True:
            page = self._ask("GET", f"/trials?offset={len(found)}&limit={_PAGE}", timeout=timeout)
            found += [self._info(row, nested(row["config"])) for row in page["rows"]]
            if not page["rows"] or len(found) >= page["total"]:
                return {"trials": found}

    def get_trial(self, trial_id: str, timeout: float | None = None) -> dict[str, Info]:
        """Return {"trial": info}.

        Args:
            trial_id: id of the trial.
            timeout: seconds; None means 60.

        Raises:
            TuneError: the trial does not exist, no server answers, or it refuses.
        """
        row = self._ask("GET", f"/trials/{quote(trial_id, safe='')}", timeout=timeout)
        return {"trial": self._info(row, row["nested"])}

    def add_trial(self, name: str, specification: Mapping[str, Any]) -> dict[str, list[Info]]:
        """Try a configuration next; return its info, still without an id, which is assigned when it starts.

        Args:
            name: name of Ray's experiment; here, the trial belongs to this experiment.
            specification: `config`, the hyperparameters, and `run`, the experiment's own trainable.

        Raises:
            ConfigError: the specification has other entries, names another trainable, or can't be written as
                JSON.
            TuneError: the configuration is outside the search space, no process runs the experiment, no
                server answers, or it refuses.
        """
        further = sorted(specification.keys() - {"run", "config"})
        if further or specification.get("run", self._trainable) != self._trainable:
            what = ", ".join(further) or f"run={specification['run']!r}"
            raise ConfigError(
                f"add_trial({name!r}, ...) has {what}: a trial that is added runs {self._trainable!r} as the "
                "experiment's others do, so give its config alone"
            )
        config = dict(specification.get("config", {}))
        self._ask("POST", "/add", {"config": config})
        return {"trials": [self._as_info(None, config, "PENDING", None)]}

    def stop_trial(self, trial_id: str) -> dict[str, list[Info]]:
        """End a trial at its next report; return its info in a list.

        Raises:
            TuneError: the trial does not exist or has ended, no process runs the experiment, no server
                answers, or it refuses.
        """
        self._ask("POST", "/stop", {"trial": trial_id})
        return {"trials": [self.get_trial(trial_id)["trial"]]}

    def stop_experiment(self) -> dict[str, list[Info]]:
        """End the experiment as Ctrl-C does; return the infos of its trials.

        Raises:
            TuneError: no process runs it, no server answers, or it refuses.
        """
        self._ask("POST", "/stop", {})
        return self.get_all_trials()

    def _info(self, row: Mapping[str, Any], config: dict[str, Any]) -> Info:
        result = nested(row["metrics"]) if row["reports"] else None
        return self._as_info(row["trial_id"], config, row["status"], result)

    def _as_info(self, trial_id: str | None, config: Any, status: str, result: Any) -> Info:
        return {
            "id": trial_id,
            "trainable_name": self._trainable,
            "config": config,
            "status": status,
            "result": result,
        }

    def _only(self) -> str:
        names = [each["name"] for each in self._request("GET", "/api/experiments", None, None)]
        if len(names) != 1:
            there = ", ".join(map(repr, names)) or "none"
            raise TuneError(f"the server has not one experiment but {there}: name it by experiment=")
        return str(names[0])

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        try:
            sent = None if body is None else json.dumps(body, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{body!r} cannot be written as JSON: {error}. Give numbers, texts, lists and dictionaries"
            ) from None
        return self._request(method, f"/api/experiments/{quote(self._name, safe='')}{path}", sent, timeout)

    def _request(self, method: str, path: str, body: str | None, timeout: float | None) -> Any:
        # A plain connection sends the token to no proxy and follows no redirect.
        where = f"{self._host}:{self._port}"
        head = {"Authorization": f"Bearer {self._token}"}
        connection = http.client.HTTPConnection(
            self._host, self._port, timeout=_TIMEOUT_S if timeout is None else timeout
        )
        try:
            connection.request(method, path, body, head)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise TuneError(
                f"no server answers at {where}: {error}. Start TuneServer(folder) or `trainkit dashboard "
                "FOLDER`, and give the address that it prints"
            ) from error
        finally:
            connection.close()
        try:
            said = json.loads(text)
            refusal = said["error"] if answer.status >= 400 else ""
        except (ValueError, KeyError, TypeError) as error:
            raise TuneError(
                f"{where} answers as no dashboard does, with status {answer.status}: correct the address"
            ) from error
        if refusal:
            raise TuneError(f"{where} refused it: {refusal}")
        return said
