"""A Ray cluster: the one that is there, or one made here, quiet and small; and what its machines have."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
import time
from typing import Any

from regard.comparison import worker
from regard.comparison.engines import remote
from regard.comparison.engines.stopped import ClusterLost
from regard.errors import BadValue

STARTS = 3  # a busy machine may not start a cluster within Ray's half a minute; the next time its files are at hand
MEMORY = 100 * 2**20  # bytes for the store of a cluster made here: little more than words passes through it
AUTO = "auto"
SECONDS_TO_CONNECT = 10.0
SECONDS_TO_ANSWER = 120.0
SECONDS_BETWEEN_LOOKS = 2.0
SECONDS_UNREACHABLE = 20.0  # a head may come back; after 60 Ray ends this process, with words of its own
_ADDRESS = re.compile(r"[^/\s]+:\d+")
_QUIET: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}


class Cluster:
    """The cluster at `address`, or one made here with so many cores, which ends with `close` or with this process."""

    def __init__(self, address: str | None, cores: int) -> None:
        self.address, self.cores = address, cores
        self._opened = self._checked = False
        self._looked = self._reached = 0.0  # when the head was last called, and when it answered
        try:
            import ray  # noqa: F401
        except ImportError:
            raise BadValue("engine: a cluster needs Ray. Try pip install 'regard[cluster]'.") from None
        if address not in (None, AUTO) and not _ADDRESS.fullmatch(str(address)):
            raise BadValue(
                f"--address: expected auto or HOST:PORT, on a machine of the cluster, got {address!r}."
            )

    def open(self) -> None:
        """Find or start it, unless this process is connected already; see that all machines have this regard."""
        import ray

        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
            # Ray's next default: a task without a GPU sees the devices as they are. Unsaid, Ray warns of the change.
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
            self._sigterm = signal.getsignal(signal.SIGTERM)
            self._start() if self.address is None else self._join(self.address)
            self._opened = True
        if not self._checked:
            _refuse_other_versions()
            self._checked = True

    def close(self) -> None:
        """Leave it, unless somebody else had connected; one that was made here ends."""
        import ray

        if self._opened:
            ray.shutdown()
            if threading.current_thread() is threading.main_thread():  # where Ray put its own handler
                signal.signal(signal.SIGTERM, self._sigterm)
        self._opened = self._checked = False

    @property
    def made_here(self) -> bool:
        """Whether all of it runs on this machine, for this process alone."""
        return self.address is None and self._opened

    def refuse_lost(self) -> None:
        """Raise if nothing can be expected of it any more."""
        if lost := self._lost():
            when = "" if self.made_here else ", once the cluster runs again (`ray start --head`)"
            raise ClusterLost(
                f"engine: the Ray cluster is lost: {lost}. Each run is saved as of its last checkpoint; the same "
                f"command goes on from there{when}."
            )

    def _lost(self) -> str:
        import ray

        now = time.monotonic()
        if now - self._looked < SECONDS_BETWEEN_LOOKS:
            return ""
        first, self._looked = not self._looked, now
        head = ray.get_runtime_context().gcs_address
        try:
            _call(head, SECONDS_BETWEEN_LOOKS)
            self._reached = now
        except OSError as trouble:
            self._reached = now if first else self._reached
            silent = now - self._reached > SECONDS_UNREACHABLE
            return f"its head at {head} is gone ({worker.reason(trouble)})" if silent else ""
        own = ray.get_runtime_context().get_node_id()
        ended = any(one["NodeID"] == own and not one["Alive"] for one in ray.nodes())
        return "Ray has ended on this machine" if ended else ""

    def _start(self) -> None:
        import ray

        small: dict[str, Any] = {
            "num_cpus": self.cores,
            "include_dashboard": False,
            "object_store_memory": MEMORY,
        }
        for attempt in range(1, STARTS + 1):
            try:
                ray.init(address="local", **small, **_QUIET)
                return
            except Exception as trouble:  # Ray has no class of its own for it
                ray.shutdown()
                if attempt == STARTS:
                    why = worker.reason(trouble).rstrip(".")
                    raise BadValue(
                        f"engine: no Ray cluster could be started here: {why}. Try --engine local."
                    ) from trouble

    def _join(self, address: str) -> None:
        import ray

        try:
            if address != AUTO:  # asked first, since Ray itself tries for many minutes
                _call(address, SECONDS_TO_CONNECT)
            ray.init(address=address, **_QUIET)
        except (OSError, OverflowError, ValueError, RuntimeError) as trouble:
            raise BadValue(
                f"--address: no Ray cluster could be joined at {address!r}: {worker.reason(trouble).rstrip('.')}. "
                "Start one with `ray start --head`, or leave --address out."
            ) from trouble


def _call(address: str, seconds: float) -> None:
    """Raise OSError if nothing listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), seconds).close()


def machines() -> list[dict[str, Any]]:
    """Those of the cluster that can work, as Ray describes them."""
    import ray

    return [one for one in ray.nodes() if one["Alive"] and one["Resources"].get("CPU", 0) > 0]


def refuse_too_large(cores: int, gpus: int) -> None:
    """Raise if no machine has so much: a task would wait for it forever."""
    found = [one["Resources"] for one in machines()]
    if not any(one.get("CPU", 0) >= cores and one.get("GPU", 0) >= gpus for one in found):
        wanted = f"{cores} cores" + (" and a GPU" if gpus else "")
        raise BadValue(
            f"engine: no machine of the cluster has {wanted}. Try fewer --threads or --device cpu."
        )


def _refuse_other_versions() -> None:
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = {}
    for one in machines():
        there = NodeAffinitySchedulingStrategy(one["NodeID"], soft=False)
        look = ray.remote(remote.installed).options(num_cpus=0, scheduling_strategy=there)
        asked[one["NodeManagerAddress"]] = look.remote()
    here = remote.installed()
    for address, answer in asked.items():
        try:
            found = ray.get(answer, timeout=SECONDS_TO_ANSWER) or "none"
        except GetTimeoutError:
            raise BadValue(f"engine: {address}, a machine of the cluster, does not answer.") from None
        except RayError as trouble:  # it cannot even load the question
            found = f"none that works ({worker.reason(trouble)})"
        if found != here:
            raise BadValue(
                f"engine: expected regard {here} on every machine of the cluster, {address} has {found}. "
                "Install the same there."
            )
