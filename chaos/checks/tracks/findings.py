"""Findings: the broken promises of a run, under the names that Jepsen gives them."""

from dataclasses import dataclass, field

EXAMPLES_MAX = 20


@dataclass(slots=True)
class Findings:
    """Broken promises: a count by Jepsen's name, and a sentence for each of the first 20 of a name."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    examples: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def add(self, word: str, sentence: str) -> None:
        """Count a finding."""
        self.counts[word] = self.counts.get(word, 0) + 1
        found = self.examples.setdefault(word, [])
        if len(found) < EXAMPLES_MAX:
            found.append(sentence)
