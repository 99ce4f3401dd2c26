"""The paper's numbers, typed once, each with its place in the paper; shown next to ours, and never
copied as ours.
"""

from __future__ import annotations

PAPER = (
    "Quan, Wu and Montana, Exact Federated Continual Unlearning for Ridge Heads on Frozen "
    "Foundation Models"
)

# Whose place our datasets take. The paper's features are of other backbones, and so are its
# accuracies.
DATASETS = {
    "cifar10": "CIFAR-10",
    "cifar10_raw": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "digits_by_writer": "FeMNIST",
    "femnist": "FeMNIST",
    "tweets_by_user": "Sentiment140",
    "sentiment140": "Sentiment140",
}
BACKBONES = {
    "CIFAR-10": "DINOv2 ViT-B/14 (768)",
    "CIFAR-100": "DINOv2 ViT-B/14 (768)",
    "FeMNIST": "DINOv2 ViT-B/14 (768)",
    "Sentiment140": "Twitter-RoBERTa (768)",
}
MACHINE = "a server with 4 NVIDIA RTX A6000 GPUs, on Flower's simulation"

ACCURACY_TABLE = 'The table "Server model test accuracy"'
ACCURACY = {
    "CIFAR-10": {
        "central": 0.9802,
        "fedavg": 0.9740,
        "fats": 0.9634,
        "exactfun": 0.9664,
        "a": 0.9801,
        "b": 0.9802,
    },
    "CIFAR-100": {
        "central": 0.8640,
        "fedavg": 0.8570,
        "fats": 0.8623,
        "exactfun": 0.8471,
        "a": 0.8640,
        "b": 0.8640,
    },
    "FeMNIST": {
        "central": 0.8084,
        "fedavg": 0.7624,
        "fats": 0.7217,
        "exactfun": 0.7562,
        "a": 0.8080,
        "b": 0.8080,
    },
    "Sentiment140": {
        "central": 0.8291,
        "fedavg": 0.8261,
        "fats": 0.8264,
        "exactfun": 0.8190,
        "a": 0.8291,
        "b": 0.8291,
    },
}

INVARIANCE_TABLE = 'The table "Relative Frobenius deviation on FeMNIST"'
INVARIANCE = {  # by arithmetic, variant and number of clients
    ("float32", "a"): {10: 5.55e-3, 50: 5.52e-3, 100: 5.05e-3},
    ("float32", "b"): {10: 1.27e-4, 50: 1.26e-4, 100: 1.21e-4},
    ("float64", "a"): {10: 1.47e-9, 50: 1.42e-9, 100: 1.42e-9},
    ("float64", "b"): {10: 6.18e-10, 50: 1.37e-9, 100: 1.42e-9},
}

STREAM_TABLE = 'The table "Relative Frobenius deviation after 100 and 200 single-point deletions"'
STREAM = {  # CIFAR-10, fp64: by variant, kind and number of steps
    "a": {"delete": {100: 2.72e-11, 200: 3.18e-11}, "add_back": {100: 3.14e-11, 200: 3.81e-11}},
    "b": {"delete": {100: 3.00e-11, 200: 3.66e-11}, "add_back": {100: 2.82e-11, 200: 5.10e-12}},
}

CHUNKS_SECTION = 'The section "Large-Chunk Data Deletions"'
CHUNK_SECONDS = 45.0  # of one deletion of 20 % with Variant A, "roughly"
CHUNK_CLIENT_SECONDS = 6.04  # of these, at the clients, "about"

COSTS_TABLE = 'The table "Per-round cost summary"'
COSTS = {  # by variant: what a client sends, and what the server computes
    "a": ("Θ(d² + dc)", "O(d³ + d²c)"),
    "b": ("Θ(dr + dc)", "O(rd² + r³)"),
}
COSTS_EXPONENTS = {  # of d and of r, in bytes and in server time
    "a": {"bytes": {"d": 2, "r": 0}, "server": {"d": 3, "r": 0}},
    "b": {"bytes": {"d": 1, "r": 1}, "server": {"d": 2, "r": 1}},
}

SETTINGS_TABLE = 'The table "The hyperparameter setting for baselines"'
ROUNDS = {  # rounds, clients per round, samples per client and round (None: all)
    ("fedavg", "CIFAR-10"): (120, 20, None),
    ("fedavg", "CIFAR-100"): (120, 20, None),
    ("fedavg", "FeMNIST"): (120, 20, None),
    ("fedavg", "Sentiment140"): (100, 20, None),
    ("exactfun", "CIFAR-10"): (120, 20, None),
    ("exactfun", "CIFAR-100"): (120, 20, None),
    ("exactfun", "FeMNIST"): (120, 20, None),
    ("exactfun", "Sentiment140"): (100, 20, None),
    ("fats", "CIFAR-10"): (60, 5, 64),
    ("fats", "CIFAR-100"): (60, 5, 64),
    ("fats", "FeMNIST"): (120, 5, 50),
    ("fats", "Sentiment140"): (100, 5, 300),
}
CLIENTS = 100
DIRICHLET = 0.5
QUANTUM = 0.08  # Exact-Fun's step; the paper found 0.06 oversensitive
QUANTUM_TOO_FINE = 0.06

_VARIANTS = {
    "a_exact": "a",
    "a_float64": "a",
    "b_exact": "b",
    "b_float64": "b",
}  # the paper's are in fp64


def accuracy(dataset: str, system: str) -> float | None:
    """The paper's accuracy of a system on the dataset whose place ours takes; None where the paper
    has none.
    """
    row = ACCURACY.get(DATASETS.get(dataset, ""), {})
    return row.get(_VARIANTS.get(system, system))


def invariance(arithmetic: str, variant: str, clients: int) -> float | None:
    """The paper's deviation on FeMNIST; None where the paper has none."""
    return INVARIANCE.get((arithmetic, variant), {}).get(clients)
