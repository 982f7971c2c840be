"""The fields of Kubernetes that deploy/ uses, with their types: a strict schema, so that no name there is misspelt."""

from collections.abc import Iterator
from typing import Any, TypeAlias

Shape: TypeAlias = "type | dict[str, Shape] | list[Shape] | tuple[Shape, ...]"
"""A type; an object with all fields that it may have; a list of one shape; or a choice of shapes."""

TEXTS: Shape = {"*": str}
"""An object whose fields have any name, such as labels."""

METADATA: Shape = {"name": str, "labels": TEXTS, "annotations": TEXTS}
SELECTOR: Shape = {
    "matchLabels": TEXTS,
    "matchExpressions": [{"key": str, "operator": str, "values": [str]}],
}
PROBE: Shape = {
    "httpGet": {"path": str, "port": (str, int)},
    "periodSeconds": int,
    "timeoutSeconds": int,
    "failureThreshold": int,
}
VARIABLE: Shape = {
    "name": str,
    "value": str,
    "valueFrom": {
        "fieldRef": {"fieldPath": str},
        "secretKeyRef": {"name": str, "key": str, "optional": bool},
    },
}
CONTAINER: Shape = {
    "name": str,
    "image": str,
    "command": [str],
    "args": [str],
    "env": [VARIABLE],
    "envFrom": [{"configMapRef": {"name": str}}],
    "ports": [{"name": str, "containerPort": int}],
    "livenessProbe": PROBE,
    "readinessProbe": PROBE,
    "resources": {"requests": {"cpu": str, "memory": str}, "limits": {"cpu": str, "memory": str}},
    "securityContext": {
        "allowPrivilegeEscalation": bool,
        "readOnlyRootFilesystem": bool,
        "capabilities": {"drop": [str]},
    },
    "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
}
POD: Shape = {
    "metadata": METADATA,
    "spec": {
        "automountServiceAccountToken": bool,
        "enableServiceLinks": bool,
        "terminationGracePeriodSeconds": int,
        "securityContext": {
            "runAsNonRoot": bool,
            "runAsUser": int,
            "runAsGroup": int,
            "fsGroup": int,
            "seccompProfile": {"type": str},
        },
        "topologySpreadConstraints": [
            {"maxSkew": int, "topologyKey": str, "whenUnsatisfiable": str, "labelSelector": SELECTOR}
        ],
        "containers": [CONTAINER],
        "volumes": [{"name": str, "emptyDir": {}, "secret": {"secretName": str, "optional": bool, "defaultMode": int}}],
    },
}
SCALING: Shape = {"stabilizationWindowSeconds": int}

SPECS: dict[tuple[str, str], Shape] = {
    ("apps/v1", "Deployment"): {"replicas": int, "selector": SELECTOR, "template": POD},
    ("apps/v1", "StatefulSet"): {
        "serviceName": str,
        "podManagementPolicy": str,
        "replicas": int,
        "selector": SELECTOR,
        "template": POD,
    },
    ("policy/v1", "PodDisruptionBudget"): {
        "maxUnavailable": int,
        "unhealthyPodEvictionPolicy": str,
        "selector": SELECTOR,
    },
    ("v1", "Service"): {
        "clusterIP": str,
        "publishNotReadyAddresses": bool,
        "selector": TEXTS,
        "ports": [{"name": str, "port": int, "targetPort": (str, int)}],
    },
    ("networking.k8s.io/v1", "NetworkPolicy"): {
        "podSelector": SELECTOR,
        "policyTypes": [str],
        "ingress": [{"ports": [{"port": (str, int)}]}],
    },
    ("keda.sh/v1alpha1", "ScaledObject"): {
        "scaleTargetRef": {"apiVersion": str, "kind": str, "name": str},
        "minReplicaCount": int,
        "maxReplicaCount": int,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleUp": SCALING, "scaleDown": SCALING}}},
        "triggers": [{"type": str, "metadata": TEXTS}],
    },
    ("monitoring.coreos.com/v1", "PodMonitor"): {
        "jobLabel": str,
        "selector": SELECTOR,
        "podMetricsEndpoints": [{"port": str, "interval": str}],
    },
    ("monitoring.coreos.com/v1", "PrometheusRule"): {
        "groups": [
            {
                "name": str,
                "interval": str,
                "rules": [
                    {
                        "record": str,
                        "alert": str,
                        "expr": str,
                        "for": str,
                        "keep_firing_for": str,
                        "labels": TEXTS,
                        "annotations": TEXTS,
                    }
                ],
            }
        ]
    },
}


def find_flaws(document: dict[str, Any]) -> list[str]:
    """Give what is wrong with a manifest: fields that there are not, and values of a wrong type."""
    spec = SPECS.get((document["apiVersion"], document["kind"]))
    if spec is None:
        return [f"{document['apiVersion']} {document['kind']} is not known here"]

    whole: Shape = {"apiVersion": str, "kind": str, "metadata": METADATA, "spec": spec}
    return list(_compare(document, whole, document["kind"]))


def _compare(value: Any, shape: Shape, path: str) -> Iterator[str]:
    if isinstance(shape, tuple):
        if all(list(_compare(value, choice, path)) for choice in shape):
            yield f"{path} is {value!r}"
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{path} is no list"
            return
        for number, item in enumerate(value):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] — what YAML has
            yield from _compare(item, shape[0], f"{path}.{number}")
    elif isinstance(shape, dict):
        yield from _compare_fields(value, shape, path)
    elif type(value) is not shape:
        yield f"{path} is {value!r}, no {shape.__name__}"


def _compare_fields(value: Any, shape: dict[str, Shape], path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path} is no object"
        return
    for name, item in value.items():  # pyright: ignore[reportUnknownVariableType] — what YAML has
        known = shape.get(name, shape.get("*"))  # pyright: ignore[reportUnknownArgumentType] — likewise
        if known is None:
            yield f"{path}.{name} is no field"
        else:
            yield from _compare(item, known, f"{path}.{name}")
