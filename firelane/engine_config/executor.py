"""The configuration of an executor: what a backend makes of it is the engine's."""

from pathlib import Path
from typing import Annotated

import msgspec

from firelane import options
from firelane.engine_config.groups import ADAPTERS, CARE, ENGINE
from firelane.engine_config.hosts import HostsConfig
from firelane.engine_config.tiers import TiersConfig
from firelane.errors import UsageError
from firelane.options import Option, OptionError

WEIGHTS = ("auto", "bf16", "lossless", "int8", "int4")
QUANTIZING = ("int8", "int4")
DTYPES = ("auto", "bf16")
GEMMS = ("invariant", "ranks", "library")
ACTIVATION_DTYPES = ("auto", "bf16", "int8")
KV_CACHE_MEMORY = ("private", "shared")
KV_CACHE_CODES = ("int8", "fp8")
KV_CACHE_DTYPES = ("auto", "bf16", *KV_CACHE_CODES)
WEIGHTS_PAGES = ("auto", "file", "huge")

STEP_DEADLINE = Option(
    "an engine whose step takes longer is replaced",
    CARE,
    flag="step-deadline",
    metavar="S",
    default="120; 8 on a GPU",
)


def _adapter(text: str) -> tuple[str, str]:
    name, sign, directory = text.partition("=")
    if not name.strip() or not sign or not directory:
        raise OptionError(f"'{text}' is not NAME=DIR")
    return name, directory


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """A second model in the memory of an executor, with as many tokens in its pages. Bytes of its weights,
    and of one token in its KV cache; how many executors it is."""

    weights_bytes: int
    kv_bytes_per_token: int
    executors: int = 1

    def shared_by(self, ranks: int) -> "Beside":
        """The part that each of several ranks leaves of a common memory. Weights stay those of all."""
        return msgspec.structs.replace(self, kv_bytes_per_token=-(-self.kv_bytes_per_token // ranks))


class ExecutorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of an executor. Sizes are wishes: contract.resolve_limits turns them into StepLimits.

    Raises UsageError for values that no backend can serve.
    """

    cache_dir: Path
    threads: Annotated[
        int | None, Option("compute threads", ENGINE, least=1, most=4096, default="all cores")
    ] = None
    tensor_parallel_size: Annotated[
        int,
        Option(
            "processes of an engine that share its heads, MLPs and experts: 1, 2, 4 or 8, each with cores or "
            "a GPU of its own",
            ENGINE,
            least=1,
            see="parallel.md",
        ),
    ] = 1
    expert_parallel_size: Annotated[
        int,
        Option(
            "the same, of models with experts, but where heads cannot be shared out, or share their keys, "
            "processes divide the tokens of a step, and keep each key once",
            ENGINE,
            least=1,
            see="parallel.md",
        ),
    ] = 1
    """RankLayout.of() shares attention out. The number may be that of tensor_parallel_size."""
    pipeline_parallel_size: Annotated[
        int,
        Option(
            "stages of an engine that share its layers, and work on different sequences at a time, on CPUs, "
            "with the same answers, bit for bit",
            ENGINE,
            least=1,
            see="parallel.md#stages",
        ),
    ] = 1
    """Each stage is as many processes as the sizes above say."""
    max_num_seqs: Annotated[
        int, Option("sequences that run at the same time", ENGINE, least=1, default="256; of chat 1")
    ] = 256
    max_num_batched_tokens: Annotated[
        int | None,
        Option(
            "tokens that one step may compute, one for each sequence at least",
            ENGINE,
            least=1,
            default="512; 2048 on a GPU",
        ),
    ] = None
    max_model_len: Annotated[
        int | None,
        Option("longest sequence in tokens", ENGINE, least=1, default="the model's, or less"),
    ] = None
    """None: the model's own, or less where the memory is too small for it."""
    kv_cache_bytes: Annotated[
        int | None,
        Option(
            "memory of the KV cache in GiB",
            ENGINE,
            flag="kv-cache-gib",
            unit="GiB",
            default="what is left",
            see="kv-cache.md",
        ),
    ] = None
    kv_cache_memory: Annotated[
        str,
        Option(
            "shared: a file in memory that another process can map; on a CPU",
            ENGINE,
            choices=KV_CACHE_MEMORY,
            see="kv-cache.md#shared-memory",
            file=True,
        ),
    ] = "private"
    """The shared memory of several ranks is a file that the engine's process maps."""
    kv_cache_dtype: Annotated[
        str,
        Option(
            "numbers of the KV cache: those that the model computes with, or int8 or fp8 (e4m3) with a scale "
            "for each token and head, half the memory of bf16 and slightly other answers; on a CPU",
            ENGINE,
            choices=KV_CACHE_DTYPES,
            see="kv-cache.md#eight-bits-a-number",
        ),
    ] = "auto"
    block_size: Annotated[
        int | None,
        Option("tokens in one KV block", ENGINE, least=1, default="16; 64 on a GPU"),
    ] = None
    weights: Annotated[
        str,
        Option(
            "bf16 matrices in memory: the fastest form, as they are, or the smallest lossless form; int8, "
            "int4: quantised when they are packed, which changes answers",
            ENGINE,
            choices=WEIGHTS,
            see="serving.md#weights",
        ),
    ] = "auto"
    """Outputs of "auto", "bf16" and "lossless" are the same, bit for bit. Those of QUANTIZING are other
    models: matrices are quantised when they are packed."""
    dtype: Annotated[
        str,
        Option(
            "auto: as the checkpoint has it, fp16 widened to float32; bf16: rounded, by 0.4% of a number at "
            "most",
            ENGINE,
            choices=DTYPES,
            see="serving.md#weights",
        ),
    ] = "auto"
    """Quantised matrices stand for bf16 ones in any case."""
    activation_dtype: Annotated[
        str,
        Option(
            "inputs of products with matrices that are stored as integers: bf16 numbers, or rounded to int8 "
            "with a scale for each 32, faster and slightly other answers; auto: int8 on a CPU that is known "
            "to be faster with it, else bf16",
            ENGINE,
            choices=ACTIVATION_DTYPES,
            see="formats.md#products-of-integers",
        ),
    ] = "auto"
    weights_pages: Annotated[
        str,
        Option(
            "memory pages of the weights on a CPU: those of the mapped file, copies in huge pages where "
            "these are small, or such copies where one engine has plenty of memory",
            ENGINE,
            choices=WEIGHTS_PAGES,
            see="serving.md#memory-pages",
            file=True,
        ),
    ] = "auto"
    gemm: Annotated[
        str,
        Option(
            "products of many rows on a GPU: same bits in every batch, also those of several ranks, or the "
            "vendor's library",
            ENGINE,
            choices=GEMMS,
            see="gpu.md#determinism",
            file=True,
        ),
    ] = "invariant"
    """The products of many rows on a GPU. With "ranks", weights are as the checkpoint has them."""
    loras: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "a low-rank adapter in PEFT's layout, served by this name; may be given several times",
            ADAPTERS,
            flag="lora",
            metavar="NAME=DIR",
            read=_adapter,
            see="adapters.md",
        ),
    ] = ()
    max_loras: Annotated[
        int,
        Option(
            "low-rank adapters in memory at the same time; 0: none are served",
            ADAPTERS,
            least=0,
            default="as many as --lora names",
            see="adapters.md",
        ),
    ] = 0
    max_lora_rank: Annotated[
        int,
        Option("largest rank of a low-rank adapter", ADAPTERS, least=1, most=512, see="adapters.md"),
    ] = 16
    state_snapshots: Annotated[
        int | None,
        Option(
            "snapshots of recurrent states that prompts may begin with, of models that keep such",
            ENGINE,
            least=0,
            default="what a quarter of the KV cache's memory has room for",
            see="kv-cache.md#recurrent-state",
            file=True,
        ),
    ] = None
    spare_states: int = 0
    """Recurrent states, of models that keep such, for drafts of as many sequences at a time, at most."""
    replicas: int = 1
    """Engines that share the memory of this machine."""
    beside: Beside | None = None
    """A second model that memory is kept for; None: there is none."""
    num_blocks: int | None = None
    """Exactly so many pages, of a second model; None: as many as memory has room for."""
    hosts: HostsConfig | None = None
    """Hosts that share the processes of several ranks evenly; None: all are here."""
    tiers: TiersConfig | None = None
    """Tiers for pages that the KV cache has no room for; None: there are none."""
    sandbox: Annotated[
        bool,
        Option(
            "engines keep all rights of this user: files, the network, programs",
            CARE,
            see="security.md#engines",
        ),
    ] = True
    """Engine processes give up files, the network and the starting of programs, as far as the system can."""
    step_limit_s: Annotated[float, STEP_DEADLINE] = 8.0
    """Seconds after which a step on a GPU is taken to hang: the engine then ends with an error."""

    def __post_init__(self) -> None:
        options.check(self)
        if self.replicas < 1:
            raise UsageError(f"replicas: {self.replicas} is not 1 or more")
        if self.tiers is not None and self.hosts is not None:
            raise UsageError(
                f"{self.tiers.option}: pages of ranks on several hosts (--nnodes {self.hosts.count}) have no "
                "tiers; leave it out"
            )
        if (self.loras or self.max_loras) and self.ranks > 1:
            raise UsageError(
                f"{self.adapters_option}: adapters are computed by one rank; leave out {self.ranks_option}"
            )
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise UsageError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below max_num_seqs "
                f"({self.max_num_seqs}): every running sequence needs one token a step; lower max_num_seqs"
            )

    @property
    def ranks(self) -> int:
        """Processes of one engine, on all of its hosts."""
        return max(self.tensor_parallel_size, self.expert_parallel_size) * self.pipeline_parallel_size

    @property
    def ranks_option(self) -> str:
        """The options that ask for several ranks, as they are given; "" of one rank."""
        sizes = {kind: getattr(self, f"{kind}_parallel_size") for kind in ("tensor", "expert", "pipeline")}
        return " ".join(f"--{kind}-parallel-size {size}" for kind, size in sizes.items() if size > 1)

    @property
    def adapters_option(self) -> str:
        """The option that asks for adapters, as it is given; "" where none does."""
        if self.loras:
            return f"--lora {self.loras[0][0]}"
        return f"max_loras {self.max_loras}" if self.max_loras else ""

    @property
    def reaches_pages(self) -> bool:
        """The engine's process is to read and write all pages of the KV cache, also those of other ranks."""
        return self.tiers is not None or self.kv_cache_memory == "shared"

    @property
    def rounds(self) -> bool:
        """Whether matrices of more bits are rounded to bf16."""
        return self.dtype == "bf16" or self.weights in QUANTIZING

    @property
    def kv_cache_code(self) -> str:
        """One of KV_CACHE_CODES, or "" for a cache of the numbers that the model computes with."""
        return self.kv_cache_dtype if self.kv_cache_dtype in KV_CACHE_CODES else ""
