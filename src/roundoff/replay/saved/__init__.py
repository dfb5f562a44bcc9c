"""A step on disk: written by the process that trained, run again or exported by another one."""
