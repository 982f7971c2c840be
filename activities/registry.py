"""The registry: finds handlers through entry points and settings, and refuses two handlers for one kind."""

import importlib
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from activities.api.handler import Handler
from activities.api.payload import InvalidPayload, PayloadModel
from shared.errors import InvalidEnvelope, InvalidHandler
from shared.messages.encoding import Pack
from shared.messages.envelope import EnvelopeRules, PayloadCheck
from shared.settings import Settings

ENTRY_POINT_GROUP = "dormice.handlers"


class Registry(dict[str, Handler]):
    """Kind → handler, in the order they were found; not changed once built."""

    def __init__(self, found: Iterable[tuple[str, Handler]]) -> None:
        """Take (where it comes from, handler) pairs; raises InvalidHandler when two of them claim one kind."""
        super().__init__()
        self.origins: dict[str, str] = {}
        for origin, handler in found:
            if self.setdefault(handler.kind, handler) is not handler:
                raise InvalidHandler(
                    f"kind {handler.kind!r} has two handlers, in {self.origins[handler.kind]} and in {origin}; "
                    "rename one of them"
                )
            self.origins.setdefault(handler.kind, origin)


class ModelCheck:
    """Checks payloads by the model of a kind; pickled by the name of its module, because few models can be pickled."""

    def __init__(self, kind: str, origin: str, model: PayloadModel | None = None, path: tuple[str, ...] = ()) -> None:
        self._kind = kind
        self._origin = origin
        self._path = path
        if model is not None:
            self._model = model

    def __call__(self, payload: Any) -> InvalidEnvelope | None:
        """See `PayloadCheck`; raises InvalidHandler in a process that can't import the handler."""
        try:
            self._model.read(payload)
        except InvalidPayload as exc:
            return InvalidEnvelope(exc.field, f"{exc.problem}; correct it", exc.flaw)
        return None

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Take the search path along: a task of Spark on this machine does not know the folder of the settings."""
        path = tuple(str(Path(entry).absolute()) for entry in sys.path)
        return ModelCheck, (self._kind, self._origin, None, path)

    @cached_property
    def _model(self) -> PayloadModel:
        sys.path.extend(entry for entry in self._path if entry not in sys.path)
        try:
            loaded = pkgutil.resolve_name(self._origin)
        except Exception as exc:
            # a handler's module raises what it likes when it is imported; Spark's task fails with this sentence
            step = "install the module of its handler wherever Spark's tasks run"
            raise InvalidHandler(f"kind {self._kind!r}: {self._origin} can't be imported ({exc!r}); {step}") from exc
        found = {h.kind: h.payload for _, h in _handlers_in(loaded, self._origin)}
        if (model := found.get(self._kind)) is None:
            raise InvalidHandler(f"kind {self._kind!r}: {self._origin} declares no payload here; install one version")

        return model


def load_registry(settings: Settings) -> Registry:
    """Load our own handlers, the installed ones and the setting `handlers`; raises InvalidHandler if one can't load."""
    from activities.handlers.canary import canary  # noqa: PLC0415 — imported only when handlers are loaded

    own = ("activities.handlers.canary", canary)
    return Registry([own, *_installed(), *_configured(settings.handlers)])


def envelope_rules(settings: Settings, registry: Registry) -> EnvelopeRules:
    """Give the rules by which this process checks envelopes."""
    lanes = {kind: h.lane for kind, h in registry.items()}
    spans = {kind: h.expires_after for kind, h in registry.items() if h.expires_after is not None}
    return EnvelopeRules(lanes, settings.payload_max_bytes, payload_checks(registry), spans)


def payload_checks(registry: Registry) -> dict[str, PayloadCheck]:
    """Give the checks of the kinds whose handlers declare what their payloads are."""
    models = ((kind, h.payload) for kind, h in registry.items())
    return {kind: ModelCheck(kind, registry.origins[kind], model) for kind, model in models if model is not None}


def declared_packs(registry: Registry) -> dict[str, Pack]:
    """Give the kinds whose handlers declare that their messages are packed."""
    return {kind: h.encoding for kind, h in registry.items() if h.encoding is not None}


def _installed() -> Iterator[tuple[str, Handler]]:
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.value):
        try:
            loaded = point.load()
        except Exception as exc:
            # a distribution's module raises what it likes when it is imported; the process ends with this sentence
            raise InvalidHandler(f"entry point {point.name} = {point.value} can't be loaded ({exc!r})") from exc
        yield from _handlers_in(loaded, point.value)


def _configured(modules: Iterable[str]) -> Iterator[tuple[str, Handler]]:
    for name in modules:
        try:
            module = importlib.import_module(name)
        except Exception as exc:
            # a user's module raises what it likes when it is imported; the process ends with this sentence
            problem = _describe(exc)
            place = _find_place(exc) or "DORMICE_HANDLERS or PYTHONPATH"
            raise InvalidHandler(f"handlers: module {name!r} can't be imported ({problem}); correct {place}") from exc
        yield from _handlers_in(module, name)


def _describe(exc: Exception) -> str:
    if isinstance(exc, InvalidHandler):
        return str(exc)  # a sentence already
    # the whole of a SyntaxError has the line of the code once more
    return f"{type(exc).__name__}({exc.msg!r})" if isinstance(exc, SyntaxError) else repr(exc)


def _find_place(exc: Exception) -> str:
    """Name the file and line of a handler's own code at which an import failed; empty if it did not get that far."""
    if isinstance(exc, SyntaxError) and exc.filename:
        return f"{exc.filename}, line {exc.lineno}"
    others = (str(Path(__file__).parent), "<", sys.prefix, sys.base_prefix)
    frames = [f for f in traceback.extract_tb(exc.__traceback__) if not f.filename.startswith(others)]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def _handlers_in(loaded: object, origin: str) -> Iterator[tuple[str, Handler]]:
    values = vars(loaded).values() if isinstance(loaded, ModuleType) else [loaded]
    found = [each for each in values if isinstance(each, Handler)]
    if not found:
        raise InvalidHandler(f"handlers: {origin} holds no handler; decorate a function with @handler(...)")
    yield from ((origin, h) for h in found)
