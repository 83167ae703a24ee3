"""Every exception that Firelane raises on purpose. Each message is one line: what, where, and what to do.

FirelaneError                     exit code 1
├── UsageError                    exit code 2: a wrong option, environment variable or value
├── ModelError                    the model cannot be served
│   ├── ModelNotFoundError        no such directory, hub id or file
│   ├── UnsupportedModelError     architecture, config key or dtype that Firelane does not implement
│   ├── CheckpointError           damaged or inconsistent weights
│   ├── StoreError                an object store does not give the model
│   └── TokenizerError            tokenizer or chat template missing, damaged or not of this model
├── MachineError                  the machine cannot do it
│   ├── CompilerError             no compiler, or it failed
│   ├── OutOfMemoryError          too little memory for the weights or for one sequence
│   ├── CacheError                cache directory not usable, or disk full
│   ├── OutputError               output directory not usable, or disk full
│   └── AddressInUseError         the port is taken
├── PeerLostError                 the process or host at the other end of a link is gone
│   └── FrameError                it sent what is no message: the link cannot be used any further
├── ProcessDeadError              a process that a request needs was lost, and others in its place (HTTP 503)
│   └── EngineDeadError           the engine process ended while work was in flight (HTTP 503)
└── RequestError                  a client's request cannot be served (HTTP 4xx)
    ├── ModelNotServedError       no model of that name is served here (HTTP 404)
    ├── NotFoundError             no file or batch of that id (HTTP 404)
    ├── TooLargeError             more than the server takes or keeps (HTTP 413)
    ├── StorageError              nothing can be kept now: no directory, or disk full (HTTP 503)
    ├── AuthenticationError       no key, or one that the server does not know (HTTP 401)
    ├── AccessError               the key is not for this (HTTP 403)
    ├── QueueFullError            no room in the queue: try again later (HTTP 429)
    ├── RateLimitError            the tenant's quota is used up: try again later (HTTP 429)
    ├── QueueTimeoutError         waited too long in the queue: try again later (HTTP 503)
    ├── DeadlineError             no answer within the request's deadline (HTTP 503)
    └── ContextLengthError        prompt plus output longer than the model allows (HTTP 400)
"""

from __future__ import annotations

MOST_CHARACTERS = 2000
"""Characters of a message, at most."""
STEERING = (*range(9), 11, 12, *range(14, 32), *range(127, 160))
"""Control characters but tab, line feed and carriage return: they would steer a terminal."""
CONTROLS = {number: f"\\x{number:02x}" for number in STEERING} | {10: " ", 13: " "}
"""Text in place of control characters, and of the ends of lines."""


class FirelaneError(Exception):
    """Base of all errors raised on purpose. `exit_code` is what a command ends with. The message is one line
    of bearable length, without control characters, whatever names out of a model or a request are in it.
    `status` is the HTTP status of a request that it ends."""

    exit_code = 1
    status = 500

    def __str__(self) -> str:
        text = super().__str__().translate(CONTROLS)
        if len(text) <= MOST_CHARACTERS:
            return text
        return f"{text[: MOST_CHARACTERS // 2]} [...] {text[-MOST_CHARACTERS // 2 :]}"


class UsageError(FirelaneError):
    exit_code = 2


class ModelError(FirelaneError):
    pass


class ModelNotFoundError(ModelError):
    pass


class UnsupportedModelError(ModelError):
    pass


class CheckpointError(ModelError):
    pass


class StoreError(ModelError):
    """reason: "missing" (no such object), "denied", "unreachable", "changed" (replaced while it was read), or
    "other"."""

    def __init__(self, message: str, *, reason: str = "other") -> None:
        super().__init__(message)
        self.reason = reason


class TokenizerError(ModelError):
    pass


class MachineError(FirelaneError):
    pass


class CompilerError(MachineError):
    pass


class OutOfMemoryError(MachineError):
    pass


class CacheError(MachineError):
    pass


class OutputError(MachineError):
    pass


class AddressInUseError(MachineError):
    pass


class KilledError(MachineError):
    """A process that this one cannot do without was killed by another one."""

    exit_code = 75  # as of PeerLostError


class PeerLostError(FirelaneError):
    """The other end of a link is gone, or of no use. Whoever owns the link says which process or host that
    is. `is_passing`: it may be there again soon."""

    exit_code = 75  # to try again may help (EX_TEMPFAIL of sysexits.h)

    def __init__(self, message: str, *, is_passing: bool = True) -> None:
        super().__init__(message)
        self.is_passing = is_passing


class FrameError(PeerLostError):
    pass


class ProcessDeadError(FirelaneError):
    """`retry_after_s`: when it is worth asking again."""

    status = 503

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineDeadError(ProcessDeadError):
    pass


class RequestError(FirelaneError):
    """A request that cannot be served.

    `status` is the HTTP status, `retry_after_s` the value of the Retry-After header or None, `param` the
    name of the offending field or None, `code` a machine-readable word or None.
    """

    status = 400
    retry_after_s: int | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class ModelNotServedError(RequestError):
    status = 404


class NotFoundError(RequestError):
    status = 404


class TooLargeError(RequestError):
    status = 413


class StorageError(RequestError):
    status = 503


class AuthenticationError(RequestError):
    status = 401

    def __init__(self, message: str) -> None:
        super().__init__(message, code="invalid_api_key")


class AccessError(RequestError):
    status = 403

    def __init__(self, message: str) -> None:
        super().__init__(message, code="insufficient_permissions")


class QueueFullError(RequestError):
    status = 429

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message, code="queue_full")
        self.retry_after_s = retry_after_s


class RateLimitError(RequestError):
    status = 429

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message, code="rate_limit_exceeded")
        self.retry_after_s = max(1, retry_after_s)


class QueueTimeoutError(RequestError):
    status = 503
    retry_after_s = 5

    def __init__(self, message: str) -> None:
        super().__init__(message, code="queue_timeout")


class DeadlineError(RequestError):
    """The answer cannot be complete by the deadline that its request has. Clients are told not to try again
    by themselves: what is left of the time is their caller's."""

    status = 503
    reason = "deadline_unreachable"
    """The code of all such errors."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=self.reason)

    @classmethod
    def before_start(cls) -> DeadlineError:
        """The error of a request whose time has passed while it waited for an engine."""
        return cls(
            "the request's deadline was over before an engine could begin with it: give it more time, or try "
            "again later"
        )


class ContextLengthError(RequestError):
    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")
