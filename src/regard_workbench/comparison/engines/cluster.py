"""A Ray cluster: an existing one, or a small one started here; and the resources of its machines."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
import time
from typing import Any

from regard.errors import BadValue
from regard_workbench.comparison import worker
from regard_workbench.comparison.engines import remote
from regard_workbench.comparison.engines.stopped import ClusterLost

ATTEMPTS = 3  # attempts: on a busy machine the first one may exceed Ray's limit of 30 seconds
MEMORY = 100 * 2**20  # bytes for the object store of a cluster started here, which only carries messages
AUTO = "auto"
SECONDS_TO_CONNECT = 10.0
SECONDS_TO_ANSWER = 120.0
SECONDS_BETWEEN_LOOKS = 2.0
SECONDS_UNREACHABLE = 20.0  # the head may come back; after 60 seconds Ray itself would end this process
_ADDRESS = re.compile(r"[^/\s]+:\d+")
_QUIET: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}


class Cluster:
    """The cluster at `address`, or one started here with `cores`, which ends with `close` or with this process."""

    def __init__(self, address: str | None, cores: int) -> None:
        self.address, self.cores = address, cores
        self._opened = self._checked = False
        self._looked = self._reached = 0.0  # when the head was last contacted, and when it last answered
        try:
            import ray  # noqa: F401
        except ImportError:
            raise BadValue("engine: a cluster needs Ray. Try pip install 'regard[cluster]'.") from None
        if address not in (None, AUTO) and not _ADDRESS.fullmatch(str(address)):
            raise BadValue(f"--address: expected auto or HOST:PORT, on a machine of the cluster, got {address!r}.")

    def open(self) -> None:
        """Connect to it or start it, unless this process is connected; check the version of regard on all machines."""
        import ray

        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
            # The future default of Ray: a task without a GPU keeps the device variables. Set here, or Ray warns.
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
            self._sigterm = signal.getsignal(signal.SIGTERM)
            self._start() if self.address is None else self._join(self.address)
            self._opened = True
        if not self._checked:
            _refuse_other_versions()
            self._checked = True

    def close(self) -> None:
        """Disconnect, unless this process was connected before `open`; a cluster started here ends."""
        import ray

        if self._opened:
            ray.shutdown()
            if threading.current_thread() is threading.main_thread():  # Ray installs its own handler there
                signal.signal(signal.SIGTERM, self._sigterm)
        self._opened = self._checked = False

    @property
    def started_here(self) -> bool:
        """Whether the cluster was started by this process, on this machine."""
        return self.address is None and self._opened

    def raise_if_lost(self) -> None:
        """Raise `ClusterLost` if the head or this machine is gone."""
        if lost := self._lost():
            when = "" if self.started_here else ", once the cluster runs again (`ray start --head`)"
            raise ClusterLost(
                f"engine: the Ray cluster is lost: {lost}. Each run is saved as of its last checkpoint; the same "
                f"command resumes from there{when}."
            )

    def _lost(self) -> str:
        import ray

        instant = time.monotonic()
        if instant - self._looked < SECONDS_BETWEEN_LOOKS:
            return ""
        first, self._looked = not self._looked, instant
        head = ray.get_runtime_context().gcs_address
        try:
            _connect(head, SECONDS_BETWEEN_LOOKS)
            self._reached = instant
        except OSError as trouble:
            self._reached = instant if first else self._reached
            silent = instant - self._reached > SECONDS_UNREACHABLE
            return f"its head at {head} is gone ({worker.reason(trouble)})" if silent else ""
        node_id = ray.get_runtime_context().get_node_id()
        ended = any(node["NodeID"] == node_id and not node["Alive"] for node in ray.nodes())
        return "Ray has ended on this machine" if ended else ""

    def _start(self) -> None:
        import ray

        small: dict[str, Any] = {"num_cpus": self.cores, "include_dashboard": False, "object_store_memory": MEMORY}
        for attempt in range(1, ATTEMPTS + 1):
            try:
                ray.init(address="local", **small, **_QUIET)
                return
            except Exception as trouble:  # Ray has no exception class for it
                ray.shutdown()
                if attempt == ATTEMPTS:
                    why = worker.reason(trouble).rstrip(".")
                    raise BadValue(
                        f"engine: no Ray cluster could be started here: {why}. Try --engine local."
                    ) from trouble

    def _join(self, address: str) -> None:
        import ray

        try:
            if address != AUTO:  # checked first, since Ray itself retries for many minutes
                _connect(address, SECONDS_TO_CONNECT)
            ray.init(address=address, **_QUIET)
        except (OSError, OverflowError, ValueError, RuntimeError) as trouble:
            raise BadValue(
                f"--address: no Ray cluster could be joined at {address!r}: {worker.reason(trouble).rstrip('.')}. "
                "Start one with `ray start --head`, or leave --address out."
            ) from trouble


def _connect(address: str, seconds: float) -> None:
    """Raise OSError if no server listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), seconds).close()


def machines() -> list[dict[str, Any]]:
    """The live machines of the cluster with CPUs, as Ray describes them."""
    import ray

    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]


def refuse_too_large(cores: int, gpus: int) -> None:
    """Raise if no machine has these resources: a task would wait forever."""
    resources = [node["Resources"] for node in machines()]
    if not any(machine.get("CPU", 0) >= cores and machine.get("GPU", 0) >= gpus for machine in resources):
        wanted = f"{cores} cores" + (" and a GPU" if gpus else "")
        raise BadValue(f"engine: no machine of the cluster has {wanted}. Try fewer --threads or --device cpu.")


def _refuse_other_versions() -> None:
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    answers = {}
    for node in machines():
        affinity = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        look = ray.remote(remote.installed).options(num_cpus=0, scheduling_strategy=affinity)
        answers[node["NodeManagerAddress"]] = look.remote()
    version = remote.installed()
    for address, answer in answers.items():
        try:
            other_version = ray.get(answer, timeout=SECONDS_TO_ANSWER) or "none"
        except GetTimeoutError:
            raise BadValue(f"engine: {address}, a machine of the cluster, does not answer.") from None
        except RayError as trouble:  # the function cannot even be loaded there
            other_version = f"none that works ({worker.reason(trouble)})"
        if other_version != version:
            raise BadValue(
                f"engine: expected regard {version} on every machine of the cluster, {address} has {other_version}. "
                "Install the same there."
            )
