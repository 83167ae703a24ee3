"""Firelane servers under Ray, which places them and routes to them; no engine knows of it.

`engine` is a server as Ray Serve LLM sees an engine, `relay` asks it, `server_process` owns it, `child` is
how it starts; `deployment` is the class that users name. `ranks` starts the hosts of one group of ranks as
actors.
"""
