"""The deployment: a worker's build, whether the server gives tasks by build, and which build gets them now."""

import asyncio
import contextlib
import logging
from collections.abc import KeysView
from importlib.metadata import version
from typing import Any

from temporalio.api.workflowservice.v1 import DescribeWorkerDeploymentRequest
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import WorkerDeploymentConfig

from shared.errors import InvalidSetting
from shared.settings import Settings
from shared.temporal.connect import CALL_TIMEOUT
from shared.temporal.deployment import Version, find_taking, name_version, takeover_command

logger = logging.getLogger(__name__)

NAME_MAX = 255
LOOK_SECONDS = 10.0
FIRST_LOOK_SECONDS = 1.0
"""A deployment appears with the first poll of its first worker."""


def check_deployment(settings: Settings) -> None:
    """Raise InvalidSetting for a deployment without a build, or a name that Temporal refuses."""
    name = settings.deployment_name
    build = settings.build_id
    if name and not build:
        raise InvalidSetting(
            f"build_id: is missing, and deployment {name!r} tells its versions apart by it; give each build its own, "
            "such as an image's tag or a commit"
        )

    if len(name) > NAME_MAX or name.startswith("__") or any(sign in name for sign in ".:"):
        raise InvalidSetting(
            f"deployment_name: is {name[:40]!r}; use at most {NAME_MAX} characters without '.' and ':', "
            "and not '__' first"
        )

    if len(build) > NAME_MAX:
        raise InvalidSetting(f"build_id: is longer than {NAME_MAX} characters; give a shorter one")


def build_arguments(settings: Settings) -> dict[str, Any]:
    """Return arguments of a `Worker` that gets tasks whatever version is current: a build for people to see."""
    # the SDK's own build id is a hash of the bytecode of every loaded module
    return {"build_id": settings.build_id or f"dormice {version('dormice')}"}


def version_arguments(settings: Settings) -> dict[str, Any]:
    """Return arguments of `Worker`: a build for people to see, or a version by which the server gives out tasks."""
    if not settings.deployment_name:
        return build_arguments(settings)
    return {
        "deployment_config": WorkerDeploymentConfig(
            version=WorkerDeploymentVersion(settings.deployment_name, settings.build_id),
            use_worker_versioning=True,
            # messages sleep for months: if pinned, they would need the workers of every old build for that time
            default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE,
        )
    }


async def watch_deployment(client: Client, settings: Settings) -> None:
    """Log each change of the version that gets tasks, and how ours would; without a deployment return at once."""
    if not settings.deployment_name:
        return

    request = DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=settings.deployment_name)
    logged: str | None = None

    while True:
        with contextlib.suppress(RPCError):  # not there yet, or no answer: the next look may find it
            answer = await client.workflow_service.describe_worker_deployment(request, timeout=CALL_TIMEOUT)
            taking = find_taking(answer.worker_deployment_info.routing_config)
            if (now := ", ".join(map(name_version, taking))) != logged:
                _log_version(settings, taking, now)
                logged = now
        pause = FIRST_LOOK_SECONDS if logged is None else LOOK_SECONDS
        await asyncio.sleep(pause)


def _log_version(settings: Settings, taking: KeysView[Version], now: str) -> None:
    name = settings.deployment_name
    build = settings.build_id
    fields = {"deployment": name, "build": build, "taking": now}
    if (name, build) in taking:
        logger.info("this build gets tasks", extra={"action": "version_current", **fields})
        return
    mend = takeover_command((name, build))
    logger.warning("this build gets no tasks", extra={"action": "version_waits", **fields, "mend": mend})
