"""The process of a watched training, and the parent that reports what happened if it dies or hangs.

Nothing is imported here: `supervise` must be available before torch is loaded.
"""
