"""s3://BUCKET/PREFIX, as users write it."""

import re
from typing import Any, NamedTuple

from ckptd import errors

_SCHEME = "s3://"


class BucketUrl(NamedTuple):
    bucket: str
    prefix: str  # Without a slash at either end. Empty: the bucket itself.

    def __str__(self) -> str:
        return f"{_SCHEME}{self.bucket}{'/' if self.prefix else ''}{self.prefix}"


def is_bucket_url(path: Any) -> bool:
    """Returns whether it is text that begins as the URL of a bucket."""
    return isinstance(path, str) and path.startswith(_SCHEME)


def parse_bucket_url(text: str) -> BucketUrl:
    """Returns the parts of a URL. errors.Refused says what is wrong with it."""
    bucket, slash, prefix = text[len(_SCHEME) :].partition("/")
    if not re.fullmatch(r"[a-z0-9._-]{3,63}", bucket):
        raise errors.invalid(
            f'"{bucket}" in {text} is no name of a bucket: 3 to 63 lower-case letters, digits, \'-\' and \'.\' (s3://BUCKET/PREFIX)'
        )
    if "//" in slash + prefix:
        raise errors.invalid(f"{text} has an empty name between two slashes")
    if any(name in (".", "..") for name in prefix.split("/")):
        raise errors.invalid(f'{text} has a name that is "." or ".."')
    return BucketUrl(bucket, prefix[:-1] if prefix.endswith("/") else prefix)
