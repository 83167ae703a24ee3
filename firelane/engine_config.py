"""The configuration of an engine, from the command line to the backend: nothing is copied on the way."""

from __future__ import annotations

from pathlib import Path

import msgspec

from firelane.errors import UsageError

WEIGHTS = ("auto", "bf16", "lossless", "int8", "int4")
QUANTIZING = ("int8", "int4")
DTYPES = ("auto", "bf16")
GEMMS = ("invariant", "ranks", "library")
ACTIVATION_DTYPES = ("bf16", "int8")
KV_CACHE_MEMORY = ("private", "shared")
KV_CACHE_CODES = ("int8", "fp8")
KV_CACHE_DTYPES = ("auto", "bf16", *KV_CACHE_CODES)
WEIGHTS_PAGES = ("auto", "file", "huge")
SCHEDULING_POLICIES = ("fair", "fcfs")
KV_TRANSPORTS = ("tcp", "nixl")
KV_ADMISSIONS = ("always", "reuse")
GIB = 1 << 30
ROLES = ("both", "prefill", "decode")


STORE_INDEX = ".store.json"
"""In the directory of a model whose weights lie in an object store."""


class HostsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts that an engine's ranks are on, of which this process's is number `own`. address, port: where host
    0 takes connections of the others. key_file: with the secret that all share; None: FIRELANE_CLUSTER_KEY.
    timeout_s: for all to be there."""

    count: int
    own: int
    address: str
    port: int
    key_file: Path | None = None
    timeout_s: float = 300.0


class TiersConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Tiers of an engine's KV cache. host_bytes: of host memory. disk: the directory of files of disk_bytes;
    disk_key_file: with the secret that they are encrypted by; engines: that share the directory.
    tenant_bytes: the most that one tenant's pages take of a tier; None: all. admission: pages that are
    stored, one of KV_ADMISSIONS: "always" all, "reuse" those that are used a second time."""

    host_bytes: int = 0
    disk: Path | None = None
    disk_bytes: int = 0
    disk_key_file: Path | None = None
    engines: int = 1
    tenant_bytes: int | None = None
    admission: str = "always"

    def __post_init__(self) -> None:
        if self.host_bytes < 0 or self.disk_bytes < (self.disk is not None) or self.engines < 1:
            raise UsageError("sizes of tiers, and the number of engines that have them, are 1 or more")
        if not self.host_bytes and self.disk is None:
            raise UsageError("tiers without host_bytes or disk: say where pages are to lie")
        if self.admission not in KV_ADMISSIONS:
            known = ", ".join(KV_ADMISSIONS)
            raise UsageError(f"admission is {self.admission[:40]!r}: it must be one of {known}")

    @property
    def option(self) -> str:
        """The option that asks for a tier, as it is given."""
        if self.host_bytes:
            return f"--kv-offloading-size {self.host_bytes / GIB:g}"
        return f"--kv-disk {self.disk} --kv-disk-size {self.disk_bytes / GIB:g}"

    def share(self, number: int) -> TiersConfig:
        """Of one of so many engines."""
        tenant = self.tenant_bytes and max(1, self.tenant_bytes // number)
        host, disk = (nbytes and max(1, nbytes // number) for nbytes in (self.host_bytes, self.disk_bytes))
        return msgspec.structs.replace(
            self, host_bytes=host, disk_bytes=disk, tenant_bytes=tenant, engines=number
        )


class ExecutorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of an executor. Sizes are wishes: contract.resolve_limits turns them into StepLimits.

    Raises UsageError for values that no backend can serve.
    """

    cache_dir: Path
    threads: int | None = None
    """Compute threads; None: all cores of this process."""
    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    """Tokens that one step may compute: at least max_num_seqs, so that every sequence can decode in every
    step; None: the backend's default."""
    max_model_len: int | None = None
    """Longest sequence in tokens; None: the model's own, or less where the memory is too small for it."""
    kv_cache_bytes: int | None = None
    """Memory of the KV cache; None: what the backend has left."""
    block_size: int | None = None
    """Tokens in one page of the KV cache; None: the backend's default."""
    state_snapshots: int | None = None
    """Snapshots of recurrent states that prompts may begin with, of models that keep such; None: what a
    quarter of the KV cache's memory has room for."""
    replicas: int = 1
    """Engines that share the memory of this machine."""
    tensor_parallel_size: int = 1
    """Processes of one stage that share the model's heads, MLPs and experts."""
    expert_parallel_size: int = 1
    """Processes of one stage that share the model's experts and MLPs, and attention as RankLayout.of() says;
    or as many as tensor_parallel_size."""
    pipeline_parallel_size: int = 1
    """Stages of one engine that share the model's layers, each as many processes as the sizes above say."""
    hosts: HostsConfig | None = None
    """Hosts that share the processes above evenly; None: all are here."""
    weights: str = "auto"
    """Format of bf16 matrices in memory, one of WEIGHTS: "bf16" unchanged, "lossless" the smallest lossless
    format of each matrix, "auto" the fastest. Outputs are the same, bit for bit. Those of QUANTIZING are
    other models: matrices are quantised when they are packed."""
    dtype: str = "auto"
    """Of matrices and activations, one of DTYPES: "auto" as the checkpoint has them, fp16 widened to float32;
    "bf16" rounded to bf16. Quantised matrices stand for bf16 ones in any case."""
    activation_dtype: str = "bf16"
    """Inputs of products with matrices of integer codes on a CPU, one of ACTIVATION_DTYPES: "bf16" multiplies
    bf16 numbers, whatever the matrix is stored as; "int8" rounds inputs to eight bits, with a scale for each
    group of 32, multiplies integers, and changes outputs."""
    weights_pages: str = "auto"
    """Memory pages of the weights on a CPU, one of WEIGHTS_PAGES: "file" those of the page cache, huge where
    the kernel can, "huge" private copies in huge pages where they are not, "auto" such copies where one
    engine has plenty of memory."""
    gemm: str = "invariant"
    """Products of many rows on a GPU, one of GEMMS: "invariant" gives a row the same bits whatever runs
    beside it; "ranks" also the same bits as any number of ranks, with weights as the checkpoint has them;
    "library" takes the vendor's, which does neither."""
    kv_cache_memory: str = "private"
    """Memory of the KV cache on a CPU, one of KV_CACHE_MEMORY: "shared" is a file in memory that another
    process can map; of several ranks it is one that the engine's process maps."""
    kv_cache_dtype: str = "auto"
    """Numbers of the KV cache, one of KV_CACHE_DTYPES: "auto" those that the model computes with; "int8" and
    "fp8" (e4m3) take half the memory of bf16 on a CPU, with a scale for each token and head, and change
    outputs."""
    tiers: TiersConfig | None = None
    """Tiers for pages that the KV cache has no room for; None: there are none."""
    sandbox: bool = True
    """Engine processes give up files, the network and the starting of programs, as far as the system can."""
    step_limit_s: float = 8.0
    """Seconds after which a step on a GPU is taken to hang: the engine then ends with an error."""

    def __post_init__(self) -> None:
        for name in (
            "threads",
            "replicas",
            "tensor_parallel_size",
            "expert_parallel_size",
            "pipeline_parallel_size",
            "max_num_seqs",
            "max_model_len",
            "kv_cache_bytes",
            "block_size",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}: it must be at least 1")
        if self.state_snapshots is not None and self.state_snapshots < 0:
            raise UsageError(f"state_snapshots is {self.state_snapshots}: it must be at least 0")
        self._check_choices(
            weights=WEIGHTS,
            dtype=DTYPES,
            weights_pages=WEIGHTS_PAGES,
            gemm=GEMMS,
            activation_dtype=ACTIVATION_DTYPES,
            kv_cache_memory=KV_CACHE_MEMORY,
            kv_cache_dtype=KV_CACHE_DTYPES,
        )
        if self.tiers is not None and self.hosts is not None:
            raise UsageError(
                f"{self.tiers.option}: pages of ranks on several hosts (--nnodes {self.hosts.count}) have no "
                "tiers; leave it out"
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

    def _check_choices(self, **choices: tuple[str, ...]) -> None:
        for name, known in choices.items():
            if getattr(self, name) not in known:
                given = str(getattr(self, name))[:40]
                raise UsageError(f"{name} is {given!r}: it must be one of {', '.join(known)}")


class EngineConfig(ExecutorConfig, frozen=True, kw_only=True):
    """Configuration of an engine process, which gets it as JSON on its command line."""

    model_dir: Path
    """A resolved directory in Hugging Face layout."""
    tokenizer_dir: Path | None = None
    """The directory of tokenizer.json; None: model_dir."""
    backend: str = "auto"
    """A name of firelane.backends.BACKENDS, or "auto": the GPU where one can be used, else the CPU."""
    prefix_cache: bool = True
    state_snapshot_interval: int = 4096
    """Tokens after which a prompt leaves one more snapshot of its recurrent state."""
    scheduling_policy: str = "fair"
    """One of SCHEDULING_POLICIES: "fair" shares between tenants, and leaves to background work what nobody
    else wants; "fcfs" takes the requests in the order in which they come."""
    role: str = "both"
    """Part of a request that the gateway sends here, one of ROLES: "prefill" its prompt and its first token,
    "decode" the rest, "both" all of it."""
    cache_events: bool = False
    """The gateway is told which blocks the prefix cache stores and gives up."""
    kv_transfer_address: str = ""
    """Address from which engines of other servers have pages, as host:port, through the parent; "" where they
    have none."""
    kv_transport: str = "tcp"
    """Way of pages from engines of other servers, one of KV_TRANSPORTS: "tcp" the connection to them, "nixl"
    remote memory, where both ends have NIXL, else the connection."""
    cores: tuple[int, ...] | None = None
    """Processors that the process may use; None: those of its parent."""
    log_format: str = "text"
    """ "text" or "json"."""

    @property
    def reaches_pages(self) -> bool:
        return super().reaches_pages or bool(self.kv_transfer_address)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.state_snapshot_interval < 1:
            raise UsageError(
                f"state_snapshot_interval is {self.state_snapshot_interval}: it must be at least 1"
            )
        if not self.prefix_cache and self.state_snapshots:
            raise UsageError(
                f"state_snapshots is {self.state_snapshots}: without the prefix cache no prompt begins with "
                "one; leave it out"
            )
        if not self.prefix_cache and self.tiers is not None:
            raise UsageError(f"{self.tiers.option}: pages are found by the prefix cache; leave it on")
        self._check_choices(scheduling_policy=SCHEDULING_POLICIES, role=ROLES, kv_transport=KV_TRANSPORTS)

    @property
    def reads_store(self) -> bool:
        """Whether weights come from an object store."""
        return (self.model_dir / STORE_INDEX).exists()

    def to_json(self) -> str:
        return msgspec.json.encode(self, enc_hook=str).decode()

    @classmethod
    def from_json(cls, text: str) -> EngineConfig:
        """Raises msgspec.DecodeError."""
        return msgspec.json.decode(text, type=cls, dec_hook=lambda kind, value: kind(value))
