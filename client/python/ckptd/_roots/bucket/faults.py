"""What a failed request to S3 means: the error with its reason of docs/protocol.md, and how often to try again."""

import math
from typing import Any, NamedTuple

import botocore.exceptions
import botocore.parsers
import urllib3.exceptions

from ckptd import errors

# What a request, and the reading of its answer, may raise.
RAISED = (
    botocore.exceptions.BotoCoreError,
    botocore.exceptions.ClientError,
    botocore.parsers.ResponseParserError,
    urllib3.exceptions.HTTPError,
    OSError,
)
_PASSING_CODES = ("InternalError", "SlowDown", "ServiceUnavailable", "RequestTimeout", "OperationAborted")
_PASSING_STATUS = (429, 500, 502, 503, 504)
_LOST = (
    botocore.exceptions.ConnectionError,
    botocore.exceptions.HTTPClientError,
    botocore.exceptions.IncompleteReadError,
    botocore.parsers.ResponseParserError,  # An answer that was cut off may be no XML.
    urllib3.exceptions.HTTPError,
    OSError,
)
_OF_CREDENTIALS = (
    botocore.exceptions.NoCredentialsError,
    botocore.exceptions.PartialCredentialsError,
    botocore.exceptions.CredentialRetrievalError,
    botocore.exceptions.NoAuthTokenError,
    botocore.exceptions.SSOError,
    botocore.exceptions.TokenRetrievalError,
)


class Fault(NamedTuple):
    error: errors.CkptdError
    most_tries: float  # How many tries there may be, this one among them, before it is no chance any more.
    retry_after: float  # Seconds, as the server asks for; 0: it does not.


def fault_of(raised: BaseException, what: str) -> Fault:
    """Returns the fault of a request. what: names it.

    raised: one of RAISED.
    """
    if isinstance(raised, botocore.exceptions.ClientError):
        return _fault_of_answer(raised.response, what)
    if isinstance(raised, _OF_CREDENTIALS):
        return _fault("UNAUTHENTICATED", "NO_CREDENTIALS", f"{what}: {raised}")
    if isinstance(raised, botocore.exceptions.SSLError):
        return _fault("FAILED_PRECONDITION", "STORE_REFUSED", f"{what}: {raised} (AWS_CA_BUNDLE)")
    if isinstance(raised, _LOST):
        return _fault("UNAVAILABLE", "", f"{what}: {raised}", math.inf)
    return _fault("FAILED_PRECONDITION", "STORE_REFUSED", f"{what}: {raised}")


def _fault_of_answer(response: Any, what: str) -> Fault:
    code, said = response.get("Error", {}).get("Code", ""), response.get("Error", {}).get("Message", "")
    answer = response.get("ResponseMetadata", {})
    status, headers = answer.get("HTTPStatusCode", 0), answer.get("HTTPHeaders", {})
    message = f"{what}: {code} {said}"
    if code in _PASSING_CODES or status in _PASSING_STATUS:
        if code.isdigit():  # botocore says so, too, of an answer that is no XML.
            message += "; is the endpoint a server of S3?"
        wait = headers.get("retry-after", "")
        return _fault("UNAVAILABLE", "", message, math.inf, float(wait) if wait.isdigit() else 0.0)
    if code == "NoSuchBucket":
        return _fault("NOT_FOUND", "NO_BUCKET", message)
    if status == 404:
        return _fault("NOT_FOUND", "NO_OBJECT", message)
    if status == 416:
        return _fault("OUT_OF_RANGE", "SHORT_OBJECT", message)
    if status == 301 or code == "AuthorizationHeaderMalformed":
        region = headers.get("x-amz-bucket-region", "")
        there = f"the region {region}" if region else "another region"
        return _fault("FAILED_PRECONDITION", "STORE_REFUSED", f"{message}; the bucket is in {there}: set AWS_REGION")
    if code == "RequestTimeTooSkewed":
        return _fault("PERMISSION_DENIED", "STORE_DENIED", f"{message}; set this machine's clock")
    if code == "ExpiredToken":  # botocore may have others by now.
        return _fault("PERMISSION_DENIED", "STORE_DENIED", f"{message}; renew the credentials", 3)
    if status in (401, 403):
        return _fault("PERMISSION_DENIED", "STORE_DENIED", f"{message}; look at the credentials and their policy")
    return _fault("FAILED_PRECONDITION", "STORE_REFUSED", message)


def _fault(code: str, reason: str, message: str, most_tries: float = 1, retry_after: float = 0.0) -> Fault:
    return Fault(errors.make(code, reason, message), most_tries, retry_after)
