"""Markdown in answers: drawn as elements, never parsed as HTML, whatever a model writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from e2e_support import wait_until
from page_support import Open, Visit, chat_events

from firelane.bench.server import ServerProcess

SAMPLE = """# Files

Use `open()` in a **with** block, *always*; see [the docs](https://docs.example/a_(b)) or https://example.org/a_b.

```python
def one():
\treturn "<b>"
```

1. Open
   - with `utf-8`
2. ~~Close~~

- [x] done

| Name | Cost |
|:-----|-----:|
| a \\| b | 12 |

> Quoted
> twice

---"""
DRAW = """(text) => import("/page/markdown.js").then(({ Markdown }) => {
    const box = document.createElement("div");
    new Markdown(box).update(text);
    return box.innerHTML;
})"""
COUNT = """(text) => import("/page/markdown.js").then(({ Markdown }) => {
    const box = document.createElement("div");
    new Markdown(box).update(text);
    return [box.querySelectorAll("*").length, box.textContent.length];
})"""


@pytest.fixture(scope="module")
def tab(browser: Any, server: ServerProcess) -> Iterator[Visit]:
    one = Visit(browser, server.url, "playground").ready()
    yield one
    one.close()
    assert (one.problems, one.strangers) == ([], [])


def drawn(tab: Visit, text: str) -> str:
    return tab.page.evaluate(DRAW, text)


def link(address: str, shown: str) -> str:
    return f'<a href="{address}" rel="noopener noreferrer" target="_blank" title="{address}">{shown}</a>'


def test_an_answer_is_drawn(visit: Open) -> None:
    tab = visit().ready()
    tab.answer_with(chat_events(*(SAMPLE[i : i + 7] for i in range(0, len(SAMPLE), 7))))
    tab.send("Show all.")
    counts = {
        name: tab.page.locator(f".turn .markdown {name}").count()
        for name in (
            "h4",
            "strong",
            "em",
            "del",
            "pre",
            "ol > li",
            "ol ul > li",
            "th",
            "td",
            "blockquote",
            "hr",
            "a",
        )
    }
    assert counts == {
        **{"h4": 1, "strong": 1, "em": 1, "del": 1, "pre": 1, "ol > li": 2, "ol ul > li": 1},
        **{"th": 2, "td": 2, "blockquote": 1, "hr": 1, "a": 2},
    }
    assert tab.texts(".markdown pre") == ['def one():\n\treturn "<b>"']
    assert tab.texts(".markdown td") == ["a | b", "12"]
    assert "☑ done" in tab.texts(".markdown .task")[0]


def test_code_is_copied(visit: Open) -> None:
    tab = visit(permissions=["clipboard-read", "clipboard-write"]).ready()
    tab.answer_with(chat_events("Look:\n```sh\n", "ls -l\n", "```\n"))
    tab.send("How?")
    tab.page.get_by_role("button", name="Copy this code").click()
    wait_until(lambda: tab.page.text_content("#announce") == "Copied.")
    assert tab.page.evaluate("navigator.clipboard.readText()") == "ls -l"


CASES = [
    ("a *b **c** d*", "<p>a <em>b <strong>c</strong> d</em></p>"),
    ("***both***", "<p><strong><em>both</em></strong></p>"),
    ("snake_case_name, 2 * 3 * 4, a ** b", "<p>snake_case_name, 2 * 3 * 4, a ** b</p>"),
    (r"\*no\* `a \* b`", r"<p>*no* <code>a \* b</code></p>"),
    ("`` a ` b `` `open", "<p><code>a ` b</code> `open</p>"),
    ("**open _and", "<p>**open _and</p>"),
    ("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"),
    ("## Two ##", '<h4 class="level2">Two</h4>'),
    ("#none", "<p>#none</p>"),
    ("3. c\n4. d", '<ol start="3"><li><p>c</p></li><li><p>d</p></li></ol>'),
    ("- a\n\n  b\n- c", "<ul><li><p>a</p><p>b</p></li><li><p>c</p></li></ul>"),
    ("a | b\nc | d", "<p>a | b\nc | d</p>"),
    ("https://a.example/b.", f"<p>{link('https://a.example/b', 'https://a.example/b')}.</p>"),
    ("(https://a.example/b)", f"<p>({link('https://a.example/b', 'https://a.example/b')})</p>"),
    ('[**x**](http://a.example/ "t")', f"<p>{link('http://a.example/', '<strong>x</strong>')}</p>"),
    ("![cat](https://a.example/c.png)", f"<p>{link('https://a.example/c.png', 'cat')}</p>"),
    ("<https://a.example/>", f"<p>{link('https://a.example/', 'https://a.example/')}</p>"),
]


BARE = [
    "def __init__(self, *args):\n    self.args = args\n\n    return None",
    "for x in y:\n\tprint(x)\nelse:\n\tpass",
    "if a:\n    b\n\n\n    # not a heading\n    c *= 2",
]


@pytest.mark.parametrize("code", BARE)
def test_code_without_a_fence_keeps_its_indentation(tab: Visit, code: str) -> None:
    text = f"{code}\n\n- a list\n      as ever\n"
    shown = "(text) => import('/page/markdown.js').then(({ Markdown }) => {"
    shown += "const box = document.createElement('div'); new Markdown(box).update(text);"
    shown += "return [box.querySelector('code').textContent, box.lastChild.outerHTML]; })"
    assert tab.page.evaluate(shown, text) == [code, "<ul><li><p>a list\nas ever</p></li></ul>"]


@pytest.mark.parametrize(("text", "html"), CASES, ids=[text[:20] for text, _ in CASES])
def test_what_is_drawn(tab: Visit, text: str, html: str) -> None:
    assert drawn(tab, text) == html


HOSTILE = [
    "<script>window.bad = 1</script>",
    "<img src=x onerror=window.bad=1>",
    "[x](javascript:window.bad=1)",
    "[x](JaVaScRiPt:window.bad=1)",
    "[x](java\tscript:window.bad=1)",
    "[x](&#106;avascript:window.bad=1)",
    "[x](data:text/html,<script>window.bad=1</script>)",
    "[x](vbscript:x) [y](file:///etc/passwd) [z](blob:x) [w](/v1/models) [v](//a.example)",
    "![x](javascript:window.bad=1)",
    "<javascript:window.bad=1> <a href=javascript:window.bad=1>x</a>",
    '```"><script>window.bad=1</script>\nx\n```',
    "| <script>window.bad=1</script> |\n|---|\n| <svg onload=window.bad=1> |",
    '[x](https://a.example/"onmouseover="window.bad=1)',
    '[" onclick="window.bad=1](https://a.example/)',
]


@pytest.mark.parametrize("text", HOSTILE, ids=[text[:24] for text in HOSTILE])
def test_hostile_text_stays_text(tab: Visit, text: str) -> None:
    """Nothing but the known elements and attributes, and links to http and https alone."""
    found = tab.page.evaluate(
        """(text) => import("/page/markdown.js").then(({ Markdown }) => {
            const box = document.createElement("div");
            document.body.append(box);
            new Markdown(box).update(text);
            const nodes = [...box.querySelectorAll("*")];
            const found = {
                tags: nodes.map((node) => node.localName),
                attributes: nodes.flatMap((node) => node.getAttributeNames()),
                protocols: [...box.querySelectorAll("a")].map((node) => node.protocol),
            };
            box.remove();
            return found;
        })""",
        text,
    )
    tags = {"p", "a", "code", "div", "span", "button", "pre", "table", "thead", "tbody", "tr", "th", "td"}
    assert set(found["tags"]) <= tags
    assert set(found["attributes"]) <= {
        *("href", "rel", "target", "title", "class", "tabindex", "role", "aria-label", "type", "scope"),
    }
    assert set(found["protocols"]) <= {"https:", "http:"}
    assert tab.page.evaluate("window.bad") is None


def test_an_unclosed_fence_holds_all_that_follows(tab: Visit) -> None:
    html = drawn(tab, "a\n\n~~~js\n# no heading\n**no emphasis**\n```\n")
    assert "<code># no heading\n**no emphasis**\n```\n</code>" in html
    assert "<strong>" not in html


ENDLESS = {
    "stars": "*a " * 30_000,
    "runs of stars": "**" * 30_000,
    "backticks": "".join("`" * (i % 200) + "a" for i in range(1000)),
    "brackets": "[" * 60_000,
    "half links": "[a](b" * 12_000,
    "quotes": ">" * 5000,
    "lists": "\n".join("  " * i + "- a" for i in range(300)),
    "wide table": "|".join("a" * 5000) + "\n" + "|".join("-" * 5000) + "\n" + "|".join("b" * 9000),
    "long table": "a|b\n-|-\n" + "c|d\n" * 5000,
    "blanks": "#" + " " * 60_000 + "x\n" + "-" + " " * 60_000 + "x\n```" + " " * 60_000 + "`",
    "half fences": "```\n~~~\n" * 10_000,
    "addresses": "http://" * 10_000,
    "underscores": "_a_b" * 15_000,
}


@pytest.mark.parametrize("name", ENDLESS)
def test_no_text_takes_more_than_its_length(tab: Visit, name: str) -> None:
    """Quadratic work on these would take minutes; no text gives more elements than characters."""
    text = ENDLESS[name]
    elements, length = tab.page.evaluate(COUNT, text)
    assert elements <= len(text) + 10
    assert length <= 2 * len(text) + 100


def test_what_is_drawn_stays_while_text_grows(tab: Visit) -> None:
    kept = tab.page.evaluate(
        """(text) => import("/page/markdown.js").then(({ Markdown }) => {
            const box = document.createElement("div");
            const markdown = new Markdown(box);
            let first = null;
            for (let end = 20; end <= text.length; end += 1) {
                markdown.update(text.slice(0, end));
                first ??= box.firstChild;
            }
            const whole = document.createElement("div");
            new Markdown(whole).update(text);
            markdown.update(text);
            return [first === box.firstChild, box.innerHTML === whole.innerHTML];
        })""",
        SAMPLE,
    )
    assert kept == [True, True]


def test_markdown_can_be_turned_off(visit: Open) -> None:
    tab = visit().ready()
    tab.answer_with(chat_events("**a** <b>"))
    tab.page.uncheck("#markdown")
    tab.send("Hello")
    assert tab.answer == "**a** <b>"
    tab.page.check("#markdown")
    tab.send("Again")
    assert (tab.answer, json.dumps(tab.texts(".markdown strong"))) == ("a <b>", '["a"]')
