"""Who takes part: by what module, on which servers, and with how many messages."""

from dataclasses import dataclass

REDIS = "redis"
KAFKA = "kafka"
POSTGRES = "postgres"
TEMPORAL = "temporal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One contestant.

    `count` messages are far more than it can run when each comes back within some seconds; `kill_count` are as many
    as it can run. Where `sends_inside`, only the process that serves can send messages.
    """

    name: str
    title: str
    package: str
    servers: tuple[str, ...]
    count: int
    kill_count: int
    sends_inside: bool = False

    @property
    def is_for_many(self) -> bool:
        """Whether it takes as many messages as packs do."""
        return self.count == CONTESTANTS[0].count

    @property
    def module(self) -> str:
        """The module that has its `fill` and `serve`."""
        return f"{__name__}.{self.package}"


CONTESTANTS = [
    Contestant(
        name="kafka-redis",
        title="Kafka + Redis by hand",
        package="kafka_redis",
        servers=(REDIS, KAFKA),
        count=400_000,
        kill_count=600,
    ),
    Contestant(
        name="apscheduler",
        title="APScheduler",
        package="apscheduler_jobs",
        servers=(POSTGRES,),
        count=5000,
        kill_count=200,
        sends_inside=True,
    ),
    Contestant(
        name="procrastinate",
        title="procrastinate",
        package="procrastinate_jobs",
        servers=(POSTGRES,),
        count=5000,
        kill_count=100,
    ),
    Contestant(name="dbos", title="DBOS", package="dbos_workflows", servers=(POSTGRES,), count=1500, kill_count=40),
    Contestant(
        name="dormice-solo",
        title="dormice, solo",
        package="dormice_messages",
        servers=(TEMPORAL,),
        count=8000,
        kill_count=60,
    ),
    Contestant(
        name="dormice-200",
        title="dormice, packs of 200",
        package="dormice_messages",
        servers=(TEMPORAL,),
        count=400_000,
        kill_count=600,
    ),
    Contestant(
        name="dormice-1000",
        title="dormice, packs of 1,000",
        package="dormice_messages",
        servers=(TEMPORAL,),
        count=400_000,
        kill_count=600,
    ),
]

FLOOR = Contestant(
    name="bare-1000",
    title="the smallest pack of 1,000 on Temporal",
    package="bare_packs",
    servers=(TEMPORAL,),
    count=400_000,
    kill_count=0,
)
"""Is measured beside the others; it notes no versions, so that nothing can be told of it after a kill."""

TABLE = Contestant(
    name="table",
    title="a table, polled by hand",
    package="table_rows",
    servers=(POSTGRES,),
    count=100_000,
    kill_count=600,
)


def find_contestant(name: str) -> Contestant:
    """Give the contestant of a name; raises StopIteration for none."""
    return next(contestant for contestant in [*CONTESTANTS, FLOOR, TABLE] if contestant.name == name)
