class RawRequestInfo:
    headers: dict[str, str]
