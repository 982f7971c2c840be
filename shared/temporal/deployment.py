"""Deployments: which of the workers that poll a task queue get its tasks."""

from collections.abc import KeysView

from temporalio.api.deployment.v1 import RoutingConfig, WorkerDeploymentOptions, WorkerDeploymentVersion
from temporalio.api.taskqueue.v1 import TaskQueueVersioningInfo

Version = tuple[str, str] | None  # deployment and build of workers; None for all those without a deployment


def to_version(version: WorkerDeploymentVersion | WorkerDeploymentOptions) -> Version:
    """Give a comparable version; workers without a deployment count as one version, although each has a build id."""
    return (version.deployment_name, version.build_id) if version.deployment_name else None


def find_taking(info: TaskQueueVersioningInfo | RoutingConfig) -> KeysView[Version]:
    """Give the versions that get the tasks of a queue or deployment: the current one, then one that is ramping."""
    taking = dict.fromkeys([to_version(info.current_deployment_version)])
    if info.ramping_version_percentage > 0:
        taking[to_version(info.ramping_deployment_version)] = None
    return taking.keys()


def name_version(version: Version) -> str:
    """Name a version for people."""
    return "workers without a deployment" if version is None else version[1]


def takeover_command(version: Version, deployment: str = "NAME") -> str:
    """Give the command that makes a version current; `deployment` is used when the version itself has none."""
    command = "temporal worker deployment set-current-version --deployment-name"
    if version is None:
        return f"{command} '{deployment}' --unversioned"
    return f"{command} '{version[0]}' --build-id '{version[1]}'"
