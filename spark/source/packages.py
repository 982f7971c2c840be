"""Packages: what Spark fetches from Maven Central for a source that it can't read by itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JdbcDriver:
    """A JDBC driver: its Maven coordinates, and its class, because Java does not find it in a fetched package."""

    package: str
    name: str


DRIVERS = {
    "jdbc:postgresql:": JdbcDriver("org.postgresql:postgresql:42.7.4", "org.postgresql.JdbcDriver"),
    "jdbc:mysql:": JdbcDriver("com.mysql:mysql-connector-j:9.1.0", "com.mysql.cj.jdbc.JdbcDriver"),
    "jdbc:mariadb:": JdbcDriver("org.mariadb.jdbc:mariadb-java-client:3.5.1", "org.mariadb.jdbc.JdbcDriver"),
    "jdbc:sqlite:": JdbcDriver("org.xerial:sqlite-jdbc:3.47.1.0", "org.sqlite.JDBC"),
}
"""Drivers by the prefix of a URL; other databases need `--packages` and `--option driver=CLASS`."""


def find_driver(place: str) -> JdbcDriver | None:
    """Give the driver of a JDBC URL; None for other places and for databases not in DRIVERS."""
    return next((driver for prefix, driver in DRIVERS.items() if place.startswith(prefix)), None)


def packages_for(place: str) -> tuple[str, ...]:
    """Give the Maven coordinates that are needed to read a place."""
    driver = find_driver(place)
    return () if driver is None else (driver.package,)
