"""Rules for the process: crashes, hangs, exceptions, memory and steps that do not repeat."""
