"""Which ranks one daemon serves, and why ranks cannot save together, of the places that they tell each other."""

from __future__ import annotations

from typing import Any, Dict

from ckptd._adapters.places import Known, Place, nodes_of, place_of_text, why_not


def place(host: str, daemon: str = "", **changes: Any) -> Place:
    endpoint = "unix:/run/ckptd/ckptd.sock" if daemon else ""
    made = Place(host, f"boot of {host}", endpoint, daemon, "" if daemon else "/tmp/ckptd-0", "1:2", "", ())
    return made._replace(**changes)


def test_place_comes_back_from_its_text() -> None:
    made = place("a", "1", listed=(0, 2))
    assert place_of_text(made.to_text()) == made


def test_ranks_of_one_daemon_are_one_node_whatever_their_container_is_called() -> None:
    places = {0: place("a", "1"), 1: place("b", "2"), 2: place("pod", "1", machine="boot of a"), 3: place("b", "2")}
    assert nodes_of(places) == [[0, 2], [1, 3]] and why_not(places) is None


def test_ranks_that_have_connected_before_and_after_a_restart_of_their_daemon_are_one_node() -> None:
    assert nodes_of({0: place("a", "1"), 1: place("b", "2"), 2: place("a", "3")}) == [[0, 2], [1]]


def test_nodes_without_a_service_are_refused_with_their_ranks() -> None:
    refusal = why_not({0: place("a", "1"), 1: place("b"), 2: place("b")})
    assert refusal is not None and refusal.reason == "MULTI_NODE_UNSUPPORTED" and refusal.ranks == (1, 2)
    assert "ranks 1, 2 on b: no service, and no $CKPTD_ENDPOINT" in str(refusal)
    both = why_not({0: place("a"), 1: place("b")})  # Each would start a private daemon.
    assert both is not None and both.ranks == (0, 1)


def test_ranks_of_one_machine_share_a_private_daemon_or_are_refused() -> None:
    assert why_not({0: place("a"), 1: place("a")}) is None
    refusal = why_not({0: place("a"), 1: place("a", private="/home/ckptd-0", folder="1:3")})
    assert refusal is not None and refusal.reason == "INVALID_ARGUMENT" and "set the same TMPDIR" in str(refusal)
    # The same name in another container.
    assert why_not({0: place("a"), 1: place("a", folder="9:9")}) is not None


def known(rank: int, world_size: int, places: Dict[int, Place]) -> Known:
    made = Known(rank, world_size)
    made.add(places)
    return made


def test_places_of_all_ranks_count_more_than_the_launcher() -> None:
    places = {0: place("a", "1", listed=(0, 1)), 1: place("b", "2", listed=(0, 1)), 2: place("a", "1", listed=(2,))}
    assert known(0, 3, places).local_ranks() == [0, 2]


def test_launcher_counts_where_only_some_ranks_are_known_and_it_fits_them() -> None:
    places = {1: place("a", "1", listed=(0, 1)), 2: place("b", "2", listed=(2, 3))}
    assert known(1, 4, places).local_ranks() is None
    assert known(2, 4, {**places, 2: place("b", "2", listed=(1, 2))}).local_ranks() == [2]
    assert known(1, 4, {1: place("a", "1"), 2: place("b", "2")}).local_ranks() == [1]
    assert known(1, 4, {1: place("a", "1"), 2: place("a", "1")}).local_ranks() is None  # All of them, as far as is known.
