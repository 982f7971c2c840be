"""Users: start messages, steer them, send malformed signals and repack, all through the calls of dormice's own code."""

import itertools
import random

from chaos.simulation.faults import Faults
from chaos.simulation.ledger.ledger import Ledger
from chaos.simulation.server.client import SimulatedClient
from chaos.simulation.users.caller import UserCaller
from chaos.simulation.users.kind_layout import KindLayout
from chaos.simulation.users.senders import Senders
from chaos.simulation.users.signals import UserSignals
from chaos.simulation.users.steerers import Steerers
from shared.messages.placement import Layout
from shared.settings import Settings


class Users:
    """All users of one simulation, who share the kind's layout."""

    def __init__(
        self,
        *,
        rng: random.Random,
        client: SimulatedClient,
        settings: Settings,
        faults: Faults,
        ledger: Ledger,
        layout: Layout,
        pad: int,
    ) -> None:
        caller = UserCaller(client)
        tokens = itertools.count(1)
        padding = "x" * pad

        self.layout = KindLayout(caller, settings, ledger, layout)
        self.senders = Senders(
            rng=rng,
            caller=caller,
            settings=settings,
            ledger=ledger,
            layout=self.layout,
            tokens=tokens,
            pad=padding,
        )
        self.steerers = Steerers(
            rng=rng,
            caller=caller,
            faults=faults,
            ledger=ledger,
            layout=self.layout,
            signals=UserSignals(rng, ledger, padding),
            tokens=tokens,
        )
