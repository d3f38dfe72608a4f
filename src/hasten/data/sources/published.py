"""The three published data sets of KGAT, as files of one commit of its repository.

Each file is verified by its SHA-256; five large ones by their Git blob hash instead.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

#: prefix of a Git blob hash in place of a SHA-256
GIT = "git:"
_COMMIT = "c03737be46ac26a0b5431efe149828e982ffbbfb"
_BASE = f"https://raw.githubusercontent.com/xiangwang1223/knowledge_graph_attention_network/{_COMMIT}/Data"
_LICENCE = "MIT (of the repository it is fetched from); the terms of the data's owners apply"


@dataclass(frozen=True)
class RemoteFolder:
    """A folder whose files are fetched one by one. url: its address; files: name -> digest.

    bytes: no file is larger.
    """

    name: str
    summary: str
    url: str
    files: dict[str, str]
    bytes: int = 1 << 28
    licence: str = _LICENCE
    kind: Literal["facts"] = "facts"
    names_encoding: str = "utf-8"

    @property
    def sha256(self) -> str:
        """The SHA-256 of the list of files and digests: the key in the cache."""
        listed = "\n".join(f"{name} {digest}" for name, digest in sorted(self.files.items()))
        return hashlib.sha256(listed.encode()).hexdigest()


def git_name(path: Path) -> str:
    """``git:`` and the Git blob hash of a file."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return GIT + digest.hexdigest()


PUBLISHED = (
    RemoteFolder(
        "amazon-book",
        "KGAT's Amazon-book: 70,679 users, 24,915 books, 847,733 events, 2,557,746 facts",
        f"{_BASE}/amazon-book",
        {
            "train.txt": "4d10106bb06a77e11df660429903c0067aeb85b86431807836b0d8b7edc30c38",
            "test.txt": "f47eff9d35fb95c07d74251a991478a84095ce6c5969b0dafcb4afe99fc716ec",
            "kg_final.txt.zip": f"{GIT}7eedb0ed50a9bae8a89ef2193b3a9fb1bf9ed03e",
            "user_list.txt": "ae2e001d4e49fd82d4c7e25f950827a8be2fbd5c6f3a16dacb2d104edb32310e",
            "item_list.txt": "efea8518cd68e515584fdfbfca95f318b25ef551c64498c5935897c2b02e436f",
            "entity_list.txt": "b03e9cb7eeab38756f0b10c06478a611201a7d42cb16acb8513624dda05270ca",
            "relation_list.txt": "50fe9c6560224b20d8ace78ae8ca0b8dad39248f6dc900f6744b633ba8c33f4b",
        },
    ),
    RemoteFolder(
        "last-fm",
        "KGAT's Last-FM: 23,566 users, 48,123 tracks, 3,034,796 events, 464,567 facts",
        f"{_BASE}/last-fm",
        {
            "train.txt": f"{GIT}905779bf273225caa33049cef2b6cf9b923bd139",
            "test.txt": "bb79750f3a034e5ce5bc4aa8541cdc9d456ea51158f0059f84167942bd9837b2",
            "kg_final.txt": f"{GIT}42d2726e067d743bf73891a7ff8caddb5c1adf84",
            "user_list.txt": "3ccf277897bbc1cdc7ca6689f76045397462a8dc69615a7e47ed10f88e180f0d",
            "item_list.txt": "0e4991b5b8a292e82dc5fe3ca34bd04dc90bdeee63e0b99d71b4b8d93c129e80",
            "entity_list.txt": "56741c54984c929682ffb89f5e255ebdbf862fa031157220474139824d4f9ba7",
            "relation_list.txt": "069643eab7dea9e21b02e8c7b8df4af91fb70f0628a5a36cb3091cfcb87d8e7d",
        },
    ),
    RemoteFolder(
        "yelp2018",
        "KGAT's Yelp2018: 45,919 users, 45,538 places, 1,185,068 events, 1,853,704 facts",
        f"{_BASE}/yelp2018",
        {
            "train.txt": f"{GIT}c834b6e61cbb6a716b039367f3ddd711ca3a2483",
            "test.txt": "ad1034bf609176893abcce4b7b9266d9f02fcc05e13966aa078b432df02a78f0",
            "kg_final.txt.zip": f"{GIT}9a11bad2806d43f613787f000d8d826f3bc91767",
            "user_list.txt": "49b8f178a6a6ee71d0d0b06242628afe9289d27734d44fa31f6d07aa4611b7be",
            "item_list.txt": "1ba988c00ea8d97945a5fb0f6cbb3867e55f327e2c341bcfe55c5a5584b06a9d",
            "entity_list.txt": "bb6390ee1568eed802d5113a6b4b38e76402bce88519186d2a99402955571801",
            "relation_list.txt": "f5b19de6fc169ec6f4ac9943cce7614d1427b32130a6063f990721b45e636abc",
        },
    ),
)
