"""Records what clients on several nodes did to a run while processes and links failed, and decides whether a run that does one thing
after another could have answered the same.
"""
