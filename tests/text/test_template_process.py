"""Processes that render chat templates: what they take is bounded, and others do not wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from firelane.child_process import Replacements, worker
from firelane.errors import ProcessDeadError, QueueTimeoutError, RequestError, TokenizerError
from firelane.text.rendering import template_process
from firelane.text.rendering.template_process import QUICK_BYTES, TemplateRenderer, encoded

USER = [{"role": "user", "content": "hi"}]
HARM = [{"role": "user", "content": "harm"}]
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
SOURCE = "{% if messages[0].content == 'harm' %}" + LOOP + "{% endif %}{{ messages[0].content }}{{ x }}"
LONG = [{"role": "user", "content": "a" * QUICK_BYTES}]


@pytest.fixture
def template():
    with contextlib.closing(TemplateRenderer(SOURCE, {"bos_token": "<s>"})) as made:
        yield made


def render(template, messages=USER, **variables):
    async def work():
        return await template.render(encoded(messages, variables))

    return asyncio.run(work())


def test_text_and_variables(template):
    assert template.variables == {"messages", "x"}
    assert render(template, x="é😀") == template.render_blocking(encoded(USER, {"x": "é😀"})) == "hié😀"


def test_long_conversations(template):
    content = "é" * 5_000_000
    assert render(template, [{"role": "user", "content": content}]) == content


@pytest.mark.parametrize("value", [10**40, 1.5, None, [1, {"a": [True]}]])
def test_values_arrive_as_they_are(value):
    with contextlib.closing(TemplateRenderer("{{ x | tojson }}|{{ x }}", {})) as template:
        assert render(template, x=value).endswith(f"|{value}")


def test_too_much_work_ends_the_process_and_the_next_conversation_has_another(template, caplog):
    for _ in range(2):
        with pytest.raises(RequestError, match="too much work"):
            render(template, HARM)
        assert render(template) == "hi"
    with pytest.raises(RequestError, match="too much work"):
        template.render_blocking(encoded(HARM, {}))
    assert template.render_blocking(encoded(USER, {})) == "hi"
    assert [line.split()[0] for line in caplog.messages] == ["template_process_ended"] * 3


def test_short_conversations_do_not_wait_for_long_ones(template):
    async def work():
        await template.render(encoded(LONG, {}))
        async with template._slow.lock:
            return await template.render(encoded(USER, {}))

    assert asyncio.run(work()) == "hi"


def test_a_wait_is_longer_while_the_process_is_replaced(template, monkeypatch):
    monkeypatch.setattr(template_process, "WAIT_S", 0.001)
    monkeypatch.setattr(template_process, "FURTHER_WAITS", 600_000)

    async def work():
        assert await template.render(encoded(USER, {})) == "hi"
        template._quick.worker.child.end()
        made = [template.render(encoded(USER, {})) for _ in range(2)]
        return await asyncio.gather(*made)

    assert asyncio.run(work()) == ["hi"] * 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_wait_is_longer_where_nobody_has_noticed_yet_that_the_process_is_lost(
    template, monkeypatch, number: int
):
    """It had answered before, so that it is not new."""
    assert render(template) == "hi"
    monkeypatch.setattr(template_process, "WAIT_S", 0.001)
    monkeypatch.setattr(template_process, "FURTHER_WAITS", 600_000)

    async def work():
        child = template._quick.worker.child
        os.kill(child.pid, number)
        while not (child.is_stopped() or child.has_ended):
            await asyncio.sleep(0.001)
        async with template._quick.lock:
            waits = asyncio.ensure_future(template.render(encoded(USER, {})))
            await asyncio.sleep(0.1)
        return await waits

    assert asyncio.run(work()) == "hi"


def test_a_wait_is_longer_where_the_process_waits_for_a_processor(template, monkeypatch):
    """Others do not keep it busy: the machine does."""
    assert render(template) == "hi"
    monkeypatch.setattr(template_process, "WAIT_S", 0.001)
    monkeypatch.setattr(template_process, "FURTHER_WAITS", 600_000)
    waited = itertools.count()
    monkeypatch.setattr(template._quick.worker.child, "waited_s", lambda: float(next(waited)))

    async def work():
        async with template._quick.lock:
            waits = asyncio.ensure_future(template.render(encoded(USER, {})))
            await asyncio.sleep(0.1)
        return await waits

    assert asyncio.run(work()) == "hi"


def test_a_pause_of_this_process_is_no_wait(template, monkeypatch):
    """Nobody has kept the template busy while nothing ran here."""
    assert render(template) == "hi"
    monkeypatch.setattr(template_process, "WAIT_S", 0.2)

    async def work():
        async with template._quick.lock:
            waits = asyncio.ensure_future(template.render(encoded(USER, {})))
            await asyncio.sleep(0.01)
            time.sleep(0.4)  # all of it, by the clock
            await asyncio.sleep(0)
        return await waits

    assert asyncio.run(work()) == "hi"


def test_who_gives_up_waiting_leaves_the_turn_to_the_next(template):
    assert render(template) == "hi"

    async def work():
        async with template._quick.lock:
            waits = asyncio.ensure_future(template.render(encoded(USER, {})))
            await asyncio.sleep(0.01)
            waits.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waits
        assert not template._quick.lock.locked()
        return await template.render(encoded(USER, {}))

    assert asyncio.run(work()) == "hi"


def test_a_wait_that_takes_too_long(template, monkeypatch):
    assert render(template) == "hi"
    monkeypatch.setattr(template_process, "WAIT_S", 0.0)

    async def work():
        async with template._quick.lock:
            await template.render(encoded(USER, {}))

    with pytest.raises(QueueTimeoutError, match="busy"):
        asyncio.run(work())
    monkeypatch.undo()
    assert render(template) == "hi"


def test_an_answer_that_nobody_waits_for_is_not_given_to_the_next(template):
    async def work():
        os.kill(template._quick.worker.child.pid, signal.SIGSTOP)  # it answers when nobody waits any more
        task = asyncio.ensure_future(template.render(encoded([{"role": "user", "content": "old"}], {})))
        while not template._quick.lock.locked():
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return await template.render(encoded(USER, {}))

    assert asyncio.run(work()) == "hi"


def test_a_process_that_was_killed_while_it_waited(template):
    template._quick.worker.child.end()
    assert render(template) == "hi"
    assert template._replaced.counts == {"template": 1}


SLOW = [{"role": "user", "content": "slow"}]
WORK = "{% for i in range(99999) %}{% endfor %}" * 4


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_a_process_that_is_lost_while_it_renders_is_no_fault_of_the_messages(number, monkeypatch):
    monkeypatch.setattr(worker, "STOPPED_S", 0.01)
    source = "{% if messages[0].content == 'slow' %}" + WORK + "{% endif %}{{ messages[0].content }}"
    replaced = Replacements()
    with contextlib.closing(TemplateRenderer(source, {}, replaced=replaced)) as template:

        async def work():
            task = asyncio.ensure_future(template.render(encoded(SLOW, {})))
            while not template._quick.lock.locked():
                await asyncio.sleep(0)
            os.kill(template._quick.worker.child.pid, number)
            return await task

        assert asyncio.run(work()) == "slow"
        assert replaced.counts == {"template": 1}
        assert render(template) == "hi"


def test_processes_that_are_lost_one_after_the_other_are_a_503(monkeypatch):
    replaced = Replacements()
    with contextlib.closing(TemplateRenderer("{{ messages[0].content }}", {}, replaced=replaced)) as template:
        process = template._quick.worker
        swap = process._swap

        async def killed(*arguments):
            process.child.end()
            return await swap(*arguments)

        monkeypatch.setattr(process, "_swap", killed)
        with pytest.raises(ProcessDeadError) as caught:
            render(template)
        assert caught.value.status == 503
        assert "template" in replaced.broken
        monkeypatch.undo()
        assert render(template) == "hi"
        assert replaced.broken == {}


def test_refusals_and_failures_name_what_they_are():
    source = "{% if x %}{{ raise_exception('only users') }}{% endif %}{{ 1 / 0 }}"
    with contextlib.closing(TemplateRenderer(source, {})) as template:
        with pytest.raises(RequestError, match="refuses the messages: only users") as caught:
            render(template, x=1)
        assert caught.value.param == "messages"
        with pytest.raises(RequestError, match="fails on these messages: division by zero"):
            render(template)


def test_not_a_template():
    with pytest.raises(TokenizerError, match=r"chat\.jinja is not a valid template"):
        TemplateRenderer("{% for %}", {}, "chat.jinja")


def test_values_without_a_form_as_json(template):
    with pytest.raises(RequestError, match="JSON"):
        render(template, x={1j: 2})
    assert render(template) == "hi"


def test_nothing_secret_in_its_environment(monkeypatch):
    monkeypatch.setenv("FIRELANE_TEST_SECRET", "s3cret")
    with contextlib.closing(TemplateRenderer("x", {})) as template:
        environment = Path(f"/proc/{template._quick.worker.child.pid}/environ")
        if not environment.exists():
            pytest.skip("no /proc here")
        assert b"s3cret" not in environment.read_bytes()


def test_it_ends_with_its_parent():
    script = (
        "import os\nfrom firelane.text.rendering.template_process import TemplateRenderer\n"
        "made = TemplateRenderer('x', {})\nprint(made._quick.worker.child.pid, flush=True)\nos._exit(0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    out = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True, env=environment)
    pid = int(out.stdout)

    def lives() -> bool:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        return False

    async def gone():
        async with asyncio.timeout(60):
            while lives():
                await asyncio.sleep(0.01)

    asyncio.run(gone())


@pytest.mark.parametrize("harms", [1, 2])
def test_conversations_that_are_asked_for_together(template, harms: int):
    """One that ends the process, by itself or by its limit, fails alone."""
    words = [f"word {n}" for n in range(2 * template_process.MOST_AT_ONCE)]

    async def work():
        asked = [template.render(encoded([{"role": "user", "content": word}], {})) for word in words]
        asked[3:3] = [template.render(encoded(HARM, {})) for _ in range(harms)]
        return await asyncio.gather(*asked, return_exceptions=True)

    texts = asyncio.run(work())
    assert [text for text in texts if isinstance(text, str)] == words
    failed = texts[3 : 3 + harms]
    assert all(isinstance(error, RequestError) and "too much work" in str(error) for error in failed)


def test_one_that_takes_too_much_memory_fails_alone():
    source = (
        "{% if messages[0].content == 'large' %}{{ 'x' * 900000000 }}{% endif %}{{ messages[0].content }}"
    )
    contents = ["before", "large", "after", "later"]

    async def work(template):
        asked = [template.render(encoded([{"role": "user", "content": one}], {})) for one in contents]
        return await asyncio.gather(*asked, return_exceptions=True)

    with contextlib.closing(TemplateRenderer(source, {})) as template:
        before, large, *after = asyncio.run(work(template))
    assert (before, after) == ("before", ["after", "later"])
    assert isinstance(large, RequestError)


def test_one_whose_client_has_gone_leaves_the_others(template):
    async def work():
        async with template._quick.lock:
            asked = [asyncio.ensure_future(template.render(encoded(USER, {"x": n}))) for n in range(3)]
            await asyncio.sleep(0)
            asked[1].cancel()
        return await asyncio.gather(*asked, return_exceptions=True)

    first, gone, last = asyncio.run(work())
    assert (first, last) == ("hi0", "hi2")
    assert isinstance(gone, asyncio.CancelledError)
