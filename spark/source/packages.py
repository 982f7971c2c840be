"""Packages: what Spark fetches from Maven Central for a source that it can't read by itself."""

DRIVERS = {
    "jdbc:postgresql:": ("org.postgresql:postgresql:42.7.4", "org.postgresql.Driver"),
    "jdbc:mysql:": ("com.mysql:mysql-connector-j:9.1.0", "com.mysql.cj.jdbc.Driver"),
    "jdbc:mariadb:": ("org.mariadb.jdbc:mariadb-java-client:3.5.1", "org.mariadb.jdbc.Driver"),
    "jdbc:sqlite:": ("org.xerial:sqlite-jdbc:3.47.1.0", "org.sqlite.JDBC"),
}
"""Maven coordinates and class of a driver, by the prefix of a URL; Java does not find the class in a fetched package.

Other databases need `--packages` and `--option driver=CLASS`.
"""


def driver_option(place: str) -> dict[str, str]:
    """Give the option that names the driver's class of a JDBC URL; none for databases that are not in DRIVERS."""
    classes = [name for prefix, (_, name) in DRIVERS.items() if place.startswith(prefix)]
    return {"driver": classes[0]} if classes else {}


def packages_for(place: str) -> tuple[str, ...]:
    """Give the Maven coordinates that are needed to read a place."""
    return tuple(package for prefix, (package, _) in DRIVERS.items() if place.startswith(prefix))
