"""Bodies and templates that mean harm. Each file is one; each must give a clear 4xx, quickly, and leave
nothing behind.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from firelane.errors import RequestError, TokenizerError
from firelane.text.rendering.template_process import TemplateRenderer, encoded

HOSTILE = Path(__file__).parent / "hostile"
BODIES = sorted((HOSTILE / "bodies").iterdir())
TEMPLATES = sorted((HOSTILE / "templates").iterdir())
USER = [{"role": "user", "content": "x"}]
COMPILED = sorted((HOSTILE / "compiled_templates").iterdir())


@pytest.mark.parametrize("path", BODIES, ids=lambda path: path.stem)
def test_body(service, path):
    for url in ("/v1/completions", "/v1/chat/completions", "/v1/messages"):
        answer = service.http.post(url, content=path.read_bytes())
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["message"]
        assert "\n" not in error["message"]
        assert len(error["message"]) < 1000
    assert service.gateway.in_flight == 0
    assert service.engine.submitted == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_template(path):
    """In the limits of the process that renders it; the next conversation finds another one. Where all is
    constant it may fail when it is compiled.
    """
    source = "{% if messages[0].content == 'x' %}" + path.read_text() + "{% else %}fine{% endif %}"
    with pytest.raises((RequestError, TokenizerError)) as caught, rendered(source):
        pass
    assert len(str(caught.value)) < 1000


@contextlib.contextmanager
def rendered(source: str):
    """Harm, and what comes after it."""
    with contextlib.closing(TemplateRenderer(source, {})) as template:
        try:
            yield template.render_blocking(encoded(USER, {}))
        finally:
            assert template.render_blocking(encoded([{"role": "user", "content": "y"}], {})) == "fine"


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: path.stem)
def test_template_that_means_harm_to_the_compiler(path):
    with pytest.raises(TokenizerError) as caught:
        TemplateRenderer(path.read_text(), {})
    assert len(str(caught.value)) < 1000
