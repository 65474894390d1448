"""Reading committed files: manifests, verified reads from memory, disk or gRPC, and the reports to the
daemon.
"""
