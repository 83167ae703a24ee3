"""Hosts of one group of CPU ranks, joined by TCP: `attach` finds and compares them, `wires` connects their
ranks, `steps` is a step on its way. `others` is what one host sees of them: `remote` on the engine's
host, `head_host` on another one."""
