"""Schemes: the forms that weights can be quantised to, and what compressed-tensors calls them in config.json.

All are symmetric: a number is scale * code. Presets are those of the library compressed-tensors, whose names
stand beside them; scales of activations are those of engines that multiply in eight bits, which is not done
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

KEY = "quantization_config"
RATIOS = tuple(1.0 - 0.025 * step for step in range(17))
"""Shares of a group's largest number that its largest code may stand for: one after the other is tried."""


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """numbers: what codes are. group: inputs of an output that share a scale, 0: all of them. block: outputs
    and inputs that share one. ratios: tried for the scale with the least squared error."""

    name: str
    numbers: Literal["int", "e4m3", "e2m1"]
    bits: Literal[4, 8]
    group: int = 0
    block: tuple[int, int] | None = None
    ratios: tuple[float, ...] = (1.0,)

    @property
    def format(self) -> str:
        """The format as compressed-tensors names it."""
        names = {"int": "pack-quantized", "e4m3": "float-quantized", "e2m1": "mxfp4-pack-quantized"}
        return names[self.numbers]

    def fits(self, k: int) -> bool:
        """Whether rows of k inputs can be quantised so."""
        return k > 0 and (self.group == 0 or k % self.group == 0)

    def config(self, targets: list[str], ignore: list[str]) -> dict[str, Any]:
        """Entry of config.json about a checkpoint: quantised are modules that match `targets` and are not in
        `ignore`."""
        group = {
            "targets": targets,
            "weights": self._weights(),
            "input_activations": self._activations(),
            "output_activations": None,
            "format": self.format,
        }
        return {
            "config_groups": {"group_0": group},
            "format": self.format,
            "global_compression_ratio": None,
            "ignore": ignore,
            "kv_cache_scheme": None,
            "quant_method": "compressed-tensors",
            "quantization_status": "compressed",
        }

    def _weights(self) -> dict[str, Any]:
        strategy = "block" if self.block else "group" if self.group else "channel"
        more: dict[str, Any] = {"block_structure": [*self.block]} if self.block else {}
        more |= {"scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"} if self.numbers == "e2m1" else {}
        kind = "int" if self.numbers == "int" else "float"
        return _arguments(self.bits, kind, strategy, group=self.group or None, dynamic=False) | more

    def _activations(self) -> dict[str, Any] | None:
        if self.numbers != "e4m3":
            return None
        if self.block:
            return _arguments(8, "float", "group", group=self.block[1], dynamic=True)
        return _arguments(8, "float", "token", group=None, dynamic=True)


def _arguments(bits: int, kind: str, strategy: str, *, group: int | None, dynamic: bool) -> dict[str, Any]:
    return {
        "num_bits": bits,
        "type": kind,
        "symmetric": True,
        "group_size": group,
        "strategy": strategy,
        "dynamic": dynamic,
    }


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme(name="int8", numbers="int", bits=8),  # W8A16, a scale for each output
        Scheme(name="int4-g32", numbers="int", bits=4, group=32, ratios=RATIOS),  # W4A16
        Scheme(name="int4-g128", numbers="int", bits=4, group=128, ratios=RATIOS),  # W4A16
        Scheme(name="fp8", numbers="e4m3", bits=8),  # FP8_DYNAMIC
        Scheme(name="fp8-block", numbers="e4m3", bits=8, block=(128, 128)),  # FP8_BLOCK
        Scheme(name="mxfp4", numbers="e2m1", bits=4, group=32),  # MXFP4A16
    )
}
WHILE_PACKING = {"int8": SCHEMES["int8"], "int4": SCHEMES["int4-g32"]}
"""By the names of --weights."""
