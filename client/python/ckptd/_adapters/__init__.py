"""What the adapters of other libraries need and users do not import."""
