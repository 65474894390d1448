"""The checkpoints in a bucket, in the layout of storage/bucket/transfer.h. Nothing here imports botocore before a URL is used."""
