"""Folder of a plan for a range of sizes.

plan.json              the dims, and for each bucket its sizes, layouts and files; versioned, with digests of all files
files/*                the files of the buckets' plans; equal files, such as weights, are stored once
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from ...ir import Dim, DimLayout, PlanError, SymbolicExtent, Target
from ..plan import Plan, cuts_version
from .plan_document import BucketRecord, DynamicDocument, write_document
from .plan_file import plan_of_files
from .plan_writer import plan_files, write_folder


@frozen
class PlannedBucket:
    """Plan for all sizes up to those of a bucket.

    `scalars` has the input of each dim that a kernel reads, which holds the size minus the least one; `layouts` the
    places of the elements of inputs and outputs, `fixed` the results that are sizes, `counts` the output with the size
    of each computed dim.
    """

    sizes: Mapping[str, int]
    scalars: Mapping[str, str]
    layouts: Mapping[str, tuple[DimLayout, ...]]
    fixed: Mapping[str, SymbolicExtent]
    counts: Mapping[str, str]
    plan: Plan


@frozen
class DynamicRecord:
    """Content of the folder."""

    name: str
    target: Target
    dims: tuple[Dim, ...]
    buckets: tuple[PlannedBucket, ...]


def save_dynamic(record: DynamicRecord, folder: str | os.PathLike[str]) -> None:
    """Write the folder atomically."""
    stored: dict[str, bytes] = {}
    records = []
    for bucket in record.buckets:
        files = {}
        for name, content in plan_files(bucket.plan).items():
            files[name] = f"files/{hashlib.sha256(content).hexdigest()[:32]}"
            stored[files[name]] = content
        sizes, scalars, layouts = dict(bucket.sizes), dict(bucket.scalars), dict(bucket.layouts)
        records.append(BucketRecord(sizes, scalars, layouts, dict(bucket.fixed), files, dict(bucket.counts)))
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in stored.items()}
    document = DynamicDocument(cuts_version(), record.name, record.target, record.dims, tuple(records), digests)
    write_folder(Path(folder), stored | {"plan.json": write_document(document)})


def dynamic_record(root: Path, document: DynamicDocument, files: Mapping[str, bytes]) -> DynamicRecord:
    """Return the content of a folder's checked files."""
    return DynamicRecord(
        document.name,
        document.target,
        document.dims,
        tuple(_bucket(root, record, files) for record in document.buckets),
    )


def _bucket(root: Path, record: BucketRecord, files: Mapping[str, bytes]) -> PlannedBucket:
    missing = [place for place in record.files.values() if place not in files]
    if missing:
        raise PlanError(f"{root}: the plan has no file {missing[0]!r}", hint="write the plan again")
    plan = plan_of_files({name: files[place] for name, place in record.files.items()}, str(root))
    return PlannedBucket(record.sizes, record.scalars, record.layouts, record.fixed, record.counts, plan)
