"""Scheduling policies: whose work comes first. `fcfs` is the plain one, `fair` shares between tenants."""
