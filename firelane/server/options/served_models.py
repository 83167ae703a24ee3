"""Models that `firelane serve` is given on its command line, with their names and templates."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from firelane.errors import UsageError
from firelane.gateway.config import ANSWERS, SERVER, TRIALS, ModelConfig
from firelane.options import Option, OptionError, fields

if TYPE_CHECKING:
    from firelane.server.progress import Display

EMBEDDED_NAME = "firelane-embedded"


def _named(text: str) -> tuple[str, str]:
    """(name, source); the name is "" where none is given. A directory may have an equals sign in its name."""
    name, sign, source = text.partition("=")
    if not sign or Path(text).expanduser().exists() or "/" in name:
        return "", text
    if not name or not source:
        raise OptionError(f"'{text}' is not NAME=MODEL or MODEL")
    return name, source


def _alias(text: str) -> tuple[str, str]:
    alias, sign, name = text.partition("=")
    if not alias or not sign or not name:
        raise OptionError(f"'{text}' is not ALIAS=NAME")
    return alias, name


@dataclass(frozen=True, kw_only=True)
class ServedModels:
    """The models of a server, as its command line names them. model: the first one; None: the model that
    Firelane carries."""

    model: str | None = None
    names: Annotated[
        tuple[str, ...],
        Option(
            "names that requests may give; the first is reported",
            SERVER,
            flag="served-model-name",
            metavar="NAME",
            words=True,
            default="MODEL",
        ),
    ] = ()
    more: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "a further model, with an engine of its own; may be given several times",
            SERVER,
            flag="model",
            metavar="[NAME=]MODEL",
            read=_named,
            see="serving.md#several-models",
        ),
    ] = ()
    aliases: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "a further name for a served model, such as @cf/org/model=NAME; may be given several times",
            SERVER,
            flag="alias",
            metavar="ALIAS=NAME",
            read=_alias,
        ),
    ] = ()
    chat_templates: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "a file with a Jinja chat template; with several models, NAME is one of the served names",
            ANSWERS,
            flag="chat-template",
            metavar="[NAME=]FILE",
            read=_named,
            default="the model's own",
            see="chat-formats.md#templates",
        ),
    ] = ()

    def configs(self, values: Mapping[str, Any], display: "Display", cache_dir: Path) -> list[ModelConfig]:
        """The config of each model, in the order in which they are given. values: of the options that all of
        them share. Raises UsageError."""
        from firelane.sources.resolve import resolve
        from firelane.text.tokens.tokenizer_source import tokenizer_directory

        given = self._given()
        served = [name for names, _ in given for name in names]
        for alias, name in self.aliases:
            if name not in served:
                known = ", ".join(served)
                raise UsageError(f"--alias {alias}={name}: '{name}' is not served; served are {known}")
        templates = self._templates([names for names, _ in given])
        adapters = tuple(name for name, _ in values.get("lora", ()))
        if adapters and len(given) > 1:
            raise UsageError("--lora is for one model: name adapters of each in a node's file, or serve one")
        shared = fields(ModelConfig, {key: values[key] for key in values if key != "chat_template"})
        found = [(names, resolve(source, progress=display)) for names, source in given]
        return [
            ModelConfig(
                model_dir=model_dir,
                tokenizer_dir=tokenizer_directory(model_dir, cache_dir),
                names=names,
                aliases=tuple((alias, name) for alias, name in self.aliases if name in names),
                adapters=adapters,
                chat_template=templates.get(names),
                trials_dir=cache_dir / TRIALS,
                **shared,
            )
            for names, model_dir in found
        ]

    def _given(self) -> list[tuple[tuple[str, ...], str | None]]:
        """Names and source of each model. Raises UsageError."""
        given: list[tuple[tuple[str, ...], str | None]] = []
        if self.model is not None or not self.more:
            given.append((self.names or (served_name(self.model),), self.model))
        elif self.names:
            raise UsageError("--served-model-name names MODEL: with --model alone, write --model NAME=DIR")
        return given + [((name or served_name(source),), source) for name, source in self.more]

    def _templates(self, served: list[tuple[str, ...]]) -> dict[tuple[str, ...], Path]:
        """The template of each model that is given one, by the model's names. Raises UsageError."""
        found: dict[tuple[str, ...], Path] = {}
        for name, file in self.chat_templates:
            means = [names for names in served if name in names] if name else served
            if len(means) != 1:
                known = ", ".join(name for names in served for name in names)
                why = f"'{name}' is not served" if name else "there are several models: write NAME=FILE"
                raise UsageError(f"--chat-template {file}: {why}; served are {known}")
            found[means[0]] = Path(file).expanduser()
        return found


def served_name(model: str | None) -> str:
    """A directory, or a GGUF file, goes by its name, a hub id by itself."""
    if model is None:
        return EMBEDDED_NAME
    if "://" in model:
        return Path(model).name.removesuffix(".gguf")
    path = Path(model).expanduser()
    try:
        return path.resolve().name if path.is_dir() else path.stem if path.is_file() else model
    except OSError:
        return model  # whoever opens it says why it cannot be
