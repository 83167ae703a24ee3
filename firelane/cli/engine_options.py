"""Options of `firelane serve` that say how many engines there are, and what becomes of requests whose engine
dies."""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING, Any

from firelane.cli.options import positive_float, processes
from firelane.cli.travelling_pages import check_travelling
from firelane.errors import UsageError
from firelane.gateway.routing_names import PAGE_AWARE, ROUTING

if TYPE_CHECKING:
    from firelane.cli.engine_shares import EngineOptions
    from firelane.engine_config import EngineConfig
    from firelane.env import Environment
    from firelane.gateway.engines.role_targets import RoleTargets

log = logging.getLogger(__name__)


def add_replicas(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("replicas and recovery")
    group.add_argument(
        "--replicas",
        type=processes,
        default=1,
        metavar="N",
        help="engines behind this gateway, each with its share of the cores and of the KV cache "
        "(default: %(default)s)",
    )
    for role, does in (("prefill", "compute prompts"), ("decode", "go on from there")):
        group.add_argument(
            f"--{role}",
            type=processes,
            metavar="N",
            help=f"in place of --replicas: engines that {does}; --prefill and --decode go together",
        )
    group.add_argument(
        "--role-controller",
        metavar="TARGETS",
        help="change the roles of engines while they serve, so that nine of ten requests keep to these "
        "latencies: ttft=500ms,itl=50ms (needs --prefill and --decode, or --engines that have roles)",
    )
    group.add_argument(
        "--routing",
        choices=ROUTING,
        default=PAGE_AWARE,
        metavar="POLICY",
        help="the engine that a request goes to, where there are several (default: %(default)s); "
        f"one of {', '.join(ROUTING)}",
    )
    group.add_argument(
        "--share-pages",
        action="store_true",
        help="replicas have pages of the KV cache from each other, where one has more of a prompt",
    )
    group.add_argument(
        "--no-recovery",
        action="store_true",
        help="requests fail when their engine dies, in place of going on with another one",
    )
    add_care(group)


def add_care(group: Any) -> None:
    """To a group: what becomes of engines that hang, and what they may do."""
    group.add_argument(
        "--engine-timeout",
        type=positive_float,
        default=5.0,
        metavar="S",
        help="an engine that shows no life for so many seconds is replaced (default: %(default)s)",
    )
    group.add_argument(
        "--step-deadline",
        type=positive_float,
        metavar="S",
        help="an engine whose step takes longer is replaced (default: 120; 8 on a GPU)",
    )
    group.add_argument(
        "--no-sandbox",
        action="store_true",
        help="engines keep all rights of this user: files, the network, programs",
    )


def tell_sandbox(engine: EngineConfig, settings: Environment) -> None:
    """Once, what this machine's sandbox does not keep engines from."""
    from firelane.sandbox.confine import lacks

    lacking = lacks(settings) if engine.sandbox else None
    if lacking is not None:
        log.warning("sandbox: %s", lacking)


def cared_for(arguments: argparse.Namespace, engine: EngineConfig) -> EngineOptions:
    """One engine, as the options of `add_care` say."""
    import msgspec

    from firelane.cli.engine_shares import EngineOptions

    if arguments.step_deadline is not None:
        engine = msgspec.structs.replace(engine, step_limit_s=arguments.step_deadline)
    return EngineOptions(
        engine=engine,
        engine_timeout_s=arguments.engine_timeout,
        step_deadline_s=arguments.step_deadline,
    )


def engine_options(
    arguments: argparse.Namespace, engine: EngineConfig, models: int, index: int = 0
) -> EngineOptions:
    """The EngineOptions that the options of `add_replicas` give. models, index: as there. Raises
    UsageError."""
    from dataclasses import replace

    roles = _roles(arguments, engine)
    return replace(
        cared_for(arguments, engine),
        replicas=len(roles) or arguments.replicas,
        roles=roles,
        models=models,
        index=index,
        recovery=not arguments.no_recovery,
        routing=arguments.routing,
        shares_pages=_shares_pages(arguments, engine),
    )


def _shares_pages(arguments: argparse.Namespace, engine: EngineConfig) -> bool:
    """Raises UsageError."""
    if not arguments.share_pages:
        return False
    if _are_elsewhere(arguments):
        return True
    if arguments.prefill is not None or arguments.replicas == 1:
        raise UsageError("--share-pages is of --replicas: say with it how many engines there are")
    check_travelling(engine, "--share-pages")
    return True


def _are_elsewhere(arguments: argparse.Namespace) -> bool:
    """Engines are on other hosts, and know themselves whether their pages travel."""
    return getattr(arguments, "engines", None) is not None


def role_targets(arguments: argparse.Namespace) -> RoleTargets | None:
    """Targets of --role-controller. Raises UsageError."""
    from firelane.gateway.engines.role_targets import OPTION, RoleTargets

    text: str | None = arguments.role_controller
    if text is None:
        return None
    if arguments.prefill is None and not _are_elsewhere(arguments):
        raise UsageError(f"{OPTION}: there are no roles to change; give --prefill and --decode, too")
    return RoleTargets.parse(text)


def _roles(arguments: argparse.Namespace, engine: EngineConfig) -> tuple[str, ...]:
    """The role of each engine; none where all do the same. Raises UsageError."""
    prefill, decode = arguments.prefill, arguments.decode
    if prefill is None and decode is None:
        return ()
    if prefill is None or decode is None:
        given, missing = ("prefill", "decode") if decode is None else ("decode", "prefill")
        raise UsageError(f"--{given} alone: say with --{missing} how many engines do the rest")
    option = "--prefill and --decode"
    if arguments.replicas != 1:
        raise UsageError(
            f"--replicas beside {option}: the number of engines is said twice; leave out one or the other"
        )
    check_travelling(engine, option)
    return ("prefill",) * prefill + ("decode",) * decode
