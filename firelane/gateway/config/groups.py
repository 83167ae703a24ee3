"""Groups that the help of commands tells the options of a gateway in."""

from __future__ import annotations

from firelane.options import Group

SERVER = Group("server", "server", common=True, table="server")
ANSWERS = Group("answers", "answers of the model")
TENANTS = Group("tenants", "tenants", table="server")
LIMITS = Group("limits", "limits", table="server")
FILES = Group("files", "files and batches", table="server")
REPLICAS = Group("replicas", "replicas and recovery")
