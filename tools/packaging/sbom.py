#!/usr/bin/python3
"""Writes the bill of materials of the programs: an SPDX 2.3 document in JSON with what is linked into them.

Each library is one of Debian's packages, with its version and the text of its copyright file: a summary of such a
file in SPDX's short names would be a guess.
"""

import argparse
import json
import pathlib
import re
import sys
from typing import NamedTuple

# Of everything in a wheel. A package with a date of its own puts that in its place.
CREATED = "1980-01-01T00:00:00Z"


class Library(NamedTuple):
    name: str
    version: str
    source: str  # Debian's source package.
    source_version: str


def linked(listing: pathlib.Path) -> list[Library]:
    return [Library(*line.split()) for line in listing.read_text().splitlines()]


def built_from_source(changelog: pathlib.Path) -> Library:
    """A library built from a source package, of which only .../PACKAGE/debian/changelog is at hand."""
    first = changelog.open().readline()
    match = re.match(r"(\S+) \(([^)]+)\)", first)
    if match is None:
        sys.exit(f"sbom.py: {changelog} does not begin with PACKAGE (VERSION): {first!r}")
    return Library(match[1], match[2], match[1], match[2])


def license_of(library: Library, licenses: list[pathlib.Path]) -> str:
    """The text of .../licenses/PACKAGE or .../PACKAGE/debian/copyright."""
    for path in licenses:
        if path.name == library.name or path.parts[-3:] == (library.name, "debian", "copyright"):
            return path.read_text(errors="replace")
    sys.exit(f"sbom.py: no copyright file of {library.name} among {', '.join(map(str, licenses))}")


def document(version: str, libraries: list[Library], licenses: list[pathlib.Path]) -> dict:
    packages = [
        {
            "SPDXID": "SPDXRef-ckptd",
            "name": "ckptd",
            "versionInfo": version,
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "licenseConcluded": "Apache-2.0",
            "licenseDeclared": "Apache-2.0",
            "copyrightText": "NOASSERTION",
        }
    ]
    relationships = [
        {
            "spdxElementId": "SPDXRef-DOCUMENT",
            "relationshipType": "DESCRIBES",
            "relatedSpdxElement": "SPDXRef-ckptd",
        }
    ]
    texts = []
    for library in libraries:
        identifier = library.name.replace("+", "p")  # SPDX's ids have letters, digits, "." and "-" only.
        packages.append(
            {
                "SPDXID": f"SPDXRef-{identifier}",
                "name": library.name,
                "versionInfo": library.version,
                "supplier": "Organization: Debian",
                "downloadLocation": "NOASSERTION",
                "filesAnalyzed": False,
                "licenseConcluded": "NOASSERTION",
                "licenseDeclared": f"LicenseRef-{identifier}",
                "copyrightText": "NOASSERTION",
                "externalRefs": [
                    {
                        "referenceCategory": "PACKAGE-MANAGER",
                        "referenceType": "purl",
                        "referenceLocator": f"pkg:deb/debian/{library.source.replace('+', '%2B')}"
                        f"@{library.source_version.replace('+', '%2B').replace(':', '%3A')}?arch=source",
                    }
                ],
            }
        )
        relationships.append(
            {
                "spdxElementId": "SPDXRef-ckptd",
                "relationshipType": "STATIC_LINK",
                "relatedSpdxElement": f"SPDXRef-{identifier}",
            }
        )
        texts.append(
            {
                "licenseId": f"LicenseRef-{identifier}",
                "name": f"Debian's copyright file of {library.name} {library.version}",
                "extractedText": license_of(library, licenses),
            }
        )
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"ckptd-{version}",
        "documentNamespace": f"urn:ckptd:sbom:{version}",
        "creationInfo": {"created": CREATED, "creators": ["Tool: ckptd-sbom"]},
        "packages": packages,
        "relationships": relationships,
        "hasExtractedLicensingInfos": texts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    path = pathlib.Path
    parser.add_argument("--out", type=path, required=True)
    parser.add_argument("--version-file", type=path, required=True)
    parser.add_argument("--linked", type=path, required=True, help="a line for each of Debian's binary packages")
    parser.add_argument("--changelogs", type=path, nargs="+", required=True, help="of Debian's source packages")
    parser.add_argument("--licenses", type=path, nargs="+", required=True)
    args = parser.parse_args()

    libraries = sorted(linked(args.linked) + [built_from_source(changelog) for changelog in args.changelogs])
    text = json.dumps(document(args.version_file.read_text().strip(), libraries, args.licenses), indent=1)
    args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
