"""Worker versioning: what may be set, and which workers count as those that get tasks."""

import pytest
from temporalio.api.deployment.v1 import WorkerDeploymentOptions, WorkerDeploymentVersion
from temporalio.api.taskqueue.v1 import TaskQueueVersioningInfo

from shared.errors import InvalidSetting
from shared.settings import Settings, load_settings
from shared.temporal.deployment import find_taking, to_version
from worker.deployment import check_deployment, version_arguments


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"deployment_name": "app"}, "build_id: is missing, and deployment 'app' tells its versions apart by it"),
        ({"deployment_name": "a.b", "build_id": "1"}, "deployment_name: is 'a.b'; use at most 255 characters without"),
        ({"deployment_name": "a:b", "build_id": "1"}, "deployment_name: is 'a:b'"),
        ({"deployment_name": "__a", "build_id": "1"}, "deployment_name: is '__a'"),
        ({"deployment_name": "a" * 256, "build_id": "1"}, "deployment_name: is 'aaa"),
        ({"build_id": "b" * 256}, "build_id: is longer than 255 characters"),
    ],
)
def test_a_version_that_temporal_would_refuse_is_told_in_one_sentence(changes: dict[str, str], sentence: str) -> None:
    """It names the setting and what to write."""
    with pytest.raises(InvalidSetting) as caught:
        check_deployment(load_settings(changes, environ={}))
    assert str(caught.value).startswith(sentence)


def test_without_a_deployment_a_worker_tells_its_build_and_nothing_else() -> None:
    """People see it in the Web UI; the server gives tasks to any worker."""
    assert version_arguments(Settings())["build_id"].startswith("dormice ")
    assert version_arguments(Settings(build_id="abc")) == {"build_id": "abc"}
    check_deployment(Settings(build_id="abc"))


def version(build: str, name: str = "app") -> WorkerDeploymentVersion:
    """A version as the server describes it."""
    return WorkerDeploymentVersion(deployment_name=name, build_id=build)


def test_the_current_and_the_ramping_version_get_tasks() -> None:
    """A ramp of no percent gets none; without a current version those do that have no deployment."""
    current = version("1")
    ramping = version("2")
    ramp = TaskQueueVersioningInfo(
        current_deployment_version=current, ramping_deployment_version=ramping, ramping_version_percentage=10.0
    )
    begun = TaskQueueVersioningInfo(current_deployment_version=current, ramping_deployment_version=ramping)
    leaving = TaskQueueVersioningInfo(current_deployment_version=current, ramping_version_percentage=10.0)

    assert find_taking(ramp) == {("app", "1"), ("app", "2")}
    assert find_taking(begun) == {("app", "1")}
    assert find_taking(leaving) == {("app", "1"), None}
    assert find_taking(TaskQueueVersioningInfo()) == {None}


def test_workers_without_a_deployment_are_one_whatever_build_they_tell() -> None:
    """Their build is for people."""
    assert to_version(WorkerDeploymentOptions(build_id="dormice 1")) is None
    assert to_version(version("dormice 1", name="")) is None
