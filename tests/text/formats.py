"""The format of a chat template, found without a process."""

from __future__ import annotations

from collections.abc import Collection

from firelane.text.chat.chat_format import ModelChatFormat
from firelane.text.chat.format_search import CLOSINGS, Evidence, find_chat_format
from firelane.text.rendering.template import ChatTemplate
from firelane.text.rendering.template_probe import TemplateProbe


def evidence_of(source: str, tokens: Collection[str] = ()) -> Evidence:
    """tokens: added ones of the vocabulary."""
    template = ChatTemplate(source, {"bos_token": "<BOS>", "eos_token": "<EOS>"})
    facts = TemplateProbe(template.render, template.variables).facts(CLOSINGS)
    return Evidence(source, facts, tokens.__contains__, template.render)


def format_of(source: str, *options: str, tokens: Collection[str] = ()) -> ModelChatFormat:
    """options: of calls and of reasoning."""
    return find_chat_format(evidence_of(source, tokens), *options)
