"""`best_of`: more answers are drawn than the client gets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from firelane.gateway.requests.formats import ChoiceResult, TokenReport


@dataclass(frozen=True, slots=True)
class BestOf:
    """Choice, among `draws` answers to each prompt, of the `keep` of the highest mean log-probability a
    token.
    """

    draws: int
    keep: int

    def choose(self, results: list[ChoiceResult]) -> list[ChoiceResult]:
        """results: `draws` of the first prompt, then those of the next ... The best come first."""
        chosen: list[ChoiceResult] = []
        for begin in range(0, len(results), self.draws):
            group = sorted(results[begin : begin + self.draws], key=_mean_logprob, reverse=True)
            chosen += group[: self.keep]
        return [replace(result, index=index) for index, result in enumerate(chosen)]


def _mean_logprob(result: ChoiceResult) -> float:
    """Mean over the answer, without an echoed prompt."""
    reports: list[TokenReport] = result.reports[result.echoed_tokens :]
    return sum(report.logprob or 0.0 for report in reports) / max(1, len(reports))
