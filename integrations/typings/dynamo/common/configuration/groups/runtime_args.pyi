import argparse
from typing import Self

class DynamoRuntimeConfig:
    namespace: str
    endpoint: str | None
    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self: ...
    def validate(self) -> None: ...

class DynamoRuntimeArgGroup:
    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
