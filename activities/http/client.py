"""The HTTP client that all handlers of one process share; what it stands on is loaded when the first of them asks."""

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

from activities.http.address_guard import AddressGuard, is_any, is_public
from shared.settings import Settings

if TYPE_CHECKING:
    import aiohttp

    from activities.http.names import LookUp
    from activities.http.session import SharedSession


class HttpClient:
    """Owns the connections of one process, which reach public addresses only, unless the settings say otherwise.

    `guard` replaces the rule of the settings, and `look_up` the name servers of the system.
    """

    def __init__(self, settings: Settings, guard: AddressGuard | None = None, look_up: "LookUp | None" = None) -> None:
        self._settings = settings
        is_allowed = is_any if settings.http_allow_private else is_public
        self._guard = guard or AddressGuard(is_allowed)
        self._look_up = look_up
        self._session: SharedSession | None = None
        self._opened = AsyncExitStack()

    def get_session(self) -> "aiohttp.ClientSession":
        """Give the session of this process, opened at the first use."""
        if self._session is None:
            self._session = self._open()
        return self._session

    def _open(self) -> "SharedSession":
        # they take a quarter of a second to load, which a worker without requests does not need
        from activities.http.names import Names, Resolver  # noqa: PLC0415 — see above
        from activities.http.session import open_connector, open_session  # noqa: PLC0415 — see above

        look_up = self._look_up
        if look_up is None:
            look_up = resolver = Resolver()
            self._opened.push_async_callback(resolver.close)
        names = Names(look_up)
        self._opened.push_async_callback(names.close)

        session = open_session(self._settings, open_connector(self._guard, names))
        self._opened.push_async_callback(session.shut)  # and its connector
        return session

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()
