"""The reader: a Kafka consumer without a group, which reads topics and commits nothing."""

import asyncio
import contextlib
import importlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from shared.kafka.safe_producer import PATIENCE_SECONDS, translate_errors


@contextlib.asynccontextmanager
async def open_reader(
    options: Mapping[str, Any], patience_seconds: float = PATIENCE_SECONDS, **more: Any
) -> AsyncGenerator[Any]:
    """Give a consumer for the length of a `with` block; `more` is passed to aiokafka. Raises BrokerTrouble."""
    consumer: Any = importlib.import_module("aiokafka").AIOKafkaConsumer(**options, enable_auto_commit=False, **more)
    try:
        async with translate_errors(""), asyncio.timeout(patience_seconds):
            await consumer.start()
        # aiokafka's `stop` cancels its caller if a task that `start` created has not run yet
        await asyncio.sleep(0)
        yield consumer
    finally:
        await consumer.stop()
