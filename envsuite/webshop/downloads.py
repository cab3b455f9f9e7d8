"""The official products and goals of WebShop, and where copies of them are."""

from __future__ import annotations

from envsuite.data.catalog import DataSet, RemoteFile

_COPIES = (
    "https://huggingface.co/datasets/YWZBrandon/webshop-data/resolve/ce990fff5aee388db2706f07820c578ab68e0453/",
    "https://huggingface.co/datasets/HongbangYuan/webshop/resolve/0129d4a81dbdb827e76afd20a1e2c38b61098613/",
)
_LICENSE = "MIT (princeton-nlp/WebShop); product texts are from Amazon"


def _file(name: str, drive: str, size: int, sha256: str) -> RemoteFile:
    # The authors' own copies are on Google Drive, which refuses large or popular files: they come last.
    authors = f"https://drive.usercontent.google.com/download?id={drive}&export=download&confirm=t"
    return RemoteFile(name, (*(place + name for place in _COPIES), authors), size, sha256, at_most=size)


_HUMAN = _file(
    "items_human_ins.json",
    "14Kb5SPBk_jfdLZ_CDBNitW98QLDlKR5O",
    5_137_548,
    "cf78667548a71786e1d9049c24b802e48e1084ad4bb021cae56ce1f6d96954a3",
)
DATA_SETS = (
    DataSet(
        name="webshop",
        folder="webshop",
        version="1,000 products",
        purpose="WebShop-v0 with source='official-1k': the small shop, of most published training runs",
        license=_LICENSE,
        files=(
            _file(
                "items_shuffle_1000.json",
                "1EgHdxQ_YxqIQlvvq5iKlCrkEKR6-j0Ib",
                4_467_013,
                "30a4765c3a327af72d9a9a95a6b2486d516f0fa1d3ecd83681901ce82a21b269",
            ),
            _file(
                "items_ins_v2_1000.json",
                "1IduG0xl544V_A_jv3tHXC0kyFi7PnyBu",
                147_099,
                "f88a36314a397b53b3d9c3fa5878e5f7b26d35019a51ec83fbedeca61a948f6f",
            ),
            _HUMAN,
        ),
    ),
    DataSet(
        name="webshop-full",
        folder="webshop",
        version="1.18 million products",
        purpose="WebShop-v0 with source='official-full': the whole shop of the paper",
        license=_LICENSE,
        files=(
            _file(
                "items_shuffle.json",
                "1A2whVgOO0euk5O13n2iYDM0bQRkkRduB",
                5_479_720_229,
                "2ef591d65df3af89e972ab72468eb82cbf124d876552d9f3678667edd620a6c8",
            ),
            _file(
                "items_ins_v2.json",
                "1s2j6NgHljiZzQNL3veZaAiyW_qDEgBNi",
                186_295_270,
                "1d36af476bdb8f82a5da62bd8acdabe54cd8de2fa84010d37da5c4890feb447e",
            ),
            _HUMAN,
        ),
    ),
)
