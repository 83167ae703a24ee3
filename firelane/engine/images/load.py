"""The encoder of images of an engine's model, where it is asked for."""

from __future__ import annotations

from firelane.backends import resolve
from firelane.contract import Executor, ProgressCallback
from firelane.engine.images.encoder import ImageEncoder
from firelane.engine_config import EngineConfig
from firelane.errors import UsageError
from firelane.models.towers.find import read_tower
from firelane.program.images import with_images
from firelane.program.program import Program
from firelane.program.values import DType


def taking_images(program: Program, config: EngineConfig) -> Program:
    """The model's program, taking rows of images where `config` asks for it. Raises ModelErrors, UsageError
    where the backend takes none."""
    if not config.images:
        return program
    if resolve(config.backend) != "cpu":
        raise UsageError(
            "--images: images are encoded on CPUs alone so far; choose --backend cpu, or leave it out"
        )
    tower = read_tower(config.model_dir, dtype=DType.BF16 if config.rounds else None)
    return with_images(program, tower.rows)


def load_encoder(config: EngineConfig, served: Executor, progress: ProgressCallback) -> ImageEncoder | None:
    """The encoder beside the executor of the model; None where none is asked for. Raises a FirelaneError that
    says what is wrong with it."""
    if not config.images:
        return None
    tower = read_tower(config.model_dir, dtype=DType.BF16 if config.rounds else None)
    encoder = ImageEncoder(tower, config, served)
    try:
        encoder.load(progress)
    except BaseException:
        encoder.release()
        raise
    return encoder
