"""An approximate ledger is a type of its own: nothing that makes or checks bit-exact evidence can
take it, or knows of it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import expunge
from expunge import Head, Spec, Statistics
from expunge.approximate import (
    ApproximateHead,
    ApproximateLedger,
    ApproximateMessage,
    Batch,
    compress,
)
from expunge.evidence.certificate import Certificate, certificate_content
from expunge.export import to_safetensors
from expunge.server.rules import Account
from expunge.solvers.base import ExactSolver
from support.sources import nodes_of

SPEC = Spec(dim=3, labels=(0, 1))
EXACT_ONLY = (
    "digest",
    "integers",
    "error_bound",
    "certificate",
    "statistics",
    "settled",
    "diagnostics",
)


def ledger() -> ApproximateLedger:
    made = ApproximateLedger(SPEC)
    rng = np.random.default_rng(0)
    made.add(
        compress(Batch.of(SPEC, rng.normal(size=(5, 3)), rng.integers(2, size=5)), "truncated", 2)
    )
    return made


def test_no_approximate_type_is_an_exact_one() -> None:
    for approximate in (ApproximateLedger, ApproximateHead, ApproximateMessage):
        assert not issubclass(approximate, (Head, Statistics, Account, ExactSolver))


def test_they_have_nothing_that_evidence_is_made_of() -> None:
    for thing in (ledger(), ledger().head()):
        assert [name for name in EXACT_ONLY if hasattr(thing, name)] == []
        assert [name for name in dir(thing) if "digest" in name or "certif" in name] == []


def test_nothing_of_the_kind_can_be_attached() -> None:
    for thing in (ledger(), ledger().head()):
        for name in EXACT_ONLY:
            with pytest.raises((AttributeError, TypeError)):
                setattr(thing, name, "0" * 64)


@pytest.mark.parametrize("base", [ApproximateLedger, ApproximateHead])
def test_a_subclass_that_could_carry_it_cannot_be_made(base: type) -> None:
    assert getattr(base, "__final__", False)  # what type checkers see
    with pytest.raises(TypeError, match="subclasses"):
        type("Certified", (base,), {"digest": "0" * 64})


def test_certificates_and_exports_take_exact_heads_only() -> None:
    assert Certificate.verify_head.__annotations__["head"] == "Head"
    # A digest, which an approximate head has none of.
    assert certificate_content.__annotations__["head"] == "str"
    certificate = object.__new__(Certificate)
    object.__setattr__(certificate, "head", "0" * 64)
    with pytest.raises(AttributeError, match="digest"):
        certificate.verify_head(ledger().head())  # type: ignore[arg-type]
    with pytest.raises((AttributeError, TypeError)):
        to_safetensors(ledger().head())  # type: ignore[arg-type]


def test_no_layer_of_the_exact_protocol_imports_approximations() -> None:
    source = Path(expunge.__file__).parent
    importing = set()
    for file, node in nodes_of(source, "expunge.approximate"):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if any(name.startswith("expunge.approximate") for name in names):
            importing.add(file.parts[0])
    assert "approximate" in importing
    assert importing <= {"approximate", "cli"}
