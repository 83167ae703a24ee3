"""RopeSection: the keys of a rotary embedding, wherever a config has them: in rope_parameters (one object, or
one a layer type), in rope_scaling, or beside them.
"""

from __future__ import annotations

from firelane.models.config.reader import ConfigReader

OLDER_NAMES = {"su": "longrope"}
KEYS = ("rope_parameters", "rope_scaling")
OF_FAMILIES = ("llama_4_scaling_beta",)
"""Keys beside those of the rotation that some families read."""


class RopeSection:
    """The rotation of the layers of one type, read from the config. All methods raise UnsupportedModelError
    naming the key."""

    def __init__(self, config: ConfigReader, layer_type: str) -> None:
        self._config = config
        config.ignore(*KEYS, "rope_theta", "partial_rotary_factor", "rotary_dim")
        config.ignore("original_max_position_embeddings")
        if config.has(KEYS[0]) and config.has(KEYS[1]):
            why = "rope_parameters is there, too: put all into rope_parameters"
            raise config.refusal(KEYS[1], "...", why)
        self._key = KEYS[1] if config.has(KEYS[1]) else KEYS[0]
        found = config.section(self._key) or ConfigReader({})
        self._is_nested = bool(found.objects)
        self.own = self._of_type(found, layer_type) if self._is_nested else found
        self.own.ignore("type", "original_max_position_embeddings")

    @property
    def kind(self) -> str:
        key = "rope_type" if self.own.has("rope_type") else "type"
        name = self.own.string(key, "default")
        if key == "rope_type" and self.own.has("type") and self.own.string("type", "") != name:
            raise self.own.refusal("type", self.own.string("type", ""), f"rope_type says {name!r}")
        return OLDER_NAMES.get(name, name)

    @property
    def trained(self) -> int:
        """Positions that the model was trained on before it was stretched."""
        key = "original_max_position_embeddings"
        length = self.max_position_embeddings
        return self._place(key).integer(key, length)

    @property
    def max_position_embeddings(self) -> int:
        return self._config.integer("max_position_embeddings")

    @property
    def served(self) -> int:
        """Positions of the longest sequence that will be served."""
        return self._config.max_model_len or self.max_position_embeddings

    def theta(self, default: float) -> float:
        return self._place("rope_theta").number("rope_theta", default)

    def rotated(self, head_dim: int, default: float) -> int:
        """Dimensions of a head that turn, as partial_rotary_factor or rotary_dim says."""
        share = self.share(head_dim, default)
        rotated = int(head_dim * share)
        key = "rotary_dim"
        if self._config.has(key):
            if share != default and rotated != self._config.integer(key):
                why = f"partial_rotary_factor says {rotated} of {head_dim}"
                raise self._config.refusal(key, self._config.integer(key), why)
            rotated = self._config.integer(key)
        if rotated % 2 or not 0 < rotated <= head_dim:
            why = f"{rotated} of {head_dim} dimensions would turn: an even number of them is needed"
            raise self._config.refusal("partial_rotary_factor", share, why)
        return rotated

    def share(self, head_dim: int, default: float = 1.0) -> float:
        """The share of a head's dimensions that turn."""
        key = "partial_rotary_factor"
        place = self._place(key)
        value = place.number(key, default)
        if value > 1 or head_dim * value < 1:
            raise place.refusal(key, value, "more than 0 and at most 1 is needed")
        return value

    def finish(self) -> None:
        """Note what was not read; refuse what changes the result of families that read it."""
        for key in OF_FAMILIES:
            if key in self.own.unread():
                raise self.own.refusal(key, self.own.value(key), "this family does not compute it")
        self.own.finish()

    def _place(self, key: str) -> ConfigReader:
        """The reader of a key that may also be said for all layers."""
        own, config = self.own, self._config
        if not own.has(key):
            return config
        if config.has(key) and not self._is_nested and own.value(key) != config.value(key):
            raise config.refusal(key, config.value(key), f"{self._key} says {own.value(key)!r}")
        return own

    def _of_type(self, sections: ConfigReader, layer_type: str) -> ConfigReader:
        types = self._config.strings("layer_types")
        for name in sections.objects:
            if types and name not in types:
                raise sections.refusal(name, "...", "no layer in layer_types is of this type")
        sections.ignore(*sections.objects)
        for key, value in sections.unread().items():
            raise sections.refusal(key, value, "it stands beside objects for layer types: put it into them")
        if not layer_type:
            raise self._config.refusal(self._key, "...", "one object for all layers is needed")
        section = sections.section(layer_type)
        if section is None:
            raise sections.refusal(layer_type, None, "an object is needed")
        return section
