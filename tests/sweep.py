"""The short run and the sweep: the short run has every behaviour once, the sweep has every case.

Tests that take long for their many cases (families, formats, kernels, random schedules, browsers) are named
here, in one place, by their files. A run of the whole suite leaves them out unless it says `--sweep`; a run
that names files, or words by -k or -m, takes all that it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent
WHOLE = (
    "backends/cuda/test_cuda_attention_compiled.py",
    "backends/cuda/test_cuda_bench.py",
    "backends/cuda/test_cuda_bench_serving.py",
    "backends/cuda/test_cuda_compile.py",
    "backends/cuda/test_cuda_executor.py",
    "backends/cuda/test_cuda_families.py",
    "backends/cuda/test_cuda_in_flight.py",
    "backends/cuda/test_cuda_loader.py",
    "backends/cuda/test_cuda_quantised_loading.py",
    "backends/cuda/test_cuda_rank_group.py",
    "backends/cuda/test_cuda_ranks.py",
    "backends/cuda/test_cuda_sample_rows.py",
    "backends/cuda/test_cuda_schedules.py",
    "backends/cuda/test_cuda_sum_order.py",
    "backends/cuda/test_cuda_travelling_pages.py",
    "backends/test_cpu_cache_codes.py",
    "backends/test_cpu_coded.py",
    "backends/test_cpu_encoders.py",
    "backends/test_cpu_images.py",
    "backends/test_cpu_experts.py",
    "backends/test_cpu_grouped.py",
    "backends/test_cpu_hosts.py",
    "backends/test_cpu_int8.py",
    "backends/test_cpu_integer_programs.py",
    "backends/test_cpu_invariance.py",
    "backends/test_cpu_latents.py",
    "backends/test_cpu_parts.py",
    "backends/test_cpu_rank_families.py",
    "backends/test_cpu_rank_pages.py",
    "backends/test_cpu_ranks.py",
    "backends/test_cpu_spans.py",
    "bench/test_divergence.py",
    "bench/test_kernels.py",
    "bench/test_targets.py",
    "cli/test_quantize_command.py",
    "e2e/page/",
    "e2e/test_bad_models.py",
    "e2e/test_batches_client.py",
    "e2e/test_embeddings_client.py",
    "e2e/test_gateways.py",
    "e2e/test_gguf.py",
    "e2e/test_host_roles_client.py",
    "e2e/test_hosts_client.py",
    "e2e/test_nixl_client.py",
    "e2e/test_no_gpu.py",
    "e2e/test_node_gateways.py",
    "e2e/test_node_roles.py",
    "e2e/test_node_server.py",
    "e2e/test_prometheus.py",
    "e2e/test_ranks_client.py",
    "e2e/test_recurrent_roles.py",
    "e2e/test_role_gateways.py",
    "e2e/test_roles_client.py",
    "e2e/test_schemathesis.py",
    "e2e/test_shared_pages_client.py",
    "e2e/test_take_over.py",
    "e2e/test_tiers_client.py",
    "e2e/test_transfer_client.py",
    "e2e/test_weights.py",
    "engine/test_cpu_hybrid_families.py",
    "engine/test_cpu_released_pages.py",
    "engine/test_embedding_families.py",
    "engine/test_fair_schedules.py",
    "engine/test_families.py",
    "engine/test_schedules.py",
    "engine/test_span_schedules.py",
    "engine/test_state_schedules.py",
    "plan/test_published_figures.py",
    "weights/lossless/test_planes_asan.py",
    "weights/quantized/test_gpt_oss.py",
)
"""Directories and files, relative to this directory, of which the short run takes nothing."""
FIRST_CASES = (
    *(
        "api/",
        "backends/",
        "bench/",
        "cli/",
        "e2e/",
        "engine/",
        "fuzz/test_native_targets.py",
        "gateway/",
        "kv/",
        "llm/",
        "models/",
        "native/",
    ),
    *("node/", "parallel/", "plan/", "program/", "sources/", "text/", "tools/", "weights/"),
)
"""Directories and files of which the short run takes the first case of each test."""


def left_out_of(config: pytest.Config, items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests that this run is not for, in the order of `items`."""
    rest = swept(items)
    if config.option.sweep == "rest":
        wanted = set(rest)
        return [item for item in items if item not in wanted]
    return rest if _is_short(config) else []


def swept(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests that the short run leaves out, in the order of `items`."""
    seen, found = set[str](), list[pytest.Item]()
    for item in items:
        name = item.path.relative_to(ROOT).as_posix()
        test = item.nodeid.partition("[")[0]
        if name.startswith(WHOLE) or (name.startswith(FIRST_CASES) and test in seen):
            found.append(item)
        seen.add(test)
    return found


def _is_short(config: pytest.Config) -> bool:
    """Whether this is a run of the whole suite that asks for nothing in particular."""
    chooses = config.option.sweep or config.option.keyword or config.option.markexpr
    return not chooses and [Path(name).resolve() for name in config.args] == [ROOT]
