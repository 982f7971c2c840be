"""Topic ids: what tells a topic from another one that was made later under the same name (KIP-516).

A broker gives each topic a random id when it is made. aiokafka does not ask for it, so this is Kafka's metadata request
of version 10, the first one whose answer has it; brokers since 2.8 know it.
"""

import base64
import uuid
from collections.abc import Collection
from io import BytesIO
from typing import Any, cast

from aiokafka.errors import IncompatibleBrokerVersion, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

ID_LENGTH = 8
"""Characters of an id that are kept, of 22: 48 random bits tell apart all topics that ever had one name."""

_NONE = uuid.UUID(int=0)


class _Uuid(AbstractType[uuid.UUID]):
    @classmethod
    def encode(cls, value: uuid.UUID) -> bytes:
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> uuid.UUID:
        return uuid.UUID(bytes=data.read(16))


_BROKER = (
    ("node_id", Int32),
    ("host", CompactString()),
    ("port", Int32),
    ("rack", CompactString()),
    ("tags", TaggedFields),
)
_PARTITION = (
    ("error_code", Int16),
    ("partition", Int32),
    ("leader", Int32),
    ("leader_epoch", Int32),
    ("replicas", CompactArray(Int32)),
    ("isr", CompactArray(Int32)),
    ("offline_replicas", CompactArray(Int32)),
    ("tags", TaggedFields),
)
_TOPIC = (
    ("error_code", Int16),
    ("topic", CompactString()),
    ("topic_id", _Uuid),
    ("is_internal", Boolean),
    ("partitions", CompactArray(*_PARTITION)),
    ("authorized_operations", Int32),
    ("tags", TaggedFields),
)


class _MetadataResponse(Response):
    # aiokafka declares two properties, and gives its own responses constants in their place
    API_KEY = 3  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    API_VERSION = 10  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(*_BROKER)),
        ("cluster_id", CompactString()),
        ("controller_id", Int32),
        ("topics", CompactArray(*_TOPIC)),
        ("authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _MetadataRequestStruct(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 10
    RESPONSE_TYPE = _MetadataResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("topic", CompactString()), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _MetadataRequest(Request[_MetadataRequestStruct]):
    API_KEY = 3

    def __init__(self, topics: Collection[str]) -> None:
        self._topics = [(_NONE, topic, dict[int, bytes]()) for topic in topics]

    def build(self, request_struct_class: type[_MetadataRequestStruct]) -> _MetadataRequestStruct:
        return request_struct_class(self._topics, False, False, False, {})


async def read_topic_ids(client: Any, topics: Collection[str]) -> dict[str, str]:
    """Give the id of each topic that exists, empty where the broker knows none; `client` is aiokafka's, of any kind.

    Raises a KafkaError.
    """
    inner: Any = client._client  # noqa: SLF001 — aiokafka has no other way to send a request of one's own
    try:
        answer: Any = await inner.send(inner.get_random_node(), _MetadataRequest(topics))
    except (NotImplementedError, IncompatibleBrokerVersion):  # an older broker
        return dict.fromkeys(topics, "")

    ids: dict[str, str] = {}
    for code, topic, topic_id, *_ in cast("list[tuple[Any, ...]]", answer.topics):
        error = for_code(code)
        if error is UnknownTopicOrPartitionError:
            continue
        if code:
            raise error(topic)
        ids[topic] = "" if topic_id == _NONE else base64.urlsafe_b64encode(topic_id.bytes).decode()[:ID_LENGTH]
    return ids
