"""String stores against a dict, in memory and on disk."""

import random
from pathlib import Path

import pytest

from loopwright.core import store_calls as calls
from loopwright.core.errors import LimitExceeded, Unavailable
from loopwright.core.ids import TenantId
from loopwright.runtime import string_store as module
from loopwright.runtime.string_store import ENTRY_OVERHEAD_BYTES, StringStore

A, B = TenantId("a"), TenantId("b")
MUCH = 1 << 20


@pytest.fixture(params=["memory", "disk"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "memory" else tmp_path / "deep" / "stores.sqlite3"


def size(key: str, value: str) -> int:
    return len(key.encode()) + len(value.encode()) + ENTRY_OVERHEAD_BYTES


def test_random_calls_answer_as_a_dict_does(file: Path | None) -> None:
    chance = random.Random(7)
    store, model = StringStore(file), dict[str, str]()
    keys = ["", "a", "ab", "ü", "a\0b", "a\0c", "ab\U0010ffff", "A"]
    for _ in range(600):
        key, value = chance.choice(keys), chance.choice(["", "x", "ü" * 9, "nul\0l"])
        expected, new = chance.choice([None, "x", model.get(key)]), chance.choice([None, value])
        answers: dict[calls.StoreCall, object] = {
            calls.StoreGet(store="s", key=key): {"value": model.get(key)},
            calls.StoreExists(store="s", key=key): {"exists": key in model},
            calls.StoreKeys(store="s", prefix=key): {"keys": sorted(one for one in model if one.startswith(key))},
        }
        for call, answer in answers.items():
            assert store.answer(call, A, MUCH) == answer
        match chance.randrange(3):
            case 0:
                store.answer(calls.StoreSet(store="s", key=key, value=value), A, MUCH)
                model[key] = value
            case 1:
                deleted = store.answer(calls.StoreDelete(store="s", key=key), A, MUCH)
                assert deleted == {"existed": model.pop(key, None) is not None}
            case _:
                swap = calls.StoreCompareAndSet(store="s", key=key, expected=expected, value=new)
                is_set = model.get(key) == expected
                assert store.answer(swap, A, MUCH) == {"is_set": is_set}
                if is_set and new is None:
                    model.pop(key, None)
                elif is_set and new is not None:
                    model[key] = new
        store.check_integrity()
    store.close()


def test_stores_and_tenants_do_not_see_each_other(file: Path | None) -> None:
    store = StringStore(file)
    store.answer(calls.StoreSet(store="s", key="k", value="v"), A, MUCH)
    assert store.answer(calls.StoreGet(store="s", key="k"), B, MUCH) == {"value": None}
    assert store.answer(calls.StoreKeys(store="t"), A, MUCH) == {"keys": []}
    store.forget(B, "s")
    assert store.num_stores == 1
    store.forget(A, "s")
    assert store.num_stores == 0
    store.check_integrity()
    store.close()


def test_a_store_on_disk_is_there_for_the_next_server_and_for_one_beside(tmp_path: Path) -> None:
    file = tmp_path / "stores.sqlite3"
    first, beside = StringStore(file), StringStore(file)
    first.answer(calls.StoreSet(store="s", key="k", value="v"), A, MUCH)
    swap = calls.StoreCompareAndSet(store="s", key="k", expected="v", value="w")
    assert [one.answer(swap, A, MUCH) for one in (beside, first)] == [{"is_set": True}, {"is_set": False}]
    first.close()
    beside.close()
    later = StringStore(file)
    assert later.answer(calls.StoreGet(store="s", key="k"), A, MUCH) == {"value": "w"}
    later.check_integrity()
    later.close()


def test_a_store_ends_at_its_limit_and_smaller_values_always_go(file: Path | None) -> None:
    store = StringStore(file)
    limit = size("a", "1234") + size("b", "ü")
    store.answer(calls.StoreSet(store="s", key="a", value="1234"), A, limit)
    store.answer(calls.StoreSet(store="s", key="b", value="ü"), A, limit)
    for key, value in (("a", "12345"), ("c", "")):
        with pytest.raises(LimitExceeded, match=f"the store 's' would hold .* the run's limit is {limit}") as caught:
            store.answer(calls.StoreSet(store="s", key=key, value=value), A, limit)
        assert "max_state_bytes = " in caught.value.hint
    swap = calls.StoreCompareAndSet(store="s", key="a", expected="1234", value="12345")
    with pytest.raises(LimitExceeded):
        store.answer(swap, A, limit)
    assert store.answer(calls.StoreGet(store="s", key="a"), A, limit) == {"value": "1234"}
    store.answer(calls.StoreSet(store="s", key="a", value="1"), A, 0)  # over a lower limit, and less than before
    store.check_integrity()
    store.close()


def test_a_tenant_has_a_limit_for_all_its_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TENANT_BYTES", size("k", "v") * 2)
    store = StringStore(None)
    for name in ("s", "t"):
        store.answer(calls.StoreSet(store=name, key="k", value="v"), A, MUCH)
    with pytest.raises(LimitExceeded, match="all stores together"):
        store.answer(calls.StoreSet(store="u", key="k", value="v"), A, MUCH)
    store.answer(calls.StoreSet(store="u", key="k", value="v"), B, MUCH)
    store.close()


def test_too_many_keys_for_one_answer_ask_for_a_longer_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEYS_BYTES", 3)
    store = StringStore(None)
    for key in ("aa", "ab"):
        store.answer(calls.StoreSet(store="s", key=key, value=""), A, MUCH)
    with pytest.raises(LimitExceeded, match="2 keys have 4 bytes"):
        store.answer(calls.StoreKeys(store="s", prefix="a"), A, MUCH)
    assert store.answer(calls.StoreKeys(store="s", prefix="ab"), A, MUCH) == {"keys": ["ab"]}
    store.close()


def test_a_place_that_cannot_be_used_is_one_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a database, though of some length" * 40)
    for file in (tmp_path / "file" / "s.sqlite3", tmp_path / "file"):
        with pytest.raises(Unavailable, match="file"):
            StringStore(file).answer(calls.StoreGet(store="s", key="k"), A, MUCH)
