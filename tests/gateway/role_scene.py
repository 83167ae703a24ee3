"""Fake engines with roles behind one ReplicaSet."""

from __future__ import annotations

import asyncio

from fake_engine import FakeEngine
from replica_scene import Scene, until

from firelane.gateway.engines.routing.routing import BUSY_TOKENS, WORTH_TOKENS

LONG, BUSY = 2 * WORTH_TOKENS, 4 * BUSY_TOKENS
P, D, BOTH = "prefill", "decode", "both"


def play(scenario, *roles):
    async def run():
        scene = Scene(count=len(roles))
        for i, role in enumerate(roles):
            await scene.bring_up(i, role=role, engine_id=f"e{i}")
        try:
            await asyncio.wait_for(scenario(scene), 120)
        finally:
            scene.close()

    asyncio.run(run())


def told(engine: FakeEngine):
    return [(r.output_start, r.sampling.max_tokens, r.pages_at) for r in engine.submitted]


def chunk_limits(engine: FakeEngine):
    return [request.chunk_tokens for request in engine.submitted]


async def handed_over(scene, count=1):
    """Prompts are computed."""
    for engine in scene.engines:
        if engine.running:
            engine.step()
    await until(lambda: scene.set.figures.handed_over == count)
    await asyncio.sleep(0.002)
