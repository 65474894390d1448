"""This process's place in a run: its rank, the attempt, the ordinals of its saves, and the saves that have
not ended.
"""
