"""The files of a model that makes vectors or scores of texts: those of sentence-transformers, and the labels
of config.json.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, cast

from firelane.errors import RequestError

PoolName = Literal["last", "mean", "cls", "max"]
NAMES: dict[str, PoolName] = {"lasttoken": "last", "mean": "mean", "cls": "cls", "max": "max"}
FLAGS: dict[str, PoolName] = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
CLASSIFIER = "ForSequenceClassification"
"""Architectures of models with labels end in it."""
COMPUTED = ("Transformer", "Pooling", "Normalize")
"""Modules of sentence-transformers that are computed."""
RAW = ("identity", "none")
"""Functions of scores that change nothing, as the last part of their names."""
TASK_PROMPTS = {
    "query": ("query", "search_query"),
    "search_query": ("query", "search_query"),
    "document": ("document", "passage", "search_document"),
    "passage": ("passage", "document", "search_document"),
    "search_document": ("document", "passage", "search_document"),
}
"""Names of prompts by the kind of input, as other APIs call it; the first one that the model has counts."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingFiles:
    """pooling: "last" where there are no such files; None: a kind that nobody has here. prompts: what is put
    before a text, by name; default_prompt: the name of the one that is used where a request names none.
    labels: names of the classes of a model that scores texts, () of others. is_raw: scores are logits as they
    are. is_embedder: sentence-transformers' files are there. other_modules: kinds of what they compute behind
    pooling, beside the length of 1.
    """

    pooling: PoolName | None = "last"
    prompts: dict[str, str] = field(default_factory=dict[str, str])
    default_prompt: str | None = None
    labels: tuple[str, ...] = ()
    is_raw: bool = False
    is_embedder: bool = False
    other_modules: tuple[str, ...] = ()

    def prompt(self, name: str | None) -> str:
        """The text to put before an input. Raises RequestError for a name that the model does not have."""
        name = name or self.default_prompt
        if not name:
            return ""
        if name not in self.prompts:
            known = ", ".join(map(repr, self.prompts)) or "none"
            raise RequestError(
                f"this model has no prompt {name!r} (config_sentence_transformers.json has {known}): "
                "leave `prompt_name` out, and put the words before the text",
                param="prompt_name",
            )
        return self.prompts[name]

    def task_prompt(self, task: str | None) -> str:
        """The same for a kind of input, as "query"; a model without prompts reads all kinds alike. Raises
        RequestError for a kind that it has no prompt for."""
        if task is None or not self.prompts:
            return self.prompt(None)
        names = TASK_PROMPTS.get(task, (task,))
        return self.prompt(next((name for name in names if name in self.prompts), task))


NO_EMBEDDING_FILES = EmbeddingFiles()


def embedding_files(
    config: dict[str, Any],
    pooling: dict[str, Any],
    prompts: dict[str, Any],
    modules: list[Any],
    *,
    is_embedder: bool,
) -> EmbeddingFiles:
    """Contents of config.json, 1_Pooling/config.json, config_sentence_transformers.json and modules.json; an
    empty one of a missing file. is_embedder: as in EmbeddingFiles."""
    kinds = [str(cast(dict[str, Any], one).get("type", "")) for one in modules if isinstance(one, dict)]
    others = (kind.rpartition(".")[2] for kind in kinds)
    named: Any = prompts.get("prompts")
    found = cast(dict[str, Any], named) if isinstance(named, dict) else {}
    default: Any = prompts.get("default_prompt_name")
    return EmbeddingFiles(
        pooling=_pooling(pooling),
        prompts={name: text for name, text in found.items() if isinstance(text, str)},
        default_prompt=default if isinstance(default, str) and default in found else None,
        labels=_labels(config),
        is_raw=_is_raw(config),
        is_embedder=is_embedder,
        other_modules=tuple(kind for kind in others if kind not in COMPUTED),
    )


def check_embeds(files: EmbeddingFiles) -> None:
    """Raises RequestError for a model that scores texts, where vectors are asked for, and for one whose
    vectors are made by more than is computed here."""
    if files.other_modules:
        raise RequestError(
            f"this model's modules.json asks for {', '.join(files.other_modules)}, which is not computed "
            "here: its vectors would be others",
            code="no_embeddings",
        )
    if files.labels:
        raise RequestError(
            "this model scores texts and makes no vectors: ask it at /v1/rerank, /v1/score or /classify",
            code="no_embeddings",
        )


def check_answers(files: EmbeddingFiles) -> None:
    """Raises RequestError for a model that was made for vectors or scores, where text is asked for."""
    if files.labels:
        raise RequestError(
            "this model scores texts and generates none: ask it at /v1/rerank, /v1/score or /classify",
            code="no_text_generation",
        )
    if files.is_embedder:
        raise RequestError(
            "this model makes vectors of texts and generates none: ask it at /v1/embeddings",
            code="no_text_generation",
        )


def _pooling(config: dict[str, Any]) -> PoolName | None:
    """Sentence-transformers writes one name, and wrote one flag a kind before."""
    if "pooling_mode" in config:
        return NAMES.get(str(config["pooling_mode"]))
    on = [name for name, value in config.items() if name.startswith("pooling_mode_") and value]
    return FLAGS.get(on[0]) if len(on) == 1 else None if on else "last"


def _labels(config: dict[str, Any]) -> tuple[str, ...]:
    """Transformers counts two where the config does not say."""
    names: Any = config.get("architectures")
    if not isinstance(names, list) or not str(cast(list[Any], names)[:1]).endswith(f"{CLASSIFIER}']"):
        return ()
    given: Any = config.get("id2label")
    if isinstance(given, dict) and given:
        by_id = cast(dict[str, Any], given)
        return tuple(str(by_id.get(str(i), f"LABEL_{i}")) for i in range(len(by_id)))
    count: Any = config.get("num_labels", 2)
    return tuple(f"LABEL_{i}" for i in range(count if type(count) is int and 0 < count < 1 << 16 else 2))


def _is_raw(config: dict[str, Any]) -> bool:
    section: Any = config.get("sentence_transformers")
    inner = cast(dict[str, Any], section).get("activation_fn") if isinstance(section, dict) else None
    name = inner or config.get("sbert_ce_default_activation_function") or ""
    return str(name).rpartition(".")[2].lower() in RAW
