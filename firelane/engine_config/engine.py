"""The configuration of an engine process."""

from pathlib import Path
from typing import Annotated

import msgspec

from firelane.engine_config.executor import ExecutorConfig
from firelane.engine_config.groups import ENGINE, PAGES
from firelane.errors import UsageError
from firelane.options import Option
from firelane.options.log_format import LogFormat

BACKENDS = ("auto", "cpu", "cuda", "null")
SCHEDULING_POLICIES = ("fair", "fcfs")
ROLES = ("both", "prefill", "decode")
SPECULATIVE = ("auto", "off", "ngram", "mtp")
DRAFT = "draft="
"""The beginning of a value of `speculative` that names a draft model."""
EAGLE3 = "eagle3="
"""The beginning of one that names a head."""
KV_TRANSPORTS = ("tcp", "nixl")
STORE_INDEX = ".store.json"
"""In the directory of a model whose weights lie in an object store."""


class EngineConfig(ExecutorConfig, frozen=True, kw_only=True):
    """Configuration of an engine process, which gets it as JSON on its command line."""

    model_dir: Path
    """A resolved directory in Hugging Face layout."""
    tokenizer_dir: Path | None = None
    """The directory of tokenizer.json; None: model_dir."""
    backend: Annotated[
        str,
        Option(
            "auto: the GPU where one can be used, else the CPU; null: answers at once, without a model's "
            "sense",
            ENGINE,
            choices=BACKENDS,
            see="gpu.md",
        ),
    ] = "auto"
    """ "auto", or a name of firelane.backends.BACKENDS."""
    prefix_cache: Annotated[bool, Option("compute every prompt from its start", ENGINE)] = True
    state_snapshot_interval: Annotated[
        int,
        Option(
            "a prompt leaves a snapshot of its recurrent state after each so many tokens",
            ENGINE,
            metavar="TOKENS",
            least=1,
            see="kv-cache.md#recurrent-state",
            file=True,
        ),
    ] = 4096
    scheduling_policy: Annotated[
        str,
        Option(
            "whose requests come first: tenants share, and background work has what is left, or first come, "
            "first served",
            ENGINE,
            choices=SCHEDULING_POLICIES,
            see="tenants.md",
        ),
    ] = "fair"
    speculative: Annotated[
        str,
        Option(
            "drafts of the next tokens, which one step verifies, with the same answers bit for bit; ngram: "
            "from the text so far; draft=MODEL: also by a smaller model of the same vocabulary; eagle3=HEAD: "
            "also by an EAGLE-3 head of this model; mtp: also by layers of it that predict tokens; auto: "
            "where they cost nothing",
            ENGINE,
            choices=SPECULATIVE,
            named=(f"{DRAFT}MODEL", f"{EAGLE3}HEAD"),
            see="speculation.md",
        ),
    ] = "auto"
    draft_dir: Path | None = None
    """The resolved directory of what `speculative` names; None: what it names is the directory."""
    images: Annotated[
        bool,
        Option(
            "prompts may have images, where the model has an encoder of them that is known (needs the extra "
            "`images`)",
            ENGINE,
            see="images.md",
        ),
    ] = False
    role: Annotated[
        str,
        Option(
            "part of requests that gateways send here: prompts, what follows them, or both (others need "
            "--kv-transfer-address)",
            PAGES,
            choices=ROLES,
            see="cluster.md#roles-of-engines-on-several-hosts",
        ),
    ] = "both"
    cache_events: bool = False
    """The gateway is told which blocks the prefix cache stores and gives up."""
    kv_transfer_address: str = ""
    """Address from which engines of other servers have pages, as host:port, through the parent; "" where they
    have none."""
    kv_transport: Annotated[
        str,
        Option(
            "way of these pages: the connection itself, or NIXL, for networks with remote memory (RDMA), "
            "where both ends have it (needs the extra `rdma`)",
            PAGES,
            choices=KV_TRANSPORTS,
            see="cluster.md#pages-by-nixl",
        ),
    ] = "tcp"
    cores: tuple[int, ...] | None = None
    """Processors that the process may use; None: those of its parent."""
    log_format: LogFormat = "text"
    version: str = ""
    """The name of the weights, as in Ready."""

    @property
    def draft_model(self) -> Path | None:
        """The directory of the draft model; None where there is none."""
        return self._named(DRAFT)

    @property
    def eagle3_head(self) -> Path | None:
        """The directory of the EAGLE-3 head; None where there is none."""
        return self._named(EAGLE3)

    @property
    def second_dir(self) -> Path | None:
        """The directory of whatever drafts, beside the model's own; None where there is none."""
        return self.draft_model or self.eagle3_head

    def _named(self, kind: str) -> Path | None:
        name = self.speculative.removeprefix(kind)
        return None if name == self.speculative else self.draft_dir or Path(name)

    @property
    def reaches_pages(self) -> bool:
        return super().reaches_pages or bool(self.kv_transfer_address)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_second()
        if self.images:
            self._check_images()
        if not self.prefix_cache and self.state_snapshots:
            raise UsageError(
                f"state_snapshots is {self.state_snapshots}: without the prefix cache no prompt begins with "
                "one; leave it out"
            )
        if not self.prefix_cache and self.tiers is not None:
            raise UsageError(f"{self.tiers.option}: pages are found by the prefix cache; leave it on")

    def _check_second(self) -> None:
        """Raises UsageError for ranks that have not what a second model needs."""
        option, reads = f"--speculative {self.speculative}", self.eagle3_head or self.speculative == "mtp"
        if reads and self.pipeline_parallel_size > 1:
            raise UsageError(
                f"{option}: a head reads layers of all stages, and no stage has them; leave out "
                f"--pipeline-parallel-size {self.pipeline_parallel_size}, or draft with draft=MODEL or ngram"
            )
        if (reads or self.draft_model) and self.hosts is not None:
            raise UsageError(
                f"{option}: what drafts is beside ranks of one host; leave out --nnodes {self.hosts.count}, "
                "or it"
            )

    def _check_images(self) -> None:
        """Raises UsageError for what images do not go together with so far."""
        others = {
            self.ranks_option: self.ranks > 1 or self.hosts is not None,
            f"--role {self.role}": self.role != "both",
            "--kv-transfer-address": bool(self.kv_transfer_address),
            "--kv-offloading-size": self.tiers is not None,
            f"--speculative {self.speculative}": self.second_dir is not None or self.speculative == "mtp",
            "--lora": bool(self.loras) or self.max_loras > 0,
        }
        for option, is_set in others.items():
            if is_set:
                raise UsageError(f"--images: images do not go together with {option} so far; leave one out")

    @property
    def reads_store(self) -> bool:
        """Whether weights come from an object store."""
        directories = (self.model_dir, self.second_dir)
        return any(one is not None and (one / STORE_INDEX).exists() for one in directories)

    def to_json(self) -> str:
        return msgspec.json.encode(self, enc_hook=str).decode()

    @classmethod
    def from_json(cls, text: str) -> "EngineConfig":
        """Raises msgspec.DecodeError."""
        return msgspec.json.decode(text, type=cls, dec_hook=lambda kind, value: kind(value))
