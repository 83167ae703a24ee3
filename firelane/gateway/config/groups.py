"""Groups that the help of commands tells the options of a gateway in."""

from __future__ import annotations

from firelane.options import Group

SERVER = Group("server", "server")
ANSWERS = Group("answers", "answers of the model")
TENANTS = Group("tenants", "tenants")
LIMITS = Group("limits", "limits")
FILES = Group("files", "files and batches")
REPLICAS = Group("replicas", "replicas and recovery")
