"""The reader: a Kafka consumer without a group, for looking at topics and leaving no trace."""

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
    """Give a consumer for the length of a `with` block; `more` is its own of aiokafka's options. Raises BrokerTrouble."""
    consumer: Any = importlib.import_module("aiokafka").AIOKafkaConsumer(**options, enable_auto_commit=False, **more)
    try:
        async with translate_errors(""), asyncio.timeout(patience_seconds):
            await consumer.start()
        # aiokafka's `stop` cancels us when a task that its `start` made has not had its first turn
        await asyncio.sleep(0)
        yield consumer
    finally:
        await consumer.stop()
