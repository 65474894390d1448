"""A client of S3 by botocore, with the settings that the C++ programs have (storage/object/aws_settings.h)."""

import os
from typing import Any, Dict

from ckptd import errors
from ckptd._version import __version__

CONNECTIONS = 8
_CONNECT_SECONDS = 5.0
_STALL_SECONDS = 20.0  # Without a byte, a connection counts as lost.


def make_client(bucket: str) -> Any:
    """Returns botocore's client of S3, which tries each request once. Asks no server but for credentials.

    Raises:
        ImportError: botocore is not installed, or too old.
        errors.Refused: a setting cannot be used.
    """
    try:
        import botocore.exceptions
        import botocore.session
        from botocore.config import Config
    except ImportError as error:
        raise ImportError(_how_to_install(bucket, str(error))) from error
    try:
        config = Config(
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_STALL_SECONDS,
            max_pool_connections=CONNECTIONS,
            retries={"total_max_attempts": 1},  # Store repeats requests.
            signature_version="s3v4",
            # The manifest has the checksums: those of the server are of whole objects, and ranges are read.
            response_checksum_validation="when_required",
            user_agent_extra=f"ckptd/{__version__}",
        )
    except TypeError as error:
        raise ImportError(_how_to_install(bucket, f"botocore {botocore.__version__} is too old: {error}")) from error
    try:
        session = botocore.session.Session(session_vars=_session_variables())
        profile = session.get_scoped_config()
        endpoint = (_first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL") or profile.get("endpoint_url", "")).rstrip("/")
        ca_file = _first("AWS_CA_BUNDLE") or profile.get("ca_bundle")
        if ca_file and not os.path.exists(ca_file):
            raise errors.invalid(f"there is no {ca_file}, which AWS_CA_BUNDLE or ca_bundle of the profile names")
        return session.create_client(
            "s3",
            region_name=_first("AWS_REGION", "AWS_DEFAULT_REGION") or profile.get("region") or "us-east-1",
            endpoint_url=_checked(endpoint) or None,
            config=config.merge(Config(s3={"addressing_style": _addressing_style(endpoint)})),
        )
    except (botocore.exceptions.BotoCoreError, ValueError) as error:
        raise errors.invalid(f"s3://{bucket} cannot be read with these settings: {error}") from error


def _session_variables() -> Dict[str, Any]:
    """AWS_PROFILE comes before AWS_DEFAULT_PROFILE, other than in botocore, and one that is empty is not set."""
    names = [name for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE") if os.environ.get(name)]
    return {"profile": (None, names, None, None)}


def _first(*names: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _checked(endpoint: str) -> str:
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise errors.invalid(
            f'the endpoint of S3 is "{endpoint}", and must begin with http:// or https:// (AWS_ENDPOINT_URL_S3)'
        )
    return endpoint


def _addressing_style(endpoint: str) -> str:
    style = _first("CKPTD_S3_ADDRESSING_STYLE")
    if style not in ("", "path", "virtual"):
        raise errors.invalid(f'CKPTD_S3_ADDRESSING_STYLE is "{style}", and must be path or virtual')
    return style or ("path" if endpoint else "virtual")


def _how_to_install(bucket: str, why: str) -> str:
    return f"s3://{bucket} is read with botocore, which cannot be used here ({why}): pip install 'ckptd[s3]', or 'botocore>=1.36'"
