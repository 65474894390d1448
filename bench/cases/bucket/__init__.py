"""What a bucket costs."""
