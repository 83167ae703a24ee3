"""C++ compiled for this machine when first needed: compiler, CPU, cache of shared libraries."""
