"""Temporal's four services in one process on PostgreSQL: their configuration, and the process itself."""

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from cluster.postgres import CORE, USER, VISIBILITY
from cluster.program import Program
from starter.local.embedded import DYNAMIC_CONFIG
from starter.local.supervised_process import find_free_port

SERVICES = ("frontend", "history", "matching", "worker")
STOP_SECONDS = 30.0
PORTS = ("postgres", "metrics", *(f"{service}-{use}" for service in SERVICES for use in ("rpc", "membership")))

# tests skip time, as they do on the embedded server
EXTRA_CONFIG = {"frontend.WorkflowTimeSkippingEnabled": True}


def choose_ports() -> dict[str, int]:
    """Give each of PORTS a free port, at most 32767: on PostgreSQL, Temporal keeps them in signed 16-bit columns."""
    found: set[int] = set()
    while len(found) < len(PORTS):
        found.add(find_free_port())
    return dict(zip(PORTS, found, strict=True))


def write_configuration(folder: Path, ports: Mapping[str, int], shards: int) -> Path:
    """Write the server's configuration and give its file, which is JSON, because JSON is also YAML."""
    dynamic = folder / "dynamic.yaml"
    values = {key: json.loads(str(value).lower()) for key, value in {**DYNAMIC_CONFIG, **EXTRA_CONFIG}.items()}
    dynamic.write_text(json.dumps({key: [{"value": value}] for key, value in values.items()}, indent=2) + "\n")
    path = folder / "server.yaml"
    path.write_text(json.dumps(_configure(ports, shards, dynamic), indent=2) + "\n")
    return path


def _configure(ports: Mapping[str, int], shards: int, dynamic: Path) -> dict[str, Any]:
    frontend = f"127.0.0.1:{ports['frontend-rpc']}"
    return {
        "log": {"stdout": True, "level": "warn"},
        "persistence": {
            "defaultStore": "core",
            "visibilityStore": "visibility",
            "numHistoryShards": shards,
            "datastores": {
                "core": _store(CORE, ports["postgres"], 40),
                "visibility": _store(VISIBILITY, ports["postgres"], 10),
            },
        },
        "global": {
            "membership": {"maxJoinDuration": "30s", "broadcastAddress": "127.0.0.1"},
            "metrics": {
                "prometheus": {"timerType": "histogram", "listenAddress": f"127.0.0.1:{ports['metrics']}"},
            },
        },
        "services": {
            service: {
                "rpc": {
                    "grpcPort": ports[f"{service}-rpc"],
                    "membershipPort": ports[f"{service}-membership"],
                    "bindOnLocalHost": True,
                }
            }
            for service in SERVICES
        },
        "clusterMetadata": {
            "enableGlobalNamespace": False,
            "failoverVersionIncrement": 10,
            "masterClusterName": "active",
            "currentClusterName": "active",
            "clusterInformation": {
                "active": {"enabled": True, "initialFailoverVersion": 1, "rpcName": "frontend", "rpcAddress": frontend}
            },
        },
        "dcRedirectionPolicy": {"policy": "noop"},
        "dynamicConfigClient": {"filepath": str(dynamic), "pollInterval": "10s"},
    }


def _store(database: str, port: int, connections: int) -> dict[str, Any]:
    return {
        "sql": {
            "pluginName": "postgres12",
            "databaseName": database,
            "connectAddr": f"127.0.0.1:{port}",
            "connectProtocol": "tcp",
            "user": USER,
            "maxConns": connections,
            "maxIdleConns": connections,
            "maxConnLifetime": "1h",
        }
    }


def start_server(program: Program, configuration: Path, log: Path) -> psutil.Process:
    """Start the server as a process that outlives this one."""
    command = [str(program.folder / "server"), "--config-file", str(configuration), "--allow-no-auth", "start"]
    appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), appending, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]

    # not Popen, which warns if the process is still running when the object is deleted
    return psutil.Process(os.posix_spawn(command[0], command, os.environ, file_actions=files, setsid=True))


def end_process(process: psutil.Process) -> None:
    """Ask a process to end, kill it if it does not, and return when it is gone."""
    for ask in (process.terminate, process.kill):
        with contextlib.suppress(psutil.NoSuchProcess):
            ask()
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:  # Process.wait would also wait until its parent has noticed
            if not is_alive(process):
                return
            time.sleep(0.05)


def is_alive(process: psutil.Process) -> bool:
    """Say whether a process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
