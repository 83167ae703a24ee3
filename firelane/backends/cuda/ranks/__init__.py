"""Ranks on GPUs of one machine, a process each. `group` loads the executor in front, `worker` runs the other
ranks; how their GPUs reach each other is in backends.cuda.peers."""
