"""Simulations of several engines, in simulated time: policies of the router, prefill and decode apart."""
