"""Library: every dataset by its name, each loaded once.

Shared features lie in the folder of data as they were handed out. Features of originals lie in its
folder `features`, where `expunge experiment features` puts them; after that, the originals are no
longer needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from expunge.errors import InputError
from expunge_experiments.datasets.dataset import Dataset
from expunge_experiments.datasets.extract import FOLDER
from expunge_experiments.datasets.features import load_features
from expunge_experiments.datasets.originals import ORIGINALS
from expunge_experiments.datasets.places import data_folder, found, missing


@dataclass(frozen=True)
class Shared:
    """A file of features that was handed out, and the original from which a user can make features
    of their own.
    """

    file: str
    source: str
    instead: str


SHARED: Mapping[str, Shared] = {
    "cifar10": Shared(
        "cifar10_efficientnet_lite0.npz",
        (
            "CIFAR-10, all images; features by EfficientNet-Lite0 (ImageNet weights), pooled, at "
            "160 px"
        ),
        "cifar10_raw",
    ),
    "digits_by_writer": Shared(
        "digits_by_writer_efficientnet_lite0.npz",
        (
            "MNIST digits of 100 writers, tested on others; features by EfficientNet-Lite0 "
            "(ImageNet weights), pooled, at 160 px"
        ),
        "femnist",
    ),
    "tweets_by_user": Shared(
        "tweets_by_user_mpnet.npz",
        "18,944 tweets of Sentiment140, split by user; features by all-mpnet-base-v2, mean-pooled",
        "sentiment140",
    ),
}
NAMES = (*SHARED, *ORIGINALS)


class Library:
    """Datasets by name.

    A name of `own` comes before the catalogue's; a path to a file or folder of features is a name,
    too.

    `folder` is the folder of data; without it, EXPUNGE_DATA or the user's data folder. Datasets are
    kept in memory, and their arrays cannot be written to.
    """

    def __init__(self, folder: Path | None = None, own: Mapping[str, Path] | None = None) -> None:
        self.folder = data_folder() if folder is None else folder
        self._own = {name: Path(path) for name, path in (own or {}).items()}
        self._loaded: dict[str, Dataset] = {}

    def names(self) -> tuple[str, ...]:
        """All names, whether their files are there or not."""
        return tuple(dict.fromkeys([*self._own, *NAMES]))

    def load(self, name: str) -> Dataset:
        """A dataset; the same object each time."""
        if name not in self._loaded:
            self._loaded[name] = self._read(name)
        return self._loaded[name]

    def forget(self, name: str) -> None:
        """Free the memory of a dataset; it is read again when it is asked for."""
        self._loaded.pop(name, None)

    def _read(self, name: str) -> Dataset:
        if name in self._own:
            return load_features(self._own[name], name=name)
        if name in SHARED:
            return load_features(self._shared(name), name=name, source=SHARED[name].source)
        if name in ORIGINALS:
            return load_features(self._made(name), name=name)
        path = Path(name)
        if path.exists():
            dataset = load_features(path)
            return (
                dataset if dataset.name in NAMES else replace(dataset, name=name)
            )  # features of an original say whose
        if path.suffix or len(path.parts) > 1:
            raise InputError(
                f"there is no file or folder {name}; a dataset is one of "
                f"{', '.join(self.names())}, or a path"
            )
        raise InputError(
            f"there is no dataset {name!r}; there are {', '.join(self.names())}, or give the path "
            "of a file of your own"
        )

    def _shared(self, name: str) -> Path:
        shared = SHARED[name]
        original = ORIGINALS[shared.instead]
        return found(
            self.folder,
            [shared.file],
            what=f"the file of the dataset {name} ({shared.source})",
            remedy=f"Put the file there; or make features of your own from {original.title}: put "
            f"{original.files} "
            f"into {self.folder}, run expunge experiment features {shared.instead} --backbone "
            "FOLDER, "
            f"and name {shared.instead} as the dataset in the config.",
        )

    def _made(self, name: str) -> Path:
        """The one file of features of an original."""
        pattern = f"{FOLDER}/{name}-*.npz"
        files = sorted(self.folder.glob(pattern))
        if len(files) == 1:
            return files[0]
        original = ORIGINALS[name]
        if not files:
            raise missing(
                self.folder,
                [pattern],
                what=f"features of {original.title}",
                remedy=f"Make them: put {original.files} into {self.folder}, and run expunge "
                f"experiment features {name} "
                "--backbone FOLDER, FOLDER being a Hugging Face model.",
            )
        listed = ", ".join(map(str, files))
        raise InputError(
            f"there are several files of features of {original.title}: {listed}. Give the path of "
            "one as the dataset"
        )
