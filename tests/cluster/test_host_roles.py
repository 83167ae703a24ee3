"""Engines with roles, and engines that share pages, on other hosts: real connections, engines without a
model. A gateway names each engine's address to those that have pages from it."""

from __future__ import annotations

import pytest
from hosts_support import Engine, play, until

from firelane.errors import RequestError
from firelane.gateway.engines.roles.roles import change_role
from firelane.gateway.engines.routing.routing import WORTH_TOKENS, Router
from firelane.link.framing import encode
from firelane.wire.cache_events import PageChanges, numbers_bytes
from firelane.wire.page_names import PAGE_TOKENS, page_names

LONG = 2 * WORTH_TOKENS


def pages(role, place):
    return {"role": role, "engine_id": f"e{place}", "pages_address": f"10.0.0.{place}:5600"}


async def up(world, *roles):
    """An engine of each role on a host of its own."""
    for place, role in enumerate(roles):
        await world.host(**pages(role, place))
    await world.connect()
    await world.serving(len(roles))


async def sent(engine, count):
    await until(lambda: len(engine.requests) == count)
    return [(one.prefetch, one.pages_at, one.pages_address) for one in engine.requests]


async def handed_over(world, tokens=LONG):
    """A request whose prompt has been computed at the first engine; returns its sink."""
    _, sink = world.submit(tokens)
    await sent(world.engines[0], 1)
    world.engines[0].answer(world.engines[0].requests[0].id, [5], "length")
    await until(lambda: sink.tokens == [5])
    return sink


def test_the_engine_that_goes_on_hears_early_where_the_pages_are():
    async def scenario(world):
        await up(world, "prefill", "decode")
        sink = await handed_over(world)
        there = ("e0", "10.0.0.0:5600")
        assert await sent(world.engines[1], 2) == [(True, *there), (False, *there)]
        expected, request = world.engines[1].requests
        assert (expected.id, request.output_start) == (request.id, LONG)
        assert world.engines[0].requests[0].sampling.max_tokens == 1
        world.engines[1].answer(request.id, [6, 7], "length")
        await until(lambda: sink.ended)
        assert sink.tokens == [5, 6, 7]
        assert world.replicas.figures.handed_over == 1

    play(scenario)


@pytest.mark.parametrize("lost", ["host", "engine"])
def test_a_stream_that_loses_its_engine_for_decode_names_the_pages_again(lost):
    async def scenario(world):
        await up(world, "prefill", "decode", "decode")
        sink = await handed_over(world)
        place = 1 if world.engines[1].requests else 2
        first, other = world.engines[place], world.engines[3 - place]
        await sent(first, 2)
        first.answer(first.requests[1].id, [6])
        await until(lambda: sink.tokens == [5, 6])
        if lost == "host":
            await world.hosts[place].close()
        else:
            world.hosts[place].lose_engine()
            first.die()
        assert await sent(other, 1) == [(False, "e0", "10.0.0.0:5600")]
        other.answer(other.requests[0].id, [7], "length")
        await until(lambda: sink.ended)
        assert sink.tokens == [5, 6, 7]

    play(scenario)


def test_a_prompt_that_loses_its_engine_for_prefill_is_computed_by_another_one():
    async def scenario(world):
        await up(world, "prefill", "decode")
        _, sink = world.submit(LONG)
        await sent(world.engines[0], 1)
        await world.hosts[0].close()
        assert await sent(world.engines[1], 2) == [(True, "e0", "10.0.0.0:5600"), (False, "", "")]
        world.engines[1].answer(world.engines[1].requests[1].id, [5], "stop")
        await until(lambda: sink.ended)
        assert (sink.tokens, sink.error) == ([5], None)

    play(scenario)


def test_an_engine_that_starts_again_gives_pages_as_another_one():
    async def scenario(world):
        await up(world, "prefill", "decode")
        world.hosts[0].lose_engine()
        world.engines[0].die()
        again = Engine(world.hosts[0], **{**pages("prefill", 0), "engine_id": "e9"})
        world.stack.callback(again.die)
        await until(lambda: any(link.load.engine_id == "e9" for link in world.replicas.serving))
        world.engines[0] = again
        await handed_over(world)
        assert {at for _, at, _ in await sent(world.engines[1], 2)} == {"e9"}

    play(scenario)


def test_nothing_is_handed_over_to_an_engine_whose_pages_do_not_travel():
    """The engine for prefill does all of it, as the other one would have to compute the prompt again."""

    async def scenario(world):
        await world.host(**pages("prefill", 0))
        await world.host()
        await world.connect()
        await world.serving(2)
        world.submit(LONG)
        world.submit(LONG)
        requests = [(await sent(engine, 1), engine.requests[0]) for engine in world.engines]
        assert [said for said, _ in requests] == [[(False, "", "")]] * 2
        assert [request.sampling.max_tokens for _, request in requests] == [9, 9]

    play(scenario)


def test_roles_of_engines_on_other_hosts_are_changed_for_one_gateway():
    async def scenario(world):
        await up(world, "prefill", "decode", "decode")
        sink = await handed_over(world)
        place = 1 if world.engines[1].requests else 2
        await sent(world.engines[place], 2)
        link = change_role(world.replicas, str(world.places[place]), "prefill")
        assert (link.load.role, link.ready.role) == ("prefill", "decode")
        other = world.engines[3 - place]
        assert await sent(other, 1) == [(False, f"e{place}", f"10.0.0.{place}:5600")]
        other.answer(other.requests[0].id, [6], "length")
        await until(lambda: sink.ended)
        assert sink.tokens == [5, 6]

    play(scenario)


def test_the_role_of_an_engine_whose_pages_do_not_travel_stays():
    async def scenario(world):
        await world.host()
        await world.connect()
        await world.serving(1)
        with pytest.raises(RequestError, match="`firelane engine` there with --kv-transfer-address"):
            change_role(world.replicas, str(world.places[0]), "decode")
        assert world.replicas.links[0].load.role == "both"

    play(scenario)


def test_an_engine_gives_its_pages_to_one_of_another_host():
    """It tells what it has, and is too busy for the next request."""

    async def scenario(world):
        await up(world, "both", "both")
        _, sink = world.submit(2 * PAGE_TOKENS)
        await until(lambda: any(engine.requests for engine in world.engines))
        first = 0 if world.engines[0].requests else 1
        busy, idle = world.engines[first], world.engines[1 - first]
        names = page_names(b"", b"\1\0\0\0" * 2 * PAGE_TOKENS)
        (sock,) = busy.socks.values()
        sock.send(encode(PageChanges(stored=numbers_bytes(names), removed=b"", is_whole=True)))
        busy.answer(busy.requests[0].id, [5])
        await until(lambda: sink.tokens == [5])
        world.submit(2 * PAGE_TOKENS)
        assert await sent(idle, 1) == [(False, f"e{first}", f"10.0.0.{first}:5600")]

    play(scenario, Router.of("least-requests", shares_pages=True))
