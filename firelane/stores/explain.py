"""Errors of stores in one line that says what to do."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

from firelane.errors import FirelaneError, StoreError
from firelane.stores.address import StoreAddress

STATUS = re.compile(r"status code: (\d{3})")
CODE = re.compile(r"<Code>(\w{1,60})</Code>")
REGION = re.compile(r"<Region>([\w-]{1,40})</Region>|expecting '?([a-z0-9-]{1,40})'?")
EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken", "RequestExpired")
WRONG_KEYS = ("SignatureDoesNotMatch", "InvalidAccessKeyId", "AuthenticationFailed", "InvalidSecurity")
WRONG_REGION = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
OF_MACHINES = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
"""Hosts that give the credentials of a machine, and are asked where the environment has none."""
CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w{1,40})")
NO_RANGES = ("NotPartial", "Received non-partial response", "Range request not supported")
MISSING = ("MissingCredential", "MissingAccount")
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (of a public bucket: AWS_SKIP_SIGNATURE=true)",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS (of a public bucket: GOOGLE_SKIP_SIGNATURE=true)",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or a SAS token: AZURE_STORAGE_SAS_KEY)",
}
PLACES = {
    "s3": "AWS_REGION and AWS_ENDPOINT_URL",
    "gs": "the bucket's name",
    "az": "AZURE_STORAGE_ACCOUNT_NAME",
}


@contextmanager
def explained(address: StoreAddress, name: str = "") -> Generator[None]:
    """Errors of the client become a StoreError."""
    try:
        yield
    except FirelaneError:
        raise
    except Exception as error:  # of the client, which has no base for all of them
        what, reason = _explanation(address, error)
        where = f"{address}/{name}" if name else str(address)
        raise StoreError(f"{where}: {what}", reason=reason) from error


def _explanation(address: StoreAddress, error: Exception) -> tuple[str, str]:
    """An advice on what to do, and one of StoreError's reasons."""
    text, kind = str(error), type(error).__name__
    code = found[1] if (found := CODE.search(text)) else ""
    status = int(found[1]) if (found := STATUS.search(text)) else 0
    keys = CREDENTIALS.get(address.scheme, "")
    if code in EXPIRED:
        return f"the credentials have expired ({code}): renew them, and start again", "denied"
    if code in WRONG_REGION or "incorrectly configured region" in text:
        region = next((part for part in found.groups() if part), "") if (found := REGION.search(text)) else ""
        return f"lies in another region: set AWS_REGION{f'={region}' if region else ''}", "other"
    if any(host in text for host in OF_MACHINES) or any(word in text for word in MISSING):
        return f"there are no credentials: set {keys}", "denied"
    if status in (401, 403) or kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return _denied(code, status, keys), "denied"
    if code == "NoSuchBucket":
        return f"there is no such bucket: check its name, {PLACES.get(address.scheme, '')}", "other"
    if isinstance(error, FileNotFoundError) or status == 404:
        return "is not there", "missing"
    if kind == "PreconditionError":
        return "was replaced while it was read: start again", "changed"
    return _failed(address, text, code, status)


def _denied(code: str, status: int, keys: str) -> str:
    if code in WRONG_KEYS:
        return f"the credentials are wrong ({code}): set {keys}"
    if code == "RequestTimeTooSkewed":
        return "the clock of this machine is wrong: set it"
    more = f": the credentials need the right to read it; they come from {keys}" if keys else ""
    return f"access is denied ({code or status}){more}"


def _failed(address: StoreAddress, text: str, code: str, status: int) -> tuple[str, str]:
    if "BadScheme" in text:
        return "the endpoint is not encrypted: use https, or set FIRELANE_ALLOW_HTTP=1", "other"
    if any(word in text for word in NO_RANGES):
        return (
            "the server gives no parts of files (Range): take another server, or download the model",
            "other",
        )
    if (found := CERTIFICATE.search(text)) is not None:
        return f"its certificate is not trusted ({found[1]}): name its CA by SSL_CERT_FILE", "other"
    if status == 429 or status >= 500:
        return f"the store fails ({code or status}), tried several times: try again later", "unreachable"
    if "timed out" in text.lower() or "timedout" in text.lower():
        return "the store does not answer in time: try again later", "unreachable"
    if "body error" in text:
        return "the connection breaks off, each time: check the network, and start again", "unreachable"
    if status:
        return f"the store refuses ({code or status}): is the address right?", "other"
    first = text.partition("\n")[0].rpartition(" - ")[2][:200]
    where = PLACES.get(address.scheme, "the address")
    return f"the store cannot be reached ({first}): check {where}, and the network", "unreachable"
