"""The file that says where a process listens is written for nobody else to bend."""

from __future__ import annotations

from pathlib import Path

from snapline.runtime.address_file import write_address


def test_a_link_in_its_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    """Whoever may write to the directory cannot have another file overwritten."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    target = tmp_path / "address"
    target.symlink_to(precious)

    write_address(target, "127.0.0.1:6123")

    assert precious.read_text() == "kept"
    assert not target.is_symlink() and target.read_text() == "127.0.0.1:6123\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["address", "precious"]
