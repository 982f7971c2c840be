"""The guard of all calls: whatever a client sends, its own call ends with a status and a sentence, and no other."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from shared.errors import DormiceError, RetryLater

Context = aio.ServicerContext[Any, Any]
Read = Callable[[bytes], Any]


class CallRefused(Exception):
    """A call can't be answered as it is; `code` is its status, the text one sentence for its caller."""

    def __init__(self, code: grpc.StatusCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(frozen=True, slots=True)
class UnreadableRequest:
    """Stands for a request whose bytes are none of its type."""

    flaw: str


class CallGuard(aio.ServerInterceptor):
    """Gives each call that fails the status that says what its caller can do; what is a defect stays one of gRPC."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any] | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Put the guard around a method, if there is such a method."""
        method: Any = await continuation(handler_call_details)
        if method is None:
            return method
        read = _read_safely(method.request_deserializer)
        write = method.response_serializer
        if method.request_streaming:
            return grpc.stream_stream_rpc_method_handler(_guard_stream(method.stream_stream, _check_all), read, write)
        if method.response_streaming:
            return grpc.unary_stream_rpc_method_handler(_guard_stream(method.unary_stream, _checked), read, write)

        return grpc.unary_unary_rpc_method_handler(_guard_answer(method.unary_unary), read, write)


def _read_safely(read: Read) -> Read:
    """Give what is unreadable to the method, because gRPC would answer it as a defect of the service."""

    def read_request(data: bytes) -> Any:
        try:
            return read(data)
        except DecodeError as exc:
            return UnreadableRequest(str(exc))

    return read_request


def _guard_answer(answer: Any) -> Any:
    async def guarded(request: Any, context: Context) -> Any:
        try:
            return await answer(_checked(request), context)
        except (DormiceError, CallRefused) as exc:
            await _refuse(exc, context)

    return guarded


def _guard_stream(answer: Any, check: Callable[[Any], Any]) -> Any:
    async def guarded(request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            async with aclosing(answer(check(request), context)) as responses:
                async for response in responses:
                    yield response
        except (DormiceError, CallRefused) as exc:
            await _refuse(exc, context)

    return guarded


async def _check_all(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _checked(request)


def _checked(request: Any) -> Any:
    if isinstance(request, UnreadableRequest):
        flaw = f"the request can't be read ({request.flaw}); send what urlfrontier.proto describes, with texts in UTF-8"
        raise CallRefused(grpc.StatusCode.INVALID_ARGUMENT, flaw)
    return request


async def _refuse(error: DormiceError | CallRefused, context: Context) -> NoReturn:
    if isinstance(error, CallRefused):
        code = error.code
    else:
        code = grpc.StatusCode.UNAVAILABLE if isinstance(error, RetryLater) else grpc.StatusCode.INVALID_ARGUMENT
    await context.abort(code, str(error))
